"""Session tables: turns, depth, width, latency and tool time of whole sessions; their table, and
one session turn by turn."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.report.chart_data.timeline import MAX_ROWS, Timeline
from locust_llm.report.chart_data.timeline_lines import MAX_DOTS, TimelineRow, make_timeline_row
from locust_llm.report.document_blocks import (
    INEXACT,
    Block,
    Heading,
    TableBlock,
    TextBlock,
    explain_marks,
    mark_scarce,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.slo.metric_definitions import TTFT
from locust_llm.text.format import clean_line, format_count, format_duration, format_number

from .section import ReportMaterial, ReportSection

MAX_GROUPS: Final = 10
"""The rows of a table by turn or by depth. The last one has all that is beyond."""
MAX_SESSIONS: Final = 100_000
"""The first sessions, of which values are made; 200 bytes a turn are kept."""


class TurnGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Answered turns of one depth, or of one number."""

    first: int
    last: int
    """The first and the last turn, from 1. Where they are equal it is one turn."""
    turns: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    """None: no turn was streamed."""
    input_tokens: float | None
    """The mean input tokens."""
    cached: float | None
    """The cached share of the input tokens. None: the server reported none."""
    inexact: tuple[str, ...] = ()
    """The percentiles that the load generator may have too wrong."""


class SessionsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of the profiling phase with more than one turn, also where later ones were not
    sent."""

    sessions: int
    complete: int
    """The sessions whose turns were all answered; the latencies are theirs. The last session of
    each user that code leads is left out, as it may have had more turns."""
    turns: int
    """The requests of all sessions."""
    unsent: int
    """Turns that were never sent because one that they wait for failed."""
    turns_mean: float
    depth: int
    """The longest way from a first turn to a last one, in turns, over all sessions."""
    width: int
    """The most requests of one session under way at a time."""
    latency_s: tuple[float, float, float] | None
    """p50, p90 and p99 from the first send to the last end. None: no session is complete."""
    model_share: float | None
    """The mean share of that time with a request under way."""
    tool_s: float | None
    """The mean tool time of a complete session, summed over its branches. None: no turn had one."""
    by_depth: tuple[TurnGroup, ...]
    by_turn: tuple[TurnGroup, ...]
    """Empty: it would repeat the total."""
    example: str
    """The id of the complete session of median latency. Empty: none is complete."""


class _Turn(msgspec.Struct, gc=False):
    number: int
    after: tuple[int, ...]
    sent_at: float
    closed_at: float
    ttft_s: float | None
    input_tokens: int | None
    cached_tokens: int | None
    tool_s: float | None
    ok: bool
    depth: int = 1


def summarise_sessions(records: Iterable[Record], phase: str) -> SessionsSummary | None:
    """Read the stream once. None: no session has a second turn."""
    sessions: dict[str, list[_Turn]] = {}
    turns: dict[str, int] = {}
    last: dict[tuple[str, int], str] = {}
    unsent = 0
    for record in records:
        if record.phase != phase or not record.session or record.outcome == RETRIED:
            continue
        if record.session not in sessions:
            if len(sessions) == MAX_SESSIONS:
                continue
            sessions[record.session] = []
        unsent += record.unsent
        sessions[record.session].append(_turn(record))
        last[record.worker, record.user] = record.session
        if record.turns is not None:
            turns[record.session] = record.turns
    sessions = {
        name: session
        for name, session in sessions.items()
        if len(session) > 1 or turns.get(name, 1) > 1
    }
    if not sessions:
        return None
    for session in sessions.values():
        _measure_depths(session)
    # the run may have ended it: nobody knows
    open_ended = {name for name in last.values() if name not in turns}

    def is_complete(name: str, session: list[_Turn]) -> bool:
        every_turn = len(session) == turns.get(name, len(session)) and name not in open_ended
        return every_turn and all(turn.ok for turn in session)

    complete = [session for name, session in sessions.items() if is_complete(name, session)]
    spans = np.array([_span(session) for session in complete])
    every = list(chain.from_iterable(sessions.values()))
    busy = [_busy_s(session) / _span(session) for session in complete if _span(session) > 0]
    tools = [_tools_s(session) for session in complete]
    return SessionsSummary(
        sessions=len(sessions),
        complete=len(complete),
        turns=len(every),
        unsent=unsent,
        turns_mean=len(every) / len(sessions),
        depth=max(turn.depth for turn in every),
        width=max(map(_width, sessions.values())),
        latency_s=None if not complete else tuple(np.percentile(spans, (50, 90, 99)).tolist()),
        model_share=_mean(busy),
        tool_s=_mean(tools) if any(turn.tool_s is not None for turn in every) else None,
        by_depth=_grouped([(turn.depth, turn) for turn in every]),
        by_turn=()
        if all(turn.depth == turn.number + 1 for turn in every)
        else _grouped([(turn.number + 1, turn) for turn in every]),
        example=_middle(sessions, complete, spans),
    )


def _turn(record: Record) -> _Turn:
    """A turn that was not sent has all its times at its end."""
    before = (record.turn - 1,) if record.turn else ()
    sent_at = record.closed_at if record.sent_at is None else record.sent_at
    return _Turn(
        record.turn, before if record.after is None else record.after,
        sent_at + record.clock_offset_s,
        record.closed_unix_s, record.ttft_s, record.input_tokens,
        record.cached_tokens,
        record.tool_s, record.outcome == OK,
    )  # fmt: skip


def _measure_depths(turns: list[_Turn]) -> None:
    """A turn that waits for none has depth 1, any other one more than the deepest that it waits
    for. Turns without a record are left out."""
    turns.sort(key=lambda turn: turn.number)
    depths: dict[int, int] = {}
    for turn in turns:
        turn.depth = depths[turn.number] = 1 + max(
            (depths.get(before, 0) for before in turn.after), default=0
        )


def _span(turns: Sequence[_Turn]) -> float:
    return max(turn.closed_at for turn in turns) - min(turn.sent_at for turn in turns)


def _tools_s(turns: Sequence[_Turn]) -> float:
    return sum(turn.tool_s or 0.0 for turn in turns)


def _busy_s(turns: Sequence[_Turn]) -> float:
    """How long at least one of its requests was under way."""
    busy_s = 0.0
    until = float("-inf")
    for turn in sorted(turns, key=lambda turn: turn.sent_at):
        busy_s += max(0.0, turn.closed_at - max(turn.sent_at, until))
        until = max(until, turn.closed_at)
    return busy_s


def _width(turns: Sequence[_Turn]) -> int:
    """The most turns side by side. A turn that ends when another begins is not beside it."""
    moments = sorted(
        [(turn.sent_at, 1) for turn in turns] + [(turn.closed_at, -1) for turn in turns]
    )
    most = open_now = 0
    for _, step in moments:
        open_now += step
        most = max(most, open_now)
    return most


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _grouped(turns: list[tuple[int, _Turn]]) -> tuple[TurnGroup, ...]:
    """Groups by number. Each has a row; the last row has all beyond it."""
    groups: defaultdict[int, list[_Turn]] = defaultdict(list)
    for number, turn in turns:
        if turn.ok:
            groups[min(number, MAX_GROUPS)].append(turn)
    highest = max((number for number, turn in turns if turn.ok), default=0)
    return tuple(
        _group(number, highest if number == MAX_GROUPS else number, group)
        for number, group in sorted(groups.items())
    )


def _group(first: int, last: int, turns: list[_Turn]) -> TurnGroup:
    ttfts = [turn.ttft_s for turn in turns if turn.ttft_s is not None]
    counted = [
        (turn.input_tokens, turn.cached_tokens)
        for turn in turns
        if turn.input_tokens and turn.cached_tokens is not None
    ]
    tokens = [turn.input_tokens for turn in turns if turn.input_tokens is not None]
    return TurnGroup(
        first=first, last=last, turns=len(turns),
        ttft_p50_s=float(np.percentile(ttfts, 50)) if ttfts else None,
        ttft_p95_s=float(np.percentile(ttfts, 95)) if ttfts else None,
        input_tokens=_mean(tokens),
        cached=sum(cached for _, cached in counted) / sum(count for count,
            _ in counted) if counted else None,
    )  # fmt: skip


def _middle(
    turns_by_session: dict[str, list[_Turn]],
    complete: list[list[_Turn]],
    spans: NDArray[np.float64],
) -> str:
    """The id of the complete session in the middle, by latency."""
    if not complete:
        return ""
    middle = complete[int(np.argsort(spans, kind="stable")[(len(spans) - 1) // 2])]
    return next(name for name, turns in turns_by_session.items() if turns is middle)


def make_sessions_blocks(summary: SessionsSummary) -> Iterator[Block]:
    """Makes the blocks of sessions of more than one turn."""
    yield Heading("Sessions")
    yield TableBlock(("Sessions", "Value"), tuple(_rows(summary)), numbers=False)
    if summary.unsent:
        yield TextBlock(
            f"{format_count(summary.unsent, 'turn')} never sent, because a turn that they depend "
            "on failed.",
            loud=True,
        )
    tables = [_groups("depth", summary.by_depth)]
    if summary.by_turn:
        tables.append(_groups("turn", summary.by_turn))
    yield from tables
    yield from explain_marks([*chain.from_iterable(table.rows for table in tables)])


def _rows(sessions: SessionsSummary) -> Iterator[tuple[str, str]]:
    yield (
        "sessions",
        f"{sessions.sessions:,}; {sessions.complete:,} of them whole, with each turn answered",
    )
    yield "turns", f"{sessions.turns:,}, {sessions.turns_mean:.1f} in a session"
    yield (
        "deepest, widest",
        f"{format_count(sessions.depth, 'turn')} in sequence; {sessions.width:,} in parallel",
    )
    if sessions.latency_s is not None:
        latencies = zip(sessions.latency_s, (50, 90, 99), strict=True)
        p50, p90, p99 = (
            format_duration(seconds) + mark_scarce(sessions.complete, percentile)
            for seconds, percentile in latencies
        )
        yield (
            "session latency",
            f"p50 {p50}, p90 {p90}, p99 {p99}, from the first send to the last end",
        )
    if sessions.model_share is not None:
        yield "with the model", f"{sessions.model_share:.1%} of that time a request was in flight"
    if sessions.tool_s is not None:
        yield "in tools", f"{format_duration(sessions.tool_s)} per session, over all branches"


def _groups(by: str, groups: Sequence[TurnGroup]) -> TableBlock:
    def cells(group: TurnGroup) -> Iterator[str]:
        yield str(group.first) if group.first == group.last else f"{group.first} to {group.last}"
        yield f"{group.turns:,}"
        for ttft_s, percentile in ((group.ttft_p50_s, 50), (group.ttft_p95_s, 95)):
            inexact = INEXACT * (f"p{percentile}" in group.inexact)
            few = mark_scarce(group.turns, percentile)
            yield "-" if ttft_s is None else f"{inexact}{format_number(ttft_s * 1e3, 4)}{few}"
        yield format_number(group.input_tokens, 4)
        yield "-" if group.cached is None else f"{group.cached:.1%}"

    head = (by, "answered", "TTFT p50 (ms)", "p95", "input", "cached")
    return TableBlock(head, tuple(tuple(cells(group)) for group in groups))


def make_session_timeline(records: Sequence[Record], started_at: float) -> Timeline:
    """``records`` are at least one record of one session. ``started_at`` is the run's start in Unix
    seconds."""
    shown = sorted(records, key=attrgetter("asked_unix_s"))[:MAX_ROWS]
    start = shown[0].asked_unix_s
    length_s = max(record.closed_unix_s for record in shown) - start
    start = start - 0.01 * length_s
    length_s = 1.02 * length_s or 1e-3
    rest = f" The first {MAX_ROWS} of {len(records)} turns." if len(records) > len(shown) else ""
    title = f"{format_count(len(records), 'turn')} in {format_duration(length_s)}"
    return Timeline(
        title=title,
        caption=(
            "The session with the median latency. Each line is a turn, in the order of sending. "
            f"Between turns are tools, think times and waits for arrivals.{rest}"
        ),
        label=f"Timeline of one session: {title}",
        start=round(start - started_at, 4),
        length=round(length_s * 1e3, 1),
        slow=0.0,
        rows=tuple(_row(record, start, length_s) for record in shown),
    )


def _row(record: Record, start: float, length_s: float) -> TimelineRow:
    row = make_timeline_row(record, start, length_s * 1e3 / MAX_DOTS, 0.0)
    tool = (
        "" if record.tool_s is None else f", a tool for {format_duration(record.tool_s)} before it"
    )
    after = (
        "" if not record.after else f", after {', '.join(str(turn + 1) for turn in record.after)}"
    )
    return msgspec.structs.replace(
        row, text=clean_line(f"turn {record.turn + 1}{after}{tool}: {row.text}")
    )


# -- section ---------------------------------------------------------------------------------------


def _find(material: ReportMaterial) -> SessionsSummary | None:
    if not (material.columns.requests.floats("turn") > 0).any():
        return None
    found = summarise_sessions(material.records, PROFILING)
    if found is None or material.inexact.sources is None:
        return found
    # without branches a turn is as deep as its number
    of_depth = found.by_turn and _mark_inexact(found.by_depth, material, by_number=False)
    return msgspec.structs.replace(
        found,
        by_depth=of_depth or _mark_inexact(found.by_depth, material, by_number=True),
        by_turn=_mark_inexact(found.by_turn, material, by_number=True),
    )


def _mark_inexact(
    groups: Sequence[TurnGroup], material: ReportMaterial, *, by_number: bool
) -> tuple[TurnGroup, ...]:
    """The groups with their marks: each by its own requests, or by those of all turns."""
    requests = material.columns.requests
    counted = requests.has("phase", PROFILING)
    number = requests.floats("turn") + 1
    marked = list[TurnGroup]()
    for group in groups:
        here = counted
        if by_number:
            here = here & (number >= group.first) & (number <= group.last)
        part = RequestSelection(requests, here)
        stats = material.inexact.find_stats(TTFT, part, (50.0, 95.0))
        marked.append(msgspec.structs.replace(group, inexact=stats))
    return tuple(marked)


def _draw(sessions: SessionsSummary, material: ReportMaterial) -> Iterator[Timeline]:
    """Draw the session of median latency."""
    if sessions.example:
        turns = [record for record in material.records if record.session == sessions.example]
        yield make_session_timeline(turns, material.run.started_at)


SESSIONS: Final = ReportSection(
    name="sessions",
    subject="the metrics of whole sessions",
    finding=SessionsSummary,
    find=_find,
    make_blocks=make_sessions_blocks,
    chart_heading="One session",
    draw=_draw,
)
