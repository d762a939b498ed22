"""SGLang's policy with a pencil."""

import pytest
from support.stepping import added, make, step

from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.sglang import DECAY, INIT_RATIO


def test_who_decodes_pauses_for_a_prompt_and_each_of_its_parts():
    s = make("sglang", budget=10)
    (a,) = added(s, Sequence(3, 9))
    assert step(s) == ({a: 3}, {a})
    assert step(s) == ({a: 1}, {a})
    b, c = added(s, Sequence(15, 9), Sequence(4, 9))
    assert step(s) == ({b: 10}, set())
    assert step(s) == ({b: 5, c: 4}, {b, c})
    assert step(s) == ({a: 1, b: 1, c: 1}, {a, b, c})


def test_mixed_gives_one_token_for_each_part_out_of_the_same_budget():
    s = make("sglang-mixed", budget=10)
    (a,) = added(s, Sequence(3, 9))
    assert step(s) == ({a: 3}, {a})
    (b,) = added(s, Sequence(15, 9))
    assert step(s) == ({a: 1, b: 9}, {a})
    assert step(s) == ({a: 1, b: 6}, {a, b})


def test_a_prompt_is_admitted_where_its_answer_will_probably_fit():
    """Of 144 tokens left and 99 to come of the first, 0.7 are counted on: 74.7 are for the next."""
    for output, fits in ((59, False), (58, True)):
        s = make("sglang", budget=100, kv_tokens=160)
        (a,) = added(s, Sequence(16, 100))
        assert step(s) == ({a: 16}, {a})
        (b,) = added(s, Sequence(16, output))  # 16 of its prompt
        assert step(s) == (({b: 16}, {b}) if fits else ({a: 1}, {a}))


def test_when_it_is_full_nobody_is_admitted_until_someone_is_done():
    s = make("sglang", budget=100, kv_tokens=160)
    (a,) = added(s, Sequence(16, 20))
    step(s)
    b, c = added(s, Sequence(16, 120), Sequence(1, 1))
    for _ in range(19):
        assert step(s) == ({a: 1}, {a})  # c would fit
    assert a.is_finished
    assert step(s) == ({b: 16, c: 1}, {b, c})


def test_the_share_that_is_counted_on_falls_with_each_round():
    s = make("sglang", budget=100)
    (a,) = added(s, Sequence(16, 9))
    for _ in range(4):
        step(s)
    assert s.policy.ratio == pytest.approx(INIT_RATIO - 3 * DECAY)
    s.finish(a)
    step(s)
    assert s.policy.ratio == INIT_RATIO


def test_the_shortest_answer_goes_to_the_end_of_the_queue_when_blocks_are_short():
    s = make("sglang", budget=100, kv_tokens=80)  # 5 blocks
    a, b = added(s, Sequence(32, 8), Sequence(30, 5))
    assert step(s) == ({a: 32, b: 30}, {a, b})
    (c,) = added(s, Sequence(40, 1))
    assert step(s) == ({a: 1, b: 1}, {a, b})
    assert step(s) == ({a: 1, b: 1}, {a, b})
    # b wants a third block; of equal answers the longer prompt goes
    assert step(s) == ({b: 1}, {b})
    assert (list(s.waiting), a.num_preemptions, s.policy.ratio) == ([c, a], 1, 1.0)
