"""Delivery: what was offered, sent and completed, and what is named as the cause when it was
less."""

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, ProcessHealth, RateChange, Run
from locust_llm.report.console_summary import format_ending
from locust_llm.report.load_records import collect_columns
from locust_llm.report.open_loop_delivery import (
    Delivery,
    describe_arrivals,
    describe_completed,
    describe_overload,
    find_requested_rate,
    format_backlog_line,
    format_delivery_line,
    format_overload_line,
    measure_delivery,
)
from locust_llm.report.overload_detection import (
    Overload,
    detect_any_overload,
    detect_overload,
    has_queued_requests,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.notes import make_loop_remark
from locust_llm.report.sections.prefill_limit_comparison import PREFILL_LIMITS, LimitComparison
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.settings.run_options import Settings
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100 as H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest
from locust_llm.slo.load_generator_health import (
    DEGRADED,
    INVALID,
    LATE_PERMIT,
    LATE_READ,
    LATE_SEND,
    MERGED,
    SENTINELS,
    ClientVerdict,
)
from locust_llm.slo.rules import SloResult


def open_run(
    due: int, never_started: int = 0, limits: tuple[tuple[float, int], ...] = (), **settings: object
) -> Run:
    """An open loop of 100 s: ``due`` arrivals."""
    run = a_run(limits, **({"request_rate": 1.0, "users": 10} | settings))
    return replace(
        run,
        offer=OpenLoopSchedule(
            due=due, never_started=never_started, duration_s=100.0, most_users=10
        ),
    )


def open_for(duration_s: float, due: int, never_started: int = 0) -> Run:
    run = open_run(due, never_started)
    assert run.offer is not None
    return replace(run, offer=replace(run.offer, duration_s=duration_s))


def delivered(records: list[Record], run: Run, verdict: ClientVerdict | None = None) -> Delivery:
    requests = collect_columns(records).requests
    found = measure_delivery(
        RequestSelection(requests, np.ones(len(requests), np.bool_)), run, verdict
    )
    assert found is not None
    return found


def test_offered_sent_and_completed() -> None:
    """Ten due in 100 s; eight tried, one of them refused, one waiting at the gate to the end, one
    found no user. Of the seven that were sent one failed, and one had its answer only during the
    drain."""
    records = [answered(2000) for _ in range(5)] + [
        answered(2000, sent_at=99.0), failed("reset"), failed("refused", sent_at=None),
        failed("cut", sent_at=None),
    ]  # fmt: skip
    found = delivered(records, open_run(10, never_started=1))
    assert (found.due, found.sent, found.completed, found.never_started) == (10, 8, 5, 1)
    assert (found.offered_per_s, found.sent_per_s, found.completed_per_s) == pytest.approx(
        (0.1, 0.08, 0.05)
    )
    assert found.share == 0.8


def test_what_was_cancelled_on_purpose_is_in_no_share() -> None:
    """Of ten that were due five were cancelled, and the others answered: completed is 100 %."""
    some = [answered(2000) for _ in range(5)] + [failed("cancelled") for _ in range(5)]
    found = delivered(some, open_run(10))
    assert (found.cancelled, found.expected, found.completed_share) == (5, 5.0, 1.0)
    assert describe_completed(found) == (
        "100.0%: 0.05/s in the 100 s to the stop, 5 of 10 that were due; 5 were cancelled on "
        "purpose, and are in no share"
    )
    none = delivered([failed("cancelled") for _ in range(10)], open_run(10))
    assert none.completed_share is None


def test_rules_of_a_run_that_cancelled_everything() -> None:
    """First tokens came, and count; nothing can be completed."""
    records = [answered(20, outcome="cancelled", sent_at=10.0 + i) for i in range(60)]
    run = open_run(60, slo=("completed >= 50%", "ttft p50 < 1s"))
    completed, ttft = summarise_run(collect_columns(records), run).slos
    assert (completed.status, completed.observed) == ("INCONCLUSIVE", None)
    assert "all requests were cancelled on purpose" in completed.reason
    assert (ttft.status, ttft.observed) == ("PASS", pytest.approx(0.02))


def one_by_one(due: list[float], each_s: float) -> list[float]:
    """When they end on a server that serves one at a time, in their order."""
    over, free_at = [], 0.0
    for at in due:
        free_at = max(free_at, at) + each_s
        over.append(free_at)
    return over


TEN_PER_S = [(i + 0.5) / 10 for i in range(200)]
"""Due over 20 s."""


def test_a_queue_that_grows_to_the_end() -> None:
    """10 a second, and the server ends one each 0.5 s from second 0.05 on: of the 100 due by second
    10 it has ended 19, of the 200 due by second 20 39."""
    due = np.array(TEN_PER_S)
    assert detect_overload(due, np.array(one_by_one(TEN_PER_S, 0.5)), 20.0) == Overload(
        in_flight_middle=81, in_flight_end=161
    )


def test_a_queue_for_first_tokens_of_requests_that_last_as_long_as_the_run() -> None:
    """None has ended by second 20, which tells nothing; of first tokens there are as many as
    requests in the test before."""
    due, first = np.array(TEN_PER_S), np.array(one_by_one(TEN_PER_S, 0.5))
    assert detect_overload(due, first + 20.0, 20.0) is None
    found = detect_any_overload(due, np.where(first < 50.0, first, np.nan), first + 20.0, 20.0)
    assert found == Overload(in_flight_middle=100, in_flight_end=200)
    assert detect_any_overload(due, due + 0.5, due + 20.0, 20.0) is None


@pytest.mark.parametrize("each_s", [0.01, 2.0, 8.0, 12.0, 19.0])
def test_requests_that_last_long_are_no_overload(each_s: float) -> None:
    """Each in the same time, however many there are: it fills up to 10 times that, at 12 s and more
    beyond the middle."""
    due = np.array(TEN_PER_S)
    assert detect_overload(due, due + each_s, 20.0) is None


@pytest.mark.parametrize("each_s", [2.0, 4.0, 6.0])
def test_a_short_run_far_beyond_the_capacity(each_s: float) -> None:
    """10 a second for 20 s, one at a time. Nine of the first ten wait for the ones before them, 20
    to 60 s for all ten: they do not tell how long one lasts on an idle server, the first one does.
    It takes three to tell a queue from chance."""
    due = np.array(TEN_PER_S)
    over = np.array(one_by_one(TEN_PER_S, each_s))
    found = detect_overload(due, np.where(over > 50.0, 50.0, over), 20.0)
    assert found == Overload(
        in_flight_middle=100 - int((10 - 0.05) // each_s),
        in_flight_end=200 - int((20 - 0.05) // each_s),
    )
    assert has_queued_requests(due, over, 20.0)
    # two have ended
    assert (
        detect_overload(due, np.minimum(np.array(one_by_one(TEN_PER_S, 7.0)), 50.0), 20.0) is None
    )


@pytest.mark.parametrize("seed", range(8))
def test_long_answers_of_any_length_are_no_queue(seed: int) -> None:
    """Each takes its own time, of 5 to 50 s: the first to end are the short ones, whenever they
    were due."""
    random, due = Random(seed), np.array(TEN_PER_S)
    over = due + np.array([random.uniform(5, 50) for _ in TEN_PER_S])
    assert not has_queued_requests(due, over, 20.0)
    assert detect_overload(due, over, 20.0) is None
    assert (
        detect_overload(due, due + 12.0 + due / 20, 20.0) is None
    )  # a server that gets slower as it fills: 12 s, then 13 s


def test_failures_that_come_at_once_leave_no_queue() -> None:
    due = np.array(TEN_PER_S)
    assert detect_overload(due, due + 0.01, 20.0) is None
    assert detect_overload(due[:5], due[:5] + 100, 20.0) is None  # five tell nothing


def simulated(rate_per_s: float, seed: int, duration_s: float = 60.0) -> Overload | None:
    """Poisson arrivals of 1,000 tokens in and 64 out on a simulated H100, in virtual time, until
    the last one has ended."""
    random, clock, at, due = Random(seed), VirtualClock(), 0.0, list[float]()
    config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, kv_tokens=H100.kv_tokens)
    load = Virtual(
        clock, BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), H100, clock)
    )
    while (at := at + random.expovariate(rate_per_s)) < duration_s:
        due.append(at)
    load.open_loop((at, VirtualRequest(1000, 64)) for at in due)
    rows = load.run()
    asked, done = (
        np.array([getattr(row, name) for row in rows]) for name in ("asked_at", "done_at")
    )
    return detect_overload(asked, done, duration_s)


@pytest.mark.slow
def test_below_its_capacity_a_server_is_not_overloaded() -> None:
    """1,000 at once take as long as 1,000 / capacity."""
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, kv_tokens=H100.kv_tokens)
    load = Virtual(
        clock, BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), H100, clock)
    )
    load.open_loop((0.0, VirtualRequest(1000, 64)) for _ in range(1000))
    capacity_per_s = 1000 / max(row.done_at for row in load.run())
    assert [simulated(0.95 * capacity_per_s, seed) for seed in range(8)] == [None] * 8
    assert None not in [simulated(1.3 * capacity_per_s, seed) for seed in range(4)]
    assert None not in [simulated(4 * capacity_per_s, seed, 20.0) for seed in range(4)]


def test_the_first_line_of_an_overloaded_run() -> None:
    """Two a second are due for 100 s, and one is answered every 5 s: 100 less 9, then 200 less
    19."""
    at = [i / 2 + 0.25 for i in range(200)]
    records = [
        answered(1000 * (over - due), sent_at=due)
        for due, over in zip(at, one_by_one(at, 5.0), strict=True)
    ]
    summary = summarise_run(collect_columns(records), open_run(200))
    assert summary.delivery is not None
    assert (summary.delivery.share, summary.delivery.cause, summary.delivery.completed_share) == (
        1.0,
        "",
        0.095,
    )
    line = format_overload_line(summary, open_run(200))
    assert line is not None
    assert "OVERLOADED: 91 requests were in flight at half of the time, 181 at the stop." in line
    assert line.endswith("Latencies grow with the time that the run takes.")
    # one by one, 5 s each: 0.2 a second over the whole run
    assert (
        "Completed, 0.19/s, is in the 100 s to the stop; Request Throughput, 0.2/s, is over 1,000 "
        "s, with" in line
    )
    # 200 tokens in 1,000 s, and 19 requests in 100 s: each rate has its time beside it
    assert make_headline(summary, open_run(200)).endswith("; 0.2 output tokens/s over all 1,000 s")
    assert "From 200 answered requests in 1,000 s from the first send to the last end" in " ".join(
        format_ending(summary, open_run(200), "reports/by-hand").split()
    )
    cut = replace(summary, conditions=replace(summary.conditions, cut=1234))
    assert (format_overload_line(cut, open_run(200)) or "").endswith(
        "and the 1,234 that were cut are in none of them."
    )
    assert (
        describe_overload(summary.delivery)
        == "offered 2/s, completed 0.19/s in the 100 s to the stop, and requests piled up until the end"
    )
    series = replace(open_run(200), settings=Settings(request_rate_series="spike.json"))
    assert (format_overload_line(summary, series) or "").endswith("Latencies grew with the time.")
    one = summarise_run(collect_columns([answered(1)]), open_run(1))
    assert format_overload_line(one, open_run(1)) is None


@pytest.mark.parametrize(
    ("duration_s", "lasts_s", "completed", "expected", "share"),
    [
        (10, 2.0, 32, 32, 1.0),  # 4 a second: 8 in flight at the stop, as at any moment
        (10, 0.1, 40, 40, 1.0),
        (10, 4.9, 20, 20, 1.0),
        (10, 6.0, 16, 16, None),  # too short: more than half of what was due is in flight
    ],
)
def test_what_a_server_that_keeps_up_has_in_flight_is_not_missing(
    duration_s: float, lasts_s: float, completed: int, expected: float, share: float | None
) -> None:
    due = [i / 4 + 0.125 for i in range(4 * duration_s)]
    found = delivered(
        [answered(1000 * lasts_s, sent_at=at) for at in due], open_for(duration_s, len(due))
    )
    assert (found.completed, found.expected, found.completed_share) == (
        completed,
        pytest.approx(expected),
        share,
    )
    failing = [
        failed("http_5xx", sent_at=at) if i % 4 else answered(1000 * lasts_s, sent_at=at)
        for i, at in enumerate(due)
    ]
    found = delivered(failing, open_for(duration_s, len(due)))
    assert found.completed_share is None or found.completed_share < 0.5


@pytest.mark.parametrize(
    ("outcome", "lasts_s", "expected", "share"),
    [
        # answered in the grace period, but only two are due in half a second
        ("ok", 5.0, 38, 30 / 38),
        ("reset", 5.0, 40, 0.75),  # it died
        ("timeout", 5.0, 40, 0.75),
        ("cut", 5.0, 40, 0.75),  # the first ones took half a second
        ("cut", 0.2, 39, 30 / 39),  # at second 10.2: of those cut the last one had less
    ],
)
def test_what_a_server_that_dies_has_in_flight_is_missing(
    outcome: str, lasts_s: float, expected: float, share: float
) -> None:
    """Four a second for 10 s, each answered in half a second: two are in flight at any time. Of
    those due from second 7.5 on none is answered before the stop."""
    due = [i / 4 + 0.125 for i in range(40)]
    records = [answered(500, sent_at=at) for at in due[:30]]
    records += [failed(outcome, sent_at=at, closed_at=max(at + lasts_s, 10.2)) for at in due[30:]]
    found = delivered(records, open_for(10, 40))
    assert found.overload is None
    assert (found.completed, found.expected, found.completed_share) == (30, expected, share)
    assert found.in_flight == 10


def test_all_that_were_in_flight_at_the_stop_are_named() -> None:
    """Ten were, and two of them are as many as are due in half a second."""
    due = [i / 4 + 0.125 for i in range(40)]
    records = [answered(500 if at < 7.5 else 5000, sent_at=at) for at in due]
    assert describe_completed(delivered(records, open_for(10, 40))) == (
        "78.9%: 3.00/s in the 10 s to the stop, 30 of 40 that were due. The other 10 were in "
        "flight at the stop. 2 of these are left out, because any server that keeps up has as "
        "many: the share is of the remaining 38"
    )
    one = [answered(250 if at < 7.5 else 5000, sent_at=at) for at in due]
    assert ". 1 of these is left out, " in describe_completed(delivered(one, open_for(10, 40)))


def test_one_long_answer_at_the_end_of_a_trace_is_complete() -> None:
    """Fifteen arrivals every half second, each answered in 0.3 s but the last one in 1.72 s. All of
    the trace was sent and answered, at second 8.72; nobody stopped it at 7.5."""
    records = [answered(300, sent_at=i / 2) for i in range(14)] + [answered(1720, sent_at=7.0)]
    run = open_for(7.5, 15)
    trace = replace(run.settings, fixed_schedule=True, input_file="t.jsonl", request_rate=None)
    found = delivered(records, replace(run, settings=trace, stopping_at=run.profiling_at + 8.72))
    assert (found.completed, found.expected, found.completed_share) == (14, 14.0, 1.0)
    assert describe_completed(found) == (
        "100.0%: 1.87/s in the 7.5 s to the schedule's end, 14 of 15 that were due. The other "
        "one was in flight at the schedule's end, as in any server that keeps up: the share is "
        "of the remaining 14"
    )


def many_users(
    rate: int, each_s: float, at_once: int, users: int, duration_s: float = 20.0
) -> tuple[list[Record], Run]:
    """``rate`` a second, on a server of ``at_once`` slots that serves each in ``each_s``, from at
    most so many users: what a slow twin of first come, first served says of it."""
    slots, free, records, never = [0.0] * at_once, [0.0] * users, [], 0
    for i in range(int(rate * duration_s)):
        due = (i + 0.5) / rate
        user, slot = free.index(min(free)), slots.index(min(slots))
        asked = max(due, free[user])
        if asked > duration_s:
            never += 1
            continue
        slots[slot] = free[user] = max(asked, slots[slot]) + each_s
        records.append(answered(1000 * (free[user] - asked), sent_at=asked, due_at=due))
    run = open_for(duration_s, int(rate * duration_s), never)
    assert run.offer is not None
    return records, replace(run, offer=replace(run.offer, most_users=users, out_of_users=never > 0))


@pytest.mark.parametrize(("later_s", "in_flight"), [(8.0, 16), (3.0, 6)])
def test_more_in_flight_than_a_server_that_keeps_up_has(later_s: float, in_flight: int) -> None:
    """Two a second for 20 s. The first ten requests last 2 s, so a server that keeps up has 4 in
    flight; the later ones last 8 s, and 16 are. Twice the root of 16 more than 4 are 12. With 3 s
    there are 6 in flight, and 8.9 may be by chance. Neither is an overload for certain."""
    records = [
        answered(100, 2000 if i < 10 else 1000 * later_s, sent_at=(i + 0.5) / 2) for i in range(40)
    ]
    summary = summarise_run(collect_columns(records), open_for(20.0, 40))
    found = summary.delivery
    assert found is not None
    assert (found.in_flight, found.expected, found.overload) == (in_flight, 36.0, None)
    line = format_backlog_line(summary, open_for(20.0, 40))
    if later_s == 3.0:
        assert line is None
        return
    assert line == (
        "BACKLOG: 16 of the 40 requests that were due were in flight at the stop, and a server "
        "that keeps up has about 4. It may fall behind: use a longer run (-t) to find out."
    )
    text = " ".join(format_ending(summary, open_for(20.0, 40), "reports/by-hand").split())
    assert line in text
    # a broken rule on completed needs no longer run to find out
    for status, rest in (("FAIL", ""), ("PASS", line.removeprefix(line.partition(" It")[0]))):
        judged = replace(summary, slos=(SloResult(rule="completed >= 95%", status=status),))
        short = format_backlog_line(judged, open_for(20.0, 40))
        assert short == f"{line.partition(' It')[0]}{rest}"
    # more time brings no more requests where all of the load was sent before it was over
    run = open_for(20.0, 40)
    trace = replace(run.settings, fixed_schedule=True, input_file="t.jsonl", run_time_s=600.0)
    replayed = replace(run, settings=trace)
    line = format_backlog_line(summary, replayed)
    assert (line or "").endswith(": use a longer trace (all of it was sent) to find out.")
    counted = replace(run, settings=replace(run.settings, request_count=40))
    line = format_backlog_line(summary, counted)
    assert (line or "").endswith(": use more requests (--request-count) to find out.")
    # and where they would come at another rate
    series = replace(run.settings, request_rate_series="spike.json", run_time_s=20.0)
    line = format_backlog_line(summary, replace(run, settings=series))
    assert (line or "").endswith(": use a rate series that holds its rates for longer to find out.")


def test_a_server_that_fell_behind_before_all_users_were_busy() -> None:
    """30 a second, four at a time for 0.5 s: 8 a second. By second 0.0166 + i/30 there are 22 more
    in flight each second, so 200 users are busy some 9 s after the start. Of 600 due, 160 less the
    4 under way are completed, and none is missing in what waits: 600 less 156."""
    records, run = many_users(30, 0.5, 4, 200)
    summary = summarise_run(collect_columns(records), run)
    d = summary.delivery
    assert d is not None
    assert d.overload is not None
    assert (d.cause, d.completed, d.overload.in_flight_end) == ("server", 156, 444)
    assert d.overload.all_busy_s == pytest.approx(9.1, abs=0.2)
    assert d.completed_share == 156 / 600
    assert make_headline(summary, run).startswith(
        "Overloaded: offered 30/s, completed 7.8/s in the 20 s to the stop, and requests "
        "piled up until the end; "
    )
    line, cause = format_overload_line(summary, run), format_delivery_line(summary)
    assert line is not None
    assert "in flight or waited for a free user" in line
    assert cause is not None
    assert "Cause: the server. It fell behind before all 200 users were busy, 8.9 s after" in cause


def test_too_few_users_of_a_server_that_keeps_up() -> None:
    """As many slots as anybody asks for, each for 2 s: 20 users complete 10 a second of 30."""
    records, run = many_users(30, 2.0, 1000, 20)
    summary = summarise_run(collect_columns(records), run)
    assert summary.delivery is not None
    assert (summary.delivery.cause, summary.delivery.overload) == ("users", None)
    first = "Not delivered: offered 30/s, sent 10/s, completed 9/s in the 20 s to the stop (arrivals waited for a user); "
    assert make_headline(summary, run).startswith(first)


@pytest.mark.parametrize(("each_s", "at_once", "cause"), [(5.0, 30, "server"), (5.0, 300, "users")])
def test_a_server_that_queues_what_made_all_users_busy(
    each_s: float, at_once: int, cause: str
) -> None:
    """400 a second make 300 users busy after 0.75 s. A server of 30 slots begins with the 31st
    when the first one ends: 5 s later. One of 300 slots keeps nobody waiting."""
    records, run = many_users(400, each_s, at_once, 300, 10.0)
    summary = summarise_run(collect_columns(records), run)
    assert summary.delivery is not None
    assert summary.delivery.cause == cause
    line = format_delivery_line(summary)
    assert line is not None
    assert ("before all 300 users were busy, 0.75 s" in line) == (cause == "server")


def run_that_stood_still(still_s: float) -> Run:
    """30 a second for 12 s, with no number of users: 360 arrivals, and 240 users. The load
    generator stood still for so long."""
    run = open_for(12.0, 360)
    assert run.offer is not None
    health = ProcessHealth(
        worker="local",
        cpu_share=0.1,
        loop_lag_p99_ms=300.0,
        standstills=((run.profiling_at + 5.0, still_s),) if still_s else (),
    )
    return replace(
        run,
        settings=replace(run.settings, users=None),
        offer=replace(run.offer, most_users=240),
        health=(health,),
    )


@pytest.mark.parametrize(
    ("still_s", "why"),
    [(3.0, "It stood still for 3.0 s."), (0.0, "Its event loop was late by 300 ms (p99).")],
)
def test_users_that_follow_the_arrivals_are_never_too_few(still_s: float, why: str) -> None:
    """30 a second x 10 s are 300 users of at most 240, yet --max-users was not reached."""
    records = [answered(10_000, sent_at=i / 30, due_at=i / 30) for i in range(300)]
    summary = summarise_run(collect_columns(records), run_that_stood_still(still_s))
    assert summary.delivery is not None
    assert summary.delivery.users_needed == pytest.approx(300)
    line = format_delivery_line(summary)
    assert line is not None
    assert f"Cause: the load generator. {why} 60 of 360 arrivals were not sent." in line


def test_neither_figures_that_may_be_off_nor_missing_users_are_why_a_late_generator_did_not_send() -> (
    None
):
    """60 of 360 arrivals were not sent, 41 as no user was started for them yet, and some figures
    may be off by 1.8 ms."""
    run = run_that_stood_still(0.0)
    assert run.offer is not None
    run = replace(run, offer=replace(run.offer, never_started=41))
    records = [answered(10_000, sent_at=i / 30, due_at=i / 30) for i in range(300)]
    summary = summarise_run(collect_columns(records), run)
    reason = "late sends: TTFT from Due p95 83.5 ms may be off by up to 1.76 ms"
    client = ClientVerdict(DEGRADED, (reason,), signals={LATE_SEND: DEGRADED})
    line = format_delivery_line(replace(summary, client=client))
    assert line is not None
    assert line.endswith(
        "Cause: the load generator. Its event loop was late by 300 ms (p99). 60 of 360 arrivals "
        "were not sent."
    )


@pytest.mark.parametrize(("still_s", "cause"), [(1.0, "client"), (0.9, "users")])
def test_a_generator_that_stood_still_comes_before_users(still_s: float, cause: str) -> None:
    """At 30 a second 1 s is half of 60 unsent arrivals; 0.9 s are 27."""
    run = run_that_stood_still(still_s)
    assert run.offer is not None
    run = replace(run, offer=replace(run.offer, out_of_users=True))
    records = [answered(10_000, sent_at=i / 30, due_at=i / 30) for i in range(300)]
    assert delivered(records, run).cause == cause


def test_all_sent_needs_no_cause() -> None:
    found = delivered([answered(100)] * 98, open_run(100))
    assert (found.share, found.cause) == (0.98, "")
    assert delivered([answered(100)] * 97, open_run(100)).cause != ""


def test_more_than_one_call_of_a_task_are_not_more_arrivals() -> None:
    found = delivered([answered(100)] * 20, open_run(10, never_started=2))
    assert (found.sent, found.completed) == (8, 8)


def test_of_a_fixed_schedule_only_first_turns_were_due() -> None:
    """Two sessions of 3 turns were due: each keeps a user busy for 3 times 1 s and twice 2 s of
    thinking."""
    records = [answered(1000, turn=turn) for _ in range(2) for turn in range(3)]
    fixed = open_run(2, fixed_schedule=True, session_turn_delay_mean=2000.0)
    found = delivered(records, fixed)
    assert (found.sent, found.completed) == (2, 2)
    assert found.busy_s == pytest.approx(7)
    assert delivered(records, open_run(6)).sent == 6


def test_the_gate_by_littles_law() -> None:
    """2 a second, each 1.5 s in prefill: 3 at a time, and 2 are let in."""
    records = [answered(1500, asked_at=5.0, admitted_at=10.0)] * 130
    found = delivered(records, open_run(200, limits=((0.0, 2),)))
    assert (found.in_prefill_needed, found.prefill_limit) == (pytest.approx(3), 2)
    assert found.cause == "gate"  # although, waiting at it, users are busy as well
    assert found.users_needed == pytest.approx(2 * 6.5)
    assert delivered(records, open_run(200)).in_prefill_needed is None


def test_the_limit_is_its_mean_over_the_time() -> None:
    """1 for 50 s, then 3; a limit of the warmup and one after the stop are none of it."""
    run = open_run(10, limits=((0.0, 1), (50.0, 3), (150.0, 9)))
    assert delivered([answered(1)], run).prefill_limit == 2


def test_the_users_by_littles_law() -> None:
    """2 a second, each keeps a user busy for 6 s: 12 users, and there are 10."""
    found = delivered([answered(1000, 6000)] * 160, open_run(200, never_started=40))
    assert (found.users_needed, found.busy_s, found.users) == (
        pytest.approx(12),
        pytest.approx(6),
        10,
    )
    assert found.cause == "users"


BRIEF = [answered(100)] * 50


def test_an_arrival_of_the_last_moment_is_nobodys_fault() -> None:
    """One of 31 was due as the run was stopped; two of 32 at 0.3 a second are more than that."""
    assert delivered([answered(100)] * 30, open_run(31)).cause == ""
    assert delivered([answered(100)] * 30, open_run(32)).cause == "end"
    # 90 of 2,000 at 20 a second: 4.5 s of arrivals
    assert delivered([answered(100)] * 1910, open_run(2000)).cause == "end"


@pytest.mark.parametrize(
    ("records", "cpu", "verdict", "cause"),
    [
        (BRIEF, 0.2, None, "end"),
        (BRIEF, 0.95, None, "client"),
        (BRIEF, 0.2, ClientVerdict(INVALID), "client"),
        (BRIEF, 0.2, ClientVerdict(DEGRADED), "client"),
        ([answered(9000)] * 50, 0.95, None, "client"),  # its users look busy because it is slow
        ([answered(10_000)] * 50, 0.2, ClientVerdict(DEGRADED), "users"),
    ],
)
def test_the_load_generator(
    records: list[Record], cpu: float, verdict: ClientVerdict | None, cause: str
) -> None:
    run = replace(
        open_run(100, 50),
        health=(ProcessHealth(worker="local", cpu_share=cpu, loop_lag_p99_ms=1.0),),
    )
    assert delivered(records, run, verdict).cause == cause


def test_one_arrival_at_the_stop_has_no_cause() -> None:
    """34 of 35 were sent: whatever the load generator was late by, the last one fell on the
    stop."""
    held_up = (ProcessHealth(worker="local", cpu_share=0.2, loop_lag_p99_ms=900.0),)
    late = ClientVerdict(INVALID, ("late sends: so",), signals={LATE_SEND: INVALID})
    run = replace(open_run(35), health=held_up)
    assert delivered([answered(100)] * 34, run, late).cause == ""
    assert delivered([answered(100)] * 30, run, late).cause == "client"


def test_what_held_the_load_generator_up_is_named_without_what_cannot() -> None:
    """Its loop stood still: that chunks came merged keeps nobody from sending."""
    held_up = (ProcessHealth(worker="local", cpu_share=0.2, loop_lag_p99_ms=900.0),)
    run = replace(open_run(100), health=held_up)
    records = [answered(100, 120, 120, merged=((1, 101_000), (2, 101_000)))] * 60
    said = format_delivery_line(summarise_run(collect_columns(records), run))
    assert said is not None
    assert "Cause: the load generator. Its event loop was late by 900 ms (p99)." in said
    assert "erged" not in said


def test_no_more_users_to_add() -> None:
    run = open_run(100)
    assert run.offer is not None
    run = replace(run, offer=replace(run.offer, out_of_users=True))
    assert delivered(BRIEF, run).cause == "users"


def test_nothing_offered() -> None:
    assert summarise_run(collect_columns([answered(1)]), a_run()).delivery is None
    assert summarise_run(collect_columns([]), open_run(0)).delivery is None
    assert delivered([], open_run(5)).sent == 0


@pytest.mark.parametrize(
    ("records", "run", "words"),
    [
        ([answered(1500, asked_at=5.0)] * 130, open_run(200, limits=((0.0, 2),)),
         ["65.0%", "sent. Of 2.00/s, 1.30/s passed the prefill limit of 2, with a mean TTFT of 1.5 s. ",
          "With a higher limit more pass only if the server computes more prompts per second: a short run with one decides. 70 of 200"]),
        ([answered(1000, 6000)] * 160, open_run(200, 40),
            ["80.0%", "sent. Of 2.00/s, 10 users sent 1.60/s, 6 s per request. More users send more "
          "only if requests then take no longer: a short run with more decides. 40 of 200"]),
        (BRIEF, open_run(100, 3), ["Probably a burst", "0.1 of 10 users", "50 of 100",
            "3 found no free user"]),
        (BRIEF, replace(open_run(100), health=(ProcessHealth(worker="local", cpu_share=0.97,
            loop_lag_p99_ms=1.0),)),
         ["load generator. Process local used 97% of a core"]),
    ],
)  # fmt: skip
def test_one_sentence_has_the_numbers_and_a_cause_that_is_known(
    records: list[Record], run: Run, words: list[str]
) -> None:
    said = format_delivery_line(summarise_run(collect_columns(records), run))
    assert said is not None
    assert [word for word in words if word not in said] == []


def test_what_waited_at_the_gate_when_the_run_ended_was_held_by_the_gate() -> None:
    """53 of 63 were sent; 9 were turned away at the gate, and one was cut there. 0.63 a second of
    0.1 s need 0.063 of the limit of 1: by the whole run it was not too low, and merged chunks keep
    nobody from sending."""
    run = replace(open_run(63, limits=((0.0, 1),)), turned_away=9)
    records = [answered(100)] * 53 + [failed("cut", sent_at=None, admitted_at=None)]
    merged = ClientVerdict(
        DEGRADED, ("merged chunks 12.1% (limit 5.0%)",), signals={MERGED: DEGRADED}
    )
    found = delivered(records, run, merged)
    assert (found.sent, found.at_gate, found.cause) == (53, 10, "gate")
    slow = ClientVerdict(DEGRADED, ("so",), signals={LATE_PERMIT: DEGRADED})
    assert delivered(records, run, slow).cause == "client"  # a permit was free, and on its way
    # without a gate nobody waited at one
    assert delivered(records, replace(run, limits=()), merged).cause == "end"
    summary = summarise_run(collect_columns(records), run)
    compared = LimitComparison(objective="ttft", answer="Limit 1 is the best.")
    # a sweep of prefill limits tries low ones on purpose
    assert format_delivery_line(replace(summary, sections={PREFILL_LIMITS: compared})) is None
    said = format_delivery_line(summary)
    assert said is not None
    assert (
        "Of 0.63/s, 0.53/s passed the prefill limit of 1, with a mean TTFT of 100 ms. With a"
        in said
    )
    assert said.endswith(
        "10 of 63 arrivals were not sent: 10 waited for a prefill slot when the run ended."
    )


def test_users_that_wait_at_the_gate_are_not_too_few() -> None:
    """1 a second keeps a user busy for 11 s: 11 users, and there are 10. Of it 10 s are at the
    gate: 1 user would do without. 1 a second x 0.5 s need half of the limit."""
    records = [answered(500, 1000, sent_at=15.0, asked_at=5.0, admitted_at=15.0)] * 80
    found = delivered(records, open_run(100, 20, limits=((0.0, 1),)))
    assert (found.users_needed, found.gate_wait_s, found.cause) == (
        pytest.approx(11),
        pytest.approx(10),
        "gate",
    )
    said = format_delivery_line(
        summarise_run(collect_columns(records), open_run(100, 20, limits=((0.0, 1),)))
    )
    assert said is not None
    assert (
        "Of 1.00/s, 0.80/s passed the prefill limit of 1, with a mean TTFT of 500 ms. With a"
        in said
    )


@pytest.mark.parametrize(
    ("signal", "cause"),
    [(MERGED, "end"), (LATE_SEND, "client"), (LATE_READ, "client"), (SENTINELS, "end")],
)
def test_only_delays_of_the_load_generator_keep_requests_from_being_sent(
    signal: str, cause: str
) -> None:
    for level in (DEGRADED, INVALID):
        assert (
            delivered(
                BRIEF, open_run(100), ClientVerdict(level, ("so",), signals={signal: level})
            ).cause
            == cause
        )


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_that_a_serial_server_would_chase_is_not_the_cause(limit: int) -> None:
    """A server computes one prompt a second: at limit 3 TTFT is 3 s, and 2 a second then "need"
    twice as much again. The same 100 of 200 pass each limit, so no limit is advised."""
    ttft_ms = 1000.0 * limit
    records = [answered(ttft_ms, asked_at=5.0)] * 100
    run = replace(open_run(200, limits=((0.0, limit),)), turned_away=100)
    assert delivered(records, run).in_prefill_needed == pytest.approx(2.0 * limit)
    said = format_delivery_line(summarise_run(collect_columns(records), run))
    assert said == (
        "NOT DELIVERED: 50.0% of the scheduled requests were sent. Of 2.00/s, 1.00/s passed the "
        f"prefill limit of {limit}, with a mean TTFT of {limit} s. With a higher limit more pass "
        "only if the server computes more prompts per second: a short run with one decides. 100 "
        "of 200 arrivals were not sent: 100 waited for a prefill slot when the run ended."
    )


def test_no_sentence_without_need() -> None:
    assert format_delivery_line(summarise_run(collect_columns([answered(1)]), open_run(1))) is None
    assert format_delivery_line(summarise_run(collect_columns([answered(1)]), a_run())) is None


@pytest.mark.parametrize(
    ("settings", "words", "rate"),
    [
        ({}, "", None),
        ({"request_rate": 10.0}, "10/s poisson", 10.0),
        ({"request_rate": 2.5, "arrival_pattern": "constant"}, "2.5/s constant", 2.5),
        (
            {"request_rate": 10.0, "arrival_pattern": "gamma", "arrival_smoothness": 0.5},
            "10/s gamma (smoothness 0.5)",
            10.0,
        ),
        (
            {"request_rate": 20.0, "request_rate_ramp_duration": 30.0},
            "ramp to 20/s in 30 s, poisson",
            20.0,
        ),
        ({"request_rate_series": "/some/where/day.json"}, "rate series day.json, poisson", 0.5),
        ({"user_centric_rate": 5.0}, "user-centric 5/s", 5.0),
        (
            {"fixed_schedule": True, "input_file": "t/trace.jsonl", "replay_speedup": 2.0},
            "fixed schedule trace.jsonl x2",
            0.5,
        ),
    ],
)
def test_the_mode_in_words(settings: dict[str, object], words: str, rate: float | None) -> None:
    run = open_run(50, **({"request_rate": None} | settings))
    assert describe_arrivals(run.settings) == words
    assert find_requested_rate(run) == rate
    conditions = summarise_run(collect_columns([answered(1)]), run).conditions
    assert (conditions.loop, conditions.arrivals) == ("open" if words else "closed", words)


def test_a_rate_that_nobody_counted_is_unknown() -> None:
    assert find_requested_rate(a_run(fixed_schedule=True)) is None
    assert describe_arrivals(Settings(fixed_schedule=True)) == "fixed schedule"


@pytest.mark.parametrize(("limit", "words"), [(None, "free user"), (4, "prefill slot (limit 4)")])
def test_what_an_open_loop_says_of_itself(limit: int | None, words: str) -> None:
    run = open_run(1, prefill_concurrency=limit)
    said = make_loop_remark(summarise_run(collect_columns([answered(1)]), run).conditions)
    assert said.startswith("Open loop")
    assert "TTFT from Due" in said
    assert words in said
    assert "\n" not in said


def test_arrivals_of_the_warmup_are_none_of_it() -> None:
    warm = [answered(900, sent_at=1.0, phase="warmup")] * 5
    summary = summarise_run(
        collect_columns([*warm, *[answered(100)] * 10]),
        open_run(10, warmup_request_count=5, warmup_request_rate=2.0),
    )
    assert summary.delivery is not None
    assert (summary.delivery.sent, summary.delivery.completed, summary.delivery.ttft_s) == (
        10,
        10,
        pytest.approx(0.1),
    )
    assert {row.tag: row.avg for row in summary.warmup}["time_to_first_token"] == pytest.approx(900)


IN_FLIGHT = "were in flight at the stop, as in any server that keeps up"


@pytest.mark.parametrize(
    ("answered", "expected", "share", "said"),
    [
        (66, 158.0, 66 / 158, "41.8%: 3.30/s in the 20 s to the stop, 66 of 158 that were due"),
        (
            134, 136.0, 134 / 136,
            f"98.5%: 6.70/s in the 20 s to the stop, 134 of 158 that were due. 22 of the others {IN_FLIGHT}: the "
                f"share is of the "
            "remaining 136",
        ),
        (
            20, 60.0, None,
            f"1.00/s in the 20 s to the stop, 20 of 158 that were due. 98 of the others {IN_FLIGHT}: too short a "
                f"run for a share",
        ),
        (
            157, 157.0, 1.0,
            "100.0%: 7.85/s in the 20 s to the stop, 157 of 158 that were due. The other one was in "
            "flight at the stop, as in any server that keeps up: the share is of the remaining 157",
        ),
        (158, 158.0, 1.0, "100.0%: 7.90/s in the 20 s to the stop, 158 of 158 that were due"),
    ],
)  # fmt: skip
def test_what_was_completed(answered: int, expected: float, share: float | None, said: str) -> None:
    delivery = Delivery(
        duration_s=20.0,
        due=158,
        sent=158,
        completed=answered,
        never_started=0,
        offered_per_s=7.9,
        sent_per_s=7.9,
        completed_per_s=answered / 20,
        share=1.0,
        users=100,
        expected=expected,
        completed_share=share,
        in_flight=round(158 - expected),
    )
    assert describe_completed(delivery) == said


def test_a_rate_that_was_changed_by_hand_is_the_mean_of_what_was_due() -> None:
    """4/s for 13 s and 12/s for 19 s: 280 arrivals in 32 s are 8.75/s."""
    run = replace(
        a_run(request_rate=4.0),
        rates=(RateChange(UNIX + 13, 12.0),),
        offer=OpenLoopSchedule(due=280, never_started=0, duration_s=32.0, most_users=9),
    )
    assert find_requested_rate(run) == 8.75
    assert describe_arrivals(run.settings, run.rates) == "4/s poisson, changed by hand to 12/s"
