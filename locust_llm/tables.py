"""Tables: a summary as a document of headings, texts and tables, and that document as console text or Markdown."""

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tabulate import tabulate

from .breakdowns import PERCENTILES
from .definitions import GATE_WAIT, ITL, TTFT, TTFT_FROM_DUE
from .parts import scarce
from .record import FAILURES
from .remarks import SIMULATED, delivery_line, remarks, slo_line, verdict_line
from .run import Run
from .slo import PASS, goodput
from .summary import Breakdown, Conditions, Failure, Group, Row, SloResult, Summary

WIDTH: Final = 120
LABEL: Final = 30
"""Longer labels take two lines on the console; where the numbers are wide, shorter ones too."""
RULE: Final = 60
"""The same of SLO rules."""
MESSAGE: Final = 80
WARMUP: Final = ("request_latency", "time_to_first_token", "inter_token_latency", "request_throughput")
"""What is worth showing of the warmup; profile_export_aiperf.json has all of it."""
SHORT: Final = {TTFT.tag: "TTFT", ITL.tag: "ITL", GATE_WAIT.tag: "wait", TTFT_FROM_DUE.tag: "from due"}
"""The columns of a breakdown."""
SCARCE: Final = "* too few values for this percentile (it takes 100 / (100 - p): 10 for p90, 100 for p99)"
KINDS: Final = 20
"""How many kinds of failures are listed."""


class Heading(NamedTuple):
    text: str


class Text(NamedTuple):
    text: str
    loud: bool = False


class Table(NamedTuple):
    """Rows as long as ``head``. The first column is aligned left, the others right if they hold ``numbers``."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: bool = True
    label: int = LABEL
    """How wide the first column may be on the console."""


Block = Heading | Text | Table


def document(summary: Summary, run: Run, folder: Path | str = "") -> Iterator[Block]:
    """What there is to say about a run, in reading order. Nothing in it is escaped yet."""
    chosen = run.settings.percentiles
    yield Heading(f"Load test {run.name}")
    if summary.conditions.simulated:
        yield Text(SIMULATED, loud=True)
    if (blame := verdict_line(summary)) is not None:
        yield Text(blame, loud=True)
    if (held_back := delivery_line(summary)) is not None:
        yield Text(held_back, loud=True)
    yield from _slos(summary)
    yield Table(("Conditions", ""), tuple(_conditions(summary, run)), numbers=False)
    yield Heading("Metrics")
    yield _metrics(summary.rows, chosen)
    if any(row.count and scarce(row.count, p) for row in summary.rows for p in chosen):
        yield Text(SCARCE)
    yield from _breakdowns(summary.breakdowns)
    if summary.cancelled:
        yield Heading(f"Cancelled on purpose ({_many(summary.conditions.cancelled, 'request')}, in no latency above)")
        yield _metrics(summary.cancelled, chosen)
    if summary.adjusted:
        yield Heading("Latencies with every failure as +infinity")
        yield _adjusted(summary.adjusted, chosen)
    if summary.failures:
        yield Heading("Failures")
        yield from _failures(summary)
    if summary.warmup:
        yield Heading(f"Warmup ({summary.counts.warmup} requests, in no other figure)")
        yield _metrics([row for row in summary.warmup if row.tag in WARMUP], chosen)
    yield Heading("Notes")
    for remark in remarks(summary, run):
        yield Text(remark, loud=remark.startswith("WARNING"))
    if str(folder):
        yield Text(f"Reports: {folder}")


def console(summary: Summary, run: Run, folder: Path | str = "") -> str:
    """The document as plain text, at most 120 columns wide where the numbers allow, control characters harmless."""
    return "\n\n".join(map(_console, document(summary, run, folder))) + "\n"


def markdown(summary: Summary, run: Run, folder: Path | str = "") -> str:
    """The document as GitHub's Markdown; what came from outside can neither add markup nor break a table."""
    blocks = enumerate(document(summary, run, folder))
    return "\n\n".join(_markdown(block, first=i == 0) for i, block in blocks) + "\n"


def label_of(row: Row) -> str:
    """``Time to First Token (ms)``; counts name their unit already."""
    return row.label if row.unit in ("tokens", "requests") else f"{row.label} ({row.unit})"


def number(value: float | None) -> str:
    """Two decimals; ``-`` for nothing, ``fail`` for a percentile that lands on a failure."""
    if value is None:
        return "-"
    return f"{value:.2f}" if math.isfinite(value) else "fail"


def brief(value: float | None) -> str:
    """Four significant digits and no fraction above: 12.35, 123.5, 1235, 12346."""
    if value is None:
        return "-"
    return f"{value:.{max(0, min(2, 3 - math.floor(math.log10(value)))) if value >= 1 else 2}f}"


def clean(text: str) -> str:
    """One line without control or direction characters: an error message may hold anything."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def amount(value: float | None, unit: str) -> str:
    """Four significant digits: ``612.3ms``, ``0.98%``, ``12346/s``; ``?`` for nothing, ``fail`` for what lands on one."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return "fail"
    return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}") + unit


def observed(result: SloResult) -> str:
    return "-" if result.observed is None else amount(result.observed, result.unit)


def interval(result: SloResult) -> str:
    """``590ms to 640ms``."""
    if result.low is None and result.high is None:
        return "-"
    return f"{amount(result.low, result.unit)} to {amount(result.high, result.unit)}"


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
        quantiles = (_marked(row, p) for p in chosen)
        count = "-" if row.count is None else str(row.count)
        avg = f"{row.avg:.4f}" if row.unit == "ratio" and row.avg is not None else number(row.avg)
        return label_of(row), avg, number(row.min), *quantiles, number(row.max), number(row.std), count

    return Table(("Metric", "avg", "min", *map(_p, chosen), "max", "std", "count"), tuple(map(cells, rows)))


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
    titles = [f"{name} {_p(p)}" if p == PERCENTILES[0] else _p(p) for name, p in names]

    def cells(group: Group) -> Iterator[str]:
        yield _cut(group.label, 2 * LABEL)
        yield str(group.succeeded)
        yield "-" if group.failure_rate is None else f"{group.failure_rate:.1%}"
        yield from (_marked(row, p, brief) for row in group.rows for p in PERCENTILES)
        if told:
            yield brief(group.input_tokens)
            yield "-" if group.cached_share is None else f"{group.cached_share:.1%}"

    head = (breakdown.by, "ok", "failed", *titles, *(("input", "cached") if told else ()))
    return Table(head, tuple(tuple(cells(group)) for group in groups))


def _adjusted(rows: Sequence[Row], chosen: Sequence[float]) -> Table:
    cells = ((label_of(row), *(_marked(row, p) for p in chosen), str(row.count)) for row in rows)
    return Table(("Metric", *map(_p, chosen), "count"), tuple(cells))


def _marked(row: Row, percentile: float, number: Callable[[float | None], str] = number) -> str:
    value = row.percentiles.get(percentile)
    few = value is not None and row.count is not None and scarce(row.count, percentile)
    return number(value) + ("*" if few else "")


def _p(percentile: float) -> str:
    return f"p{percentile:g}"


def _failures(summary: Summary) -> Iterator[Block]:
    def cells(f: Failure) -> tuple[str, ...]:
        status = "-" if f.status is None else str(f.status)
        return f.outcome, _cut(f.name, 30), status, str(f.count), _cut(f.message, MESSAGE)

    rows = tuple(map(cells, summary.failures[:KINDS]))
    yield Table(("Outcome", "Name", "Status", "Count", "Message (the first of its kind)"), rows, numbers=False)
    rest = summary.failures[KINDS:]
    if rest:
        yield Text(f"and {sum(f.count for f in rest)} failures of {len(rest)} more kinds")
    outcomes = dict.fromkeys(f.outcome for f in summary.failures)
    yield Text("; ".join(f"{outcome}: {FAILURES.get(outcome, 'unknown')}" for outcome in outcomes))


def _conditions(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, counts, gate = summary.conditions, summary.counts, summary.gate
    yield "server", (c.server or "-") + (f" ({c.server_software})" if c.server_software else "")
    yield "model", c.model or "-"
    yield "load", f"{_load(c, run)}, {_many(c.processes, 'process', 'processes')}"
    if (d := summary.delivery) is not None:
        yield (
            "delivered",
            (
                f"offered {d.offered_per_s:.2f}/s, sent {d.sent_per_s:.2f}/s ({d.share:.1%}), "
                f"completed {d.completed_per_s:.2f}/s in the {d.duration_s:.1f} s until the stop"
            ),
        )
    ramp = f", ramp from 1 over {c.prefill_ramp_s:g} s" if c.prefill_ramp_s else ""
    yield "prefill limit", "none" if c.prefill_limit is None else f"{c.prefill_limit}{ramp}"
    if gate is not None:
        wanted = f"; {gate.utilisation:.1%} of the limit in the {gate.waited_s:.1f} s when requests waited" \
            if gate.utilisation is not None else "; nobody waited"  # fmt: skip
        yield "in prefill", f"{gate.mean_used:.2f} on average, at most {gate.max_used}{wanted}"
    yield "input length", _length(c.asked_input_tokens, c.input_tokens, c.input_deviation)
    yield "output length", _length(c.asked_output_tokens, c.output_tokens, c.output_deviation)
    if c.sessions is not None:
        yield "sessions", f"{c.sessions}, {c.turns_per_session or 0:.2f} answered turns each on average"
    yield "cached input", "unknown" if c.cached_share is None else f"{c.cached_share:.1%}"
    if run.settings.goodput:
        yield "good requests", _good(run.settings.goodput)
    yield "duration", "-" if c.duration_s is None else f"{c.duration_s:.2f} s, first send to last end"
    yield "requests", _requests(c)
    merged = counts.merged_chunks / counts.chunks if counts.chunks else 0.0
    left_out = f"; {counts.gaps_left_out} gaps left out" if counts.gaps_left_out else ""
    yield "chunks", f"{counts.chunks}, {merged:.2%} of them came more than one to a read{left_out}"
    yield "clock", f"{c.clock or '-'} stamps"
    yield "client verdict", _verdict(summary)


def _load(c: Conditions, run: Run) -> str:
    if c.loop == "closed":
        return f"closed loop (burst), {_many(c.users, 'user')}"
    if run.settings.user_centric_rate:
        return f"open loop, {c.arrivals} over {_many(c.users, 'user')}"
    if c.users is not None:
        return f"open loop, {c.arrivals}, up to {_many(c.users, 'user')}"
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


def _good(text: str) -> str:
    try:
        return f"those with {' and '.join(map(str, goodput(text)))}"
    except ValueError as error:
        return str(error)


def _requests(c: Conditions) -> str:
    rate = "" if c.failure_rate is None else f" ({c.failure_rate:.1%})"
    return f"{c.requests}: {c.succeeded} succeeded, {c.failed} failed{rate}, {c.cut} cut, {c.cancelled} cancelled"


def _length(asked: float | None, delivered: float | None, deviation: float | None) -> str:
    said = "unknown" if delivered is None else f"{delivered:.1f} tokens on average"
    if asked is None:
        return said
    return f"{said}, asked for {asked:.1f}" + ("" if deviation is None else f" ({round(deviation, 3) + 0.0:+.1%})")


def _many(count: int | None, one: str, more: str = "") -> str:
    return f"? {more or one + 's'}" if count is None else f"{count} {one if count == 1 else more or one + 's'}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _console(block: Block) -> str:
    match block:
        case Heading(text):
            return f"{clean(text)}\n{'=' * min(len(text), WIDTH)}"
        case Text(text, loud):
            lines = textwrap.fill(clean(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            return f"{'!' * WIDTH}\n{lines}\n{'!' * WIDTH}" if loud and text == SIMULATED else lines
        case Table():
            return _tabulate(block, "simple", clean, _room(block))


def _room(table: Table) -> int:
    """For the first column: what the others leave of the width, but neither too much nor too little."""
    rows = [[f"{title}  " for title in table.head], *table.rows]  # tabulate's own padding of titles
    others = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[1:])
    return min(table.label, max(LABEL // 2, WIDTH - others))


def _markdown(block: Block, first: bool) -> str:
    match block:
        case Heading(text):
            return f"{'#' if first else '##'} {_escaped(text)}"
        case Text(text, loud):
            return f"**{_escaped(text)}**" if loud else _escaped(text)
        case Table():
            return _tabulate(block, "pipe", _escaped)


def _escaped(text: str) -> str:
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~#>!])", r"\\\1", text)


def _tabulate(table: Table, style: str, cell: Callable[[str], str], label_width: int | None = None) -> str:
    widths = [label_width, *[None] * (len(table.head) - 1)] if label_width and table.numbers else None
    return tabulate(
        [[cell(text) for text in row] for row in table.rows],
        headers=[cell(text) for text in table.head],
        tablefmt=style,
        disable_numparse=True,
        colalign=["left", *(["right" if table.numbers else "left"] * (len(table.head) - 1))] if table.rows else None,
        maxcolwidths=widths if table.rows else None,
    )
