"""Live: what the page shows comes out as with a pencil, whatever is dropped of a long history, and
stays small."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import UNIX, answered, failed

from locust_llm.controller.run_progress import RATE_S, WINDOW_S, RunProgress
from locust_llm.report.chart_data.timeline_lines import thin_chunks
from locust_llm.web import live_page_tallies as module
from locust_llm.web.live_page_tallies import (
    ICL,
    LATENCY,
    MAX_LINES,
    MAX_MARKS,
    MAX_POINTS,
    PERCENTILES,
    LivePageTallies,
    LiveSample,
)


class Clock:
    """Unix seconds and, 1,000 behind, those of the monotonic clock."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now - 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LivePageTallies:
    return LivePageTallies(RunProgress(clock.monotonic), clock.now, clock)


def hear(
    live: LivePageTallies, *ttfts_ms: float, request_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> None:
    ttfts_s = [ms / 1e3 for ms in ttfts_ms]
    live.stats.update("local", used=0, waiting=0, decoding=0, request_s=request_s, ttfts_s=ttfts_s)


def keep(live: LivePageTallies, record: object) -> None:
    """As the control does."""
    live.stats.add(record)  # type: ignore[arg-type]
    live.add(record)  # type: ignore[arg-type]


def row(live: LivePageTallies, label: str) -> module.LatencyRow:
    return next(row for row in live.table() if row.label == label)


# -- the table -------------------------------------------------------------------------------------


def test_a_request_by_pencil(live: LivePageTallies) -> None:
    """Asked at 10 s, due 0.2 s before, admitted 0.3 s later, sent at 10.3 s; chunks 100, 120 and
    160 ms after that."""
    live.has_waits = True
    keep(
        live,
        answered(100, 120, 160, sent_at=10.3, asked_at=10.0, due_at=9.8, admitted_at=10.3, limit=4),
    )
    for label, ms in (
        ("TTFT", 100),
        ("ITL", 30),
        ("Gate wait", 300),
        ("Request latency", 160),
        ("TTFT from due", 600),
    ):
        found = row(live, label)
        assert found.whole_ms == pytest.approx([ms] * 4), label
        assert found.whole_count == 1
    gaps = row(live, "ICL")  # 20 and 40 ms: the median lies between
    assert (gaps.whole_count, gaps.whole_ms) == (2, pytest.approx([30, 38, 39, 39.8]))


def test_ttft_of_now_is_that_of_first_chunks_that_came(live: LivePageTallies) -> None:
    hear(live, 100, 300)
    found = row(live, "TTFT")
    assert (found.count, found.recent_ms) == (2, pytest.approx([200, 280, 290, 298]))
    assert (found.whole_count, found.whole_ms) == (0, None)


def test_ttft_stands_beside_that_from_due_of_the_same_requests(live: LivePageTallies) -> None:
    """Two first chunks came, of requests that are still on. One that ended long after its first
    chunk is in neither."""
    live.has_waits = True
    live.stats.update(
        "local", used=0, waiting=0, decoding=2, ttfts_s=(0.1, 0.1), ttfts_from_due_s=(4.5, 4.5)
    )
    keep(live, answered(100, 120, sent_at=10.0, asked_at=10.0, due_at=9.9))
    due, sent = row(live, "TTFT from due"), row(live, "TTFT")
    assert (due.count, sent.count) == (2, 2)
    assert due.recent_ms == pytest.approx([4500] * 4)
    assert sent.recent_ms == pytest.approx([100] * 4)


def test_failed_requests_are_in_the_gate_wait_alone(live: LivePageTallies) -> None:
    keep(live, failed(asked_at=9.0, admitted_at=10.0))
    assert {found.label: found.whole_count for found in live.table() if found.whole_count} == {
        "Gate wait": 1
    }
    assert live.failures() == {"reset": 1}


def test_what_is_old_is_in_the_whole_alone(live: LivePageTallies, clock: Clock) -> None:
    keep(live, answered(100, 200))
    clock.now += WINDOW_S - 1
    keep(live, answered(100, 300))
    assert row(live, "Request latency").count == 2
    clock.now += 2
    found = row(live, "Request latency")
    assert (found.count, found.whole_count) == (1, 2)
    assert found.recent_ms == pytest.approx([300] * 4)


@pytest.mark.parametrize("waits", [False, True])
def test_the_last_seconds_of_table_and_chart_are_of_the_same_requests(
    live: LivePageTallies, waits: bool
) -> None:
    """A first chunk after 500 ms of a request that goes on, and one after 100 ms of one that
    ended."""
    live.has_waits = waits
    live.stats.update(
        "local", used=0, waiting=0, decoding=1, ttfts_s=(0.5,), ttfts_from_due_s=(0.7,)
    )
    keep(live, answered(100, 120, 160, sent_at=10.0))
    live.tick(1, None, "profiling")
    labels = [one.label for one in live.table()]
    assert ("TTFT from due" in labels) == waits  # without waits it is TTFT
    found = row(live, "TTFT from due" if waits else "TTFT").recent_ms
    assert found is not None
    assert live.points[-1].ttft_ms is not None
    assert found[0] == (700.0 if waits else 500.0)
    assert live.points[-1].ttft_ms[0] == (700.0 if waits else 500.0)


def test_the_chart_leads_with_ttft_from_due_where_requests_wait(live: LivePageTallies) -> None:
    """As the report does. The request was due 0.4 s before its send."""
    live.has_waits = True
    live.stats.update(
        "local", used=0, waiting=0, decoding=1, ttfts_s=(0.1,), ttfts_from_due_s=(0.5,)
    )
    live.tick(1, None, "profiling")
    assert live.points[-1].ttft_ms == (500.0,) * 3


def test_a_warmup_is_in_the_last_seconds_alone(live: LivePageTallies) -> None:
    keep(live, answered(100, 200, phase="warmup"))
    found = row(live, "Request latency")
    assert (found.count, found.whole_count) == (1, 0)


def test_a_stage_begins_with_nothing(live: LivePageTallies) -> None:
    keep(live, answered(100, 200, stage=1))
    keep(live, answered(100, 300, stage=2))
    assert row(live, "Request latency").whole_ms == pytest.approx([300] * 4)


def test_merged_chunks_are_in_no_gap(live: LivePageTallies) -> None:
    keep(live, answered(100, 120, 120, 140, merged=((1, 110_000), (2, 110_000))))
    assert row(live, "ICL").whole_count == 0


# -- the history -----------------------------------------------------------------------------------


def test_a_point_by_pencil(live: LivePageTallies, clock: Clock) -> None:
    hear(live, 100)
    keep(live, answered(100, 150))
    keep(live, failed("timeout"))
    clock.now += 1
    hear(live, request_s=(2.0, 3.0, 4.0))
    live.tick(9, 4, "profiling")
    (point,) = live.points
    assert (point.at, point.users, point.limit) == (1.0, 9, 4)
    assert (point.used_s, point.waiting_s, point.decoding_s, point.in_flight_at) == (2, 3, 4, 1)
    assert (point.ttft_ms, point.itl_ms) == ((100.0,) * 3, (50.0,) * 3)
    assert (point.ok, point.failed, live.classes) == (1, (1,), ["timeout"])
    assert point.server == ()


def test_tokens_per_second_are_one_figure_until_the_next_tick(
    live: LivePageTallies, clock: Clock
) -> None:
    """100 reads in the first second; what is read after the tick is in no tile and in no chart
    yet."""
    live.stats.update("local", used=0, waiting=0, decoding=1, reads=0)
    clock.now += 1
    live.stats.update("local", used=0, waiting=0, decoding=1, reads=100)
    live.tick(1, None, "profiling")
    clock.now += 0.5
    live.stats.update("local", used=0, waiting=0, decoding=1, reads=900)
    assert (live.tokens_per_s, live.points[-1].tokens_per_s, live.stats.tokens_per_s()) == (
        100,
        100,
        100,
    )


def test_the_table_of_the_last_point_is_of_its_moment(live: LivePageTallies, clock: Clock) -> None:
    """After the stop no point comes. A first token that comes then is in neither."""
    clock.now += 1
    hear(live, 100, 300)
    live.tick(1, None, "profiling")
    clock.now += 1
    hear(live, 900)
    (found,) = (row for row in live.table_of_point() if row.label == "TTFT")
    assert (found.count, found.recent_ms) == (2, pytest.approx([200, 280, 290, 298]))
    assert row(live, "TTFT").count == 3
    assert live.points[-1].ttft_ms is not None
    assert live.points[-1].ttft_ms[0] == pytest.approx(200)


def test_the_charts_name_the_time_that_rates_are_of() -> None:
    static = Path(module.__file__).parents[1] / "static"
    script = (static / "live_values.js").read_text("utf-8")
    assert f"const RATE_S = {RATE_S:g};" in script
    assert "note: () => `last ${RATE_S} s`" in (static / "live_charts.js").read_text("utf-8")
    places = list(LiveSample.__struct_fields__)
    assert f"IN_FLIGHT_AT = {places.index('in_flight_at')};" in script


@pytest.mark.parametrize("age_s", [0.0, 0.01, 0.24])
def test_the_mean_number_in_flight_is_exact_between_any_two_points(
    live: LivePageTallies, clock: Clock, age_s: float
) -> None:
    """Always 4 decode, and 50 ms of each second a request waits at the gate. No status sees the
    wait, and statuses are older at every second point."""
    for second in range(1, 11):
        late_s = age_s * (second % 2)
        clock.now = 5000.0 + second - late_s
        hear(live, request_s=(0.0, 0.05 * second, 4.0 * (second - late_s)))
        clock.now = 5000.0 + second
        live.tick(4, 2, "profiling")
    for first, last in pairwise(live.points):
        seconds = last.in_flight_at - first.in_flight_at
        assert (last.decoding_s - first.decoding_s) / seconds == pytest.approx(4)
    first, last = live.points[-6], live.points[-2]
    assert (last.waiting_s - first.waiting_s) / (
        last.in_flight_at - first.in_flight_at
    ) == pytest.approx(0.05)


def test_what_processes_had_in_flight_is_added_up_and_stays_when_they_end(
    live: LivePageTallies, clock: Clock
) -> None:
    """Statuses are 0.2 and 0.1 s old: 0.15 s on the mean. Without those of the one that has ended,
    0.1 s."""
    for worker, request_s in (("a", (1.0, 0.5, 2.0)), ("b", (0.25, 0.0, 3.0))):
        live.stats.update(worker, used=0, waiting=0, decoding=0, request_s=request_s)
        clock.now += 0.1
    assert live.stats.request_seconds() == ((1.25, 0.5, 5.0), pytest.approx(0.15))
    live.stats.end("a")
    assert live.stats.request_seconds() == ((1.25, 0.5, 5.0), pytest.approx(0.1))
    live.stats.end("b")
    assert live.stats.request_seconds() == ((1.25, 0.5, 5.0), 0)


def test_phases_and_turns_are_marks(live: LivePageTallies, clock: Clock) -> None:
    for phase in ("warmup", "warmup", "profiling"):
        clock.now += 1
        live.tick(1, None, phase)
    live.mark("gate 8")
    assert [(mark.at, mark.text) for mark in live.marks] == [(3.0, "profiling"), (3.0, "gate 8")]


def run_for(
    live: LivePageTallies,
    clock: Clock,
    seconds: int,
    each: Callable[[int], None] = lambda second: None,
) -> None:
    for second in range(seconds):
        clock.now += 1
        each(second)
        live.tick(1, 4, "profiling")


def test_a_time_without_readings_is_a_hole_with_a_mark(live: LivePageTallies, clock: Clock) -> None:
    """Points at seconds 1 and 2, and the next one at 17: the process stood still for 15 s."""
    run_for(live, clock, 2)
    clock.now += 14
    run_for(live, clock, 2)
    assert live.holes == [(2.0, 17.0)]
    assert [(mark.at, mark.text, mark.kind) for mark in live.marks] == [
        (2.0, "stood still", "trouble")
    ]


def test_marks_are_in_order_and_bounded(live: LivePageTallies, clock: Clock) -> None:
    for second in range(MAX_MARKS + 5):
        clock.now = 5000.0 + 10 + second
        live.mark(f"gate {second}", "gate")
    live.mark_at(12.0, "failures", "trouble")
    assert len(live.marks) == MAX_MARKS
    assert [mark.at for mark in live.marks] == sorted(mark.at for mark in live.marks)
    assert live.marks[-1].text == f"gate {MAX_MARKS + 4}"


def test_names_have_rows_of_their_own_where_there_are_several(live: LivePageTallies) -> None:
    keep(live, answered(100, 150, name="chat"))
    assert live.names() == []
    keep(live, answered(300, 320, name="long"))
    keep(live, failed(name="long"))
    chat, long = live.names()
    assert (chat.name, chat.ok, chat.failed, chat.ttft_ms, chat.itl_ms) == (
        "chat", 1, 0, [100.0] * 3, [50.0] * 3,
    )  # fmt: skip
    assert (long.name, long.ok, long.failed, long.ttft_ms) == ("long", 1, 1, [300.0] * 3)


def test_after_the_run_rows_of_names_have_all_of_it(live: LivePageTallies, clock: Clock) -> None:
    """An answer in one chunk has no ITL. The last 10 s are empty then."""
    keep(live, answered(100, 150, name="chat"))
    keep(live, answered(300, name="chat", output_tokens=1))
    keep(live, answered(300, 320, name="long"))
    clock.now += WINDOW_S + 1
    recent, _ = live.names()
    assert (recent.count, recent.ttft_ms, recent.itl_count, recent.itl_ms) == (0, None, 0, None)
    chat, _ = live.names(whole=True)
    assert (chat.count, chat.itl_count, chat.itl_ms) == (2, 1, [50.0] * 3)
    assert chat.ttft_ms == pytest.approx([200.0, 290.0, 298.0])


def test_a_stage_by_pencil(live: LivePageTallies) -> None:
    """Two requests of stage 1, from 10 to 12.1 s, and one of its warmup, which does not count."""
    keep(live, answered(100, 200, sent_at=10.0, stage=1))
    keep(live, answered(50, 100, sent_at=12.0, stage=1))
    keep(live, failed(sent_at=10.0, stage=1))
    keep(live, answered(9, sent_at=9.0, stage=1, phase="warmup"))
    keep(live, answered(300, 400, sent_at=20.0, stage=2))
    first, second = live.stage_rows()
    assert (first.number, first.ok, first.failed, first.tokens) == (1, 2, 1, 4)
    assert first.seconds == pytest.approx(2.1)
    assert first.ttft_ms == pytest.approx([75.0, 97.5, 99.5])
    assert first.counts == (2, 2, 2)
    assert (second.number, second.ok, second.ttft_ms) == (2, 1, [300.0] * 3)


def test_parts_are_compared_with_those_of_a_minute_before(
    live: LivePageTallies, clock: Clock
) -> None:
    live.stats.parts.add(answered(100, rtt_us=1000))
    run_for(live, clock, 30)
    assert live.parts_before() == (0, {})
    run_for(live, clock, 31)
    count, means_s = live.parts_before()
    assert (count, means_s["network"]) == (1, pytest.approx(0.001))


def test_a_lost_process_has_nothing_running_and_its_totals_stay(
    live: LivePageTallies, clock: Clock
) -> None:
    """It had 3 request-seconds of decoding and 8 requests. The mean number in flight never gets
    negative."""
    live.stats.update("a", used=2, waiting=1, decoding=5, request_s=(1.0, 2.0, 3.0), reads=10)
    live.tick(8, None, "profiling")
    live.stats.lose("a", 14)
    clock.now += 1
    live.tick(8, None, "profiling")
    assert live.stats.inside == 0
    assert live.points[-1].decoding_s == live.points[-2].decoding_s == 3.0


def test_a_long_history_stays_small_and_evenly_spaced(live: LivePageTallies, clock: Clock) -> None:
    run_for(live, clock, 10 * MAX_POINTS)
    assert MAX_POINTS / 2 <= len(live.points) <= MAX_POINTS
    assert live.step == 16
    ats = [point.at for point in live.points]
    assert {b - a for a, b in pairwise(ats)} == {16.0}
    assert ats[-1] > 10 * MAX_POINTS - 16


def test_totals_survive_what_is_dropped(live: LivePageTallies, clock: Clock) -> None:
    """One request a second: between any two points as many as seconds."""
    run_for(live, clock, 3 * MAX_POINTS, lambda second: keep(live, answered(100, 150)))
    first, *_, last = live.points
    assert last.ok - first.ok == last.at - first.at


def test_only_what_is_later_is_told(live: LivePageTallies, clock: Clock) -> None:
    run_for(live, clock, 5)
    assert [point.at for point in live.since(3.0)] == [4.0, 5.0]
    assert len(live.since(-1.0)) == 5
    assert live.since(5.0) == []


# -- line by line ----------------------------------------------------------------------------------


def test_lines_by_pencil(clock: Clock) -> None:
    """The run began at second 8. The second request came a second after the first."""
    live = LivePageTallies(RunProgress(clock.monotonic), UNIX + 8, clock)
    keep(
        live,
        answered(
            100,
            200,
            sent_at=11.5,
            asked_at=11.0,
            due_at=11.0,
            admitted_at=11.4,
            limit=1,
            input_tokens=70,
        ),
    )
    keep(live, failed(sent_at=10.0))
    found = live.lines()
    assert found is not None
    assert (found.start, found.length) == (2.0, 1700.0)
    first, second = found.lines
    assert (first.asked, first.sent, first.first, first.closed, first.outcome) == (
        0.0,
        0.0,
        None,
        1000.0,
        "failed",
    )
    assert (second.asked, second.admitted, second.sent, second.first, second.closed) == (
        1000,
        1400,
        1500,
        1600,
        1700,
    )
    assert (second.stalls, second.outcome) == ((), "")
    assert second.text == "chat, TTFT 100 ms, gate wait 400 ms, 2 tokens out, longest stall 100 ms"


def test_a_gap_much_longer_than_usual_is_a_stall_of_its_line(live: LivePageTallies) -> None:
    """Gaps of 10 ms, and one of 50 ms from 120 to 170 ms after the send."""
    keep(live, answered(100, 110, 120, 170, 180, 190, sent_at=10.0))
    (line,) = live.lines().lines  # type: ignore[union-attr]
    assert line.stalls == ((120.0, 170.0),)


def test_only_the_last_requests_are_lines(live: LivePageTallies) -> None:
    assert live.lines() is None
    for at in range(MAX_LINES + 5):
        keep(live, answered(100, 200, sent_at=10.0 + at))
    found = live.lines()
    assert found is not None
    assert len(found.lines) == MAX_LINES
    assert found.lines[0].asked == 0.0


def test_near_chunks_are_one_dot_and_stalls_keep_their_ends() -> None:
    # a chunk each ms, but none from 5 to 50 ms; dots are 3 ms wide, a stall is longer than 10 ms
    us = [*range(0, 6000, 1000), *range(50_000, 54_000, 1000)]
    assert list(thin_chunks(us, 3000, 10_000)) == [0, 3000, 5000, 50_000, 53_000]


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=80),
    st.integers(1, 5000),
    st.integers(10_000, 40_000),
)
def test_a_drawn_stall_is_one(gaps: list[int], dot: int, slow: int) -> None:
    us = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    kept = list(thin_chunks(us, dot, slow))
    stalls = {(a, b) for a, b in pairwise(us) if b - a > slow}
    drawn = list(pairwise(kept))
    assert stalls <= set(drawn)
    assert all(b - a <= slow + dot for a, b in drawn if (a, b) not in stalls)
    assert kept[-1] == us[-1]


def test_its_size_does_not_grow_with_the_run(live: LivePageTallies, clock: Clock) -> None:
    random = Random(1)

    def busy(second: int) -> None:
        for _ in range(3):
            first = random.uniform(50, 5000)
            keep(
                live,
                answered(
                    first,
                    *(first + gap for gap in sorted(random.uniform(0, 3000) for _ in range(20))),
                ),
            )

    sizes = []
    for _ in range(2):
        run_for(live, clock, 1000, busy)
        sizes.append(len(live._whole[ICL].counts))
    assert sizes[1] < 5000  # 900 values a decade
    assert len(live._whole[LATENCY].counts) < 5000
    assert len(row(live, "ICL").recent_ms or ()) == len(PERCENTILES)


def test_answers_in_one_piece_have_a_latency_and_no_first_token(clock: Clock) -> None:
    live = LivePageTallies(RunProgress(clock.monotonic), clock.now, clock, streams=False)
    keep(live, answered(closed_at=10.25, streamed=False, output_tokens=40))
    live.tick(1, None, "profiling")
    assert [row.label for row in live.table()] == ["Request latency", "Gate wait"]
    assert live.points[-1].latency_ms == pytest.approx((250.0,) * 3, rel=0.005)


def test_embeddings_have_a_latency_and_nothing_of_tokens(clock: Clock) -> None:
    live = LivePageTallies(RunProgress(clock.monotonic), clock.now, clock, generates=False)
    keep(live, answered(closed_at=10.25, streamed=False, output_tokens=None, inputs=4))
    live.tick(1, None, "profiling")
    assert [row.label for row in live.table()] == ["Request latency", "Gate wait"]
    assert live.points[-1].latency_ms == pytest.approx((250.0,) * 3, rel=0.005)
