"""The measured time of a stage: what is inside and what goes through, whenever it was sent."""

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed
from support.stages import a_stage

from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, Run, UserStart
from locust_llm.report.load_records import collect_columns
from locust_llm.report.measurement_window import (
    RateWindow,
    find_measured_span,
    find_pauses,
    find_settled_window,
)
from locust_llm.report.open_loop_delivery import describe_completed
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.sweep_findings import make_load_level
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary


def stage(**other: object) -> Run:
    """Measured from second 10 to second 30."""
    return a_stage(a_run(sweep="concurrency=1,2"), 1, 2.0, "concurrency", **other)


def summed_up(*records: Record, run: Run | None = None) -> Summary:
    run = run or stage()
    return summarise_run(collect_columns(records), run, 0, records)


def rate(summary: Summary, tag: str) -> float | None:
    return next(row.avg for row in summary.rows if row.tag == tag)


def asked(at: float, seconds: float, **other: object) -> Record:
    """Its first token after half of the time; two tokens."""
    wave = {"phase": "profiling" if 10 <= at <= 30 else "warmup"}
    return answered(seconds * 500, seconds * 1000, sent_at=at, **{**wave, **other})


def test_rates_are_of_what_ended_within_the_measured_time() -> None:
    """Two users, 4 s a request: each is always inside, ten end from 10 to 30 (the first of them
    sent before), and of what was sent in it two end after it. From its first send to its last end
    it would be 9 in 24 s."""
    # ends at 7, 11, 15, 19, 23, 27, 31, 35
    one = [asked(at, 4.0) for at in (3, 7, 11, 15, 19, 23, 27, 31)]
    other = [asked(at, 4.0) for at in (5, 9, 13, 17, 21, 25, 29, 33)]
    summary = summed_up(*one, *other)
    assert summary.conditions.requests == 10  # 11 ... 27 and 13 ... 29
    assert summary.conditions.duration_s == 20
    # 11 ... 27 and 13 ... 29 are ends, too
    assert rate(summary, "request_throughput") == pytest.approx(10 / 20)
    assert rate(summary, "output_token_throughput") == pytest.approx(20 / 20)
    assert summary.steady is not None
    assert summary.steady.in_flight == pytest.approx(2)
    assert summary.steady.residual == pytest.approx(0)  # 10 in 20 s x 4 s = 2
    assert summary.steady.answered_share is None


def test_waiting_at_the_gate_is_inside() -> None:
    """Asked at 8, sent at 18, over at 22: 12 of the 20 s; one that never ends in it: 5 s."""
    waiting = answered(1000, 4000, sent_at=18.0, asked_at=8.0, admitted_at=18.0)
    summary = summed_up(waiting, answered(1000, 90_000, sent_at=25.0))
    assert summary.steady is not None
    assert summary.steady.in_flight == pytest.approx(17 / 20)
    # one in 20 s x 14 s = 14 / 20, by what the report shows
    assert summary.steady.residual == pytest.approx(3 / 17)


def test_what_was_delivered_is_over_what_was_due() -> None:
    """Of 10 that were due 6 were answered in time, one of them sent before; a failure is no
    answer."""
    run = replace(
        stage(), offer=OpenLoopSchedule(due=10, never_started=0, duration_s=20.0, most_users=9)
    )
    records = [
        asked(9, 2.0),
        *(asked(10 + i, 2.0) for i in range(5)),
        asked(29, 2.0),
        failed(sent_at=12.0),
    ]
    summary = summed_up(*records, run=run)
    assert summary.steady is not None
    assert summary.steady.answered_share == pytest.approx(0.6)
    # at most 3 can be inside, by whatever chance: that makes 9 of 10
    assert summary.steady.kept_up is False


def in_a_stage_of(due: int, *answers: float, slo: str = "completed >= 95%") -> Summary:
    """A stage in which so many requests of 2 s were due, and those with these begins are known."""
    run = a_stage(a_run(sweep="request-rate=1", users=None, slo=(slo,)), 1, 1.0, "request-rate")
    run = replace(
        run, offer=OpenLoopSchedule(due=due, never_started=0, duration_s=20.0, most_users=20)
    )
    return summed_up(*(asked(at, 2.0) for at in answers), run=run)


def test_what_is_in_flight_by_chance_counts_as_completed() -> None:
    """Of 19 that were due 18 were answered by second 30, and the last one was in flight."""
    summary = in_a_stage_of(19, *(10.0 + i for i in range(18)), 29.0)
    assert summary.delivery is not None
    assert (summary.delivery.completed, summary.delivery.by_chance) == (18, 1)
    assert summary.delivery.completed_share == 1.0
    assert summary.slos[0].status == "PASS"
    level = make_load_level(a_run(sweep="request-rate=1", users=None), summary)
    assert (level.delivered, level.completed) == (1.0, 1.0)  # all 19 were sent
    assert level.answered_share == pytest.approx(18 / 19)
    assert describe_completed(summary.delivery) == (
        "100.0%: 0.90/s in the 20 s to the stop, 18 answered and 19 due in it. 1 more may "
        "still be in flight, as in a server that keeps up, and counts as completed"
    )


def test_few_requests_of_a_stage_decide_nothing_about_completed() -> None:
    """Of seven that were due six were answered: one in flight is no queue, and seven no rate."""
    summary = in_a_stage_of(7, *(10.0 + i for i in range(6)), 29.0)
    assert summary.delivery is not None
    assert summary.delivery.completed_share is None
    assert (summary.slos[0].status, summary.slos[0].reason) == (
        "INCONCLUSIVE",
        "the measured time is too short for its requests",
    )
    assert describe_completed(summary.delivery).endswith(
        "6 answered and 7 due in it: too few, or too short a time, for a share"
    )


def test_no_more_than_all_is_completed() -> None:
    """Twelve were answered in it, two of which were due before: of eleven that is 100%."""
    summary = in_a_stage_of(11, 8.5, 9.0, *(10.0 + i for i in range(10)))
    assert summary.delivery is not None
    assert (summary.delivery.completed, summary.delivery.completed_share) == (12, 1.0)
    assert summary.steady is not None
    assert summary.steady.answered_share == pytest.approx(12 / 11)


def test_a_stage_that_falls_behind_has_not_completed() -> None:
    """Of 100 that were due 20 were answered, and few are in flight by chance."""
    summary = in_a_stage_of(100, *(10.0 + i * 0.9 for i in range(20)))
    assert summary.delivery is not None
    assert summary.delivery.completed_share is not None
    assert summary.delivery.completed_share < 0.95
    assert summary.slos[0].status == "FAIL"


def test_a_queue_that_grows_is_no_chance() -> None:
    """One a second is due and one in two is answered at once, the others never: on average 5 are
    inside, of which 3 x (2 x 5)^0.5 = 9.5 may be chance: 10 and 9.5 of 20 would be more than 19, of
    100 it is far from it."""
    for due, kept_up in ((20, True), (100, False)):
        run = replace(
            stage(), offer=OpenLoopSchedule(due=due, never_started=0, duration_s=20.0, most_users=9)
        )
        answers = [answered(1, 2, sent_at=10.0 + i * 20 / due) for i in range(0, due, 2)]
        open_yet = [answered(1, 90_000, sent_at=10.0 + i * 20 / due) for i in range(1, due, 2)]
        found = summed_up(*answers, *open_yet, run=run).steady
        assert found is not None
        assert found.in_flight == pytest.approx(due / 4, rel=0.1)
        assert found.answered_share == 0.5
        assert found.kept_up is kept_up


def test_failures_are_not_inside_by_chance() -> None:
    run = replace(
        stage(), offer=OpenLoopSchedule(due=10, never_started=0, duration_s=20.0, most_users=9)
    )
    found = summed_up(*[asked(10 + i, 2.0) for i in range(9)], failed(sent_at=12.0), run=run).steady
    assert found is not None
    assert (found.answered_share, found.kept_up) == (0.9, False)


def test_what_is_no_stage_of_a_sweep_is_measured_from_its_first_send_to_its_last_end() -> None:
    repeat = stage(measured_at=UNIX)  # from its begin on
    for run in (a_run(), repeat, stage(measured_at=None)):
        assert find_measured_span(run) is None
        summary = summed_up(asked(10, 4.0), asked(12, 4.0), run=run)
        assert summary.conditions.duration_s == pytest.approx(6)
        assert rate(summary, "request_throughput") == pytest.approx(2 / 6)
        assert (summary.steady is None) == (run.stage is None)
        if summary.steady is not None:
            assert summary.steady.in_flight == pytest.approx(8 / 6)


def test_a_stage_that_was_never_measured_has_no_figures() -> None:
    summary = summed_up(asked(3, 1.0), run=stage(measured_at=None))
    assert summary.conditions.requests == 0
    assert summary.steady is None
    assert rate(summary, "request_throughput") is None


def test_rules_on_rates_are_held_against_the_measured_time() -> None:
    """Forty requests of a second each: 2/s in every stretch, while their own time is 20 s and one
    more."""
    run = a_stage(
        a_run(sweep="concurrency=1,2", slo=("requests_per_s >= 1.99/s",)), 1, 1.0, "concurrency"
    )
    (result,) = summed_up(*[asked(9.25 + i / 2, 1.0) for i in range(42)], run=run).slos
    assert (result.observed, result.low, result.high, result.status) == (2, 2, 2, "PASS")


def test_the_pauses_between_repeats_are_not_counted() -> None:
    """Two repeats of twenty requests, of half a second each, in a row: seconds 10 to 20 and 60 to
    70. Forty in 20 s."""
    run = a_run(repeats=2, slo=("requests_per_s >= 2/s", "ttft p50 < 600ms"))
    run = replace(run, stages=tuple(stage(began_at=UNIX + at).stage for at in (9, 59)))  # type: ignore[arg-type]
    records = [asked(at + i / 2, 0.5, phase="profiling") for at in (10, 60) for i in range(20)]
    sweep = SweepSummary(axis="repeat", unit="", levels=(), ended="")
    summary = summarise_run(collect_columns(records), run, 0, records, sweep)
    assert summary.conditions.duration_s == pytest.approx(20)
    assert rate(summary, "request_throughput") == pytest.approx(2)
    result, _ = summary.slos
    assert result.observed == pytest.approx(2)
    assert result.low is not None
    assert result.low > 1.5  # with the pause between them most stretches would be empty
    assert rate(
        summarise_run(collect_columns(records), run), "request_throughput"
    ) == pytest.approx(40 / 60)


def test_the_seconds_of_a_time_with_pauses() -> None:
    time = RateWindow((10.0, 50.0), ((20.0, 25.0), (40.0, 45.0)))
    assert time.seconds == 30
    assert time.of(np.array([10.0, 20, 23, 25, 30, 42, 50])).tolist() == [0, 10, 10, 10, 15, 25, 30]


def test_what_lies_in_a_time_with_pauses() -> None:
    time = RateWindow((10.0, 50.0), ((20.0, 25.0), (40.0, 45.0)))
    assert time.stretches == [(10.0, 20.0), (25.0, 40.0), (45.0, 50.0)]
    assert time.holds(np.array([9.0, 10, 20, 22, 25, 42, 50, 51])).tolist() == [
        False, True, True, False, True, False, True, False,
    ]  # fmt: skip


def settled(run: Run, *sent_at: float, seconds: float = 2.0) -> RateWindow | None:
    """Of requests that all take so long."""
    records = [asked(at, seconds, phase="profiling") for at in sent_at]
    frame = collect_columns(records).requests
    main = RequestSelection(frame, np.ones(len(frame), np.bool_))
    found = find_settled_window(main, RateWindow(main.span(), tuple(find_pauses(main, run))), run)
    if found is None:
        return None
    begin, end = found.span
    pauses = tuple((before - UNIX, after - UNIX) for before, after in found.pauses)
    return RateWindow((begin - UNIX, end - UNIX), pauses)


def start(took_s: float | None, over_s: float = 1.0, **other: object) -> UserStart:
    return UserStart(users=4, over_s=over_s, took_s=took_s, by="rate", **other)  # type: ignore[arg-type]


def test_a_load_that_went_on_from_the_warmup_has_its_rate_from_the_first_moment_on() -> None:
    """A request each half second, of 1.9 s, until second 30: from the end of the warmup on, at 10,
    two end a second, the first of them sent in the warmup. From the first send to the last end it
    would be 40 in 21.4 s."""
    sends = [asked(at / 2, 1.9, phase="warmup" if at < 20 else "profiling") for at in range(60)]
    run = replace(
        a_run(warmup_duration=10.0, run_time_s=20.0), warmup_went_on=True,
        profiling_at=UNIX + 10, stopping_at=UNIX + 30,
    )  # fmt: skip
    summary = summed_up(*sends, run=run)
    assert (summary.conditions.requests, summary.conditions.duration_s) == (40, 20)
    assert rate(summary, "request_throughput") == 2.0
    assert summary.counts.in_flight_at_profiling == 3  # sent at 8.5, 9 and 9.5
    counted = replace(run, settings=replace(run.settings, run_time_s=None, request_count=40))
    assert summed_up(*sends, run=counted).conditions.duration_s == 19.5


def test_a_load_has_settled_when_all_users_have_started_and_have_an_answer() -> None:
    """Sends from second 10 to 40, of 2 s each: nothing ends before 12, and nothing is sent after
    40. The last user starts at 15 (or is to, at 11)."""
    sends = range(10, 41)
    assert settled(a_run(request_rate=1.0), *sends) == ((12, 40), ())
    assert settled(replace(a_run(), starts=(start(5.0),)), *sends) == ((17, 40), ())
    assert settled(replace(a_run(), starts=(start(None),)), *sends) == ((13, 40), ())
    warmed = replace(a_run(), starts=(start(5.0, phase="warmup"),))
    assert settled(warmed, *sends) == ((12, 40), ())
    assert settled(replace(a_run(), starts=(start(25.0),)), *sends) is None  # 3 of 30 s are left
    assert settled(a_run(), *range(10, 13)) is None


def test_each_repeat_has_a_start_and_an_end() -> None:
    stages = tuple(
        replace(stage().stage, number=i, began_at=UNIX + at) for i, at in ((1, 9), (2, 49))
    )  # type: ignore[type-var]
    run = replace(a_run(), stages=stages, starts=(start(1.0, stage=1), start(3.0, stage=2)))
    found = settled(run, *range(10, 31), *range(50, 71))
    assert found == ((13, 70), ((30, 55),))


def test_repeats_that_overlap_have_no_pause() -> None:
    records = [asked(10, 9.0), asked(15, 1.0)]
    run = replace(a_run(), stages=tuple(stage(began_at=UNIX + at).stage for at in (5, 12, 99)))  # type: ignore[arg-type]
    frame = collect_columns(records).requests
    assert list(find_pauses(RequestSelection(frame, np.ones(2, np.bool_)), run)) == []


def test_the_error_of_a_rate_is_by_how_much_its_stretches_differ() -> None:
    """2 s each, 10 with three ends and one more: 3 and 5 in turn have a variance of 10 / 9; 40 in
    20 s +- 1/6 root(10)."""
    ends = [10.1 + 2 * i + 0.3 * j for i in range(10) for j in range(3 if i % 2 else 5)]
    steady = summed_up(*(asked(end - 0.05, 0.05) for end in ends)).steady
    assert steady is not None
    assert steady.per_s_error == pytest.approx((10 * 10 / 9) ** 0.5 / 20)
    few = summed_up(*(asked(end - 0.05, 0.05) for end in ends[:9])).steady
    assert few is not None
    assert few.per_s_error is None


@pytest.mark.parametrize(
    ("seconds", "answered_share", "kept_up"), [(8.0, 0.65, True), (12.0, 0.45, None)]
)
def test_a_stage_that_is_too_short_for_its_requests_does_not_show_that_the_server_keeps_up(
    seconds: float, answered_share: float, kept_up: bool | None
) -> None:
    """One a second for 20 s, each for 8 or 12 s: 13 or 9 of 20 are answered in that time, and 11 may
    be in flight by chance (three times the root of twice 8.7)."""
    run = a_stage(a_run(sweep="request-rate=1", users=None), 1, 1.0, "request-rate")
    run = replace(
        run, offer=OpenLoopSchedule(due=20, never_started=0, duration_s=20.0, most_users=20)
    )
    summary = summed_up(*(asked(10.0 + i, seconds) for i in range(20)), run=run)
    assert summary.steady is not None
    assert summary.steady.answered_share == pytest.approx(answered_share)
    assert summary.steady.kept_up is kept_up


@pytest.mark.parametrize(("due", "kept_up"), [(10, True), (9, None)])
def test_few_arrivals_do_not_show_that_the_server_keeps_up(due: int, kept_up: bool | None) -> None:
    """Ten were answered. So few arrivals need not have come at the rate of the stage."""
    run = a_stage(a_run(sweep="request-rate=1", users=None), 1, 1.0, "request-rate")
    run = replace(
        run, offer=OpenLoopSchedule(due=due, never_started=0, duration_s=20.0, most_users=20)
    )
    summary = summed_up(*(asked(10.0 + 2 * i, 0.5) for i in range(10)), run=run)
    assert summary.steady is not None
    assert summary.steady.kept_up is kept_up
