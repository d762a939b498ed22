"""Sessions by pencil: a diamond of four turns, one that failed, and a line."""

from typing import Any

import pytest
from support.records import answered, failed

from locust_llm.records.record import Record
from locust_llm.report.sections.session_tables import TurnGroup, summarise_sessions


def turn(
    number: int, sent: float, closed: float, ttft_ms: float = 100, session: str = "s", **fields: Any
) -> Record:
    return answered(
        ttft_ms, asked_at=sent, due_at=sent, sent_at=sent, closed_at=closed, session=session,
        turn=number,
        input_tokens=100 * (number + 1), cached_tokens=50 * number, **fields,
    )  # fmt: skip


DIAMOND = [
    turn(0, 10.0, 11.0, turns=4),
    turn(2, 11.5, 12.0, 300, after=(0,), tool_s=0.5),
    turn(1, 11.0, 13.0, 200, after=(0,)),
    turn(3, 14.0, 16.0, 400, after=(1, 2), tool_s=1.0),
]


def test_a_diamond() -> None:
    found = summarise_sessions(DIAMOND, "profiling")
    assert found is not None
    assert (found.sessions, found.complete, found.turns, found.turns_mean) == (1, 1, 4, 4.0)
    assert (found.depth, found.width, found.unsent) == (3, 2, 0)
    assert found.latency_s == (6.0, 6.0, 6.0)
    assert found.model_share == pytest.approx(5 / 6)  # 10 to 13 and 14 to 16
    assert found.tool_s == 1.5
    assert found.by_depth[1] == TurnGroup(
        first=2,
        last=2,
        turns=2,
        ttft_p50_s=0.25,
        ttft_p95_s=0.295,
        input_tokens=250.0,
        cached=150 / 500,
    )
    assert [group.turns for group in found.by_turn] == [1, 1, 1, 1]
    assert found.example == "s"


def test_one_that_failed_one_that_was_cut_short_and_a_line() -> None:
    records = [
        turn(0, 0.0, 1.0, session="broken", turns=4),
        failed("reset", session="broken", turn=1, sent_at=1.0, closed_at=2.0, unsent=2),
        turn(0, 0.0, 1.0, session="short", turns=2),
        *(turn(n, n, n + 0.5, session="line", turns=12 if n == 0 else None) for n in range(12)),
        turn(0, 0.0, 1.0, session="alone"),
        turn(0, 0.0, 9.0, session="warm", phase="warmup", turns=2),
    ]
    found = summarise_sessions(records, "profiling")
    assert found is not None
    assert (found.sessions, found.complete, found.turns, found.unsent, found.depth) == (
        3,
        1,
        15,
        2,
        12,
    )
    assert found.latency_s == (11.5, 11.5, 11.5)
    assert found.model_share == pytest.approx(6 / 11.5)
    assert (found.tool_s, found.by_turn, found.width, found.example) == (None, (), 1, "line")
    assert [(g.first, g.last, g.turns) for g in found.by_depth][-2:] == [(9, 9, 1), (10, 12, 3)]
    assert summarise_sessions([turn(0, 0.0, 1.0)], "profiling") is None
    led = [turn(n, n, n + 0.5, session=name) for name in ("first", "second") for n in range(2)]
    assert (found := summarise_sessions(led, "profiling")) is not None
    # the second may have had more
    assert (found.sessions, found.complete, found.example) == (2, 1, "first")
