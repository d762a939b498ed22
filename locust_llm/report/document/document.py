"""Document: what there is to say about a run, in reading order, as headings, texts and tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from locust_llm.core.record import FAILURES
from locust_llm.core.run import Run, Stage
from locust_llm.core.sweep import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT
from locust_llm.core.text import cut, many, number, title
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

from .blocks import LABEL, Block, Heading, Table, Text, interval, label_of, marked, observed
from .interference import stalls
from .paired import arms, side_by_side, verdict_of
from .probe import findings, named, scheduler
from .remarks import SIMULATED, delivery_line, incomplete_line, remarks, slo_line, verdict_line
from .sweep import curves, warnings

RULE: Final = 60
"""How wide SLO rules may be on the console."""
MESSAGE: Final = 80
WARMUP: Final = ("request_latency", "time_to_first_token", "inter_token_latency", "request_throughput")
"""What is worth showing of the warmup; profile_export_aiperf.json has all of it."""
SHORT: Final = {TTFT.tag: "TTFT", ITL.tag: "ITL", GATE_WAIT.tag: "wait", TTFT_FROM_DUE.tag: "from due"}
"""The columns of a breakdown."""
SCARCE: Final = "* too few values for this percentile (it takes 100 / (100 - p): 10 for p90, 100 for p99)"
KINDS: Final = 20
"""How many kinds of failures are listed."""


def document(summary: Summary, run: Run, folder: Path | str = "") -> Iterator[Block]:
    """What there is to say about a run, in reading order. Nothing in it is escaped yet."""
    chosen = run.settings.columns
    probe = summary.examination
    yield Heading(titled(summary, run))
    if (lost := incomplete_line(summary, run)) is not None:
        yield Text(lost, loud=True)
    if summary.conditions.simulated:
        yield Text(SIMULATED, loud=True)
    if (not summary.swept or summary.paired is not None) and (blame := verdict_line(summary)) is not None:
        yield Text(blame, loud=True)
    if probe is not None:
        yield from scheduler(probe)
    if (held_back := delivery_line(summary)) is not None:
        yield Text(held_back, loud=True)
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
        yield _metrics([row for row in summary.warmup if row.tag in WARMUP], chosen)
    yield Heading("Notes")
    for remark in remarks(summary, run):
        yield Text(remark, loud=remark.startswith("WARNING"))
    if str(folder):
        if probe is not None:  # once more: on a console the first lines are far up
            yield Text(f"Scheduler: {named(probe.diagnosis, probe.symptoms)}.")
        yield Text(f"Reports: {folder}")


def titled(summary: Summary, run: Run) -> str:
    return f"{'Load test' if summary.examination is None else 'Interference probe'} {run.name}"


def _figures(summary: Summary, chosen: Sequence[float]) -> Iterator[Block]:
    yield Heading("Metrics")
    yield _metrics(summary.rows, chosen)
    if any(row.count and scarce(row.count, p) for row in summary.rows for p in chosen):
        yield Text(SCARCE)
    yield from _breakdowns(summary.breakdowns)
    if summary.interference is not None:
        yield from stalls(summary.interference, OK if summary.client is None else summary.client.level)
    if summary.cancelled:
        yield Heading(f"Cancelled on purpose ({many(summary.conditions.cancelled, 'request')}, in no latency above)")
        yield _metrics(summary.cancelled, chosen)
    if summary.adjusted:
        cut = "; of cut requests what is known (≥: at least)" if summary.conditions.cut else ""
        yield Heading(f"Latencies with every failure as +infinity{cut}")
        yield _adjusted(summary.adjusted, chosen)


def _slos(summary: Summary) -> Iterator[Block]:
    if (line := slo_line(summary)) is None:
        return
    yield Text(line, loud=summary.slo_status != PASS)

    def cells(result: SloResult) -> tuple[str, ...]:
        return result.rule, result.status, observed(result), interval(result), str(result.count or "-")

    head = ("SLO", "result", "observed", "95 % interval", "count")
    yield Table(head, tuple(map(cells, summary.slos)), label=RULE)
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


def _breakdowns(breakdowns: Sequence[Breakdown]) -> Iterator[Block]:
    for breakdown in breakdowns:
        yield Heading(f"By {breakdown.by} (ms)")
        yield _breakdown(breakdown)
    if breakdowns:
        tags = {row.tag for breakdown in breakdowns for row in breakdown.groups[0].rows}
        wait = "; wait: Gate Wait, of failed requests too" if GATE_WAIT.tag in tags else ""
        due = "; from due: TTFT from Due" if TTFT_FROM_DUE.tag in tags else ""
        yield Text(
            f"ok: successful requests, TTFT and ITL are theirs; failed: share of failures{wait}{due}; * too few values"
        )


def _breakdown(breakdown: Breakdown) -> Table:
    groups = breakdown.groups
    told = any(group.input_tokens is not None for group in groups)
    names = [(SHORT[row.tag], p) for row in groups[0].rows for p in PERCENTILES]
    titles = [f"{name} {title(p)}" if p == PERCENTILES[0] else title(p) for name, p in names]

    def cells(group: Group) -> Iterator[str]:
        yield cut(group.label, 2 * LABEL)
        yield str(group.succeeded)
        yield "-" if group.failure_rate is None else f"{group.failure_rate:.1%}"
        yield from (marked(row, p, 4) for row in group.rows for p in PERCENTILES)
        if told:
            yield number(group.input_tokens, 4)
            yield "-" if group.cached_share is None else f"{group.cached_share:.1%}"

    head = (breakdown.by, "ok", "failed", *titles, *(("input", "cached") if told else ()))
    return Table(head, tuple(tuple(cells(group)) for group in groups))


def _adjusted(rows: Sequence[Row], chosen: Sequence[float]) -> Table:
    cells = ((label_of(row), *(marked(row, p) for p in chosen), str(row.count)) for row in rows)
    return Table(("Metric", *map(title, chosen), "count"), tuple(cells))


def _failures(summary: Summary) -> Iterator[Block]:
    def cells(f: Failure) -> tuple[str, ...]:
        status = "-" if f.status is None else str(f.status)
        return f.outcome, cut(f.name, 30), status, str(f.count), cut(f.message, MESSAGE)

    rows = tuple(map(cells, summary.failures[:KINDS]))
    yield Table(("Outcome", "Name", "Status", "Count", "Message (the first of its kind)"), rows, numbers=False)
    rest = summary.failures[KINDS:]
    if rest:
        yield Text(f"and {sum(f.count for f in rest)} failures of {len(rest)} more kinds")
    outcomes = dict.fromkeys(f.outcome for f in summary.failures)
    yield Text("; ".join(f"{outcome}: {FAILURES.get(outcome, 'unknown')}" for outcome in outcomes))


def _conditions(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, counts, gate = summary.conditions, summary.counts, summary.gate
    axis = summary.sweep.axis if summary.sweep is not None else ""
    if run.arms:
        yield from arms(run)
    else:
        yield "server", (c.server or "-") + (f" ({c.server_software})" if c.server_software else "")
        yield "model", c.model or "-"
    if (probe := summary.examination) is not None:
        load = f"a timetable: {many(probe.symptoms.episodes, 'episode')}, at most {many(c.users, 'request')} at a time"
        yield "load", load
    else:
        yield "load", f"{_load(c, run)}{_stages(summary)}, {many(c.processes, 'process', 'processes')}"
    if run.stage is not None:
        yield "stage", _stage(run.stage)
    if (d := summary.delivery) is not None:
        yield (
            "delivered",
            (
                f"offered {d.offered_per_s:.2f}/s, sent {d.sent_per_s:.2f}/s ({d.share:.1%}), "
                f"completed {d.completed_per_s:.2f}/s in the {d.duration_s:.1f} s until the stop"
            ),
        )
    ramp = f", ramp from 1 over {c.prefill_ramp_s:g} s" if c.prefill_ramp_s else ""
    limit = "none" if c.prefill_limit is None else f"{c.prefill_limit}{ramp}"
    yield "prefill limit", "that of the stage" if axis == PREFILL else limit
    if gate is not None and not summary.swept:
        wanted = f"; {gate.utilisation:.1%} of the limit in the {gate.waited_s:.1f} s when requests waited" \
            if gate.utilisation is not None else "; nobody waited"  # fmt: skip
        yield "in prefill", f"{gate.mean_used:.2f} on average, at most {gate.max_used}{wanted}"
    length = _length(c.asked_input_tokens, c.input_tokens, c.input_deviation)
    if probe is None:
        yield "input length", "that of the stage" if axis == INPUT else length
        yield "output length", _length(c.asked_output_tokens, c.output_tokens, c.output_deviation)
    if c.sessions is not None:
        yield "sessions", f"{c.sessions}, {c.turns_per_session or 0:.2f} answered turns each on average"
    yield "cached input", "unknown" if c.cached_share is None else f"{c.cached_share:.1%}"
    if run.settings.goodput:
        yield "good requests", _good(run.settings.rules)
    between = ", without the pauses between repeats" if axis == REPEAT else ""
    while_on = ", while the load was on" if measured(run) else f", first send to last end{between}"
    yield "duration", "-" if c.duration_s is None else f"{c.duration_s:.2f} s{while_on}"
    yield "requests", _requests(c)
    merged = counts.merged_chunks / counts.chunks if counts.chunks else 0.0
    left_out = f"; {counts.gaps_left_out} gaps left out" if counts.gaps_left_out else ""
    yield "chunks", f"{counts.chunks}, {merged:.2%} of them came more than one to a read{left_out}"
    yield "clock", f"{c.clock or '-'} stamps"
    if not summary.swept or summary.paired is not None:
        yield "client verdict", _verdict(summary)


def _stages(summary: Summary) -> str:
    """What the stages of a run differ in."""
    sweep = summary.sweep
    if sweep is None:
        return ""
    if sweep.repeats:
        return f", {many(len(sweep.levels), 'repeat')}"
    values = ", ".join(plain(level.value) for level in sweep.levels)
    return f", a sweep of {sweep.axis}: {values or 'nothing'} {sweep.unit}"


def _stage(stage: Stage) -> str:
    began = stage.measured_at
    length = "never measured" if began is None else f"measured for {stage.ended_at - began:.2f} s"
    waves = "" if began is None or began == stage.began_at else " without its first and last wave"
    law = "" if stage.residual is None else f"; Little's law is off by {stage.residual:.1%}"
    return f"{stage.number}, {length}{waves}{law}; it ended: {stage.why or '-'}"


def _load(c: Conditions, run: Run) -> str:
    if c.loop == "closed":
        return "closed loop (burst)" + ("" if run.settings.sweeps(CONCURRENCY) else f", {many(c.users, 'user')}")
    if run.settings.sweeps(RATE):
        users = f"up to {many(c.users, 'user')}" if c.users is not None else "as many users as needed"
        return f"open loop, {run.settings.arrival_pattern}, {users}"
    if run.settings.user_centric_rate:
        return f"open loop, {c.arrivals} over {many(c.users, 'user')}"
    if c.users is not None:
        return f"open loop, {c.arrivals}, up to {many(c.users, 'user')}"
    came = f"{run.offer.most_users} of " if run.offer is not None else ""
    return f"open loop, {c.arrivals}, as many users as needed ({came}at most {run.settings.max_users})"


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
    said = "unknown" if delivered is None else f"{delivered:.1f} tokens on average"
    if asked is None:
        return said
    return f"{said}, asked for {asked:.1f}" + ("" if deviation is None else f" ({round(deviation, 3) + 0.0:+.1%})")
