"""Prefill here, decode there: exact times, with steps of one second and a link that takes one for
ten tokens."""

from dataclasses import replace

import pytest

from locust_llm.simulator.scheduling.batching_policies import chunked
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, CostModel
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

NOTHING = CostModel(
    parameters=0,
    weight_bytes=0,
    num_layers=0,
    hidden_size=0,
    kv_bytes_per_token=0,
    max_model_len=1000,
)
ONE_SECOND = replace(LLAMA_8B_H100, model=NOTHING, step_overhead_s=1.0, seq_overhead_s=0.0)
LINK = Link(bytes_per_token=2, bytes_per_s=20.0)


def a_load(prefill=1, decode=1, budget=100, link=LINK, **how):
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8, kv_tokens=1024)

    def engines(count):
        return [
            BatchEngine(Scheduler(config, chunked, record=True), ONE_SECOND, clock)
            for _ in range(count)
        ]

    return Virtual(
        clock, DisaggregatedEngine(engines(prefill), engines(decode), link, clock), **how
    )


def test_prefill_then_transfer_then_tokens():
    load = a_load(keep_tokens=True)
    load.open_loop([(0, VirtualRequest(20, 3))])
    (row,) = load.run()
    assert list(row.token_at) == [4, 5, 6]  # 1 s of prefill, 2 s on the link, a step


def test_prefills_do_not_disturb_who_decodes():
    load = a_load(budget=10, keep_tokens=True)
    load.open_loop(
        [(0, VirtualRequest(10, 20)), (3, VirtualRequest(60, 2)), (3, VirtualRequest(60, 2))]
    )
    rows = {row.request.prompt_tokens: row for row in load.run()}
    assert list(rows[10].token_at) == [float(at) for at in range(3, 23)]


def test_a_link_carries_one_request_at_a_time():
    load = a_load(keep_tokens=True)
    load.open_loop([(0, VirtualRequest(20, 1)), (0, VirtualRequest(20, 1))])
    # both are computed at 1; on the link until 3 and 5
    assert [list(row.token_at) for row in load.run()] == [[4], [6]]


def test_engines_share_the_requests():
    load = a_load(
        prefill=2, decode=2, budget=20, link=replace(LINK, bytes_per_s=1e9), keep_tokens=True
    )
    load.open_loop((0, VirtualRequest(20, 3)) for _ in range(2))
    assert [list(row.token_at) for row in load.run()] == [
        [pytest.approx(at) for at in (2, 3, 4)]
    ] * 2


@pytest.mark.parametrize(("at", "stage"), [(0.5, "prefill"), (2, "link"), (3.5, "decode")])
def test_who_hangs_up_leaves_nothing_behind(at, stage):
    load = a_load()
    engine, clock, told = load.engine, load.clock, []
    sequence = Sequence(20, 5)
    engine.add(sequence, lambda: told.append(clock.now))
    states = []
    clock.call_at(
        at,
        lambda: (
            states.append(engine.state()),
            engine.abort(sequence),
            states.append(engine.state()),
        ),
    )
    clock.run()
    assert told == []
    assert sequence.is_finished
    assert (states[0]["used_blocks"] > 0) == (stage != "link")
    assert states[0]["transferring"] == (stage == "link")
    assert states[1]["used_blocks"] == states[1]["transferring"] == states[1]["running"] == 0
    assert set(engine._loads.values()) == {0}


@pytest.mark.parametrize("at", [0.5, 2, 3.5], ids=["prefill", "link", "decode"])
def test_another_receiver_gets_the_tokens_from_any_stage_on(at):
    load = a_load()
    told = []
    sequence = Sequence(20, 3)
    load.engine.add(sequence, lambda: told.append("old"))
    load.clock.call_at(at, lambda: load.engine.redirect(sequence, lambda: told.append("new")))
    load.clock.run()
    assert told == ["new"] * 3


def test_who_is_preempted_while_it_decodes_computes_its_prompt_there():
    clock = VirtualClock()
    tight = SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, kv_tokens=64)
    prefill, decode = (
        BatchEngine(Scheduler(tight, chunked, record=True), ONE_SECOND, clock) for _ in range(2)
    )
    load = Virtual(
        clock,
        DisaggregatedEngine([prefill], [decode], replace(LINK, bytes_per_s=1e9), clock),
        keep_tokens=True,
    )
    load.open_loop((0, VirtualRequest(31, 4)) for _ in range(2))
    a, b = load.run()
    assert [round(at, 3) for at in a.token_at] == [2, 3, 4, 5]
    assert (b.preemptions, [round(at, 3) for at in b.token_at][:2]) == (1, [3, 6])


def test_a_prompt_is_looked_up_once():
    """The second prompt finds one block of 16 tokens where it is computed. Where it decodes, its
    tokens come over the link."""
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=100, max_num_seqs=8, kv_tokens=1024, enable_prefix_caching=True
    )
    prefill, decode = (
        BatchEngine(Scheduler(config, chunked, record=True), ONE_SECOND, clock) for _ in range(2)
    )
    load = Virtual(clock, DisaggregatedEngine([prefill], [decode], LINK, clock), keep_tokens=True)
    load.open_loop([(0, VirtualRequest(20, 2, (1,))), (10, VirtualRequest(20, 2, (1,)))])
    load.run()
    state = load.engine.state()
    assert (state["cache_queries"], state["cache_hits"]) == (40, 16)
