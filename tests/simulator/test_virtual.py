"""Whole loads in virtual time, with steps of one second."""

import math
from dataclasses import replace
from itertools import repeat

import pytest

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine, FixedEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
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


def a_load(policy="chunked", budget=100, seqs=8, kv_tokens=1024, caching=False, **how):
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        kv_tokens=kv_tokens,
        enable_prefix_caching=caching,
    )
    clock = VirtualClock()
    scheduler = Scheduler(config, POLICIES[policy], record=True)
    return Virtual(clock, BatchEngine(scheduler, ONE_SECOND, clock), **how)


def times(row):
    return row.asked_at, row.sent_at, row.first_at, row.done_at


def test_an_open_loop():
    load = a_load(keep_tokens=True)
    load.open_loop(
        [
            (0, VirtualRequest(10, 3)),
            (0.5, VirtualRequest(10, 1, kind="late")),
            (7, VirtualRequest(10, 2)),
        ]
    )
    rows = load.run()
    assert [times(row) for row in rows] == [(0.5, 0.5, 2, 2), (0, 0, 1, 3), (7, 7, 8, 9)]
    assert [list(row.token_at) for row in rows] == [[2], [1, 2, 3], [8, 9]]
    assert [row.request.kind for row in rows] == ["late", "", ""]
    assert [row.ttft_s for row in rows] == [1.5, 1, 1]
    assert [row.itl_s for row in rows[1:]] == [1, 1]
    assert math.isnan(rows[0].itl_s)


def test_a_closed_loop_sends_when_the_last_one_is_done():
    load = a_load()
    load.closed_loop(2, iter([VirtualRequest(10, 2)] * 5), stagger_s=0.5)
    rows = load.run()
    # the first sends again at 2, when the step of 2 to 3 has begun without it
    assert [times(row)[1:] for row in rows] == [
        (0, 1, 2),
        (0.5, 2, 3),
        (2, 4, 5),
        (3, 5, 6),
        (5, 7, 8),
    ]


def test_a_closed_loop_may_be_cut_off():
    load = a_load()
    load.closed_loop(3, repeat(VirtualRequest(10, 2)))
    assert len(load.run(until=30)) == 45  # two steps a request, three users
    assert load.clock.now == 30


def test_the_prefill_limit_lets_the_oldest_go_at_each_first_token():
    load = a_load(prefill_limit=1)
    load.open_loop((0, VirtualRequest(10, 2)) for _ in range(3))
    rows = load.run()
    assert [times(row) for row in rows] == [(0, 0, 1, 2), (0, 1, 3, 4), (0, 3, 5, 6)]
    assert load.max_prefilling == 1


def test_most_open():
    load = a_load(most_open=2)
    load.open_loop((0, VirtualRequest(10, 2)) for _ in range(3))
    assert [times(row) for row in load.run()] == [(0, 0, 1, 2), (0, 0, 1, 2), (0, 2, 3, 4)]


def test_the_longest_stall_is_where_a_prefill_came_between():
    load = a_load("prefill-first")
    load.open_loop(
        [(0, VirtualRequest(10, 4)), (1.5, VirtualRequest(90, 1)), (1.6, VirtualRequest(90, 1))]
    )
    rows = load.run()
    first = next(row for row in rows if row.request.output_tokens == 4)
    assert times(first) == (0, 0, 1, 6)  # tokens at 1, 2, then two prefills, then at 5 and 6
    assert first.longest_stall_s == 3
    assert first.itl_s == pytest.approx(5 / 3)


def test_the_tokens_of_one_who_was_preempted():
    load = a_load(kv_tokens=64, keep_tokens=True)
    load.open_loop([(0, VirtualRequest(32, 3)), (0, VirtualRequest(32, 3))])
    a, b = load.run()
    assert (list(a.token_at), a.preemptions) == ([1, 2, 3], 0)
    assert (list(b.token_at), b.preemptions, b.longest_stall_s) == ([1, 4, 5], 1, 3)


def test_cached_tokens_are_in_the_rows():
    load = a_load(caching=True)
    load.closed_loop(
        1,
        iter(
            [
                VirtualRequest(40, 1, (1, 2)),
                VirtualRequest(40, 1, (1, 3)),
                VirtualRequest(40, 1, (1, 2)),
            ]
        ),
    )
    assert [row.cached_tokens for row in load.run()] == [0, 16, 32]


def test_fixed_latency():
    clock = VirtualClock()
    load = Virtual(clock, FixedEngine(0.25, 0.125, clock))
    load.open_loop((n, VirtualRequest(10, 3)) for n in range(2))
    assert [times(row)[1:] for row in load.run()] == [(0, 0.25, 0.5), (1, 1.25, 1.5)]
