"""Capacity: measures --find-max on servers of known capacity, in virtual time: ``make capacity``.

    python tests/bench/capacity.py [--runs 100] [--seed 1] [--minutes 5] [SERVER ...]

Each run is a whole search: stages with their waves, the evidence of each, the chances of each level
and the choice of the next stage are those of the product; only the server is another one, without
sockets. The capacity of a server is known from a run of LONG requests at each level.
"""

import argparse
import heapq
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from locust_llm.report.slo_evidence.capacity_evidence import find_capacity
from locust_llm.report.slo_evidence.confidence_intervals import estimate_percentile_interval
from locust_llm.report.slo_evidence.rule_evidence import UNSURE, make_share_evidence
from locust_llm.settings.sweep_option import OVERLOADED, RunningStage
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest
from locust_llm.slo.capacity_search import (
    CapacityEstimate,
    CapacitySearch,
    RuleEvidence,
    SearchStage,
    StageEvidence,
    StageTime,
    list_levels,
    plan_stage,
)
from locust_llm.slo.rules import parse_rule

RULE: Final = parse_rule("ttft p95 < 1s")
"""Its limit is that of the server."""
ALLOWED: Final = 0.05
"""This share of requests may exceed the limit: the rules are p95 < limit."""
LONG: Final = 60_000
LOOK_S: Final = 0.25
REPORT_S: Final = 1.5
"""This time passes between two stages."""


class Request(NamedTuple):
    sent_at: float
    closed_at: float
    value_s: float
    """The rule is about this value."""


Load = Callable[[int, Random], Iterator[Request]]
"""The function yields requests of so many users, from an idle server on, in the order of their
ends."""
OpenLoad = Callable[[Iterator[float], Random], Iterator[Request]]
"""The function yields the requests of these arrivals in the same way."""


def queue(
    servers: int, service_s: Callable[[Random], float], users: int, random: Random
) -> Iterator[Request]:
    """Serves first come, first served, by so many servers."""
    busy: list[tuple[float, float]] = []
    waiting = deque(0.0 for _ in range(users))
    while waiting and len(busy) < servers:
        heapq.heappush(busy, (service_s(random), waiting.popleft()))
    while True:
        now, sent_at = heapq.heappop(busy)
        yield Request(sent_at, now, now - sent_at)
        waiting.append(now)
        heapq.heappush(busy, (now + service_s(random), waiting.popleft()))


def sharing(
    most: int, work_s: Callable[[Random], float], users: int, random: Random
) -> Iterator[Request]:
    """Shares the server equally among at most so many requests. The others wait."""
    inside: list[tuple[float, float]] = []
    waiting = deque(0.0 for _ in range(users))
    served = now = 0.0
    while waiting and len(inside) < most:
        heapq.heappush(inside, (work_s(random), waiting.popleft()))
    while True:
        done, sent_at = heapq.heappop(inside)
        now += (done - served) * (len(inside) + 1)
        served = done
        yield Request(sent_at, now, now - sent_at)
        waiting.append(now)
        heapq.heappush(inside, (served + work_s(random), waiting.popleft()))


def slots(servers: int, users: int, random: Random) -> Iterator[Request]:
    """Is a server without chance except lengths that vary by a fifth. The value is the wait."""
    for request in queue(servers, lambda random: random.uniform(0.8, 1.2), users, random):
        yield request._replace(value_s=max(request.value_s - 1.0, 0.0) + 0.05)


def batching(
    lengths: Callable[[Random], tuple[int, int]],
    figure: str,
    config: SchedulerConfig,
    users: int,
    random: Random,
) -> Iterator[Request]:
    """Runs the product's simulator with chunked prefill."""
    clock = VirtualClock()
    run = Virtual(
        clock,
        BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), LLAMA_8B_H100, clock),
    )
    run.closed_loop(users, (VirtualRequest(*lengths(random)) for _ in count()), stagger_s=0.001)
    yield from _take_rows(run, figure)


def fall_into_step(users: int, random: Random) -> Iterator[Request]:
    """A server that answers a batch at a time, as a real vLLM did: users fall into step with one
    another, so their first tokens come later and later, over some 10 s."""
    coming = [(0.001 * user, 0.0) for user in range(users)]
    heapq.heapify(coming)
    while True:
        sent_at, _ = heapq.heappop(coming)
        together = 1 - 0.7 * math.exp(-sent_at / 5.0)
        ttft_s = (0.01 + 0.015 * users) * together * random.lognormvariate(0.0, 0.2)
        closed_at = sent_at + ttft_s + random.uniform(0.16, 0.24)
        yield Request(sent_at, closed_at, ttft_s)
        heapq.heappush(coming, (closed_at, 0.0))


def fall_into_step_late(users: int, random: Random) -> Iterator[Request]:
    """As above, all at once after some seconds, as llama.cpp and vLLM did. From then on the speed
    of the server wanders."""
    begins_at = random.gammavariate(2.0, 4.0)
    speed = looked_at = 0.0
    coming = [(0.001 * user, 0.0) for user in range(users)]
    heapq.heapify(coming)
    while True:
        sent_at, _ = heapq.heappop(coming)
        kept = math.exp((looked_at - sent_at) / 10.0)
        speed = kept * speed + random.gauss(0.0, 0.06) * math.sqrt(1 - kept * kept)
        looked_at = sent_at
        ttft_s = (0.02 + 0.016 * users) * random.lognormvariate(speed, 0.3)
        if sent_at < begins_at:
            ttft_s = (0.02 + 0.003 * users) * random.lognormvariate(0.0, 0.3)
        closed_at = sent_at + ttft_s + random.uniform(0.12, 0.16)
        yield Request(sent_at, closed_at, ttft_s)
        heapq.heappush(coming, (closed_at, 0.0))


def queue_arrivals(
    servers: int,
    service_s: Callable[[Random], float],
    arrivals: Iterator[float],
    random: Random,
) -> Iterator[Request]:
    """First come, first served by so many servers."""
    busy: list[tuple[float, float]] = []
    waiting = deque[float]()
    for sent_at in arrivals:
        while busy and busy[0][0] <= sent_at:
            now, began_at = heapq.heappop(busy)
            yield Request(began_at, now, now - began_at)
            if waiting:
                heapq.heappush(busy, (now + service_s(random), waiting.popleft()))
        if len(busy) < servers:
            heapq.heappush(busy, (sent_at + service_s(random), sent_at))
        else:
            waiting.append(sent_at)


def batch_arrivals(
    lengths: Callable[[Random], tuple[int, int]],
    figure: str,
    config: SchedulerConfig,
    arrivals: Iterator[float],
    random: Random,
) -> Iterator[Request]:
    """The product's simulator with chunked prefill."""
    clock = VirtualClock()
    run = Virtual(
        clock,
        BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), LLAMA_8B_H100, clock),
    )
    run.open_loop((at, VirtualRequest(*lengths(random))) for at in arrivals)
    yield from _take_rows(run, figure)


def _take_rows(run: Virtual, figure: str) -> Iterator[Request]:
    until = 0.0
    while True:
        until += LOOK_S
        run.run(until)
        rows, run.rows = run.rows, []
        for row in sorted(rows, key=lambda row: row.done_at):
            yield Request(row.sent_at, row.done_at, getattr(row, figure))


def exponential(mean_s: float) -> Callable[[Random], float]:
    return lambda random: random.expovariate(1 / mean_s)


def lognormal(mean_s: float, sigma: float) -> Callable[[Random], float]:
    return lambda random: random.lognormvariate(math.log(mean_s) - sigma * sigma / 2, sigma)


def varied(random: Random) -> tuple[int, int]:
    return min(int(random.lognormvariate(6.5, 0.8)), 8000), random.randrange(20, 100)


def alike(random: Random) -> tuple[int, int]:
    return random.randrange(300, 700), random.randrange(60, 100)


class Server(NamedTuple):
    load: Load | None
    capacity: float
    asked: tuple[float, float] = (1, 64)
    long: int = LONG
    open_load: OpenLoad | None = None
    """Of an open loop: levels are requests a second."""

    @property
    def levels(self) -> tuple[float, ...]:
        return list_levels(*map(float, self.asked), whole=self.open_load is None)

    def run(self, level: float, random: Random) -> "RunningLoad":
        if self.open_load is None:
            assert self.load is not None
            return RunningLoad(self.load(int(level), random), int(level))
        arrived = list[float]()
        arrivals = _record(_arrive(level, Random(random.random())), arrived)
        return RunningLoad(self.open_load(arrivals, random), None, arrived)


class RunningLoad(NamedTuple):
    requests: Iterator[Request]
    users: int | None
    """None: of an open loop."""
    arrived: Sequence[float] = ()
    """When its arrivals were due, beyond the last request that came back."""

    def count_inside(self, now: float, ended: int) -> int:
        return bisect_right(self.arrived, now) - ended if self.users is None else self.users


def _arrive(rate_per_s: float, random: Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += random.expovariate(rate_per_s)
        yield at


def _record(arrivals: Iterator[float], into: list[float]) -> Iterator[float]:
    for at in arrivals:
        into.append(at)
        yield at


def _partial(function: Callable[..., Iterator[Request]], *first: object) -> Load:
    return lambda users, random: function(*first, users, random)


def _partial_open(function: Callable[..., Iterator[Request]], *first: object) -> OpenLoad:
    return lambda arrivals, random: function(*first, arrivals, random)


CHUNKED: Final = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, kv_tokens=2**19)
SERVERS: Final = {
    "M/M/4": Server(_partial(queue, 4, exponential(0.4)), 10),
    "M/G/8, lognormal": Server(_partial(queue, 8, lognormal(0.5, 1.0)), 20),
    "processor sharing": Server(_partial(sharing, 1000, exponential(0.1)), 24),
    "chunked batching": Server(_partial(batching, varied, "ttft_s", CHUNKED), 24, long=12_000),
    "deterministic, 6 slots": Server(_partial(slots, 6), 8),
}
HELD_OUT: Final = {
    "M/M/16": Server(_partial(queue, 16, exponential(0.8)), 40),
    "sharing of 8, hyperexponential": Server(
        _partial(
            sharing, 8, lambda random: random.expovariate(20.0 if random.random() < 0.9 else 2.0)
        ),
        14,
    ),
    "chunked batching, decode": Server(
        _partial(batching, alike, "itl_s", CHUNKED), 12, long=12_000
    ),
}

RATES: Final = {
    "rates, M/M/4": Server(
        None, 8.0, (1, 20), open_load=_partial_open(queue_arrivals, 4, exponential(0.4))
    ),
    "rates, M/M/16": Server(
        None, 18.0, (1, 40), open_load=_partial_open(queue_arrivals, 16, exponential(0.8))
    ),
    "rates, M/G/8, lognormal": Server(
        None, 12.0, (1, 32), open_load=_partial_open(queue_arrivals, 8, lognormal(0.5, 1.0))
    ),
    "rates, chunked batching": Server(
        None, 12.0, (1, 40), 80_000, _partial_open(batch_arrivals, varied, "ttft_s", CHUNKED)
    ),
    "rates, chunked batching, decode": Server(
        None, 10.0, (1, 40), 80_000, _partial_open(batch_arrivals, alike, "itl_s", CHUNKED)
    ),
}
SETTLING: Final = {
    "users fall into step": Server(fall_into_step, 7, (1, 32)),
    "users fall into step late": Server(fall_into_step_late, 5, (1, 32)),
}


def find_limit(server: Server, seed: int) -> float:
    """Returns a limit between the p95 at the capacity and at the level above."""
    above = min(level for level in server.levels if level > server.capacity)
    ends = []
    for level in (server.capacity, above):
        load = server.run(level, Random(seed + round(level)))
        values = [next(load.requests).value_s for _ in range(server.long)]
        ends.append(float(np.percentile(values[len(values) // 20 :], 100 * (1 - ALLOWED))))
    return math.sqrt(ends[0] * ends[1])


class StageRun(NamedTuple):
    requests: list[Request]
    """Only those that were measured."""
    measured_s: float
    whole_s: float
    why: str
    """This is why the stage ended."""
    completed_per_s: float = 0.0


def run_stage(load: RunningLoad, step: SearchStage) -> StageRun:
    stage = RunningStage(
        0.0, load.users, at_least_s=step.at_least_s, at_most_s=step.at_most_s,
        requests=step.requests,
    )  # fmt: skip
    found, looked_at, ended, completed = [], 0.0, 0, 0
    for request in load.requests:
        while request.closed_at > looked_at + LOOK_S:
            looked_at += LOOK_S
            if stage.look(looked_at, load.count_inside(looked_at, ended)):
                break
        else:
            ended += 1
            completed += stage.measured_at is not None and stage.ended_at is None
            if stage.ended(request.sent_at, request.sent_at, request.closed_at, ok=True):
                found.append(request)
            continue
        break
    over_at = looked_at
    measured_at = stage.measured_at if stage.measured_at is not None else over_at
    ended_at = stage.ended_at if stage.ended_at is not None else over_at
    drained_at = over_at
    left = load.count_inside(over_at, ended)
    seen = 1  # the request that was read last came back too
    for request in load.requests:  # what is in flight comes back
        if request.sent_at <= over_at:
            seen += 1
            drained_at = request.closed_at
            if measured_at <= request.sent_at <= ended_at:
                found.append(request)
        if seen >= left:
            break
    measured_s = ended_at - measured_at
    per_s = completed / measured_s if measured_s else 0.0
    return StageRun(found, measured_s, drained_at + REPORT_S, stage.why, per_s)


class Found(NamedTuple):
    estimate: CapacityEstimate | None
    stages: tuple[tuple[float, float], ...]
    took_s: float


def find_evidence(ran: StageRun, limit_s: float) -> RuleEvidence | None:
    if ran.why == OVERLOADED:  # as in report/slo_evidence/rule_evidence.py
        return RuleEvidence(rule=str(RULE), excess=1.0, error=UNSURE)
    values = np.array([request.value_s for request in ran.requests])
    if not len(values):
        return None
    beyond = (values >= limit_s).astype(np.float64)
    evidence = make_share_evidence(str(RULE), beyond, ALLOWED, values / limit_s)
    low, high = estimate_percentile_interval(values, 100 * (1 - ALLOWED)).ends
    return replace(
        evidence,
        passes=high is not None and high < limit_s,
        fails=low is not None and low >= limit_s,
    )


def search(server: Server, limit_s: float, total_s: float, seed: int) -> Found:
    levels = server.levels
    estimate: CapacityEstimate | None = None
    done: list[StageTime] = []
    evidence: list[StageEvidence] = []
    now = 0.0
    while True:
        step = plan_stage(estimate, done, levels, total_s - now, total_s)
        if step is None:
            break
        load = server.run(step.level, Random(seed * 1000 + len(done)))
        ran = run_stage(load, step)
        ran.requests.sort(key=lambda request: request.sent_at)
        now += ran.whole_s
        done.append(StageTime(step.level, ran.measured_s, ran.whole_s))
        rule = find_evidence(ran, limit_s)
        if rule is not None:
            evidence.append(
                StageEvidence(
                    level=step.level,
                    number=len(done),
                    measured_s=ran.measured_s,
                    rules=(rule,),
                    saturated_at=ran.completed_per_s if ran.why == OVERLOADED else None,
                )
            )
        whole = CapacitySearch(
            lowest=levels[0], highest=levels[-1], whole=server.open_load is None,
            stages=tuple(evidence),
        )  # fmt: skip
        estimate = find_capacity(whole, [RULE])
    return Found(estimate, tuple((stage.level, stage.measured_s) for stage in done), now)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    servers = SERVERS | HELD_OUT | RATES | SETTLING
    for name in options.names or servers:
        began = time.perf_counter()
        server = servers[name]
        limit_s = find_limit(server, 7)
        said, held, widths, narrow, took, stages = [], 0, [], 0, [], []
        high_miss = 0
        for run in range(options.runs):
            found = search(server, limit_s, 60 * options.minutes, options.seed * 10_000 + run)
            one = found.estimate
            assert one is not None
            low = one.low or 0.0
            value = one.value or 0.0
            high = one.high or 0.0
            holds = low <= server.capacity <= high
            held += holds
            high_miss += low > server.capacity
            said.append(value)
            widths.append(high / max(low, 0.5))
            neighbours = server.open_load is None and high - low <= 1
            narrow += high / max(low, 0.5) <= 1.3 or neighbours
            took.append(found.took_s)
            stages.append(len(found.stages))
            if options.verbose:
                print(
                    f"  {low:g} {value:g} {high:g} {found.took_s:.0f} s",
                    " ".join(f"{level:g}:{s:.0f}" for level, s in found.stages),
                )
        print(
            f"{name:34} limit {limit_s:.3f} s, median {np.median(said):g} of {server.capacity}, "
            f"off {np.std(np.log(np.array(said) / server.capacity)):.3f} for {np.mean(np.log(widths)) / 3.92:.3f}, holds {held / options.runs:.0%} (too high {high_miss}), width median {np.median(widths):.2f}, "
            f"p90 {np.percentile(widths, 90):.2f}, narrow {narrow / options.runs:.0%}, stages {np.mean(stages):.1f}, "
            f"took {np.mean(took):.0f} s, at most {max(took):.0f} s; {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
