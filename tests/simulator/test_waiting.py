"""Who of those that wait is next, with a pencil; and planted unfairness, which must come out as
planted."""

from random import Random

import pytest
from support.stepping import added, step

from locust_llm.simulator.scheduling.batching_policies import POLICIES, chunked
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest
from locust_llm.simulator.scheduling.waiting_order import (
    QUEUES,
    Fair,
    Priority,
    make_waiting_queue,
)


def make(waiting, *, budget=100, seqs=1, kv_tokens=1024, policy=chunked):
    return Scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, kv_tokens=kv_tokens),
        policy,
        waiting=waiting,
    )


def tenants_served(scheduler, count):
    """Of the next ones that finish, one after the other."""
    found = []
    while len(found) < count:
        work, _ = step(scheduler)
        found += [sequence.tenant for sequence in work if sequence.is_finished]
    return "".join(found)


def test_the_lowest_priority_is_first_and_of_equal_ones_who_came_first():
    s = make(Priority())
    a, b, c, d = added(s, *(Sequence(5, 1, priority=priority) for priority in (1, 0, 1, -1)))
    assert list(s.waiting) == [d, b, a, c]
    s.finish(b)
    assert [step(s)[0] for _ in range(3)] == [{d: 5}, {a: 5}, {c: 5}]
    assert len(s.waiting) == 0


def test_by_priority_who_had_its_turn_in_this_step_may_have_to_give_way():
    """Of five blocks each has two, and both want a third in the same step; the first in the order
    gets it first."""
    s = make(Priority(), seqs=8, kv_tokens=80)
    (low,) = added(s, Sequence(31, 4, priority=5))
    assert step(s) == ({low: 31}, {low})
    (high,) = added(s, Sequence(32, 3, priority=0))
    assert step(s) == ({low: 1, high: 32}, {low, high})
    assert (list(s.running), s.blocks.num_free) == ([low, high], 1)
    assert step(s) == ({high: 1}, {high})
    assert (low.num_preemptions, high.num_preemptions, list(s.waiting)) == (1, 0, [low])
    assert s.blocks.num_free == 2  # low has given back all three
    assert step(s) == ({high: 1}, {high})
    assert step(s) == ({low: 33}, {low})  # its prompt and two tokens, again
    assert s.blocks.num_free == 2


def test_the_tenant_that_was_served_least_is_next():
    """A request of a (10 + 2 x 1) is worth 12, one of b (4 + 2) 6."""
    s = make(Fair())
    added(
        s,
        *(Sequence(10, 1, tenant="a") for _ in range(3)),
        *(Sequence(4, 1, tenant="b") for _ in range(6)),
    )
    assert tenants_served(s, 9) == "abbabbabb"
    assert s.waiting.counter("a") == s.waiting.counter("b") == 36


def test_rounds_of_decoding_are_service_while_they_go_on():
    s = make(Fair(), seqs=3)
    added(s, Sequence(10, 50, tenant="a"), Sequence(10, 50, tenant="b"))
    for _ in range(6):
        step(s)
    assert s.waiting.counter("a") == s.waiting.counter("b") == 10 + 2 * 6
    s.finish(next(iter(s.running)))
    step(s)
    assert (s.waiting.counter("a"), s.waiting.counter("b")) == (22, 24)


def test_nobody_saves_up_service():
    s = make(Fair())
    added(s, *(Sequence(10, 1, tenant="a") for _ in range(6)))
    assert tenants_served(s, 4) == "aaaa"  # 48
    added(s, *(Sequence(10, 1, tenant="b") for _ in range(4)))  # lifted to 48, not four ahead
    assert tenants_served(s, 4) == "abab"
    assert tenants_served(s, 2) == "bb"
    added(s, Sequence(10, 1, tenant="c"))  # nobody waits: lifted to who left last
    assert s.waiting.counter("c") == s.waiting.counter("b") == 48 + 4 * 12


@pytest.mark.parametrize("name", QUEUES)
def test_queues_give_in_the_order_that_they_show(name):
    random = Random(name)
    for _ in range(20):
        s = make(make_waiting_queue(name, {"t1": 2.0}))
        waiting = s.waiting
        some = [
            Sequence(
                random.randrange(1, 9),
                1,
                priority=random.randrange(3),
                tenant=f"t{random.randrange(3)}",
            )
            for _ in range(12)
        ]
        added(s, *some)
        for sequence in random.sample(some, 4):
            waiting.remove(sequence)
        shown = list(waiting)
        assert waiting[0] is shown[0]
        first, second = waiting.popleft(), waiting.popleft()
        waiting.extendleft([second, first])
        assert next(iter(waiting)) is shown[0]
        assert len(waiting) == len(shown) == 8
        taken = []
        while waiting:
            taken.append(waiting.popleft())
            if name == "fair":
                waiting.served(taken[-1], prompt_tokens=taken[-1].num_prompt_tokens)
        assert taken == shown


@pytest.mark.parametrize("policy", ["chunked", "static", "partial-prefills"])
def test_four_to_one_is_four_to_one(policy):
    """Both always have requests waiting, of other lengths: service in tokens, a token of output
    worth two."""
    clock, random = VirtualClock(), Random(1)
    config = SchedulerConfig(
        max_num_batched_tokens=512, max_num_seqs=8, kv_tokens=100_000,
        long_prefill_token_threshold=100,
        max_num_partial_prefills=2,
    )  # fmt: skip
    scheduler = Scheduler(
        config, POLICIES[policy], waiting=Fair({"gold": 4.0, "free": 1.0}), record=True
    )
    load = Virtual(clock, BatchEngine(scheduler, LLAMA_8B_H100, clock))

    def requests(tenant, most):
        while True:
            yield VirtualRequest(random.randrange(10, most), random.randrange(5, 40), tenant=tenant)

    load.closed_loop(30, requests("gold", 100))
    load.closed_loop(30, requests("free", 300))
    rows = load.run(until=60)
    service = dict.fromkeys(("gold", "free"), 0)
    for row in rows:
        service[row.request.tenant] += row.request.prompt_tokens + 2 * row.request.output_tokens
    assert len(rows) > 1000
    assert service["gold"] / service["free"] == pytest.approx(4, rel=0.01)
