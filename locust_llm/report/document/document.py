"""Document: the report of a run in reading order, as headings, texts and tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from locust_llm.core.machine import Machine, machine_line
from locust_llm.core.record import FAILURES
from locust_llm.core.run import Run, Stage
from locust_llm.core.sweep import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT
from locust_llm.core.text import cut, ends_of, many, number, title
from locust_llm.report.analysis.breakdowns import PERCENTILES
from locust_llm.report.analysis.selection import scarce
from locust_llm.report.analysis.summary import Breakdown, Conditions, Failure, Group, Row, SloResult, Summary
from locust_llm.report.analysis.window import measured
from locust_llm.report.paired_result import INCONCLUSIVE as OPEN
from locust_llm.slo.client_verdict import OK
from locust_llm.slo.grammar import PASS
from locust_llm.slo.metrics import GATE_WAIT, ITL, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import Rules
from locust_llm.slo.selectors import plain

from .blocks import LABEL, Block, Heading, Table, Text, counted, flags_of, interval, label_of, marked, observed
from .interference import stalls
from .paired import arms, side_by_side, verdict_of
from .probe import findings, named, scheduler
from .remarks import SIMULATED, delivery_line, incomplete_line, remarks, slo_line, verdict_line
from .sweep import curves, warnings

RULE_WIDTH: Final = 60
"""Characters of an SLO rule on the console."""
MESSAGE_WIDTH: Final = 80
WARMUP_TAGS: Final = ("request_latency", "time_to_first_token", "inter_token_latency", "request_throughput")
"""Rows of the warmup; profile_export_aiperf.json has all of them."""
CORRELATED: Final = 0.75
"""Where requests are worth less than this share of their number, it is said."""
SHORT_NAMES: Final = {TTFT.tag: "TTFT", ITL.tag: "ITL", GATE_WAIT.tag: "wait", TTFT_FROM_DUE.tag: "from due"}
"""Columns of a breakdown."""
SCARCE_NOTE: Final = "* too few values for this percentile (10 for p90, 100 for p99: 100 / (100 - p))"
MAX_FAILURE_ROWS: Final = 20


def document(summary: Summary, run: Run, folder: Path | str = "") -> Iterator[Block]:
    """The blocks in reading order, not escaped yet."""
    chosen = run.settings.columns
    probe = summary.examination
    yield Heading(titled(summary, run))
    if (missing := incomplete_line(summary, run)) is not None:
        yield Text(missing, loud=True)
    if summary.conditions.simulated:
        yield Text(SIMULATED, loud=True)
    if (not summary.swept or summary.paired is not None) and (verdict := verdict_line(summary)) is not None:
        yield Text(verdict, loud=True)
    if probe is not None:
        yield from scheduler(probe)
    if (undelivered := delivery_line(summary)) is not None:
        yield Text(undelivered, loud=True)
    if summary.sweep is not None:
        yield from warnings(summary.sweep)
    if summary.paired is not None:
        yield Text(verdict_of(summary.paired), loud=summary.paired.verdict == OPEN)
        if summary.paired.warning:
            yield Text(f"WARNING: {summary.paired.warning}.", loud=True)
    yield from _slos(summary)
    yield Table(("Conditions", ""), tuple(_conditions(summary, run)), numbers=False)
    if probe is not None:
        yield from findings(probe)
    elif not summary.swept:
        yield from _figures(summary, chosen)
    if summary.paired is not None:
        yield from side_by_side(summary.paired)
    if summary.sweep is not None:
        yield from curves(summary.sweep)
    if summary.failures:
        yield Heading("Failures")
        yield from _failures(summary)
    if summary.warmup and not summary.swept and probe is None:
        waves = measured(run) is not None
        which = "First and last wave" if waves else "Warmup"
        yield Heading(
            f"{which} ({summary.counts.warmup} requests, in no {'latency above' if waves else 'other figure'})"
        )
        yield _metrics([row for row in summary.warmup if row.tag in WARMUP_TAGS], chosen)
    yield Heading("Notes")
    for remark in remarks(summary, run):
        yield Text(remark, loud=remark.startswith("WARNING"))
    if str(folder):
        if probe is not None:  # again: on a console the first lines have scrolled away
            yield Text(f"Scheduler: {named(probe.diagnosis, probe.symptoms)}.")
        yield Text(f"Reports: {folder}")


def titled(summary: Summary, run: Run) -> str:
    return f"{'Load test' if summary.examination is None else 'Interference probe'} {run.name}"


def _figures(summary: Summary, chosen: Sequence[float]) -> Iterator[Block]:
    yield Heading("Metrics")
    yield _metrics(summary.rows, chosen)
    yield from _plus_minus(summary, chosen)
    if any(row.count and scarce(row.count, p) for row in summary.rows for p in chosen):
        yield Text(SCARCE_NOTE)
    yield from _worth(summary.rows)
    yield from _breakdowns(summary.breakdowns)
    if summary.interference is not None:
        yield from stalls(summary.interference, OK if summary.client is None else summary.client.level)
    if summary.cancelled:
        yield Heading(f"Cancelled on purpose ({many(summary.conditions.cancelled, 'request')}, in no latency above)")
        yield _metrics(summary.cancelled, chosen)
    if summary.adjusted:
        cut = "; cut requests with their age (≥: at least)" if summary.conditions.cut else ""
        yield Heading(f"Latencies with every failure as +infinity{cut}")
        yield _adjusted(summary.adjusted, chosen)


def _worth(rows: Sequence[Row]) -> Iterator[Block]:
    """How much less the requests say than independent ones would."""
    known = {SHORT_NAMES[row.tag]: row for row in rows if row.effective is not None and row.count}
    if all((row.effective or 0) >= CORRELATED * (row.count or 0) for row in known.values()):
        return
    sizes = ", ".join(f"{row.effective:,.0f} of {row.count:,} for {name}" for name, row in known.items())
    yield Text(f"Requests that wait together are not independent; as many independent ones would say as much: {sizes}.")


def _slos(summary: Summary) -> Iterator[Block]:
    if (line := slo_line(summary)) is None:
        return
    yield Text(line, loud=summary.slo_status != PASS)

    def cells(result: SloResult) -> tuple[str, ...]:
        return result.rule, result.status, observed(result), interval(result), counted(result)

    head = ("SLO", "result", "observed", "95 % interval", "count")
    yield Table(head, tuple(map(cells, summary.slos)), label=RULE_WIDTH)
    for result in summary.slos:
        if result.reason:
            yield Text(f"{result.rule}: {result.status}, {result.reason}.")


def _metrics(rows: Sequence[Row], chosen: Sequence[float]) -> Table:
    def cells(row: Row) -> tuple[str, ...]:
        quantiles = (marked(row, p) for p in chosen)
        count = "-" if row.count is None else str(row.count)
        avg = f"{row.avg:.4f}" if row.unit == "ratio" and row.avg is not None else number(row.avg)
        return label_of(row), avg, number(row.min), *quantiles, number(row.max), number(row.std), count

    return Table(("Metric", "avg", "min", *map(title, chosen), "max", "std", "count"), tuple(map(cells, rows)))


def _plus_minus(summary: Summary, chosen: Sequence[float]) -> Iterator[Block]:
    """How far the true percentiles may lie from those above."""
    rows = [row for row in summary.rows if row.plus_minus and row.count]
    if rows:
        cells = ((label_of(row), *(ends_of(row.plus_minus.get(p)) for p in chosen)) for row in rows)
        yield Table(("Plus-minus", *map(title, chosen)), tuple(cells))
        yield Text(
            "Plus-minus: how far the true percentile may lie from the reported one, on this machine and under this load, "
            f"by {summary.sentinels} chunks of sentinel streams with known send times beside the load."
        )
    elif summary.uncertified:
        yield Text(f"The latencies have no plus-minus: {summary.uncertified}.")


def _breakdowns(breakdowns: Sequence[Breakdown]) -> Iterator[Block]:
    for breakdown in breakdowns:
        yield Heading(f"By {breakdown.by} (ms)")
        yield _breakdown(breakdown)
    if breakdowns:
        tags = {row.tag for breakdown in breakdowns for row in breakdown.groups[0].rows}
        wait = "; wait: Gate Wait, with failed requests" if GATE_WAIT.tag in tags else ""
        due = "; from due: TTFT from Due" if TTFT_FROM_DUE.tag in tags else ""
        yield Text(
            f"ok: successful requests, of which TTFT and ITL are; failed: share of failures{wait}{due}; * too few values"
        )


def _breakdown(breakdown: Breakdown) -> Table:
    groups = breakdown.groups
    by_turn = any(group.input_tokens is not None for group in groups)
    names = [(SHORT_NAMES[row.tag], p) for row in groups[0].rows for p in PERCENTILES]
    titles = [f"{name} {title(p)}" if p == PERCENTILES[0] else title(p) for name, p in names]

    def cells(group: Group) -> Iterator[str]:
        yield cut(group.label, 2 * LABEL)
        yield str(group.succeeded)
        yield "-" if group.failure_rate is None else f"{group.failure_rate:.1%}"
        yield from (marked(row, p, 4) for row in group.rows for p in PERCENTILES)
        if by_turn:
            yield number(group.input_tokens, 4)
            yield "-" if group.cached_share is None else f"{group.cached_share:.1%}"

    head = (breakdown.by, "ok", "failed", *titles, *(("input", "cached") if by_turn else ()))
    return Table(head, tuple(tuple(cells(group)) for group in groups))


def _adjusted(rows: Sequence[Row], chosen: Sequence[float]) -> Table:
    cells = ((label_of(row), *(marked(row, p) for p in chosen), str(row.count)) for row in rows)
    return Table(("Metric", *map(title, chosen), "count"), tuple(cells))


def _failures(summary: Summary) -> Iterator[Block]:
    def cells(f: Failure) -> tuple[str, ...]:
        status = "-" if f.status is None else str(f.status)
        return f.outcome, cut(f.name, 30), status, str(f.count), cut(f.message, MESSAGE_WIDTH)

    rows = tuple(map(cells, summary.failures[:MAX_FAILURE_ROWS]))
    yield Table(("Outcome", "Name", "Status", "Count", "Message (first of its kind)"), rows, numbers=False)
    rest = summary.failures[MAX_FAILURE_ROWS:]
    if rest:
        yield Text(f"and {many(sum(f.count for f in rest), 'failure')} of {many(len(rest), 'more kind')}")
    outcomes = dict.fromkeys(f.outcome for f in summary.failures)
    yield Text("; ".join(f"{outcome}: {FAILURES.get(outcome, 'unknown')}" for outcome in outcomes))


def _conditions(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, counts, gate = summary.conditions, summary.counts, summary.gate
    axis = summary.sweep.axis if summary.sweep is not None else ""
    if run.arms:
        yield from arms(run)
    else:
        yield from _server(c, run)
        yield "model", c.model or "-"
    if (probe := summary.examination) is not None:
        load = f"probe: {many(probe.symptoms.episodes, 'episode')}, at most {many(c.users, 'request')} at a time"
        yield "load", load
    else:
        yield "load", f"{_load(c, run)}{_stages(summary)}, {many(c.processes, 'process', 'processes')}"
    if run.stage is not None:
        yield "stage", _stage(run.stage)
    if (d := summary.delivery) is not None:
        yield (
            "delivered",
            (
                f"{d.share:.1%}: due {d.offered_per_s:.2f}/s, sent {d.sent_per_s:.2f}/s, completed "
                f"{d.completed_per_s:.2f}/s, in the {d.duration_s:.1f} s to the stop"
            ),
        )
    ramp = f", ramp from 1 over {c.prefill_ramp_s:g} s" if c.prefill_ramp_s else ""
    limit = "none" if c.prefill_limit is None else f"{c.prefill_limit}{ramp}"
    yield "prefill limit", "by stage" if axis == PREFILL else limit
    if gate is not None and not summary.swept:
        wait = f"; {gate.utilisation:.1%} of the limit used in the {gate.waited_s:.1f} s when requests waited at the gate" \
            if gate.utilisation is not None else "; no request waited at the gate"  # fmt: skip
        yield "in prefill", f"{gate.mean_used:.2f} on average, at most {gate.max_used}{wait}"
    length = _length(c.asked_input_tokens, c.input_tokens, c.input_deviation)
    if probe is None:
        yield "input length", "by stage" if axis == INPUT else length
        yield "output length", _length(c.asked_output_tokens, c.output_tokens, c.output_deviation)
    if c.sessions is not None:
        yield "sessions", f"{c.sessions}, with {c.turns_per_session or 0:.2f} answered turns on average"
    yield "cached input", "unknown" if c.cached_share is None else f"{c.cached_share:.1%}"
    if run.settings.goodput:
        yield "good requests", _good(run.settings.rules)
    between = ", without the pauses between repeats" if axis == REPEAT else ""
    span = ", while the load was on" if measured(run) else f", first send to last end{between}"
    yield "duration", "-" if c.duration_s is None else f"{c.duration_s:.2f} s{span}"
    yield "requests", _requests(c)
    merged = counts.merged_chunks / counts.chunks if counts.chunks else 0.0
    left_out = f"; {counts.gaps_left_out} gaps left out" if counts.gaps_left_out else ""
    yield "chunks", f"{counts.chunks}, {merged:.2%} of them merged{left_out}"
    yield "clock", f"{c.clock or '-'} stamps"
    if not summary.swept or summary.paired is not None:
        yield "client verdict", _verdict(summary)
    yield from _machines(run)


def _server(c: Conditions, run: Run) -> Iterator[tuple[str, str]]:
    yield "server", (c.server or "-") + (f" ({c.server_software})" if c.server_software else "")
    if run.server_flags:
        yield "server flags", flags_of(run.server_flags)


def _machines(run: Run) -> Iterator[tuple[str, str]]:
    """Those of the load generator, each once."""
    found: dict[str, Machine] = {}
    for health in run.health:
        if health.machine is not None:
            found.setdefault(machine_line(health.machine), health.machine)
    for line, machine in found.items():
        yield "machine", line + ("" if machine.load is None else f"; load average at the start {machine.load:.2f}")


def _stages(summary: Summary) -> str:
    """Axis and values of the stages."""
    sweep = summary.sweep
    if sweep is None:
        return ""
    if sweep.repeats:
        return f", {many(len(sweep.levels), 'repeat')}"
    values = ", ".join(plain(level.value) for level in sweep.levels)
    return f", a sweep of {sweep.axis}: {values or 'nothing'} {sweep.unit}"


def _stage(stage: Stage) -> str:
    began = stage.measured_at
    length = "not measured" if began is None else f"measured for {stage.ended_at - began:.2f} s"
    waves = "" if began is None or began == stage.began_at else " without its first and last wave"
    law = "" if stage.residual is None else f"; off Little's law by {stage.residual:.1%}"
    return f"{stage.number}, {length}{waves}{law}; ended: {stage.why or '-'}"


def _load(c: Conditions, run: Run) -> str:
    if c.loop == "closed":
        return "closed loop" + ("" if run.settings.sweeps(CONCURRENCY) else f", {many(c.users, 'user')}")
    if run.settings.sweeps(RATE):
        users = f"up to {many(c.users, 'user')}" if c.users is not None else "as many users as needed"
        return f"open loop, {run.settings.arrival_pattern}, {users}"
    if run.settings.user_centric_rate:
        return f"open loop, {c.arrivals} over {many(c.users, 'user')}"
    if c.users is not None:
        return f"open loop, {c.arrivals}, up to {many(c.users, 'user')}"
    most = "" if run.offer is None else f"{run.offer.most_users}, "
    return f"open loop, {c.arrivals}, as many users as needed ({most}limit {run.settings.max_users})"


def _verdict(summary: Summary) -> str:
    if summary.client is None:
        return "not judged"
    return (
        f"{summary.client.level}: {'; '.join(summary.client.reasons)}"
        if summary.client.reasons
        else summary.client.level
    )


def _good(rules: Rules) -> str:
    return rules.good_mistake or f"those with {' and '.join(map(str, rules.good))}"


def _requests(c: Conditions) -> str:
    rate = "" if c.failure_rate is None else f" ({c.failure_rate:.1%})"
    return f"{c.requests}: {c.succeeded} succeeded, {c.failed} failed{rate}, {c.cut} cut, {c.cancelled} cancelled"


def _length(asked: float | None, delivered: float | None, deviation: float | None) -> str:
    length = "unknown" if delivered is None else f"{delivered:.1f} tokens on average"
    if asked is None:
        return length
    return f"{length}, asked for {asked:.1f}" + ("" if deviation is None else f" ({round(deviation, 3) + 0.0:+.1%})")
