"""Waterfall: the turns of one session line by line, in the order in which they were sent."""

from collections.abc import Sequence

import msgspec

from locust_llm.records.record import Record
from locust_llm.report.charts.timeline import MAX_ROWS, Timeline
from locust_llm.report.charts.timeline_lines import MAX_DOTS, TimelineRow, make_timeline_row
from locust_llm.text.format import clean_line, format_count, format_duration


def make_session_timeline(records: Sequence[Record], started_at: float) -> Timeline:
    """``records``: of one session, at least one; ``started_at``: of the run, Unix seconds."""
    shown = sorted(records, key=_asked_at)[:MAX_ROWS]
    start = _asked_at(shown[0])
    length_s = max(record.closed_at + record.clock_offset_s for record in shown) - start
    start, length_s = start - 0.01 * length_s, 1.02 * length_s or 1e-3
    rest = f" The first {MAX_ROWS} of {len(records)} turns." if len(records) > len(shown) else ""
    title = f"{format_count(len(records), 'turn')} in {format_duration(length_s)}"
    return Timeline(
        title=title,
        caption=f"The session of median latency; a line a turn, in the order in which they were "
        f"sent. Between them are tools, think times, and waits for arrivals.{rest}",
        label=f"Waterfall of one session: {title}",
        start=round(start - started_at, 4),
        length=round(length_s * 1e3, 1),
        slow=0.0,
        rows=tuple(_row(record, start, length_s) for record in shown),
    )


def _row(record: Record, start: float, length_s: float) -> TimelineRow:
    row = make_timeline_row(record, start, length_s * 1e3 / MAX_DOTS, 0.0)
    tool = "" if record.tool_s is None else f", a tool for {format_duration(record.tool_s)} before it"
    after = "" if not record.after else f", after {', '.join(str(turn + 1) for turn in record.after)}"
    return msgspec.structs.replace(row, text=clean_line(f"turn {record.turn + 1}{after}{tool}: {row.text}"))


def _asked_at(record: Record) -> float:
    return record.asked_at + record.clock_offset_s
