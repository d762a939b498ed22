"""The canary's arithmetic: by pencil, and beside strangers of known cost in virtual time."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.canary.canary_arithmetic import (
    CanaryRound,
    estimate_background_load,
    find_quiet_gap,
    measure_round,
)
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, step_duration_s
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

TOKENS, ROUNDS, EVERY_S = 4000, 60, 20.0
PROMPT_S = step_duration_s(LLAMA_8B_H100, [(0, TOKENS)], 1, 60) - step_duration_s(
    LLAMA_8B_H100, [], 1, 60
)


def stamps(*gaps_ms: float) -> list[float]:
    at = [0.2]
    for gap in gaps_ms:
        at.append(at[-1] + gap / 1e3)
    return at


def test_a_round_by_pencil() -> None:
    calm = measure_round(5.0, stamps(*[10] * 20))
    assert (calm.gaps, calm.stalls, calm.lost_s, calm.ttft_s) == (20, 0, 0, 0.2)
    assert (calm.quiet_s, calm.watched_s) == pytest.approx((0.01, 0.2))
    # one gap of 110 loses 100; two in a row are one stall, of 30 + 40
    held = measure_round(5.0, stamps(*[10] * 10, 110, *[10] * 5, 40, 50, *[10] * 5))
    assert (held.stalls, held.lost_s) == (2, pytest.approx(0.17))
    assert held.longest_s == pytest.approx(0.1)
    # what waited somewhere and came at once was not lost: 40 late, and then four gaps of nothing;
    # of another 60 a half
    late = measure_round(5.0, stamps(*[10] * 10, 50, 0, 0, 0, 0, *[10] * 5, 70, 0, 0, 0, *[10] * 5))
    assert (late.stalls, late.lost_s) == (1, pytest.approx(0.03))
    # a pause, and half of the round comes at once behind it: nothing was lost, and the usual gap is
    # no 0
    burst = measure_round(5.0, stamps(*[10] * 10, 160, *[0] * 15, *[10] * 5))
    assert (burst.stalls, burst.quiet_s) == (0, pytest.approx(0.01))
    assert measure_round(5.0, stamps(10, 160, *[0] * 29)).quiet_s is None
    # everything a bit slower is no stall
    assert measure_round(5.0, stamps(*[10, 11, 12] * 8)).stalls == 0
    assert measure_round(5.0, stamps(10, 10)).quiet_s is None


@given(st.lists(st.floats(1e-4, 1.0), min_size=8, max_size=80))
def test_of_any_gaps(gaps: list[float]) -> None:
    found = measure_round(0.0, stamps(*(gap * 1e3 for gap in gaps)))
    assert 0 <= found.lost_s <= found.watched_s + 1e-9
    middle, width = find_quiet_gap(gaps)
    assert min(gaps) - 1e-9 <= middle <= max(gaps) + 1e-9
    assert 0 <= width <= max(gaps) - min(gaps)


def rounds(*lost_s: float, quiet_s: float = 0.01) -> list[CanaryRound]:
    return [
        CanaryRound(
            at=20.0 * i,
            ttft_s=0.1,
            gaps=63,
            watched_s=1.0 + lost,
            quiet_s=quiet_s,
            stalls=lost > 0,
            lost_s=lost,
        )
        for i, lost in enumerate(lost_s)
    ]


def test_what_others_cause_by_pencil() -> None:
    found = estimate_background_load(rounds(0.0, 1.0, 0.0, 1.0), rounds(*[0.0] * 8, quiet_s=0.008))
    assert found
    assert (found.lost, found.stalls_per_s, found.slower) == pytest.approx((2 / 6, 2 / 6, 0.25))
    assert found.low is not None
    assert found.high is not None
    # the delta method: off = lost - watched / 3 = +-1/3, error = sqrt(4/9/3/4) / 1.5 = 0.1283; t of
    # 3 degrees 3.18: 0.408; over 1/3 x 2/3 it is 1.836 of log odds, around ln(1/2): odds of 0.0797
    # and 3.136
    assert (found.low, found.high) == pytest.approx((0.0738, 0.758), rel=0.03)
    assert found.tokens_per_s(1e-4)[0] == pytest.approx(3333.3, rel=1e-3)
    calm = estimate_background_load(rounds(*[0.0] * 4), rounds(0.0))
    assert calm
    assert (calm.lost, calm.low, calm.most_stalls_per_s) == (
        0,
        None,
        pytest.approx(3.689 / 4, rel=1e-3),
    )
    assert estimate_background_load([CanaryRound(at=0.0, error="refused")], []) is None
    filled = CanaryRound(
        at=0.0, ttft_s=0.1, gaps=50, watched_s=1.0, quiet_s=0.02
    )  # of gaps of 20 ms, where 10 are usual: 0.5 s
    beside = estimate_background_load([*rounds(*[0.0] * 4), filled], rounds(0.0))
    assert beside
    assert (beside.lost, beside.stalls_per_s) == (pytest.approx(0.5 / 5), pytest.approx(1 / 5))


def session(
    rate: float, policy: str = "chunked", output_tokens: int = 1, seed: int = 1
) -> list[CanaryRound]:
    """A canary of 64 tokens each 20 s, beside strangers' prompts (Poisson) of ``output_tokens``."""
    draw, clock = random.Random(seed), VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        kv_tokens=400_000,
        enable_prefix_caching=False,
    )
    engine = BatchEngine(Scheduler(config, POLICIES[policy], record=True), LLAMA_8B_H100, clock)
    virtual = Virtual(clock, engine, keep_tokens=True)
    arrivals = [(i * EVERY_S, VirtualRequest(60, 64, kind="canary")) for i in range(ROUNDS)]
    at = 0.0
    while rate and (at := at + draw.expovariate(rate)) < ROUNDS * EVERY_S:
        arrivals.append((at, VirtualRequest(TOKENS, output_tokens)))
    virtual.open_loop(sorted(arrivals, key=lambda one: one[0]))
    rows = sorted(
        (row for row in virtual.run() if row.request.kind == "canary"), key=lambda row: row.sent_at
    )
    return [measure_round(row.sent_at, [at - row.sent_at for at in row.token_at]) for row in rows]


@pytest.mark.parametrize("rate", [0, 1, 3])
def test_beside_strangers_of_known_cost(rate: float) -> None:
    some = session(rate)
    found = estimate_background_load(some, some)
    assert found
    assert found.slower < 0.01
    if not rate:
        assert (found.lost, found.stalls_per_s, found.low) == (0, 0, None)
    else:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= rate * PROMPT_S <= found.high
        assert found.high - found.low < 0.2


def test_decodes_of_strangers_are_no_stalls() -> None:
    """Batches that others make larger, by short prompts with long answers: the pace falls, and next
    to nothing stalls."""
    draw, clock = random.Random(1), VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        kv_tokens=400_000,
        enable_prefix_caching=False,
    )
    virtual = Virtual(clock, BatchEngine(Scheduler(config, POLICIES["chunked"], record=True),
        LLAMA_8B_H100, clock),
                      keep_tokens=True)  # fmt: skip
    crowd = [(100 + draw.random() * 100, VirtualRequest(100, 4000)) for _ in range(60)]
    canaries = [(i * 10.0, VirtualRequest(60, 64, kind="canary")) for i in range(20)]
    virtual.open_loop(sorted([*crowd, *canaries], key=lambda one: one[0]))
    rows = sorted(
        (row for row in virtual.run() if row.request.kind == "canary"), key=lambda row: row.sent_at
    )
    some = [measure_round(row.sent_at, [at - row.sent_at for at in row.token_at]) for row in rows]
    before, beside = (
        estimate_background_load(some[:10], some),
        estimate_background_load(some[13:], some),
    )
    assert before
    assert beside
    assert (before.slower, before.lost) == (pytest.approx(0), 0)
    assert beside.slower > 0.03
    assert beside.lost < 0.01
