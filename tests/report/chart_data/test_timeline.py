"""The timeline: which requests it shows, and when each of their moments was."""

import numpy as np
import pytest
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.chart_data import timeline as module
from locust_llm.report.chart_data.timeline import (
    MAX_ROWS,
    LongestStall,
    Timeline,
    TimelineWindow,
    choose_window,
    find_scene,
    make_timeline,
    pick_records,
)
from locust_llm.report.load_records import collect_columns


def drawn(*records: Record, run: Run | None = None) -> Timeline:
    """As from a file: in the order of their ends."""
    ordered = sorted(records, key=lambda record: record.closed_at)

    def since(at: float) -> list[Record]:
        return [record for record in ordered if record.closed_at + record.clock_offset_s >= at]

    found = find_scene(collect_columns(ordered), run or a_run(), since)
    assert found is not None
    return make_timeline(found)


def steady(sent_at: float, count: int = 50, gap_ms: float = 20.0, **other: object) -> Record:
    return answered(*(100 + gap_ms * i for i in range(count)), sent_at=sent_at, **other)


def test_around_the_longest_stall() -> None:
    """
    second  10 ......... 10.5 ........ 11 ........
    stream  |prefill|.  .  .  .       400 ms      .  .
    long                 |wait |prefill          |.
    """
    stream = answered(*range(100, 620, 20), *range(1000, 1400, 20), sent_at=10.0, id="stream")
    long = answered(
        450,
        470,
        asked_at=10.5,
        admitted_at=10.55,
        sent_at=10.55,
        limit=1,
        input_tokens=16_000,
        id="long",
    )
    found = drawn(stream, long, steady(20.0))
    assert found.stall_text == "longest stall 400 ms"
    assert found.title == "2 requests around the longest stall"
    assert "all 2 requests that were in flight in this interval" in found.caption
    assert found.stall is not None
    assert found.stall[1] - found.stall[0] == pytest.approx(400, abs=0.2)
    middle = (found.stall[0] + found.stall[1]) / 2
    assert found.start * 1e3 + middle == pytest.approx(10_800, abs=0.5)
    first, second = found.rows
    assert first.first == pytest.approx(first.sent + 100)  # type: ignore[operator]
    assert second.tokens == 16_000
    assert second.admitted == pytest.approx(second.asked + 50)
    assert second.sent == pytest.approx(found.stall[0] - 50, abs=0.2)
    assert second.text == "chat, TTFT 450 ms, gate wait 50 ms, 2 tokens out, longest stall 20 ms"
    assert found.slow == 80.0
    red = [
        b - a for a, b in zip(first.chunks, first.chunks[1:], strict=False) if b - a > found.slow
    ]
    assert red == [pytest.approx(400)]


def test_without_stalls_the_middle_of_the_run() -> None:
    found = drawn(*(answered(50, sent_at=10.0 + i) for i in range(11)))
    assert found.title.endswith("around the middle of the run")
    assert (found.stall, found.slow) == (None, 0.0)
    assert found.start + found.length / 2e3 == pytest.approx(15.025, abs=0.01)


def test_what_became_of_a_request_is_at_the_end_of_its_line() -> None:
    found = drawn(
        steady(10.0),
        failed("reset", sent_at=10.2, closed_at=10.9, id="b"),
        answered(100, sent_at=10.3, outcome="cancelled", closed_at=10.6),
        failed("refused", sent_at=None, asked_at=10.4, closed_at=10.5, error="\u202e<b>"),
    )
    assert [row.outcome for row in found.rows] == ["", "failed", "cancelled", "failed"]
    assert found.rows[1].closed == pytest.approx(found.rows[1].asked + 700)
    assert found.rows[3].sent is None
    assert found.rows[3].text == "chat, refused"


def test_many_requests_are_sampled_and_it_says_so() -> None:
    records = [steady(10 + i / 1000, 40, id=str(i)) for i in range(500)]
    stalled = answered(100, 120, 140, 600, 620, sent_at=10.2, id="stalled", name="the one")
    prefills = [
        answered(350, 370, sent_at=10.4, input_tokens=16_000, id=f"p{i}") for i in range(30)
    ]
    found = drawn(*records, stalled, *prefills)
    assert len(found.rows) == MAX_ROWS
    assert (
        "60 of the 531 requests that were in flight in this interval, a sample; requests that "
        "waited longest for their first token during the stall come first" in found.caption
    )
    assert sum(row.text.startswith("the one") for row in found.rows) == 1
    assert sum(row.tokens == 16_000 for row in found.rows) >= module.MAX_PREFILL_ROWS - 1
    asked = [row.asked for row in found.rows]
    assert asked == sorted(asked)


def test_dots_that_would_lie_upon_each_other_are_one() -> None:
    """5,000 chunks within 1 ms each, and a stall of 5 s: the ends of the stall are still there."""
    many = answered(*np.arange(1, 5001).tolist(), *np.arange(10_000, 15_000).tolist(), sent_at=10.0)
    found = drawn(many)
    row = found.rows[0]
    assert len(row.chunks) <= module.MAX_DOTS + 3
    longest = max(b - a for a, b in zip(row.chunks, row.chunks[1:], strict=False))
    assert longest == pytest.approx(5000)
    assert sum(b - a > found.slow for a, b in zip(row.chunks, row.chunks[1:], strict=False)) == 1


def test_a_line_goes_on_to_the_edge() -> None:
    """A stream with chunks before and after the window, and none in it, is still a line across
    it."""
    slow = answered(100, 30_000, 60_000, sent_at=10.0, id="slow", outcome="cancelled")
    found = drawn(slow, *(steady(30.0 + i, 20) for i in range(3)), answered(10, 400, sent_at=31.5))
    row = min(found.rows, key=lambda row: row.asked)
    assert row.chunks[0] < 0
    assert row.chunks[-1] > found.length


def test_nothing_was_sent() -> None:
    columns = collect_columns([failed("refused", sent_at=None), answered(5, phase="warmup")])
    assert find_scene(columns, a_run(), lambda _: []) is None
    assert find_scene(collect_columns([]), a_run(), lambda _: []) is None


def test_a_record_that_ended_before_it_began_is_no_middle_of_a_run() -> None:
    assert (
        find_scene(
            collect_columns([answered(5, asked_at=11.0, closed_at=10.0)]), a_run(), lambda _: []
        )
        is None
    )


def test_records_that_are_not_found_leave_the_rest() -> None:
    seen = find_scene(collect_columns([steady(10.0)]), a_run(), lambda _: [])
    assert seen is not None
    found = make_timeline(seen)
    assert (found.rows, found.stall) == ((), None)


@pytest.mark.parametrize(
    ("stall_s", "users", "length"),
    [
        (0.5, 3, 5.0),  # ten stalls
        (1.0, 3, 5.12),  # 256 gaps, which are less than ten stalls
        (4.0, 3, 10.0),  # two and a half stalls, which are more
        (0.01, 3, 3.2),  # 160 gaps of 20 ms
        (0.5, 1000, 1.25),  # two and a half stalls, for there are too many requests anyway
    ],
)
def test_how_long_a_window_is(stall_s: float, users: int, length: float) -> None:
    began, closed = np.zeros(users), np.full(users, 100.0)
    stall = LongestStall(50.0, 50.0 + stall_s, "x")
    window = choose_window(began, closed, np.ones(users, np.bool_), stall, 0.02)
    assert window.end - window.start == pytest.approx(length)
    assert (window.start + window.end) / 2 == pytest.approx(50 + stall_s / 2)


def test_a_window_ends_with_the_run() -> None:
    window = choose_window(
        np.array([10.0]), np.array([11.0]), np.ones(1, np.bool_), LongestStall(10.8, 10.9, "x"), 0.1
    )
    assert 9.5 < window.start < 10.0
    assert 11.0 < window.end < 11.5


def test_few_records_are_all_picked() -> None:
    records = [steady(11.0, id="b"), steady(10.0, id="a")]
    assert [
        record.id for record in pick_records(records, TimelineWindow(UNIX, UNIX + 99, None))
    ] == ["a", "b"]


def test_failures_that_took_no_time_are_lines_without_a_length() -> None:
    assert (
        len(drawn(*(failed(id=str(i), sent_at=10.0, closed_at=10.0) for i in range(4))).rows) == 4
    )


def test_without_a_stall_the_window_is_around_a_request() -> None:
    """The middle of the run may be a pause."""
    pair = (
        failed(id="a", sent_at=10.0, closed_at=10.01),
        failed(id="b", sent_at=100.0, closed_at=100.01),
    )
    assert len(drawn(*pair).rows) == 1
