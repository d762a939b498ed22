"""Sessions: their table, and figures by depth and by turn."""

from collections.abc import Iterator, Sequence

from locust_llm.report.blocks import SCARCE_NOTE, Block, Heading, TableBlock, TextBlock, mark_scarce
from locust_llm.report.sections.sessions.analysis import SessionsSummary, TurnGroup
from locust_llm.text.format import format_count, format_duration, format_number


def make_sessions_blocks(found: SessionsSummary) -> Iterator[Block]:
    """Of more than one turn."""
    yield Heading("Sessions")
    yield TableBlock(("Sessions", "Value"), tuple(_rows(found)), numbers=False)
    if found.unsent:
        yield TextBlock(
            f"{format_count(found.unsent, 'turn')} never sent: a turn that they wait for failed.", loud=True
        )
    tables = [_groups("depth", found.by_depth)]
    if found.by_turn:
        tables.append(_groups("turn", found.by_turn))
    yield from tables
    if any("*" in cell for table in tables for row in table.rows for cell in row):
        yield TextBlock(SCARCE_NOTE)


def _rows(found: SessionsSummary) -> Iterator[tuple[str, str]]:
    yield "sessions", f"{found.sessions:,}; {found.complete:,} of them whole, with each turn answered"
    yield "turns", f"{found.turns:,}, {found.turns_mean:.1f} in a session"
    yield "deepest, widest", f"{format_count(found.depth, 'turn')} one after the other; {found.width:,} side by side"
    if found.latency_s is not None:
        latencies = zip(found.latency_s, (50, 90, 99), strict=True)
        p50, p90, p99 = (
            format_duration(seconds) + mark_scarce(found.complete, percentile) for seconds, percentile in latencies
        )
        yield "session latency", f"p50 {p50}, p90 {p90}, p99 {p99}, from the first send to the last end"
    if found.model_share is not None:
        yield "with the model", f"{found.model_share:.1%} of that time a request was under way"
    if found.tool_s is not None:
        yield "in tools", f"{format_duration(found.tool_s)} in a session, over all its branches"


def _groups(by: str, groups: Sequence[TurnGroup]) -> TableBlock:
    def cells(group: TurnGroup) -> Iterator[str]:
        yield str(group.first) if group.first == group.last else f"{group.first} to {group.last}"
        yield f"{group.turns:,}"
        for ttft_s, percentile in ((group.ttft_p50_s, 50), (group.ttft_p95_s, 95)):
            yield "-" if ttft_s is None else format_number(ttft_s * 1e3, 4) + mark_scarce(group.turns, percentile)
        yield format_number(group.input_tokens, 4)
        yield "-" if group.cached is None else f"{group.cached:.1%}"

    head = (by, "answered", "TTFT p50 (ms)", "p95", "input", "cached")
    return TableBlock(head, tuple(tuple(cells(group)) for group in groups))
