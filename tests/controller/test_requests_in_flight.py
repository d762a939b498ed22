"""Sends: what counts, and when, by pencil; and how often a healthy run is ended, in virtual
time."""

import heapq
import math
import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.controller.early_stop import SURE, EarlyStop
from locust_llm.controller.requests_in_flight import CLOCKS_S, RequestsInFlight
from locust_llm.records.record import Record
from locust_llm.slo.rules import parse_rule

REPORTS_S = 0.25


def request(
    sent_at: float, took_s: float, *, ok: bool, worker: str = "local", **other: object
) -> Record:
    """Admitted and sent at that moment; its first chunk comes with its last."""
    fields: dict[str, object] = {
        "asked_at": sent_at,
        "admitted_at": sent_at,
        "worker": worker,
        **other,
    }
    if ok:
        return answered(took_s * 1e3, sent_at=sent_at, **fields)
    return failed(sent_at=sent_at, **{"closed_at": sent_at + took_s, **fields})


# -- by pencil -------------------------------------------------------------------------------------


def test_a_record_counts_when_the_others_of_its_time_are_known() -> None:
    sends = RequestsInFlight()
    fast = request(1.0, 0.001, ok=False)
    sends.over(fast)
    assert sends.open == 0
    assert sends.report("local", 0.9, admitted=10, over=0) == []  # it was admitted later
    assert sends.open == 10
    assert sends.report("local", 1.15, admitted=20, over=1) == [fast]
    assert sends.open == 19
    slow = [request(0.5, 5, ok=True) for _ in range(10)]
    for record in slow:
        sends.over(record)
    assert sends.report("local", 6.0, admitted=20, over=11) == slow
    assert sends.open == 9


def test_of_a_process_that_has_ended_nothing_is_under_way() -> None:
    """Two ended after its last report, and one of three at the gate never came so far: all records
    count, in their order."""
    sends = RequestsInFlight()
    assert sends.report("local", 2.0, admitted=2, over=0, waiting=3) == []
    first, second = request(2.1, 1, ok=True), request(2.2, 0.5, ok=True)
    sends.over(second)
    sends.over(first)
    assert sends.open == 5
    assert sends.end("local") == [first, second]
    assert (sends.open, sends.older(0.0)) == (0, 0)
    assert sends.end("local") == []


def test_requests_at_the_gate_are_under_way_and_those_that_never_came_so_far_are_not() -> None:
    sends = RequestsInFlight()
    refused = failed("refused", sent_at=None, asked_at=1.0)
    sends.over(refused)
    assert sends.report("local", 2.0, admitted=3, over=0, waiting=7) == [refused]
    assert sends.open == 10


def test_each_process_has_its_own_clock() -> None:
    sends = RequestsInFlight()
    a, b = request(100.0, 1, ok=True, worker="a"), request(5.0, 1, ok=True, worker="b")
    sends.over(a)
    sends.over(b)
    assert sends.report("b", 6.0, admitted=4, over=1) == [b]
    assert sends.report("a", 101.0, admitted=2, over=1) == [a]
    assert sends.open == 4


def test_how_many_are_under_way_for_how_long() -> None:
    """Five at 1 s, five more by 2 s; one of the first is over, and one of the others decodes."""
    sends = RequestsInFlight()
    sends.report("local", 1.0, admitted=5, over=0)
    sends.over(request(0.9, 0.5, ok=True))
    sends.report("local", 2.0, admitted=10, over=1, decoding=1)
    assert [sends.older(age_s) for age_s in (0.5, 1.5, 3)] == [4, 0, 0]
    sends.report("local", 4.0, admitted=10, over=1, decoding=1)
    assert [sends.older(age_s) for age_s in (1, 2.5, 3.5)] == [9, 4, 0]
    assert sends.older(2.5, silent=True) == 3
    sends.report("local", 5.0, admitted=10, over=3, decoding=1)  # two records are on their way here
    assert sends.older(3.5) == 2


def test_since_when_a_request_is_under_way() -> None:
    """Reports come in the moment they are made, at Unix time 1000 more. Two requests are admitted
    by 1 s and two by 2 s. The first two end, then the others."""
    clock = iter([1001.0, 1002.0, 1003.0, 1004.0])
    sends = RequestsInFlight(lambda: next(clock))
    assert sends.settled_unix_s([]) == -math.inf
    sends.report("local", 1.0, admitted=2, over=0)
    assert sends.settled_unix_s([]) == -math.inf
    sends.over(request(0.5, 0.1, ok=False))
    sends.report("local", 2.0, admitted=4, over=1)
    assert sends.settled_unix_s([]) == -math.inf  # the other one of the first two
    sends.over(request(0.6, 2.0, ok=True))
    sends.report("local", 3.0, admitted=4, over=2)
    assert sends.settled_unix_s([]) == 1001.0 - CLOCKS_S
    sends.over(request(1.5, 0.1, ok=False))
    sends.over(request(1.6, 0.1, ok=False))
    sends.report("local", 4.0, admitted=4, over=4)
    assert sends.settled_unix_s([]) == 1004.0 - CLOCKS_S
    assert sends.settled_unix_s(["another"]) == -math.inf  # it sends, and has not reported
    sends.end("another")
    sends.end("local")
    assert sends.settled_unix_s(["another"]) == math.inf


def test_what_a_lost_process_had_under_way_is_never_known() -> None:
    """Each had sent two requests by 1 s. All of a and one of b have their records."""
    sends = RequestsInFlight(lambda: 1000.0)
    sends.report("a", 1.0, admitted=2, over=0)
    sends.over(request(0.5, 0.1, ok=False, worker="a"))
    sends.over(request(0.6, 0.1, ok=False, worker="a"))
    sends.end("a")
    assert sends.settled_unix_s("a") == math.inf
    sends.report("b", 1.0, admitted=2, over=0)
    sends.over(request(0.5, 0.1, ok=False, worker="b"))
    sends.end("b")
    assert sends.settled_unix_s("ab") == -math.inf


def test_the_clock_of_a_process_is_taken_from_the_report_that_came_soonest() -> None:
    """Its clock began at Unix time 500. One report takes 2 s to come, the next none."""
    clock = iter([512.0, 520.0])
    sends = RequestsInFlight(lambda: next(clock))
    sends.report("b", 10.0, admitted=0, over=0)
    assert sends.settled_unix_s([]) == 512.0 - CLOCKS_S
    sends.report("b", 20.0, admitted=0, over=0)
    assert sends.settled_unix_s([]) == 520.0 - CLOCKS_S


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.sampled_from("ab")), max_size=40))
def test_all_that_was_sent_is_either_counted_or_under_way(
    plan: list[tuple[float, float, str]],
) -> None:
    """Whatever the order: and when all is over, nothing is under way and every record was counted
    once."""
    sends, counted, made = (
        RequestsInFlight(),
        0,
        [request(at, took, ok=True, worker=worker) for at, took, worker in plan],
    )
    over = sorted(made, key=lambda record: record.closed_at)
    for i in range(45):
        now = i * REPORTS_S
        while over and over[0].closed_at <= now:
            sends.over(over.pop(0))
        for worker in "ab":
            of_it = [record for record in made if record.worker == worker]
            admitted = sum(record.asked_at <= now for record in of_it)
            ended = sum(record.closed_at <= now for record in of_it)
            counted += len(sends.report(worker, now, admitted=admitted, over=ended))
        assert sends.open + counted == sum(record.asked_at <= now for record in made)
    assert (sends.open, counted) == (0, len(made))


# -- a run in virtual time -------------------------------------------------------------------------


def ended_at(
    rule: str,
    seed: int,
    *,
    failing: float,
    latency_s: float,
    failure_s: float,
    rate: float,
    run_s: float,
) -> float:
    """When a run of two workers with random arrivals is ended by the rule; infinite: it is not."""
    draw, sends = random.Random(seed), RequestsInFlight()
    abort = EarlyStop([parse_rule(rule)], sends=sends)
    over: list[tuple[float, int, Record]] = []
    admitted, done = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    arrivals, sent_at = _arrivals(draw, rate), 0.0
    sent_at = next(arrivals)
    count = 0
    for i in range(1, int(run_s / REPORTS_S)):
        now = i * REPORTS_S
        while sent_at <= now:
            bad, count, worker = draw.random() < failing, count + 1, draw.choice("ab")
            took_s = failure_s if bad else latency_s
            heapq.heappush(
                over, (sent_at + took_s, count, request(sent_at, took_s, ok=not bad, worker=worker))
            )
            admitted[worker] += 1
            sent_at = next(arrivals)
        while over and over[0][0] <= now:
            record = heapq.heappop(over)[2]
            done[record.worker] += 1
            sends.over(record)
        for worker in "ab":
            for record in sends.report(worker, now, admitted=admitted[worker], over=done[worker]):
                abort.add(record)
        if i % 4 == 0 and abort.broken():
            return now
    return math.inf


def _arrivals(draw: random.Random, rate: float) -> Iterator[float]:
    at = 0.0
    while True:
        at += draw.expovariate(rate)
        yield at


def share_ended(runs: Iterable[float]) -> float:
    ends = list(runs)
    return sum(map(math.isfinite, ends)) / len(ends)


@pytest.mark.parametrize(
    ("rate", "latency_s", "failure_s"), [(50, 10, 0.001), (100, 3, 0.001), (50, 3, 10)]
)
def test_a_healthy_open_loop_is_not_ended_by_fast_failures(
    rate: float, latency_s: float, failure_s: float
) -> None:
    """2 % fail, 5 % may. In the order of their ends two thirds of the first are ended in a
    minute."""
    load = {
        "failing": 0.02,
        "latency_s": latency_s,
        "failure_s": failure_s,
        "rate": rate,
        "run_s": 15,
    }
    assert (
        share_ended(ended_at("abort: error_rate < 5%", seed, **load) for seed in range(40))
        <= 1 / SURE
    )


@pytest.mark.full
@pytest.mark.parametrize("failing", [0.02, 0.05])
def test_the_rate_of_false_ends(failing: float) -> None:
    """At the very limit too: at most one run in forty, but for three standard errors of 400
    runs."""
    load = {"failing": failing, "latency_s": 10, "failure_s": 0.001, "rate": 50, "run_s": 40}
    share = share_ended(ended_at("abort: error_rate <= 5%", seed, **load) for seed in range(400))
    assert share <= 1 / SURE + 3 * math.sqrt(1 / SURE / 400)


def test_a_broken_server_is_ended_soon() -> None:
    """A fifth fails fast, at 50/s: by the failures alone, with all that is under way held to be
    good."""
    load = {"failing": 0.2, "latency_s": 10, "failure_s": 0.001, "rate": 50, "run_s": 30}
    ends = sorted(ended_at("abort: error_rate < 5%", seed, **load) for seed in range(20))
    assert ends[-1] <= 5
    nothing_works = {"failing": 1.0, "latency_s": 10, "failure_s": 0.001, "rate": 50, "run_s": 30}
    assert ended_at("abort: error_rate < 5%", 1, **nothing_works) == 1


def test_a_server_that_hangs_is_ended_before_anything_is_over() -> None:
    """Nothing comes back, so no record tells; that nothing comes back does: after the limit and a
    second."""
    load = {"failing": 1.0, "latency_s": 100, "failure_s": 100, "rate": 20, "run_s": 60}
    for rule in (
        "ttft p95 < 2s",
        "request_latency p95 < 2s",
        "ttft max < 2s",
        "attainment >= 90% given ttft < 2s",
    ):
        assert ended_at(f"abort: {rule}", 1, **load) <= 8, rule
    for rule in ("ttft p95 < 60s", "ttft p95 > 2s", "error_rate < 5%", "ttft{class=A} p95 < 2s"):
        assert math.isinf(ended_at(f"abort: {rule}", 1, **load)), rule


def test_a_healthy_server_is_not_held_to_hang() -> None:
    load = {"failing": 0.0, "latency_s": 1.9, "failure_s": 0.0, "rate": 50, "run_s": 20}
    assert math.isinf(ended_at("abort: request_latency p95 < 2s", 1, **load))
