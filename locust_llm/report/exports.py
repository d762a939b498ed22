"""Export: a summary in AIPerf's JSON and CSV (0.13, schema 1.4), so that its readers take ours."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import msgspec

from locust_llm.records.run import Run
from locust_llm.report.blocks import format_interval, format_observed
from locust_llm.report.rows import Row, SloResult, SweepSummary
from locust_llm.report.summary import Summary
from locust_llm.settings.settings import Settings
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS
from locust_llm.slo.metrics import EXPORTED, PER_USER
from locust_llm.slo.rules import PASSES
from locust_llm.text.format import clean_line

SCHEMA: Final = "1.4"
UNITS: Final = {
    "requests/s": "requests/sec",
    "tokens/s": "tokens/sec",
    "tokens/s/gpu": "tokens/sec/gpu",
}
AIPERF_ENDPOINT_TYPES: Final = (
    "chat",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "cohere_rankings",
)
"""AIPerf's names of the protocols."""
STATS: Final = ("avg", "min", "max", "sum", *(f"p{p:g}" for p in EXPORTED), "std")
"""AIPerf's columns of the CSV, in its order."""
COLUMNS_BEFORE: Final = (
    "number", "users", "duration_s", "requests", "succeeded", "failure_rate", "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s", "in_flight",
)  # fmt: skip
COLUMNS_AFTER: Final = (
    "delivered", "attainment", "goodput_per_s", "goodput_low", "goodput_high", "slo_status",
    "client", "residual", "why",
    "completed",
)  # fmt: skip
"""The columns of a stage before and after its latencies."""
SWEEP_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)

Block = dict[str, float | int | str]


def export_summary_json(summary: Summary, run: Run) -> bytes:
    """profile_export_aiperf.json; AIPerf's model of it is JsonExportData. What is not finite is
    left out, as AIPerf does: an ``adj_`` percentile that is missing is a failure."""
    blocks = {
        row.tag: _block(row)
        for row in (
            *summary.rows,
            *summary.reading,
            *_totals(summary),
            *_per_gpu(summary, run),
            *summary.adjusted,
        )
    }
    whole: dict[str, Any] = {
        "schema_version": SCHEMA,
        "benchmark_id": run.name,
        **blocks,
        "input_config": _input_config(run.settings, summary),
        "was_cancelled": run.stopping_at is None,
        "is_complete": run.stopping_at is not None and not run.records_lost,
        "error_summary": [
            {
                "error_details": {"code": f.status, "type": f.outcome, "message": f.message},
                "count": f.count,
            }
            for f in summary.failures
        ],
        "start_time": _iso(run.started_at),
        "end_time": _iso(run.ended_at),
        "warmup_metrics": {row.tag: _block(row) for row in summary.warmup} or None,
        "locust_llm": {
            **({"imported": run.imported} if run.imported else {}),
            "conditions": summary.conditions,
            "counts": summary.counts,
            "speculation": summary.speculation or None,
            "sessions": summary.sections.get("sessions"),
            "prefix_cache": summary.prefix_cache,
            "gate": summary.gate,
            "delivery": summary.delivery,
            "breakdowns": summary.breakdowns,
            "cancelled": summary.cancelled,
            "slos": summary.slos,
            "slo_status": summary.slo_status,
            "sweep": summary.sweep,
            "plus_minus": {row.tag: row.plus_minus for row in summary.rows if row.plus_minus},
        },
    }
    return msgspec.json.format(
        msgspec.json.encode({key: value for key, value in whole.items() if value is not None}),
        indent=2,
    )


def export_summary_csv(summary: Summary) -> str:
    """profile_export_aiperf.csv: a block of distributions, an empty line, a block of single
    numbers."""
    out = io.StringIO()
    write = _writer(out)
    write(["Metric", *STATS])
    for row in (*summary.rows, *summary.reading, *summary.adjusted):
        if row.count is not None:
            stats = _stats(row)
            write([_name(row), *(_cell(stats.get(stat)) for stat in STATS)])
    write([])
    write(["Metric", "Value"])
    for row in (*summary.rows, *_totals(summary)):
        if row.count is None:
            write([_name(row), _cell(_stats(row).get("avg"))])
    return out.getvalue()


def export_sweep_csv(sweep: SweepSummary) -> str:
    """sweep.csv: a row a stage; shares of 1, latencies in ms. The last columns are how far the true
    percentile of a latency may lie from the reported one, either way:
    report/sections/measurement_uncertainty.py."""
    out = io.StringIO()
    write = _writer(out)
    tags = dict.fromkeys(tag for level in sweep.levels for tag in level.latencies)
    titles = [
        f"{tag}_p{p:g}" + "_ms" * (tag != PER_USER.tag) for tag in tags for p in SWEEP_PERCENTILES
    ]
    certified = [
        tag for tag in tags if any(_plus_minus(level.latencies.get(tag)) for level in sweep.levels)
    ]
    more = (f"{tag}_p{p:g}_plus_minus_ms" for tag in certified for p in SWEEP_PERCENTILES)
    write([sweep.axis, *COLUMNS_BEFORE, *titles, *COLUMNS_AFTER, *more])
    for level in sweep.levels:
        before, after = (
            [getattr(level, name) for name in names] for names in (COLUMNS_BEFORE, COLUMNS_AFTER)
        )
        rows = [level.latencies.get(tag) for tag in tags]
        figures = [
            None if row is None else row.percentiles.get(p)
            for row in rows
            for p in SWEEP_PERCENTILES
        ]
        pairs = [
            _plus_minus(level.latencies.get(tag)).get(p)
            for tag in certified
            for p in SWEEP_PERCENTILES
        ]
        cells = (
            level.value,
            *before,
            *figures,
            *after,
            *(None if pair is None else max(pair) for pair in pairs),
        )
        write(
            [
                f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else cell
                for cell in cells
            ]
        )
    return out.getvalue()


def _plus_minus(row: Row | None) -> dict[float, tuple[float, float]]:
    return {} if row is None else row.plus_minus


def _writer(out: io.StringIO) -> Callable[[Iterable[object]], object]:
    """Writes a row; a text that a spreadsheet would take for a formula is a text there too."""
    row = csv.writer(out).writerow
    return lambda cells: row(
        [f"'{cell}" if isinstance(cell, str) and _formula(cell) else cell for cell in cells]
    )


def _formula(cell: str) -> bool:
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return False
    try:
        return not math.isfinite(float(cell))
    except ValueError:
        return True


def _totals(summary: Summary) -> Sequence[Row]:
    """AIPerf's counters and sums; single numbers."""
    c = summary.conditions
    sums = {row.tag: row.sum for row in summary.rows}
    drafts = [of for of in summary.speculation if of.drafted]
    drafted, accepted = (
        sum(of.drafted or 0 for of in drafts),
        sum(of.accepted or 0 for of in drafts),
    )
    totals: Iterable[tuple[str, str, str, float | None]] = (
        ("Request Count", "request_count", "requests", c.succeeded),
        ("Error Request Count", "error_request_count", "requests", c.failed or None),
        (
            "Completed Requests (Success + Error)",
            "completed_request_count",
            "requests",
            c.succeeded + c.failed,
        ),
        (
            "Request Error Rate",
            "request_error_rate",
            "%",
            None if c.failure_rate is None else 100 * c.failure_rate,
        ),
        ("Benchmark Duration", "benchmark_duration", "sec", c.duration_s),
        ("Total Input Sequence Length", "total_isl", "tokens", sums.get("input_sequence_length")),
        ("Total Output Sequence Length", "total_osl", "tokens", sums.get("output_sequence_length")),
        ("Total Draft Tokens", "total_draft_tokens", "tokens", drafted or None),
        (
            "Total Accepted Draft Tokens",
            "total_accepted_draft_tokens",
            "tokens",
            accepted if drafted else None,
        ),
        (
            "Overall Draft Acceptance Rate",
            "spec_decode_overall_draft_acceptance_rate",
            "%",
            100 * accepted / drafted if drafted else None,
        ),
    )
    return [
        Row(label=label, tag=tag, unit=unit, avg=value)
        for label, tag, unit, value in totals
        if value is not None
    ]


def _per_gpu(summary: Summary, run: Run) -> Sequence[Row]:
    """What `aiperf plot` sets latencies against; AIPerf counts the GPUs in its telemetry."""
    per_s = next((row.avg for row in summary.rows if row.tag == "output_token_throughput"), None)
    if per_s is None or not run.settings.gpus:
        return ()
    label, tag = "Output Token Throughput per GPU", "output_token_throughput_per_gpu"
    return (Row(label=label, tag=tag, unit="tokens/s/gpu", avg=per_s / run.settings.gpus),)


def _block(row: Row) -> Block:
    """AIPerf's JsonMetricResult: a unit and those stats that are finite numbers."""
    return {"unit": _unit(row), **{name: round(value, 6) for name, value in _stats(row).items()}}


def _unit(row: Row) -> str:
    return UNITS.get(row.unit, row.unit) + ("/user" if row.tag.endswith("_per_user") else "")


def _stats(row: Row) -> dict[str, float]:
    stats = {
        "avg": row.avg,
        "min": row.min,
        "max": row.max,
        "std": row.std,
        "count": row.count,
        "sum": row.sum,
    }
    stats |= {f"p{p:g}": value for p, value in row.percentiles.items()}
    return {
        name: value for name, value in stats.items() if value is not None and math.isfinite(value)
    }


def _input_config(s: Settings, summary: Summary) -> dict[str, Any]:
    """The settings as AIPerf's BenchmarkConfig, which takes no field that it does not know."""
    # AIPerf refuses a limit above the users
    room = s.users or (s.prefill_concurrency if s.open_loop else None)
    fits = room is not None and s.prefill_concurrency is not None and s.prefill_concurrency <= room
    ramp_s = s.prefill_concurrency_ramp_duration
    phase: dict[str, Any] = {
        "name": "profiling",
        **_arrivals(s, summary),
        "concurrency": s.users,
        "prefill_concurrency": s.prefill_concurrency if fits else None,
        "prefill_ramp": {"duration": ramp_s} if ramp_s else None,
        "requests": s.request_count,
        "sessions": s.num_sessions,
        "duration": s.run_time_s,
    }
    if s.request_cancellation_rate:
        phase["cancellation"] = {
            "rate": s.request_cancellation_rate,
            "delay": s.request_cancellation_delay,
        }
    if not (
        s.request_count or s.num_sessions or s.run_time_s
    ):  # AIPerf demands an end; ours can be the person at the web page
        phase["requests"] = max(1, summary.conditions.requests)
    lengths = {
        "isl": {"mean": s.synthetic_input_tokens_mean, "stddev": s.synthetic_input_tokens_stddev},
        "osl": {"mean": s.output_tokens_mean, "stddev": s.output_tokens_stddev},
    }
    return {
        "models": _models(summary),
        "endpoint": {"urls": [*filter(None, s.addresses)] or ["http://localhost"], **_endpoint(s)},
        "datasets": [{"name": "main", "type": "synthetic", "prompts": lengths}],
        "phases": [{key: value for key, value in phase.items() if value is not None}],
    }


def _models(summary: Summary) -> dict[str, Any]:
    mix = summary.conditions.model_mix
    if mix:
        return {
            "strategy": "weighted",
            "items": [{"name": one.model, "weight": one.asked} for one in mix],
        }
    return {"items": [{"name": summary.conditions.model or "unknown"}]}


def _endpoint(s: Settings) -> dict[str, Any]:
    """AIPerf has rerank by the API that its body is of, and no protocols of others."""
    kind = {"rerank": "cohere_rankings"}.get(s.endpoint_type, s.endpoint_type)
    found = {
        "type": kind if kind in AIPERF_ENDPOINT_TYPES else "chat",
        "path": s.endpoint,
        "streaming": s.streaming,
    }
    return found | (
        {"per_chunk_usage": True, "use_server_token_count": True}
        if s.per_chunk_usage and kind == "chat"
        else {}
    )


def _arrivals(s: Settings, summary: Summary) -> dict[str, Any]:
    """The type of AIPerf's phase and what belongs to it. It would open the file of a rate series,
    and takes a user-centric phase only if each user has a request and a session: else the phase has
    their mean rate."""
    rate = summary.conditions.rate_per_s
    if s.fixed_schedule:
        start, end = s.fixed_schedule_start_offset, s.fixed_schedule_end_offset
        offsets = {
            "start_offset": None if start is None else round(start),
            "end_offset": None if end is None else round(end),
        }
        return {
            "type": "fixed_schedule",
            "auto_offset": s.fixed_schedule_auto_offset and start is None,
            **offsets,
        }
    if not rate:
        return {"type": "concurrency"}
    if s.user_centric_rate:
        enough = s.users is not None and all(
            n is None or n >= s.users for n in (s.request_count, s.num_sessions)
        )
        return (
            {"type": "user_centric", "users": s.users, "rate": rate}
            if enough
            else {"type": "constant", "rate": rate}
        )
    ramp_s = s.request_rate_ramp_duration
    return {
        "type": s.arrival_pattern,
        "rate": rate,
        "rate_ramp": {"duration": ramp_s} if ramp_s else None,
        "smoothness": s.arrival_smoothness if s.arrival_pattern == "gamma" else None,
    }


def _name(row: Row) -> str:
    unit = _unit(row)
    label = row.label + " (error-adjusted)" * row.tag.startswith("adj_")
    return label if unit == "requests" else f"{label} ({unit})"


def _cell(value: float | None) -> str:
    """Rounded once, as on the console."""
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _iso(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()


# -- junit -----------------------------------------------------------------------------------------


def export_junit_xml(summary: Summary, run: Run) -> bytes:
    """junit.xml: a case a rule. INCONCLUSIVE is skipped, with ``--inconclusive pass`` passed; a
    rule that failed but only warns is skipped too."""
    open_ = () if run.settings.inconclusive == PASSES else (INCONCLUSIVE,)
    skipped = sum(r.status in open_ or _only_warns(r) for r in summary.slos)
    counts = {
        "tests": str(len(summary.slos)),
        "failures": str(sum(r.status == FAIL and r.decides for r in summary.slos)),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{summary.conditions.duration_s or 0:.3f}",
    }
    root = Element("testsuites", counts)
    at = (
        datetime.fromtimestamp(run.started_at, UTC)
        .replace(tzinfo=None)
        .isoformat(timespec="seconds")
    )
    suite = SubElement(
        root, "testsuite", {"name": clean_line(f"locust-llm {run.name}"), **counts, "timestamp": at}
    )
    properties = SubElement(suite, "properties")
    for name, value in _properties(summary, run):
        SubElement(properties, "property", {"name": clean_line(name), "value": clean_line(value)})
    for result in summary.slos:
        case = SubElement(
            suite, "testcase", {"classname": "slo", "name": clean_line(result.rule), "time": "0"}
        )
        if result.status in open_ or _only_warns(result):
            SubElement(case, "skipped", {"message": clean_line(describe_slo_result(result))})
        elif result.status == FAIL:
            SubElement(
                case, "failure", {"type": "slo", "message": clean_line(describe_slo_result(result))}
            )
        else:
            status = f"{result.status}: " if result.status != PASS else ""
            SubElement(case, "system-out").text = clean_line(status + describe_slo_result(result))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def describe_slo_result(result: SloResult) -> str:
    """``observed 612ms (95 % interval 590ms to 640ms, 500 requests): the reason``."""
    details = [] if format_interval(result) == "-" else [f"95% interval {format_interval(result)}"]
    details += [f"of {result.count} values"] if result.count else []
    figure = f"observed {format_observed(result)}" + (f" ({', '.join(details)})" if details else "")
    parts = [figure] if result.observed is not None else []
    return ": ".join([*parts, *([result.reason] if result.reason else [])])


def _only_warns(result: SloResult) -> bool:
    return result.status == FAIL and not result.decides


def _properties(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, seed = summary.conditions, run.settings.random_seed
    yield "slo_status", summary.slo_status or ""
    yield "slo_mode", run.settings.slo_mode
    yield "inconclusive", run.settings.inconclusive
    yield "model", c.model
    yield "server", f"{c.server} {c.server_software}".strip()
    yield "simulated", str(c.simulated).lower()
    yield "client_verdict", c.client_verdict or "not judged"
    yield "random_seed", "none" if seed is None else str(seed)
    yield from ((f"version {name}", version) for name, version in run.versions.items())
