"""Sweep text: the stages of a sweep as tables, its knees and findings; repeats and their spread."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from locust_llm.report.document_blocks import (
    INEXACT,
    INEXACT_NOTE,
    Block,
    Heading,
    TableBlock,
    TextBlock,
    format_percentile,
    label_row,
)
from locust_llm.report.sections.metric_tables import NOTHING
from locust_llm.report.sections.sweep.knee import (
    UNMEASURED,
    describe_levels,
    explain_unsound,
    find_stages_below_ok,
    format_knee,
    is_client_distorted,
    is_too_short_for_its_requests,
)
from locust_llm.report.summary_rows import Knee, LoadLevel, Row, SweepSummary
from locust_llm.settings.sweep_option import (
    CONCURRENCY,
    INPUT,
    MAX_RESIDUAL,
    PREFILL,
    RATE,
    REPEAT,
    TIME_UP,
)
from locust_llm.slo.load_generator_health import LEVELS, OK
from locust_llm.slo.metric_definitions import (
    GATE_WAIT,
    ITL,
    LATENCY,
    PER_USER,
    TTFT,
    TTFT_FROM_DUE,
)
from locust_llm.slo.rules import INCONCLUSIVE, SloResult
from locust_llm.text.format import (
    format_brief,
    format_count,
    format_duration,
    format_number,
    format_plain_number,
    name_percentile,
)

FIRST_COLUMN: Final = {
    CONCURRENCY: "users", RATE: "rate/s", PREFILL: "limit", INPUT: "input", REPEAT: "repeat",
}  # fmt: skip
"""The head of the column with the value of each stage, by axis."""
TOO_FEW: Final = "too few requests"
NO_ANSWER: Final = "NO ANSWER"
"""Instead of a result: the server died in this stage."""
MAX_OFF_RATE: Final = 0.05
"""Arrivals that differ by more than this share from the rate of their stage are named."""
MIN_WINDOW_S: Final = 5.0
"""A shorter measured time is named."""
LATENCIES: Final = (
    ("TTFT", TTFT.tag), ("ITL", ITL.tag), ("latency", "request_latency"), ("wait", GATE_WAIT.tag),
    ("from due", TTFT_FROM_DUE.tag),
)  # fmt: skip
PERCENTILES: Final = (50.0, 99.0)
MAIN_PERCENTILES: Final = (50.0, 95.0, 99.0)
"""The percentiles of TTFT and ITL. More would make the table too wide."""

Column = tuple[str, Callable[[LoadLevel], str]]


def make_sweep_warnings(sweep: SweepSummary, whole: str | None) -> Iterator[Block]:
    """The lines above the tables: stages that are missing, or that the load generator distorted.
    ``whole`` is the client verdict of the whole run."""
    for missing in sweep.missing:
        yield TextBlock(f"WARNING: {missing}", loud=True)
    short = [level for level in sweep.levels if not level.requests and level.why == TIME_UP]
    if short and UNMEASURED not in sweep.ended:
        where = describe_levels(sweep.axis, *short)
        yield TextBlock(
            f"No request was measured in {format_count(len(short), 'stage')}, at {where}: the time "
            f"was too short for it."
        )
    if sweep.unreached:
        yield TextBlock(f"WARNING: {sweep.unreached}.", loud=True)
    yield from _explain_silences(sweep)
    yield from _explain_windows(sweep)
    for level in sweep.levels:
        if collapsed := _describe_first_wave(sweep.axis, level):
            yield TextBlock(collapsed, loud=True)
    distorted = [level for level in sweep.levels if is_client_distorted(level) and not level.died]
    if distorted and not sweep.repeats:
        reasons = _explain_loads(sweep.axis, distorted)
        yield TextBlock(
            f"CLIENT: the load generator distorted {len(distorted)} of {len(sweep.levels)} stages. "
            "Only SLOs that its error cannot affect are decided there, and these stages are not "
            f"used otherwise: {reasons}.",
            loud=True,
        )
    limited = [level for level in find_stages_below_ok(sweep) if level not in distorted]
    if limited and not sweep.repeats:
        reasons = _explain_loads(sweep.axis, limited)
        yield TextBlock(
            f"CLIENT: some metrics of {len(limited)} of {len(sweep.levels)} stages may be "
            f"inaccurate, but no SLO result is affected: {reasons}.",
            loud=True,
        )
    worse = [
        level for level in distorted if LEVELS.index(level.client or OK) > LEVELS.index(whole or OK)
    ]
    if worse and sweep.repeats:
        reasons = _explain_loads(sweep.axis, worse)
        yield TextBlock(
            f"CLIENT: {reasons}. Of all repeats together it is {whole or OK}.", loud=True
        )


def _explain_silences(sweep: SweepSummary) -> Iterator[Block]:
    """What does not use the stages with a time without answers."""
    dead = [level for level in sweep.levels if level.died]
    if dead:
        where = describe_levels(sweep.axis, *dead)
        yield TextBlock(
            f"NO ANSWER at {where}: the server died. Rules, capacity, knees and limits leave that "
            f"out.",
            loud=True,
        )
    for level in sweep.levels:
        if level.silence and not level.died:
            where = describe_levels(sweep.axis, level)
            yield TextBlock(
                f"NO ANSWER at {where}: {level.silence}: {level.unanswered}."
                f"{_describe_rates_without_silence(level)} Knees and limits leave this stage out.",
                loud=True,
            )


def _describe_rates_without_silence(level: LoadLevel) -> str:
    """``Its rates count these 6 s: without them they are 237 tokens/s and 7.9 requests/s.`` Empty:
    it has none, or no time is left."""
    kinds = (
        (level.output_tokens_per_s, " tokens/s"),
        (level.requests_per_s, " requests/s"),
    )
    rates = [
        format_brief(without, unit, 3)
        for per_s, unit in kinds
        if (without := level.rate_without_silence(per_s)) is not None
    ]
    if not rates or not level.silent_s:
        return ""
    silent = format_brief(level.silent_s, " s", 3)
    return f" Its rates count these {silent}: without them they are {' and '.join(rates)}."


def _explain_windows(sweep: SweepSummary) -> Iterator[Block]:
    """The stages of rates whose measured time had other arrivals than their names say, or is
    short."""
    if sweep.axis != RATE:
        return
    parts = list[str]()
    for level in sweep.levels:
        if level.duration_s is None or level.arrivals_per_s is None or not level.requests:
            continue
        off = abs(level.arrivals_per_s / level.value - 1)
        if off > MAX_OFF_RATE or level.duration_s < MIN_WINDOW_S:
            parts.append(
                f"at {format_plain_number(level.value)} {format_number(level.arrivals_per_s, 3)}/s "
                f"in {format_number(level.duration_s, 3)} s"
            )
    if parts:
        yield TextBlock(f"Arrivals in the measured time, by rate: {', '.join(parts)}.")
    for level in filter(is_too_short_for_its_requests, sweep.levels):
        latency = level.latencies.get(LATENCY.tag)
        p50_ms = None if latency is None else latency.percentiles.get(50.0)
        yield TextBlock(
            f"WARNING: at {describe_levels(sweep.axis, level)} a request took "
            f"{format_duration(None if p50_ms is None else p50_ms / 1e3)} (p50), and the measured "
            f"time was {format_duration(level.duration_s)}: nothing shows whether the server keeps "
            "up. Use fewer stages or a longer -t.",
            loud=True,
        )


def _describe_first_wave(axis: str, level: LoadLevel) -> str:
    """What is known of a stage of which no request was measured. Empty: some were, or nothing is
    known."""
    tag = TTFT_FROM_DUE.tag if axis == RATE else TTFT.tag
    row = level.first_wave.get(tag)
    if level.requests or row is None or not row.count:
        return ""
    values = ", ".join(
        f"{name_percentile(percentile)} {format_duration(row.percentiles[percentile] / 1e3)}"
        for percentile in (50.0, 95.0)
        if percentile in row.percentiles
    )
    where = describe_levels(axis, level)
    return (
        f"At {where} no request was measured. The {format_count(row.count, 'request')} of its first "
        f"wave had {row.label} {values}."
    )


def _explain_loads(axis: str, levels: Sequence[LoadLevel]) -> str:
    """One reason for each load: a search visits a load several times, and the reasons of the visit
    with the worst verdict stand for all."""
    by_load = dict[float, list[LoadLevel]]()
    for level in levels:
        by_load.setdefault(level.value, []).append(level)
    reasons = list[str]()
    for visits in by_load.values():
        worst = max(visits, key=lambda level: LEVELS.index(level.client or OK))
        count = f", in {len(visits)} visits" if len(visits) > 1 else ""
        reasons.append(f"{explain_unsound(axis, worst)}{count}")
    return "; ".join(reasons)


def make_sweep_tables(sweep: SweepSummary) -> Iterator[Block]:
    """The tables of a sweep or of repeats."""
    yield Heading("Repeats" if sweep.repeats else f"Stages by {sweep.axis} (latencies in ms)")
    if any(level.succeeded for level in sweep.levels):
        yield _table(sweep.axis, sweep.levels, _latencies(sweep))
        yield _table(sweep.axis, sweep.levels, _rates(sweep))
        yield TextBlock(_legend(sweep))
    elif sweep.levels:
        yield TextBlock(NOTHING)
    if sweep.spread:
        yield Heading("Spread over the repeats")
        yield _spread(sweep.spread)
    if sweep.knees:
        yield Heading("Knees")
    none = [knee for knee in sweep.knees if knee.value is None]
    for knee in sweep.knees:
        same = [other.rule for other in none if knee.value is None and other.text == knee.text] or [
            knee.rule
        ]
        if knee.rule == same[0]:  # a reason that several have in common once
            yield TextBlock(_knee(sweep, knee, ", ".join(same)))
    if sweep.findings:
        yield Heading("Findings")
    for finding in sweep.findings:
        yield TextBlock(finding)


def _latencies(sweep: SweepSummary) -> Iterator[Column]:
    yield "ok", lambda level: str(level.succeeded)
    yield "failed", lambda level: "-" if level.failure_rate is None else f"{level.failure_rate:.1%}"
    waits = any(_p99(level, GATE_WAIT.tag) >= 1 for level in sweep.levels)
    for name, tag in LATENCIES:
        if (tag == GATE_WAIT.tag and not waits) or (
            tag == TTFT_FROM_DUE.tag and (waits or sweep.axis != RATE)
        ):
            continue  # without a wait it equals TTFT
        for p in MAIN_PERCENTILES if tag in (TTFT.tag, ITL.tag) else PERCENTILES:
            yield f"{name} p50" if p == PERCENTILES[0] else f"p{p:g}", _percentile(tag, p)


def _rates(sweep: SweepSummary) -> Iterator[Column]:
    levels = sweep.levels
    limits = sweep.axis == PREFILL
    yield "tokens/s", format_token_rate
    yield "per user", _percentile(PER_USER.tag, 50.0)
    yield (
        name_request_rate(sweep.axis),
        format_request_rate,
    )
    if any(level.silent_s for level in levels):
        yield "no answer", _format_silent_time
    if not limits:  # there it is the number of users, whatever the limit
        yield "in flight", lambda level: format_number(level.in_flight, 4)
    if any(level.slowdown is not None for level in levels):
        yield "slower", lambda level: "-" if level.slowdown is None else f"{level.slowdown:.2f}"
        yield "lost", lambda level: "-" if level.lost_share is None else f"{level.lost_share:.1%}"
    if any(level.attainment is not None for level in levels):
        yield "good", lambda level: "-" if level.attainment is None else f"{level.attainment:.1%}"
        yield "goodput", lambda level: format_number(level.goodput_per_s, 4)
    if limits and any(level.goodput_low is not None for level in levels):
        yield (
            "95% interval",
            lambda level: (
                f"{format_number(level.goodput_low, 4)} to {format_number(level.goodput_high, 4)}"
            ),
        )
    if any(level.slo_status or level.died for level in levels):
        yield "SLO", format_stage_status
    if any(level.client not in (None, OK) for level in levels):
        yield "client", lambda level: level.client or "-"
    if not sweep.repeats:
        yield "ended", lambda level: level.why or "-"


def _format_silent_time(level: LoadLevel) -> str:
    return format_brief(level.silent_s, " s", 2) if level.silent_s else "-"


def format_stage_status(level: LoadLevel) -> str:
    """The stage's own decision; ``too few requests`` where nothing else is in the way."""
    if level.died:
        return NO_ANSWER
    open_rules = [
        result for result in level.slos if result.decides and result.status == INCONCLUSIVE
    ]
    if level.slo_status != INCONCLUSIVE or not open_rules:
        return level.slo_status or "-"
    return TOO_FEW if all(map(_has_too_few, open_rules)) else INCONCLUSIVE


def format_token_rate(level: LoadLevel) -> str:
    return f"{_mark_rate(level, 'output_token_throughput')}{format_number(level.output_tokens_per_s, 4)}"


def name_request_rate(axis: str) -> str:
    """The head of a column of ``format_request_rate``."""
    return "completed/s" if axis == RATE else "requests/s"


def format_request_rate(level: LoadLevel) -> str:
    if not level.requests_per_s and is_too_short_for_its_requests(level):
        return "-"
    return f"{_mark_rate(level, 'request_throughput')}{format_number(level.requests_per_s, 4)}"


def _mark_rate(level: LoadLevel, tag: str) -> str:
    """The mark of a rate that the load generator may have wrong, or that is of too short a stage."""
    return INEXACT * (tag in level.inexact_rates or not level.stationary)


def _has_too_few(result: SloResult) -> bool:
    """There is a value, and its interval lacks one end or both."""
    known = result.observed is not None and result.worst is None and not result.voided
    return known and bool(result.count) and None in (result.low, result.high)


def _table(axis: str, levels: Sequence[LoadLevel], columns: Iterator[Column]) -> TableBlock:
    titles, cells = zip(*columns, strict=True)

    def row(level: LoadLevel) -> tuple[str, ...]:
        return format_plain_number(level.value), *(cell(level) for cell in cells)

    return TableBlock((FIRST_COLUMN[axis], *titles), tuple(map(row, levels)))


def _legend(sweep: SweepSummary) -> str:
    notes = [
        "ok: successful requests that were measured",
        "* too few values",
        "per user: output tokens/s of one user, p50",
    ]
    rows = chain.from_iterable(level.latencies.values() for level in sweep.levels)
    if any(row.inexact for row in rows) or any(
        level.inexact_rates or not level.stationary for level in sweep.levels
    ):
        notes.append(INEXACT_NOTE)
    if any(level.slowdown is not None for level in sweep.levels):
        notes.append(
            "slower: mean gap while another request awaits its first token / mean gap otherwise; "
            "lost: share of the decode time lost to prefill; - if too few gaps can be compared"
        )
    if sweep.axis == RATE:
        notes.append(
            "completed/s: requests answered without a failure in the measured time, whenever they "
            "were due"
        )
    if sweep.conditions:
        notes.append(
            f"good: share of the requests of this row that meet {sweep.conditions}; goodput: good "
            "requests that ended in the measured time, per second"
        )
    if not sweep.repeats:
        notes.append(f"the sweep ended: {sweep.ended or 'the run did not end cleanly'}")
    unsteady = [level for level in sweep.levels if not level.stationary]
    if unsteady:
        notes.append(
            f"not stationary (off Little's law by {MAX_RESIDUAL:.0%} or more): "
            f"{describe_levels(sweep.axis, *unsteady)}"
        )
    return "; ".join(notes) + ". Each stage has its own tables in stages/<number>/summary.md."


def _spread(rows: Sequence[Row]) -> TableBlock:
    def cells(row: Row) -> tuple[str, ...]:
        varies = f"{row.std / row.avg:.1%}" if row.std is not None and row.avg else "-"
        return (
            label_row(row),
            format_number(row.avg),
            format_number(row.std),
            varies,
            format_number(row.min),
            format_number(row.max),
            str(row.count),
        )

    return TableBlock(
        ("Over the repeats", "mean", "std", "std/mean", "min", "max", "count"),
        tuple(map(cells, rows)),
    )


def _knee(sweep: SweepSummary, knee: Knee, rules: str) -> str:
    if knee.value is None:
        return f"{rules}: none. {knee.text}"
    return f"{rules}: {sweep.axis} {format_knee(knee)}. {knee.text}"


def _percentile(tag: str, p: float) -> Callable[[LoadLevel], str]:
    def cell(level: LoadLevel) -> str:
        row = level.latencies.get(tag)
        return "-" if row is None else format_percentile(row, p, 4)

    return cell


def _p99(level: LoadLevel, tag: str) -> float:
    row = level.latencies.get(tag)
    return 0.0 if row is None else row.percentiles.get(99.0, 0.0)
