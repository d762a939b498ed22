"""Whose work a sequence's time went to: with a pencil, and against a twin that keeps every step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.parts_twin import LoggedEngine

from locust_llm.simulator.scheduling.batching_policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.scheduling.engine import BatchEngine, FixedEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, CostModel, step_duration_s
from locust_llm.simulator.scheduling.time_parts import LatencyParts, measure_latency_parts
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest
from locust_llm.simulator.scheduling.waiting_order import QUEUES, make_waiting_queue

NOTHING = CostModel(
    parameters=0,
    weight_bytes=0,
    num_layers=0,
    hidden_size=0,
    kv_bytes_per_token=0,
    max_model_len=1000,
)
BY_SEQUENCE = replace(LLAMA_8B_H100, model=NOTHING, step_overhead_s=1.0, seq_overhead_s=0.25)
"""A step takes a second, and a quarter for each of its sequences."""


def load_of(
    requests, *, policy="chunked", cost=BY_SEQUENCE, budget=100, kv_tokens=1024, engine=None
):
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8, kv_tokens=kv_tokens)
    made = (
        engine(clock)
        if engine
        else BatchEngine(Scheduler(config, POLICIES[policy], record=True), cost, clock)
    )
    load = Virtual(clock, made, keep_parts=True)
    load.open_loop(requests)
    return sorted(load.run(), key=lambda row: row.sent_at)


def test_two_that_share_steps():
    a, b = load_of([(0, VirtualRequest(10, 4)), (0.5, VirtualRequest(150, 2))])
    # steps: a's prompt to 1.25; a's round beside 99 tokens of b to 2.75; again beside 51 to 4.25;
    # both decode to 5.75
    assert a.parts == LatencyParts(
        queue=0, own_prefill=1.25, others=0, pace=1.25 + 1.25 + 1.5, stalls=0.5, preemption=0
    )
    assert b.parts == LatencyParts(
        queue=0.75, own_prefill=2.5, others=0.5, pace=1.5, stalls=0, preemption=0
    )
    assert (a.ttft_s, b.ttft_s, b.done_at - b.first_at) == (1.25, 3.75, 1.5)


def test_prompts_alone_stall_who_decodes_and_hold_up_each_other():
    rows = load_of(
        [(0, VirtualRequest(10, 2)), (0.5, VirtualRequest(90, 1)), (0.5, VirtualRequest(20, 1))],
        policy="prefill-first",
    )
    assert [row.parts for row in rows] == [
        LatencyParts(queue=0, own_prefill=1.25, others=0, pace=1.25, stalls=2.5, preemption=0),
        LatencyParts(queue=0.75, own_prefill=1.25, others=0, pace=0, stalls=0, preemption=0),
        LatencyParts(queue=2.0, own_prefill=1.25, others=0, pace=0, stalls=0, preemption=0),
    ]


def test_who_is_preempted_decodes_again_after_its_prompt_was_computed_again():
    """Both have two blocks of four; at the first round both want a third."""
    a, b = load_of([(0, VirtualRequest(32, 3)), (0, VirtualRequest(32, 3))], kv_tokens=64)
    # both prompts to 1.5; a alone to 2.75 and 4.0, where it ends; b's prompt again to 5.25, its
    # last round to 6.5
    assert a.parts == LatencyParts(
        queue=0, own_prefill=1.25, others=0.25, pace=2.5, stalls=0, preemption=0
    )
    assert b.parts == LatencyParts(
        queue=0, own_prefill=1.25, others=0.25, pace=1.25, stalls=0, preemption=3.75
    )
    assert b.done_at == 6.5


def test_who_is_preempted_before_its_first_token_waits_for_others():
    """Of five blocks it holds two when the other wants its third."""
    a, b = load_of(
        [(0, VirtualRequest(31, 4)), (0, VirtualRequest(40, 1))], budget=20, kv_tokens=80
    )
    # 20 of a to 1.25; 11 and 9 of b to 2.75; a's round and 19 of b to 4.25; two rounds to 6.75; b
    # anew to 8.0 and 9.25
    assert (a.preemptions, b.preemptions) == (0, 1)
    assert a.parts == LatencyParts(
        queue=0, own_prefill=2.5, others=0.25, pace=3.75, stalls=0.25, preemption=0
    )
    assert b.parts == LatencyParts(
        queue=1.25, own_prefill=4 * 1.25, others=3.0, pace=0, stalls=0, preemption=0
    )


def test_a_fixed_engine_has_nobody_in_the_way():
    (row,) = load_of(
        [(3, VirtualRequest(10, 5))], engine=lambda clock: FixedEngine(0.25, 0.125, clock)
    )
    assert row.parts == LatencyParts(
        queue=0, own_prefill=0.25, others=0, pace=0.5, stalls=0, preemption=0
    )


def test_where_prompts_are_computed_elsewhere_the_transfer_is_none_of_the_prompt():
    def engine(clock):
        config = SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, kv_tokens=1024)
        engines = [
            BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), BY_SEQUENCE, clock)
            for _ in "pd"
        ]
        return DisaggregatedEngine(
            engines[:1], engines[1:], Link(bytes_per_token=1, bytes_per_s=40), clock
        )

    a, b = load_of([(0, VirtualRequest(20, 3)), (0.5, VirtualRequest(20, 1))], engine=engine)
    # a: prompt to 1.25, transfer to 1.75, its last token again to 3.0, two rounds; b came as the
    # first of them had begun, its first token is beside the second
    assert a.parts == LatencyParts(
        queue=0, own_prefill=2.5, others=0.5, pace=2.5, stalls=0.25, preemption=0
    )
    assert b.parts == LatencyParts(
        queue=0.75, own_prefill=2.5, others=0.5 + 1.25 + 0.25, pace=0, stalls=0, preemption=0
    )


def test_nobody_knows_of_one_that_was_aborted():
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, kv_tokens=1024)
    engine = BatchEngine(Scheduler(config, POLICIES["chunked"]), BY_SEQUENCE, clock)
    sequence = Sequence(10, 5)
    engine.add(sequence, lambda: None)
    clock.run(3)
    engine.abort(sequence)
    assert measure_latency_parts(sequence) is None


def test_a_late_engine_charges_nobody_for_time_before_its_arrival():
    sequence = Sequence(
        10, 1, arrived_at=5.0, started_at=4.9, first_at=5.5, last_at=5.5, own_prefill_s=0.6
    )
    assert measure_latency_parts(sequence) == LatencyParts(
        queue=0, own_prefill=0.5, others=0, pace=0, stalls=0, preemption=0
    )


ARRIVALS = st.lists(
    # when it arrives (seconds, of steps of some 10 ms), prompt and output tokens, whose text it
    # begins with, priority
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 90),
        st.integers(1, 40),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
)


@examples(200)
@given(
    policy=st.sampled_from(sorted(POLICIES)), waiting=st.sampled_from(QUEUES),
    budget=st.integers(20, 130),
    blocks=st.integers(9, 20), threshold=st.sampled_from([0, 7, 20]), caching=st.booleans(),
    arrivals=ARRIVALS,
)  # fmt: skip
def test_they_agree_with_a_log_of_every_step(
    policy, waiting, budget, blocks, threshold, caching, arrivals
):
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=max(budget, 130) if policy in WHOLE_PROMPTS else budget,
        max_num_seqs=6,
        kv_tokens=16 * blocks, enable_prefix_caching=caching,
        long_prefill_token_threshold=threshold,
        max_num_partial_prefills=2,
    )  # fmt: skip
    scheduler = Scheduler(
        config, POLICIES[policy], waiting=make_waiting_queue(waiting, {"t1": 2.0})
    )
    engine = LoggedEngine(scheduler, LLAMA_8B_H100, clock, time_scale=0.5)
    sequences = []
    for at, prompt, out, text, priority in arrivals:
        keys = tuple(range(100 * text, 100 * text + prompt // 16)) if text else ()
        sequence = Sequence(prompt, out, keys, priority=priority, tenant=f"t{priority}")
        sequences.append((at * 0.004, sequence))
    told = {sequence: [] for _, sequence in sequences}
    for at, sequence in sequences:
        clock.call_at(at, lambda s=sequence: engine.add(s, lambda: told[s].append(clock.now)))
    clock.run()
    for at, sequence in sequences:
        parts, times = measure_latency_parts(sequence), told[sequence]
        assert parts == pytest.approx(engine.parts(sequence), abs=1e-9), (
            parts,
            engine.parts(sequence),
        )
        assert sum(parts[:3]) == pytest.approx(times[0] - at, abs=1e-9)
        assert sum(parts[3:]) == pytest.approx(times[-1] - times[0], abs=1e-9)
        assert min(parts) >= 0
        if waiting != "priority":  # there another one's preemption may cost it a turn
            assert bool(parts.preemption) <= bool(sequence.num_preemptions)
        segment = (
            sequence.num_cached_tokens,
            sequence.num_prompt_tokens - sequence.num_cached_tokens,
        )
        alone = 0.5 * step_duration_s(LLAMA_8B_H100, [segment])
        assert parts.own_prefill >= alone - 1e-9 or sequence.num_preemptions
