"""Canary: measures it beside other clients of known load in virtual time, for the table of
benchmarks/shared-server.md, in two to three minutes."""

import random
from itertools import product
from typing import Final

from tabulate import tabulate

from locust_llm.lab.canary.canary_arithmetic import (
    CanaryRound,
    estimate_background_load,
    measure_round,
)
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, step_duration_s
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

TOKENS: Final = 4000
EVERY_S: Final = 20.0
WINDOW: Final = 15
"""A window has this many rounds, of five minutes."""
SEEDS: Final = range(2, 10)


def session(
    rate: float, policy: str, budget: int, answer: int, rounds: int, seed: int = 1
) -> list[CanaryRound]:
    draw = random.Random(seed)
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=256,
        kv_tokens=400_000,
        enable_prefix_caching=False,
    )
    engine = BatchEngine(Scheduler(config, POLICIES[policy], record=True), LLAMA_8B_H100, clock)
    virtual = Virtual(clock, engine, keep_tokens=True)
    arrivals = [(5 + i * EVERY_S, VirtualRequest(30, 64, kind="canary")) for i in range(rounds)]
    at = 0.0
    while rate and (at := at + draw.expovariate(rate)) < rounds * EVERY_S:
        arrivals.append((at, VirtualRequest(TOKENS, answer)))
    virtual.open_loop(sorted(arrivals, key=lambda one: one[0]))
    rows = sorted(
        (row for row in virtual.run() if row.request.kind == "canary"), key=lambda row: row.sent_at
    )
    rounds = []
    for row in rows:
        chunk_s = [at - row.sent_at for at in row.token_at]
        rounds.append(measure_round(row.sent_at, chunk_s))
    return rounds


def prompt_s(policy: str, budget: int) -> float:
    """Returns the time that a prompt takes from a stream: its steps, less the steps of a decode
    that they also are."""
    if policy == "prefill-first":
        return step_duration_s(LLAMA_8B_H100, [(0, TOKENS)])
    steps = [(done, min(budget - 1, TOKENS - done)) for done in range(0, TOKENS, budget - 1)]
    return sum(
        step_duration_s(LLAMA_8B_H100, [one], 1, 60) - step_duration_s(LLAMA_8B_H100, [], 1, 60)
        for one in steps
    )


def row(policy: str, budget: int, answer: int, rate: float) -> list[object]:
    true = rate * prompt_s(policy, budget)
    some = session(rate, policy, budget, answer, 180)
    found = estimate_background_load(some, some)
    assert found is not None
    held = windows = 0
    for seed in SEEDS:
        other = session(rate, policy, budget, answer, 60, seed)
        for end in range(WINDOW, len(other) + 1, WINDOW):
            part = estimate_background_load(other[end - WINDOW : end], other)
            windows += 1
            held += (
                part is not None and part.low is not None and part.low <= true <= (part.high or 0.0)
            )
    ends = (
        "-" if found.low is None or found.high is None else f"{found.low:.0%} to {found.high:.0%}"
    )
    tokens = found.tokens_per_s(prompt_s(policy, budget) / TOKENS)[0]
    return [f"{policy} {budget}, {answer}", rate, f"{true:.1%}", f"{found.lost:.1%}", ends,
        f"{tokens:,.0f}",
            f"{held} of {windows}", f"{found.slower:.1%}"]  # fmt: skip


if __name__ == "__main__":
    kinds = (("prefill-first", 8192, 1), ("chunked", 8192, 1), ("chunked", 8192, 200),
        ("chunked", 512, 1),
             ("chunked", 512, 200))  # fmt: skip
    head = (
        "scheduler, answer",
        "prompts/s",
        "true",
        "reported",
        "interval",
        "tokens/s",
        "held",
        "pace",
    )
    rows = [row(*kind, rate) for kind, rate in product(kinds, (0, 1, 2, 3))]
    print(tabulate(rows, head))
