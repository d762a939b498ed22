"""The KV cache's blocks: who can be found, and who makes room first."""

from support.stepping import added, make, schedule, step

from locust_llm.simulator.scheduling.kv_cache_blocks import Blocks
from locust_llm.simulator.scheduling.sequence import Sequence


def filled(count=4, keys=(1, 2, 3)):
    """Blocks of which the first hold these keys, and nobody uses any."""
    blocks = Blocks(count, caching=True)
    blocks.take(len(keys))
    blocks.free([blocks.name(key) for key in keys], 0)
    assert blocks.num_free == count
    return blocks


def test_blocks_without_a_key_go_first_then_the_end_of_the_text():
    blocks = filled(4)
    blocks.take(1)
    assert blocks.find([1, 2, 3]) == (3, 3)
    blocks.take(1)
    assert blocks.find([1, 2, 3]) == (2, 2)
    blocks.take(2)
    assert blocks.find([1]) == (0, 0)
    assert blocks.num_free == 0


def test_who_was_used_last_goes_last():
    blocks = filled(3)
    shared = blocks.share([1, 2])
    assert blocks.find([1, 2, 3]) == (3, 1)  # of these only the third is free
    assert blocks.num_free == 1
    blocks.free([*blocks.share([1]), *shared[1:]], 0)
    assert blocks.find([1, 2, 3]) == (3, 2)  # 1 has a user left
    blocks.take(1)
    assert blocks.find([3]) == (0, 0)
    assert blocks.find([1, 2]) == (2, 1)


def test_only_the_first_keys_without_a_gap_count():
    assert filled(4).find([1, 9, 3]) == (1, 1)


def test_both_copies_of_a_block_are_kept_and_the_older_is_found():
    blocks = Blocks(4, caching=True)
    blocks.take(3)
    first, second, third = (blocks.name(7) for _ in range(3))
    blocks.free([second], 0)
    assert blocks.num_free == 2
    assert blocks.share([7]) == [first]
    assert blocks.find([7]) == (1, 0)
    blocks.take(2)  # the second is emptied
    blocks.free([first], 0)
    blocks.free([first], 0)
    assert blocks.find([7]) == (1, 1)
    blocks.take(1)
    assert blocks.share([7]) == [third]
    blocks.free([third], 0)
    blocks.free([third], 0)
    assert blocks.find([7]) == (1, 1)
    blocks.take(1)
    assert blocks.find([7]) == (0, 0)


def test_who_computes_the_same_text_side_by_side_keeps_it_twice():
    s = make(budget=100, kv_tokens=160, enable_prefix_caching=True)
    a, b = added(s, Sequence(15, 3, (1,)), Sequence(15, 3, (1,)))
    step(s)
    step(s)  # both fill their block with the same token
    assert s.blocks.num_free == 8
    step(s)
    assert a.is_finished
    assert b.is_finished
    (c,) = added(s, Sequence(129, 1))
    step(s)
    step(s)  # 9 of 10 blocks
    assert c.is_finished
    assert s.blocks.find([1]) == (1, 1)


def test_one_token_is_always_left_to_compute():
    s = make(budget=100, enable_prefix_caching=True)
    added(s, Sequence(32, 1, (1, 2)))
    step(s)
    b, c = added(s, Sequence(32, 1, (1, 2)), Sequence(33, 1, (1, 2)))
    assert step(s)[0] == {b: 16, c: 1}


def test_equal_prompts_of_one_step_share_their_blocks():
    s = make(budget=100, kv_tokens=160, enable_prefix_caching=True)
    a, b = added(s, Sequence(40, 9, (1, 2)), Sequence(40, 9, (1, 2)))
    _, work = schedule(s)
    assert work == {a: 40, b: 8}
    assert s.blocks.num_free == 10 - 3 - 1


def test_a_chunk_at_a_time_can_be_found():
    s = make(budget=32, seqs=1, enable_prefix_caching=True)
    added(s, Sequence(64, 1, (1, 2, 3, 4)))
    step(s)
    assert s.blocks.find([1, 2, 3, 4]) == (2, 0)


def test_an_answer_can_be_found_when_its_block_is_full():
    s = make(budget=100, enable_prefix_caching=True)
    (a,) = added(s, Sequence(30, 9, (1, 2)))
    step(s)  # 30 computed
    assert s.blocks.find([1, 2]) == (1, 0)
    step(s)  # 31
    assert s.blocks.find([1, 2]) == (1, 0)
    step(s)
    assert s.blocks.find([1, 2]) == (2, 0)
    (b,) = added(s, Sequence(40, 1, (1, 2)))
    assert step(s)[0] == {a: 1, b: 8}


def test_who_was_preempted_finds_what_is_left_of_its_own():
    s = make(budget=100, kv_tokens=80, enable_prefix_caching=True)  # 5 blocks
    a, b = added(s, Sequence(32, 3, (1, 2)), Sequence(40, 2, (5, 6)))
    assert step(s) == ({a: 32, b: 40}, {a, b})
    assert step(s) == ({a: 1}, {a})  # b goes; its third block, without a key, is taken
    assert s.blocks.find([5, 6]) == (2, 2)
    assert step(s) == ({a: 1}, {a})  # room for b's 41 tokens comes with a's end
    assert step(s) == ({b: 41 - 32}, {b})
    # what it found when it was first admitted
    assert (b.num_preemptions, b.num_cached_tokens) == (1, 0)


def test_without_caching_nothing_is_found():
    s = make(budget=100)
    (a,) = added(s, Sequence(32, 1, (1, 2)))
    step(s)
    (b,) = added(s, Sequence(32, 1, (1, 2)))
    assert step(s)[0] == {b: 32}
    assert a.is_finished
