"""The loss that a report gives against the engine's own, in virtual time: within 10 %, or not given."""

from random import Random

import pytest
from recorded import recorded
from support.engine_truth import TruthEngine

from locust_llm.report.columns import collect_columns
from locust_llm.report.occupancy import compute_occupancy
from locust_llm.report.sections.interference import MIN_COMPARED_SHARE, PrefillInterference, measure_interference
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest

BUDGETS = {"chunked": 2048, "prefill-first": 131_072, "mixed": 131_072}
Sizes = tuple[int, int]


def measured(
    policy: str, users: int, tokens_in: Sizes, tokens_out: Sizes, count: int = 150
) -> tuple[PrefillInterference, float]:
    """(what the report says, the true loss in seconds) of a closed loop."""
    random, clock, cost = Random(users), VirtualClock(), LLAMA_8B_H100
    config = SchedulerConfig(max_num_batched_tokens=BUDGETS[policy], max_num_seqs=256, kv_tokens=cost.kv_tokens)
    engine = TruthEngine(Scheduler(config, POLICIES[policy], record=True), cost, clock)
    run = Virtual(clock, engine, keep_tokens=True)
    requests = [VirtualRequest(random.randint(*tokens_in), random.randint(*tokens_out)) for _ in range(count)]
    run.closed_loop(users, iter(requests), stagger_s=0.05)
    records = recorded(run.run())
    columns = collect_columns(records)
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    assert found.decode_s == pytest.approx(engine.decode_true_s, rel=0.02)
    return found, engine.lost_true_s


LIGHT = [
    (policy, users, sizes)
    for policy in BUDGETS
    for users in (4, 16)
    for sizes in (((1000, 5000), (20, 300)), ((6000, 9000), (100, 200)))
]


SHORT = [("prefill-first", 4, ((100, 400), (20, 300)))]
"""A prompt takes less than half of a gap."""


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "users", "sizes"), LIGHT + SHORT)
def test_what_is_given_is_within_ten_percent(policy: str, users: int, sizes: tuple[Sizes, Sizes]) -> None:
    found, true_s = measured(policy, users, *sizes)
    assert found.disturbed is not None
    assert found.disturbed.compared_share >= MIN_COMPARED_SHARE
    assert found.lost_s == pytest.approx(true_s, rel=0.1)


@pytest.mark.parametrize(("policy", "users"), [("mixed", 64), ("prefill-first", 64), ("chunked", 128)])
def test_where_hardly_a_gap_has_a_comparison_none_is_given(policy: str, users: int) -> None:
    """Users of long prompts and short answers: some prompt is computed nearly all the time."""
    found, true_s = measured(policy, users, (2000, 12_000), (50, 50))
    assert found.disturbed is not None
    assert found.disturbed.compared_share < MIN_COMPARED_SHARE
    assert found.disturbed.compared > 0
    assert (found.lost_s, found.lost_share, found.disturbed.slowdown) == (None, None, None)
    assert true_s > 0.5 * found.decode_s
