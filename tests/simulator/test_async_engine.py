"""Asynchronous scheduling in virtual time: who waits a step longer, and that nobody loses a
token."""

from dataclasses import replace
from random import Random

import pytest

from locust_llm.simulator.scheduling.async_engine import AsyncEngine
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100 as H100
from locust_llm.simulator.scheduling.step_cost import CostModel
from locust_llm.simulator.scheduling.time_parts import measure_latency_parts
from locust_llm.simulator.scheduling.waiting_order import make_waiting_queue

NOTHING = CostModel(
    parameters=0,
    weight_bytes=0,
    num_layers=0,
    hidden_size=0,
    kv_bytes_per_token=0,
    max_model_len=1000,
)
# every step takes just that
ONE_SECOND = replace(H100, model=NOTHING, step_overhead_s=1.0, seq_overhead_s=0.0)


class Run:
    """Requests of one engine in virtual time, and when each got its tokens."""

    def __init__(self, *, waiting="fcfs", policy="chunked", **config):
        self.clock = VirtualClock()
        self.scheduler = Scheduler(
            SchedulerConfig(**config),
            POLICIES[policy],
            waiting=make_waiting_queue(waiting),
            record=True,
        )
        self.engine = AsyncEngine(self.scheduler, ONE_SECOND, self.clock)

    def request(self, at, sequence, *, each=True):
        times = []
        told = lambda: times.append(self.clock.now)  # noqa: E731
        self.clock.call_at(at, lambda: self.engine.add(sequence, told, each=each))
        return times


def test_who_arrives_while_a_step_runs_waits_for_two():
    run = Run(max_num_batched_tokens=4, max_num_seqs=8, kv_tokens=1024)
    a = run.request(0, Sequence(10, 3))  # 4 + 4 + 2 tokens
    b = run.request(0.5, Sequence(2, 2))  # the second step is chosen, the third is not
    c = run.request(3.5, Sequence(1, 1))
    d = run.request(10.25, Sequence(1, 1), each=False)  # the engine is idle
    run.clock.run()
    assert (a, b, c, d) == ([3, 4, 5], [3, 4], [6], [11.25])
    assert run.engine.num_steps == 7


def test_who_has_its_last_token_leaves_its_place_a_step_later():
    run = Run(max_num_batched_tokens=4, max_num_seqs=2, kv_tokens=1024)
    a, b, c = (run.request(0, Sequence(1, out)) for out in (2, 9, 1))
    run.clock.run()
    assert (a, b, c) == ([1, 2], list(range(1, 10)), [4])
    run = Run(max_num_batched_tokens=4, max_num_seqs=1, kv_tokens=1024)
    a, b = (run.request(0, Sequence(1, out)) for out in (2, 1))
    run.clock.run()
    assert (a, b) == ([1, 2], [3])  # there was no work that could be chosen before a's end


@pytest.mark.parametrize("waiting", ["fcfs", "priority"])
@pytest.mark.parametrize("policy", ["chunked", "mixed"])
def test_every_load(policy, waiting):
    for seed in range(40):
        random = Random(seed)
        run = Run(
            waiting=waiting, policy=policy,
            max_num_batched_tokens=random.randint(8, 60) + 100 * (policy == "mixed"),
            max_num_seqs=random.randint(1, 6), kv_tokens=16 * random.randint(7, 12),
            enable_prefix_caching=seed % 2 == 0,
        )  # fmt: skip
        sequences = [
            Sequence(random.randint(1, 60), random.randint(1, 30),
                range(6) if random.random() < 0.5 else (),
                     priority=random.randrange(3))
            for _ in range(12)
        ]  # fmt: skip
        told = [
            run.request(random.randint(0, 30) / 2, q, each=n % 2 == 0)
            for n, q in enumerate(sequences)
        ]
        gone = sequences[random.randrange(12)]
        run.clock.call_at(15.25, lambda engine=run.engine, gone=gone: engine.abort(gone))
        run.clock.run()
        for number, (sequence, times) in enumerate(zip(sequences, told, strict=True)):
            assert sequence.is_finished
            if sequence is gone:
                continue
            count = sequence.max_tokens
            assert len(times) == (count if number % 2 == 0 else min(count, 2))
            assert times == sorted(set(times))
            if number % 2 == 0:
                assert sequence.token_times() == pytest.approx(times)
            assert sum(measure_latency_parts(sequence)[:3]) == pytest.approx(
                times[0] - sequence.arrived_at
            )
            assert sum(measure_latency_parts(sequence)[3:]) == pytest.approx(times[-1] - times[0])
        assert run.scheduler.blocks.num_free == run.scheduler.blocks.num_blocks
        assert not run.scheduler.running
        assert not run.scheduler.waiting
