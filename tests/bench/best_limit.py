"""Best limit: compares the best prefill limit of exhaustive runs with short sweeps, on simulated
servers in virtual time.

    tests/bench/best_limit.py [--runs 20] [-t 300] [--truth 6000] [--server static] [--objective ttft]
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from locust_llm.controller.prefill_limit_sweep import LimitSweep
from locust_llm.records.limit_blocks import LimitBlock, LimitBlockRecords
from locust_llm.records.record import Record
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult
from locust_llm.slo.best_prefill_limit import (
    OBJECTIVES,
    TOLERANCE,
    Limit,
    compare_with_best,
    format_limit,
)
from locust_llm.slo.percentile import find_percentile
from locust_llm.slo.rules import Condition
from locust_llm.workload.length_distributions import make_even_random

LIMITS: Final[tuple[Limit, ...]] = (None, 1, 2, 4, 8)
GOOD: Final = (
    Condition("ttft_from_due", "<=", 1.0, "s"),
    Condition("longest_stall", "<=", 0.3, "s"),
)


class Server(NamedTuple):
    policy: str
    rate: float
    budget: int = 8192
    places: int = 64
    long: int = 14000
    share: float = 0.2
    """This share of the prompts is long. All others have about 200 tokens."""


SERVERS: Final = {
    "chunked": Server("chunked", 5.0, budget=2048),
    "prefill-first": Server("prefill-first", 5.0, budget=32768, long=8000),
    "static": Server("static", 3.0, places=16, budget=65536),
    "light": Server("chunked", 4.0, budget=2048, share=0.0),
}


def draw_request(server: Server, random: Random) -> VirtualRequest:
    long = random.random() < server.share
    prompt = random.gauss(server.long, server.long / 5) if long else random.gauss(200, 40)
    return VirtualRequest(max(10, round(prompt)), max(2, round(random.gauss(80, 20))))


def make_virtual(server: Server, clock: VirtualClock, speed: Random) -> Virtual:
    config = SchedulerConfig(
        max_num_batched_tokens=server.budget,
        max_num_seqs=server.places,
        kv_tokens=400_000,
        enable_chunked_prefill=server.policy == "chunked",
        enable_prefix_caching=False,
    )
    engine = BatchEngine(
        Scheduler(config, POLICIES[server.policy], record=True), LLAMA_8B_H100, clock
    )
    level = 0.0

    def wander() -> None:
        nonlocal level
        level = 0.97 * level + speed.gauss(0, 0.012)
        engine.time_scale = math.exp(level)
        clock.call_at(clock.now + 1.0, wander)

    wander()
    return Virtual(clock, engine, keep_tokens=True)


def make_record(row: VirtualResult) -> Record:
    return Record(
        id="a",
        clock_offset_s=0.0,
        due_at=row.asked_at,
        asked_at=row.asked_at,
        admitted_at=row.sent_at,
        sent_at=row.sent_at,
        closed_at=row.done_at,
        chunk_us=tuple(round((at - row.sent_at) * 1e6) for at in row.token_at),
        first_output=0,
        input_tokens=row.request.prompt_tokens,
        output_tokens=row.request.output_tokens,
        tokens_from="usage",
        status=200,
    )


def find_truth(server: Server, seconds: float) -> dict[str, dict[Limit, float]]:
    """Returns the figure of each objective at each limit, from one long run."""
    found: dict[str, dict[Limit, float]] = {name: {} for name in OBJECTIVES}
    for limit in LIMITS:
        clock = VirtualClock()
        virtual = make_virtual(server, clock, Random(5))
        virtual.prefill_limit = math.inf if limit is None else limit
        random = Random(7)

        def arrivals(random: Random = random) -> Iterator[tuple[float, VirtualRequest]]:
            at = 0.0
            while (at := at + random.expovariate(server.rate)) < seconds:
                yield at, draw_request(server, random)

        virtual.open_loop(arrivals())
        rows = virtual.run(seconds)
        block = LimitBlock(
            round=1, limit=limit, began_at=0.0, settled_at=30.0, counted_until=seconds - 30.0,
            ended_at=seconds,
        )  # fmt: skip
        records = LimitBlockRecords(GOOD)
        for row in rows:
            records.add(make_record(row), [block])
        for name, objective in OBJECTIVES.items():
            sample = records.samples(name, [limit], [block])[limit][1]
            if objective.percentile is None:
                found[name][limit] = sum(sample.values) / sample.seconds
            else:
                found[name][limit] = find_percentile(sorted(sample.values), objective.percentile)
    return found


def run_sweep(server: Server, objective: str, seed: int, longest_s: float) -> LimitSweep:
    clock = VirtualClock()
    virtual = make_virtual(server, clock, Random(f"{seed}/speed"))
    sweep = LimitSweep(
        LIMITS, objective=objective, good=GOOD, seed=seed, rate_per_s=server.rate,
        longest_s=longest_s,
    )  # fmt: skip
    taken = 0

    def take() -> None:
        nonlocal taken
        for row in virtual.rows[taken:]:
            sweep.add_record(make_record(row))
        taken = len(virtual.rows)

    def draw(name: str) -> Iterator[float]:
        random = Random(f"{seed}/{name}")
        at = 0.0
        while True:
            at += random.expovariate(server.rate)
            yield at

    def now() -> float:
        take()
        return clock.now

    coming = sweep.arrivals(0.0, draw, now)
    turned = 0

    def turn() -> None:
        nonlocal turned
        block = sweep.blocks[turned]
        turned += 1
        virtual.prefill_limit = math.inf if block.limit is None else block.limit
        virtual._let_go()

    def deal() -> None:
        """Returns the requests of a second ahead."""
        nonlocal known
        one = next(coming, None)
        while known < len(sweep.blocks):
            clock.call_at(sweep.blocks[known].began_at, turn)
            known += 1
        if one is None:
            return
        at, name = one
        sequence, _, number = name.rpartition("/")
        request = draw_request(server, make_even_random(f"{seed}/{sequence}", int(number)))
        clock.call_at(at, lambda: virtual.ask(request))
        clock.call_at(max(clock.now, at - 1.0), deal)

    known = 0
    deal()
    clock.run(longest_s + 60)
    take()
    return sweep


def middle_of(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def name_figures(values: Sequence[float], form: str) -> str:
    named = zip(LIMITS, values, strict=True)
    return ", ".join(f"{format_limit(limit)} {value:{form}}" for limit, value in named)


def summarise(
    server: Server,
    objective: str,
    runs: int,
    longest_s: float,
    truth: dict[Limit, float],
    seed: int,
) -> None:
    less = OBJECTIVES[objective].less_is_better
    best = min(truth.values()) if less else max(truth.values())
    regret = {
        limit: (figure / best if less else best / max(figure, 1e-9)) - 1
        for limit, figure in truth.items()
    }
    held = surely = total = dropped = good = stopped = told = 0
    took = list[float]()
    picks = list[float]()
    rounds = list[float]()
    highs = list[list[float]]()
    lengths = list[float]()
    for number in range(runs):
        sweep = run_sweep(server, objective, seed + number, longest_s)
        samples = sweep.records.samples(objective, LIMITS, sweep.blocks)
        found = {one.limit: one for one in compare_with_best(samples, OBJECTIVES[objective])}
        for limit, one in found.items():
            if one.figure is None:
                continue
            total += 1
            held += one.low - 1e-9 <= regret[limit] <= one.high + 1e-9
            surely += one.surely_low - 1e-9 <= regret[limit] <= one.surely_high + 1e-9
            dropped += one.is_worse and regret[limit] <= TOLERANCE
            good += one.is_as_good and regret[limit] > TOLERANCE
            told += one.is_as_good or one.is_worse
        stopped += "known" in sweep.end
        rounds.append(max(block.round for block in sweep.blocks))
        took.append(sweep.blocks[-1].ended_at)
        lengths.append(sweep.blocks[-1].ended_at - sweep.blocks[-1].began_at)
        pick = min(found.values(), key=lambda one: math.inf if one.regret is None else one.regret)
        picks.append(regret[pick.limit])
        highs.append([found[limit].high for limit in LIMITS])
    uppers = [middle_of(list(of_limit)) for of_limit in zip(*highs, strict=True)]
    print(
        f"  {objective}: truth {name_figures(list(truth.values()), '.4g')}; regret "
        f"{name_figures(list(regret.values()), '.1%')}\n"
        f"    {runs} sweeps of {longest_s:g} s: median {middle_of(rounds)} rounds, blocks "
        f"{middle_of(lengths):.1f} s, {middle_of(took):.0f} s in all; ended early {stopped}\n"
        f"    95% intervals hold {held / total:.1%}, those of the words {surely / total:.1%}; wrongly "
        f"worse {dropped}, wrongly as good {good}, told {told / total:.0%}\n"
        f"    regret of the limit that looks best: median {middle_of(picks):.1%}, most "
        f"{max(picks):.1%}; median upper end {name_figures(uppers, '.1%')}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("-t", type=float, default=300.0)
    parser.add_argument("--truth", type=float, default=6000.0, help="seconds of each limit alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="", choices=("", *SERVERS))
    parser.add_argument("--objective", default="", choices=("", *OBJECTIVES))
    args = parser.parse_args()
    for name, server in SERVERS.items():
        if args.server in ("", name):
            print(name, server, flush=True)
            truths = find_truth(server, args.truth)
            for objective in OBJECTIVES:
                if args.objective in ("", objective):
                    summarise(server, objective, args.runs, args.t, truths[objective], args.seed)
