"""When tokens come out, exactly: both engines in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import FineSelector, VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine, FixedEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100 as H100
from locust_llm.simulator.scheduling.step_cost import CostModel, step_duration_s

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

    def __init__(self, make_engine):
        self.clock = VirtualClock()
        self.engine = make_engine(self.clock)
        self.token_at = {}

    def request(self, at, prompt, out, abort_at=None):
        sequence = Sequence(prompt, out)
        times = self.token_at[sequence] = []
        self.clock.call_at(
            at, lambda: self.engine.add(sequence, lambda: times.append(self.clock.time()))
        )
        if abort_at is not None:
            self.clock.call_at(abort_at, lambda: self.engine.abort(sequence))
        return times

    def go(self):
        self.clock.run()
        return self


def batch_engine(cost=ONE_SECOND, budget=4, seqs=8, kv_tokens=1024, policy="chunked", **more):
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, kv_tokens=kv_tokens)
    return lambda clock: BatchEngine(Scheduler(config, POLICIES[policy]), cost, clock, **more)


def test_an_exact_run_of_one_second_steps():
    run = Run(batch_engine(budget=4))
    a = run.request(0, 10, 3)  # 4 + 4 + 2 tokens
    b = run.request(0.5, 2, 2)  # fits beside a's last chunk
    c = run.request(3.5, 1, 1)  # in the middle of a step: has to wait for the next
    d = run.request(10.25, 1, 1)  # the engine is idle
    run.go()
    assert (a, b, c, d) == ([3, 4, 5], [3, 4], [5], [11.25])
    assert run.engine.state() == {
        "running": 0,
        "waiting": 0,
        "used_blocks": 0,
        "max_used_blocks": 2,
        "num_blocks": 64,
        "preemptions": 0,
        "cache_queries": 0,
        "cache_hits": 0,
        "steps": 6,
        "busy_s": 6,
        "max_late_s": 0,
        "late_p99_s": 0,
        "lost_s": 0,
    }


def test_without_each_only_the_first_and_the_last_token_are_told():
    run = Run(batch_engine(budget=100))
    told = []
    for out in (1, 2, 5):
        sequence = Sequence(3, out)
        run.engine.add(
            sequence,
            lambda sequence=sequence: told.append((run.clock.now, sequence.max_tokens)),
            each=False,
        )
    run.go()
    assert told == [(1, 2), (1, 5), (1, 1), (2, 2), (5, 5)]


def test_the_next_step_has_begun_when_tokens_are_given_out():
    """Who answers a token at once, like a user with the next request, is too late for the step that
    follows it."""
    run = Run(batch_engine(budget=100))
    second = Sequence(1, 1)
    times = []

    def on_token():
        times.append(run.clock.now)
        if len(times) == 1:
            run.engine.add(second, lambda: times.append(-run.clock.now))

    run.engine.add(Sequence(1, 3), on_token)
    run.go()
    assert times == [1, 2, 3, -3]


def test_requests_of_one_moment_share_their_first_step():
    run = Run(batch_engine(budget=100))
    times = [run.request(1, 5, 2) for _ in range(8)]
    run.go()
    assert times == [[2, 3]] * 8


def test_time_scale():
    run = Run(batch_engine(time_scale=0.25))
    times = run.request(2, 4, 3)
    run.go()
    assert times == [2.25, 2.5, 2.75]


def test_a_prefill_delays_the_decodes_of_its_step():
    run = Run(batch_engine(H100, budget=8192, kv_tokens=100_000))
    a = run.request(0, 100, 4)
    b = run.request(0.012, 8000, 2)  # during a's second step
    run.go()
    alone = step_duration_s(H100, [(100, 1)])
    both = step_duration_s(H100, [(101, 1), (0, 8000)])
    start = step_duration_s(H100, [(0, 100)])
    assert start < 0.012 < start + alone
    assert a[:3] == pytest.approx([start, start + alone, start + alone + both], rel=1e-12)
    assert b[0] == a[2]
    assert both > 30 * alone


def test_a_preempted_request_pauses_and_goes_on():
    run = Run(batch_engine(budget=100, kv_tokens=64))
    a = run.request(0, 32, 3)
    b = run.request(0, 32, 3)
    run.go()
    assert a == [1, 2, 3]
    assert b == [1, 4, 5]  # out in steps 2 and 3 for want of a block
    assert run.engine.state()["preemptions"] == 1


def test_an_aborted_request_says_no_more_and_its_blocks_are_free():
    run = Run(batch_engine(budget=100, seqs=1))
    a = run.request(0, 32, 100, abort_at=2.5)
    waiting = run.request(0, 1, 1, abort_at=1.5)
    used = []
    run.clock.call_at(2.25, lambda: used.append(run.engine.state()["used_blocks"]))
    run.clock.call_at(2.75, lambda: used.append(run.engine.state()["used_blocks"]))
    after = run.request(2.75, 1, 1)
    run.go()
    assert (a, waiting, after) == ([1, 2], [], [4])  # the step under way still has to end, at 3
    assert used == [3, 0]  # 32 + 2 tokens


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("make", [batch_engine(), lambda clock: FixedEngine(1.0, 1.0, clock)])
def test_another_receiver_gets_the_tokens_from_then_on(make, each):
    clock = VirtualClock()
    engine = make(clock)
    told = []
    sequence = Sequence(1, 4)
    engine.add(sequence, lambda: told.append(("old", clock.now)), each=each)
    clock.call_at(2.5, lambda: engine.redirect(sequence, lambda: told.append(("new", clock.now))))
    clock.run()
    middle = [("old", 2), ("new", 3)] if each else []
    assert told == [("old", 1), *middle, ("new", 4)]


def test_an_abort_before_the_first_step_leaves_the_engine_idle():
    run = Run(batch_engine())
    gone = run.request(0, 1, 1, abort_at=0)
    later = run.request(5, 1, 1)
    run.go()
    assert (gone, later) == ([], [6])


def test_a_busy_engine_does_not_drift_but_gives_up_what_it_cannot_catch_up():
    run = Run(batch_engine())
    stalls = iter([0.05, 0, 3.0, 0, 0])  # the process is held up this long after each token
    times = []

    def on_token():
        times.append(run.clock.now)
        run.clock.now += next(stalls)

    run.engine.add(Sequence(1, 5), on_token)
    run.go()
    # the step of 4 ended at 6, 0.1 of it may be caught up
    assert times == pytest.approx([1, 2, 3, 6, 6.9])
    assert run.engine.state()["lost_s"] == pytest.approx(1.9)
    assert run.engine.state()["max_late_s"] == run.engine.state()["late_p99_s"] == pytest.approx(2)
    run.engine.forget_lateness()
    assert {run.engine.state()[name] for name in ("max_late_s", "late_p99_s", "lost_s")} == {0}


def test_the_same_load_gives_the_same_times():
    def times():
        run = Run(batch_engine(H100, budget=512, kv_tokens=4096))
        for n in range(40):
            run.request(n * 0.003, 17 * n % 300 + 1, 7 * n % 50 + 1)
        return list(run.go().token_at.values())

    assert times() == times()


def test_fixed_latency_is_the_same_for_all():
    run = Run(lambda clock: FixedEngine(0.25, 0.125, clock))
    times = [run.request(n, 1000 * n + 1, 4) for n in range(3)]
    run.go()
    assert times == [[n + 0.25, n + 0.375, n + 0.5, n + 0.625] for n in range(3)]


def test_fixed_latency_with_jitter_stays_near_and_repeats():
    def gaps(seed):
        run = Run(lambda clock: FixedEngine(0.2, 0.02, clock, jitter_s=0.005, seed=seed))
        times = run.request(0, 1, 1000)
        run.go()
        return [later - earlier for earlier, later in zip([0.18, *times], times, strict=False)]

    assert gaps(1) == gaps(1) != gaps(2)
    assert all(0.015 - 1e-9 <= gap <= 0.025 + 1e-9 for gap in gaps(1))
    assert sum(gaps(1)) / 1000 == pytest.approx(0.02, rel=0.02)


def test_fixed_latency_abort():
    run = Run(lambda clock: FixedEngine(0.25, 0.25, clock))
    times = run.request(0, 1, 100, abort_at=0.6)
    run.go()
    assert times == [0.25, 0.5]
    assert run.clock.time() == 0.6
    assert run.engine.state()["running"] == 0


def test_the_fine_selector_does_not_round_to_milliseconds():
    async def lateness():
        loop = asyncio.get_running_loop()
        found = []
        for _ in range(30):
            due, called = loop.time() + 0.0013, loop.create_future()
            loop.call_at(due, called.set_result, None)
            await called
            found.append(loop.time() - due)
        return found

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())) as runner:
        found = runner.run(lateness())
    assert min(found) >= -1e-6
    assert min(found) < 0.0005  # epoll alone: at least 0.7 ms late, each time
