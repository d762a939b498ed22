"""Each policy with a pencil: who computes how much in each step."""

import pytest
from support.stepping import added, make, step

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.sequence import Sequence


def test_static_waits_for_the_longest():
    s = make("static", budget=100, seqs=2)
    a, b, c = added(s, Sequence(4, 1), Sequence(2, 4), Sequence(1, 1))
    assert step(s) == ({a: 4, b: 2}, {a, b})
    for _ in range(3):  # a is done, its place stays empty
        assert step(s) == ({b: 1}, {b})
    assert step(s) == ({c: 1}, {c})


def test_static_takes_only_who_has_room_to_the_end():
    s = make("static", budget=100, kv_tokens=64)  # 4 blocks
    a, b = added(s, Sequence(16, 17), Sequence(16, 1))  # 3 blocks at the end of a, 2 for b
    assert step(s) == ({a: 16}, {a})
    while not a.is_finished:
        assert step(s) == ({a: 1}, {a})
    assert step(s) == ({b: 16}, {b})


def test_static_computes_as_many_prompts_as_the_budget_holds():
    s = make("static", budget=5)
    a, b, c = added(s, Sequence(2, 1), Sequence(3, 1), Sequence(1, 1))
    assert step(s) == ({a: 2, b: 3}, {a, b})
    assert step(s) == ({c: 1}, {c})


def test_prefill_first_pauses_who_decodes():
    s = make("prefill-first", budget=10)
    (a,) = added(s, Sequence(3, 9))
    assert step(s) == ({a: 3}, {a})
    b, c = added(s, Sequence(7, 9), Sequence(4, 9))
    assert step(s) == ({b: 7}, {b})  # c does not fit beside it
    assert step(s) == ({c: 4}, {c})
    assert step(s) == ({a: 1, b: 1, c: 1}, {a, b, c})


def test_mixed_gives_one_token_for_each_prefill():
    s = make("mixed", budget=10)
    (a,) = added(s, Sequence(3, 9))
    assert step(s) == ({a: 3}, {a})
    b, c = added(s, Sequence(7, 9), Sequence(9, 9))
    # c does not fit in the 2 that are left, and is not chunked
    assert step(s) == ({a: 1, b: 7}, {a, b})
    assert step(s) == ({a: 1, b: 1}, {a, b})  # nor in 8
    s.finish(b)
    assert step(s) == ({a: 1, c: 9}, {a, c})


def test_a_threshold_cuts_whole_prompts_too():
    """vLLM with --no-enable-chunked-prefill: a part of a prompt is not cut by the budget."""
    s = make("mixed", budget=10, threshold=6)
    a, b, c = added(s, Sequence(9, 1), Sequence(5, 1), Sequence(4, 1))
    assert step(s) == ({a: 6}, set())  # the 4 that are left are too few for b
    assert step(s) == ({a: 3, b: 5}, {a, b})
    assert step(s) == ({c: 4}, {c})


def test_an_adaptive_threshold_is_at_least_a_share_of_the_budget():
    s = make(budget=12, threshold=3, long_prefill_token_threshold_adaptive=True)
    a, b, c = added(s, Sequence(20, 1), Sequence(9, 1), Sequence(9, 1))
    assert step(s) == ({a: 4, b: 4, c: 4}, set())
    s.finish(c)
    assert step(s) == ({a: 6, b: 5}, {b})
    assert step(s) == ({a: 10}, {a})  # alone
    added(s, *(Sequence(9, 1) for _ in range(5)))
    assert list(step(s)[0].values()) == [3, 3, 3, 3]


@pytest.mark.parametrize(("policy", "tokens"), [("prefill-first", 0), ("mixed", 1), ("chunked", 5)])
def test_tokens_that_others_get_while_a_prompt_is_computed(policy, tokens):
    """None, one, or as many as the prompt has chunks."""
    s = make(policy, budget=201 if policy == "chunked" else 2000, kv_tokens=4096)
    decoder, prompt = Sequence(1, 99), Sequence(1000, 1)
    added(s, decoder)
    step(s)
    added(s, prompt)
    before = decoder.num_output_tokens
    while not prompt.is_finished:
        step(s)
    assert decoder.num_output_tokens - before == tokens


def partial(budget, slots, long, threshold, **more):
    more = {"max_num_partial_prefills": slots, "max_long_partial_prefills": long, **more}
    return make("partial-prefills", budget=budget, threshold=threshold, kv_tokens=10**6, **more)


def test_partial_prefills_split_the_budget_evenly():
    s = partial(budget=9, slots=2, long=2, threshold=5)
    a, b = added(s, Sequence(20, 1), Sequence(20, 1))
    # floor(9 / 2); there is nobody for the token that is left
    assert step(s) == ({a: 4, b: 4}, set())


def test_what_one_does_not_use_goes_to_the_next():
    s = partial(budget=8, slots=2, long=2, threshold=5)
    a, b, c = added(s, Sequence(1, 9), Sequence(10, 1), Sequence(10, 1))
    assert step(s) == ({a: 1, b: 4, c: 3}, {a})
    assert step(s) == ({a: 1, b: 4, c: 3}, {a})
    assert step(s) == ({a: 1, b: 2, c: 4}, {a, b, c})


def test_one_prompt_alone_has_the_whole_budget():
    s = partial(budget=8, slots=4, long=1, threshold=5)
    a, b = added(s, Sequence(30, 1), Sequence(30, 1))
    assert step(s) == ({a: 8}, set())  # b is long too, and only one may be
    assert list(s.waiting) == [b]


def test_four_of_which_two_long_means_two_long_and_two_short():
    s = partial(budget=16, slots=4, long=2, threshold=8)
    long, short = [Sequence(100, 1) for _ in range(4)], [Sequence(8, 2) for _ in range(3)]
    added(s, *long, *short)
    work, _ = step(s)
    assert work == {long[0]: 4, long[1]: 4, short[0]: 4, short[1]: 4}
    assert list(s.waiting) == [long[2], long[3], short[2]]  # passed over, and in their places
    assert step(s) == (work, {short[0], short[1]})


def test_a_prompt_stops_being_long_near_its_end():
    s = partial(budget=8, slots=2, long=1, threshold=4)
    a, b = added(s, Sequence(12, 1), Sequence(12, 1))
    assert step(s) == ({a: 8}, set())
    assert step(s) == ({a: 4, b: 4}, {a})  # 4 are left of a


def test_decodes_come_before_partial_prefills():
    s = partial(budget=4, slots=2, long=2, threshold=50)
    (a,) = added(s, Sequence(2, 9))
    step(s)
    b, c = added(s, Sequence(20, 1), Sequence(20, 1))
    assert step(s) == ({a: 1, b: 2, c: 1}, {a})


def test_five_tokens_behind_four_prompts_of_100000():
    """The example of pull request 31330: a threshold of 512 alone gives the whole budget of 2048 to
    the first four."""
    long, short = [Sequence(100_000, 1) for _ in range(4)], Sequence(5, 1)
    s = make(budget=2048, threshold=512, kv_tokens=10**6)
    added(s, *long, short)
    for _ in range(100):
        assert step(s) == (dict.fromkeys(long, 512), set())

    long, short = [Sequence(100_000, 1) for _ in range(4)], Sequence(5, 1)
    s = partial(budget=2048, slots=4, long=1, threshold=512)
    added(s, *long, short)
    assert step(s) == ({long[0]: 1024, short: 5}, {short})
    assert list(s.waiting) == long[1:]


def test_equal_prompts_are_served_as_without_limits():
    """Nobody is long, so four at a time get what they would have got one after the other, in as
    many steps."""

    def steps(s):
        sequences = added(s, *(Sequence(40, 1) for _ in range(12)))
        count = 0
        while not all(sequence.is_finished for sequence in sequences):
            assert sum(step(s)[0].values()) == 16
            count += 1
        return count

    assert (
        steps(make(budget=16, seqs=12))
        == steps(partial(16, slots=4, long=1, threshold=40, seqs=12))
        == 30
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_all_policies_share_prefixes(policy):
    s = make(policy, budget=1000, threshold=1000, enable_prefix_caching=True)
    (a,) = added(s, Sequence(50, 1, (1, 2, 3)))
    assert step(s) == ({a: 50}, {a})
    b, c = added(s, Sequence(40, 1, (1, 2)), Sequence(40, 1, (1, 9)))
    assert step(s) == ({b: 8, c: 24}, {b, c})
    assert (b.num_cached_tokens, c.num_cached_tokens) == (32, 16)
    assert (s.num_cache_queries, s.num_cache_hits) == (130, 48)
