"""vLLM V1's scheduler, step by step with a pencil, and what holds for every load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.stepping import added, end, make, schedule, step

from locust_llm.simulator.scheduling.batching_policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence, SequenceStatus, num_blocks_for
from locust_llm.simulator.scheduling.waiting_order import make_waiting_queue


def test_a_long_prompt_takes_as_many_steps_as_it_has_chunks():
    s = make(budget=4)
    (a,) = added(s, Sequence(10, 3))
    assert step(s) == ({a: 4}, set())
    assert step(s) == ({a: 4}, set())
    assert step(s) == ({a: 2}, {a})
    assert step(s) == ({a: 1}, {a})
    assert step(s) == ({a: 1}, {a})
    assert a.is_finished
    assert step(s) == ({}, set())


def test_decodes_come_first_and_prefill_gets_the_rest():
    s = make(budget=4)
    (a,) = added(s, Sequence(2, 9))
    assert step(s) == ({a: 2}, {a})
    (b,) = added(s, Sequence(7, 9))
    assert step(s) == ({a: 1, b: 3}, {a})
    assert step(s) == ({a: 1, b: 3}, {a})
    assert step(s) == ({a: 1, b: 1}, {a, b})
    assert step(s) == ({a: 1, b: 1}, {a, b})


def test_a_long_prompt_in_front_blocks_a_short_one():
    s = make(budget=4)
    a, b = added(s, Sequence(10, 1), Sequence(1, 1))
    assert step(s) == ({a: 4}, set())
    assert step(s) == ({a: 4}, set())
    assert step(s) == ({a: 2, b: 1}, {a, b})


def test_the_threshold_lets_the_short_one_through():
    s = make(budget=4, threshold=2)
    a, b = added(s, Sequence(10, 1), Sequence(2, 2))
    assert step(s) == ({a: 2, b: 2}, {b})
    assert step(s) == ({a: 2, b: 1}, {b})
    assert b.is_finished
    assert step(s) == ({a: 4}, set())  # alone, it is not held back


def test_a_partial_prefill_goes_before_a_decode_that_came_after_it():
    s = make(budget=4, threshold=2)
    a, b, c = added(s, Sequence(10, 1), Sequence(1, 9), Sequence(9, 1))
    assert step(s) == ({a: 2, b: 1, c: 1}, {b})
    assert step(s) == ({a: 2, b: 1, c: 1}, {b})


def test_max_num_seqs():
    s = make(budget=100, seqs=2)
    a, b, c = added(s, Sequence(5, 1), Sequence(5, 2), Sequence(5, 1))
    assert step(s) == ({a: 5, b: 5}, {a, b})
    assert step(s) == ({b: 1, c: 5}, {b, c})


def test_fewer_may_run_than_there_is_room_for():
    s = make(budget=100, seqs=8, max_num_active_seqs=1)
    a, b = added(s, Sequence(5, 1), Sequence(5, 1))
    assert step(s) == ({a: 5}, {a})
    assert step(s) == ({b: 5}, {b})


def test_blocks_that_stay_free_where_one_is_admitted_beside_others():
    # 10 blocks and vLLM's empty one: 3 stay free
    s = make(budget=100, kv_tokens=160, watermark=0.3)
    a, b, c = added(s, Sequence(80, 1), Sequence(33, 1), Sequence(160 - 1, 1))
    assert step(s) == ({a: 80}, {a})  # 5 are left, of which b needs 3
    assert step(s) == ({b: 33}, {b})
    assert step(s) == ({c: 100}, set())  # alone it may have all
    s = make(budget=100, kv_tokens=160, watermark=0.2)
    a, b = added(s, Sequence(80, 1), Sequence(33, 1))
    assert step(s)[0] == {a: 80, b: 20}


def test_blocks_grow_with_what_is_computed_and_are_freed_at_the_end():
    s = make(budget=20, kv_tokens=160)  # 10 blocks
    (a,) = added(s, Sequence(31, 3))
    step(s)
    assert (a.num_blocks, s.blocks.num_free) == (2, 8)  # 20 tokens
    step(s)
    assert (a.num_blocks, s.blocks.num_free) == (2, 8)  # 31
    step(s)
    assert (a.num_blocks, s.blocks.num_free) == (2, 8)  # 32
    step(s)
    assert a.is_finished
    assert (a.num_blocks, s.blocks.num_free) == (0, 10)


def test_who_does_not_fit_whole_waits_and_so_do_those_behind():
    s = make(budget=16, kv_tokens=64)  # 4 blocks
    a, b, c = added(s, Sequence(16, 8), Sequence(49, 1), Sequence(1, 1))
    assert step(s) == ({a: 16}, {a})
    # b needs 4 blocks, 2 are free; its first chunk alone would fit, and c too
    assert step(s) == ({a: 1}, {a})
    s.finish(a)
    assert step(s) == ({b: 16}, set())
    assert list(s.waiting) == [c]


def test_preemption_takes_the_last_and_it_comes_back_first():
    s = make(budget=100, kv_tokens=64)  # 4 blocks
    a, b = added(s, Sequence(32, 2), Sequence(32, 2))
    assert step(s) == ({a: 32, b: 32}, {a, b})
    (c,) = added(s, Sequence(1, 1))
    # a's 33rd token needs a fifth block; nobody is admitted in such a step
    assert step(s) == ({a: 1}, {a})
    assert (b.status, b.num_computed_tokens, b.num_output_tokens, b.num_blocks) == (
        SequenceStatus.WAITING,
        0,
        1,
        0,
    )
    assert list(s.waiting) == [b, c]
    assert s.num_preemptions == 1
    assert step(s) == ({b: 33, c: 1}, {b, c})  # b computes its prompt and its own token again
    assert b.is_finished


def test_the_last_one_preempts_itself():
    s = make(budget=100, kv_tokens=80)  # 5 blocks
    a, b = added(s, Sequence(20, 9), Sequence(48, 2))
    assert step(s) == ({a: 20, b: 48}, {a, b})
    assert step(s) == ({a: 1}, {a})
    assert list(s.waiting) == [b]


def by_priority(kv_tokens):
    config = SchedulerConfig(max_num_batched_tokens=40, max_num_seqs=8, kv_tokens=kv_tokens)
    return Scheduler(config, POLICIES["chunked"], waiting=make_waiting_queue("priority"))


def test_who_gives_way_to_itself_costs_those_behind_it_their_turn():
    s = by_priority(80)  # 5 blocks
    a, b = added(s, Sequence(3, 9), Sequence(31, 9, priority=1))
    assert step(s) == ({a: 3, b: 31}, {a, b})
    (c,) = added(s, Sequence(20, 9))
    assert step(s) == ({a: 1, b: 1, c: 20}, {a, b, c})
    assert step(s) == ({a: 1}, {a})  # b wants a third block, and none is further behind than it
    assert list(s.waiting) == [b]
    assert step(s) == ({a: 1, c: 1}, {a, c})


def test_who_had_its_turn_may_give_way():
    s = by_priority(64)  # 4 blocks
    a, b = added(s, Sequence(20, 9, priority=1), Sequence(31, 9, priority=1))
    b.priority = 0
    assert step(s) == ({a: 20, b: 20}, {a})
    assert step(s) == ({a: 1, b: 11}, {a, b})
    assert step(s) == ({a: 1, b: 1}, {a, b})
    assert step(s) == ({b: 1}, {b})


def test_a_step_without_work_is_none():
    s = by_priority(64)
    (a,) = added(s, Sequence(31, 9, priority=1))
    step(s)
    (b,) = added(s, Sequence(20, 9))
    assert step(s) == ({a: 1, b: 20}, {a, b})
    # a gave way to itself before b had its turn; the next step is this one
    assert step(s) == ({b: 1}, {b})


def test_abort_frees_at_once_even_while_its_step_runs():
    s = make(budget=100)
    a, b, c = added(s, Sequence(50, 5), Sequence(50, 5), Sequence(50, 5))
    batch, work = schedule(s)
    assert work == {a: 50, b: 50}
    s.finish(a)  # running
    s.finish(c)  # waiting
    assert s.blocks.num_free == s.blocks.num_blocks - 4
    assert end(s, batch) == {b}
    s.finish(a)
    assert (list(s.running), list(s.waiting), a.num_output_tokens) == ([b], [], 0)


@pytest.mark.parametrize(("prompt", "out"), [(0, 1), (1, 0), (60, 5)])
def test_what_could_never_run_is_refused(prompt, out):
    with pytest.raises(ValueError, match="does not fit in 64 KV tokens"):
        make(kv_tokens=64).add(Sequence(prompt, out))


class Load:
    """A load, and what must hold in each of its steps."""

    def __init__(self, s, policy):
        self.s, self.policy, self.admitted = s, policy, []

    def step(self):
        s, config = self.s, self.s.config
        alone = len(s.running) + len(s.waiting) == 1
        batch, work = schedule(s)
        assert bool(work) == bool(s.running or s.waiting)
        assert sum(work.values()) <= config.max_num_batched_tokens
        assert all(n >= 1 for n in work.values())
        cut = self.policy in ("chunked", "mixed") and config.long_prefill_token_threshold
        if cut and not alone:
            assert max(work.values(), default=0) <= config.long_prefill_token_threshold
        if self.policy in WHOLE_PROMPTS and not cut:
            assert all(n == s.num_left(sequence) for sequence, n in batch.prefills.items())
        assert len(s.running) <= config.max_num_seqs
        assert set(work) <= set(s.running)
        for sequence, n in work.items():
            assert sequence.num_blocks == num_blocks_for(sequence.num_computed_tokens + n)
        self.admitted += [sequence for sequence in s.running if sequence not in self.admitted]
        self.check_blocks()
        return batch, work

    def check_blocks(self):
        s = self.s
        assert 0 <= s.blocks.num_free <= s.blocks.num_blocks
        assert (
            s.blocks.num_free + sum(sequence.num_blocks for sequence in s.running)
            == s.blocks.num_blocks
        )
        assert all(sequence.num_blocks == 0 for sequence in s.waiting)


@pytest.mark.parametrize("policy", POLICIES)
@examples(60)
@given(
    budget=st.integers(1, 40),
    seqs=st.integers(1, 6),
    blocks=st.integers(4, 12),
    threshold=st.sampled_from([0, 0, 1, 7]),
    slots=st.integers(1, 4),
    # each: the step it arrives before, its prompt and output tokens, the step it is aborted after
    # (if still there)
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 20),
            st.integers(1, 40),
            st.integers(1, 24),
            st.sampled_from([None, None, 3, 12]),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_every_load(policy, budget, seqs, blocks, threshold, slots, arrivals):
    if policy in WHOLE_PROMPTS:
        budget += 64  # the longest sequence there is, computed again after it was preempted
    if policy in ("sglang", "sglang-mixed", "llama.cpp"):
        budget = max(budget, seqs)  # it limits prompts, not those that decode
    s = make(
        policy, budget=budget, seqs=seqs, kv_tokens=16 * blocks, threshold=threshold,
        max_num_partial_prefills=min(slots, budget),
    )  # fmt: skip
    plan = [
        (at, Sequence(prompt, out), abort_at)
        for at, prompt, out, abort_at in sorted(arrivals, key=lambda a: a[0])
    ]
    load, now, tokens = Load(s, policy), 0, dict.fromkeys((sequence for _, sequence, _ in plan), 0)
    while s.running or s.waiting or now <= 20:
        added(s, *(sequence for at, sequence, _ in plan if at == now))
        batch, _ = load.step()
        for at, sequence, abort_at in plan:
            if at <= now == abort_at:
                s.finish(sequence)
                load.check_blocks()
        for sequence in end(s, batch):
            tokens[sequence] += 1
        load.check_blocks()
        now += 1
        assert now < 20_000, "some request never ends"

    assert all(sequence.is_finished for _, sequence, _ in plan)
    assert all(
        tokens[q] == q.num_output_tokens == q.max_tokens
        for _, q, abort_at in plan
        if abort_at is None
    )
    assert all(tokens[q] == q.num_output_tokens <= q.max_tokens for _, q, _ in plan)
    if policy not in ("partial-prefills", "llama.cpp"):  # first come, first served
        order = [sequence for _, sequence, _ in plan]
        assert load.admitted == [sequence for sequence in order if sequence in load.admitted]
    assert s.blocks.num_free == s.blocks.num_blocks
    assert s.decoding.num_context_tokens == 0
    assert not any(s.decoding._beginning)
