"""Prefill limits: what limits 1 to 8, and none, do to a mix of long and short prompts, on simulated
servers in virtual time. The tables of benchmarks/limits-1-to-8.md.

    tests/bench/prefill_limits.py [--seconds 3600] [--server prefill-first] [--rate 6]
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult
from locust_llm.slo.percentile import find_percentile

LIMITS: Final = (1, 2, 3, 4, 5, 6, 7, 8, math.inf)
SETTLE_S: Final = 30.0
SEED: Final = 45


class Load(NamedTuple):
    rate: float
    long_share: float
    long_tokens: int
    short_tokens: int
    output_tokens: int


SERVERS: Final = {
    "prefill-first": SchedulerConfig(
        max_num_batched_tokens=65536, max_num_seqs=256, enable_chunked_prefill=False,
        enable_prefix_caching=False, kv_tokens=LLAMA_8B_H100.kv_tokens,
    ),
    "chunked": SchedulerConfig(
        max_num_batched_tokens=2048, max_num_seqs=256, enable_prefix_caching=False,
        kv_tokens=LLAMA_8B_H100.kv_tokens,
    ),
}  # fmt: skip


def draw_arrivals(load: Load, seconds: float) -> Iterator[tuple[float, VirtualRequest]]:
    random = Random(SEED)
    at = 0.0
    while (at := at + random.expovariate(load.rate)) < seconds:
        is_long = random.random() < load.long_share
        mean = load.long_tokens if is_long else load.short_tokens
        prompt = max(10, round(random.gauss(mean, mean / 10)))
        yield at, VirtualRequest(prompt, load.output_tokens, kind="long" if is_long else "short")


def run_load(server: str, load: Load, limit: float, seconds: float) -> list[VirtualResult]:
    clock = VirtualClock()
    scheduler = Scheduler(SERVERS[server], POLICIES[server], record=True)
    virtual = Virtual(clock, BatchEngine(scheduler, LLAMA_8B_H100, clock), prefill_limit=limit)
    virtual.open_loop(draw_arrivals(load, seconds))
    rows = virtual.run(seconds + 600)
    return [row for row in rows if row.asked_at >= SETTLE_S]


def percentile(values: Iterator[float], share: float) -> float:
    return float(find_percentile(sorted(values), share))


def format_row(limit: float, rows: Sequence[VirtualResult]) -> str:
    short = [row for row in rows if row.request.kind == "short"]
    long = [row for row in rows if row.request.kind == "long"]
    seconds = max(row.done_at for row in rows) - SETTLE_S
    figures = (
        sum(row.request.output_tokens for row in rows) / seconds,
        percentile((row.first_at - row.asked_at for row in short), 50) * 1e3,
        percentile((row.first_at - row.asked_at for row in short), 95) * 1e3,
        percentile((row.first_at - row.asked_at for row in long), 95) * 1e3,
        percentile((row.sent_at - row.asked_at for row in rows), 95) * 1e3,
        percentile((row.itl_s for row in rows), 95) * 1e3,
        percentile((row.longest_stall_s for row in rows), 95) * 1e3,
    )
    name = "none" if math.isinf(limit) else f"{limit:.0f}"
    return f"| {name} | {' | '.join(f'{figure:,.0f}' for figure in figures)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--server", choices=SERVERS, action="append")
    parser.add_argument("--rate", type=float, default=6.0)
    parser.add_argument("--long-share", type=float, default=0.3)
    parser.add_argument("--long-tokens", type=int, default=8000)
    parser.add_argument("--short-tokens", type=int, default=200)
    parser.add_argument("--output-tokens", type=int, default=100)
    given = parser.parse_args()
    load = Load(
        given.rate, given.long_share, given.long_tokens, given.short_tokens, given.output_tokens
    )
    for server in given.server or SERVERS:
        print(f"\n{server}, {load}, {given.seconds:.0f} s\n")
        print(
            "| limit | output tokens/s | TTFT from due p50, short, ms | p95, short | p95, long "
            "| gate wait p95 | ITL p95 | longest stall p95 |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for limit in LIMITS:
            print(format_row(limit, run_load(server, load, limit, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
