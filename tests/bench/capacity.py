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
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Final, NamedTuple

import numpy as np

from locust_llm.report.slo.capacity import estimate_capacity
from locust_llm.report.slo.rule_evidence import make_share_evidence
from locust_llm.settings.sweep import RunningStage
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest
from locust_llm.slo.capacity import (
    CapacityEstimate,
    SearchStage,
    StageEvidence,
    StageTime,
    list_levels,
    plan_stage,
)

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
    load: Load
    capacity: int
    asked: tuple[int, int] = (1, 64)
    long: int = LONG


def _partial(function: Callable[..., Iterator[Request]], *first: object) -> Load:
    return lambda users, random: function(*first, users, random)


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


def find_limit(server: Server, seed: int) -> float:
    """Returns a limit between the p95 at the capacity and at the level above."""
    ends = []
    for users in (server.capacity, server.capacity + 1):
        load = server.load(users, Random(seed + users))
        values = [next(load).value_s for _ in range(server.long)]
        ends.append(float(np.percentile(values[20 * users :], 100 * (1 - ALLOWED))))
    return math.sqrt(ends[0] * ends[1])


def run_stage(
    load: Iterator[Request], users: int, step: SearchStage
) -> tuple[list[Request], float, float]:
    """Returns the measured requests, how long they were measured, and how long the stage took."""
    stage = RunningStage(
        0.0, users, at_least_s=step.at_least_s, at_most_s=step.at_most_s, requests=step.requests
    )
    found, looked_at = [], 0.0
    for request in load:
        while request.closed_at > looked_at + LOOK_S:
            looked_at += LOOK_S
            if stage.look(looked_at, users):
                break
        else:
            if stage.ended(request.sent_at, request.sent_at, request.closed_at, ok=True):
                found.append(request)
            continue
        break
    over_at = looked_at
    measured_at = stage.measured_at if stage.measured_at is not None else over_at
    ended_at = stage.ended_at if stage.ended_at is not None else over_at
    drained_at = over_at
    seen = 0
    for request in load:  # what is in flight comes back
        if request.sent_at <= over_at:
            seen += 1
            drained_at = request.closed_at
            if measured_at <= request.sent_at <= ended_at:
                found.append(request)
        if seen >= users - 1:
            break
    return found, ended_at - measured_at, drained_at + REPORT_S


class Found(NamedTuple):
    estimate: CapacityEstimate | None
    stages: tuple[tuple[float, float], ...]
    took_s: float


def search(server: Server, limit_s: float, total_s: float, seed: int) -> Found:
    levels = list_levels(*map(float, server.asked), whole=True)
    estimate: CapacityEstimate | None = None
    done: list[StageTime] = []
    evidence: list[StageEvidence] = []
    now = 0.0
    while True:
        step = plan_stage(estimate, done, levels, total_s - now, total_s)
        if step is None:
            break
        users = int(step.level)
        load = server.load(users, Random(seed * 1000 + len(done)))
        requests, measured_s, whole_s = run_stage(load, users, step)
        requests.sort(key=lambda request: request.sent_at)
        values = np.array([request.value_s for request in requests])
        now += whole_s
        done.append(StageTime(step.level, measured_s, whole_s))
        beyond = (values >= limit_s).astype(np.float64)
        if len(values):
            rule = make_share_evidence("p95", beyond, ALLOWED, values / limit_s)
            evidence.append(StageEvidence(level=step.level, rules=(rule,)))
        estimate = estimate_capacity(levels, evidence)
    return Found(estimate, tuple((stage.level, stage.measured_s) for stage in done), now)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    servers = SERVERS | HELD_OUT
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
            narrow += high / max(low, 0.5) <= 1.3 or high - low <= 1
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
