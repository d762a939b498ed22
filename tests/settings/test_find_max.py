"""The highest load within the rules is found on simulated servers whose limit is known, in virtual
time."""

from collections.abc import Callable
from functools import cache
from itertools import repeat
from random import Random

import numpy as np
import pytest

from locust_llm.settings.sweep import FinishedStage, choose_next_stage, parse_sweep
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest
from locust_llm.slo.grammar import FAIL, PASS

SLOTS = 6
"""Sequences that the server decodes at a time: throughput stays where it is from six users on."""
TTFT_S = 0.5
"""p95 at most: who comes beyond the six waits for one of them to end."""
SECONDS = 50.0


def load() -> Virtual:
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=SLOTS, kv_tokens=2**19)
    return Virtual(
        clock,
        BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), LLAMA_8B_H100, clock),
    )


@cache  # a number of users is asked for by several tests, and always answers the same
def closed_loop(users: float) -> FinishedStage:
    run = load()
    run.closed_loop(int(users), repeat(VirtualRequest(200, 100)), stagger_s=0.13)
    return measured(users, run)


def open_loop(rate: float) -> FinishedStage:
    random, run = Random(7), load()
    at = np.cumsum([random.expovariate(1.0) for _ in range(int(2 * SECONDS * rate))]) / rate
    run.open_loop((moment, VirtualRequest(200, 100)) for moment in at.tolist() if moment < SECONDS)
    return measured(rate, run)


def measured(value: float, run: Virtual) -> FinishedStage:
    """The first fifth of the time does not count; who still waits at its end has waited for so long
    at least."""
    rows = [row for row in run.run(until=SECONDS) if row.sent_at > SECONDS / 5]
    p95 = float(np.percentile([row.ttft_s for row in rows], 95))
    return FinishedStage(value, PASS if p95 <= TTFT_S else FAIL, len(rows) / SECONDS)


def found(text: str, stage: Callable[[float], FinishedStage]) -> tuple[list[FinishedStage], str]:
    asked, done = parse_sweep(text), list[FinishedStage]()
    while not isinstance(step := choose_next_stage(asked, done, find_max=True), str):
        done.append(stage(step))
    return done, step


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "concurrency=1..16",
        *(
            pytest.param(t, marks=pytest.mark.full)
            for t in ("concurrency=1..14+1", "concurrency=4..64")
        ),
    ],
)
def test_of_users(text: str) -> None:
    limit = max(users for users in range(1, 15) if closed_loop(users).status == PASS)
    assert limit > SLOTS + 1  # throughput is flat for two stages before the rule breaks
    done, why = found(text, closed_loop)
    assert max(stage.value for stage in done if stage.status == PASS) == limit
    assert why.endswith("the highest value that passes is found")


def test_of_a_rate_within_five_percent() -> None:
    done, why = found("request-rate=1..32", open_loop)
    assert why.endswith("the highest value that passes is found")
    highest = max(stage.value for stage in done if stage.status == PASS)
    assert open_loop(highest * 1.06).status == FAIL


def test_a_range_that_ends_below_the_limit() -> None:
    done, why = found("concurrency=1..7+1", closed_loop)
    assert [stage.value for stage in done] == [1, 2, 3, 4, 5, 6, 7]
    assert why == "all stages ran; the highest stage passed, so the maximum lies above it"
