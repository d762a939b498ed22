"""llama.cpp's policy with a pencil."""

from support.stepping import added, make, step

from locust_llm.simulator.scheduling.sequence import Sequence


def test_a_token_for_each_that_generates_then_prompts_until_the_batch_is_full():
    s = make("llama.cpp", budget=10, seqs=2)
    a, b, c = added(s, Sequence(4, 2), Sequence(12, 9), Sequence(20, 1))
    assert step(s) == ({a: 4, b: 6}, {a})
    assert step(s) == ({a: 1, b: 6}, {a, b})
    assert step(s) == ({b: 1, c: 9}, {b})


def test_an_earlier_slot_goes_before_a_prompt_that_is_under_way():
    s = make("llama.cpp", budget=10, seqs=2)
    a, b = added(s, Sequence(2, 1), Sequence(30, 1))
    assert step(s) == ({a: 2, b: 8}, {a})
    (c,) = added(s, Sequence(5, 1))  # in the slot of a
    assert step(s) == ({c: 5, b: 5}, {c})


def test_who_came_first_gets_the_slot_that_was_free_for_longest():
    s = make("llama.cpp", budget=10, seqs=2)
    (a,) = added(s, Sequence(2, 1))
    assert step(s) == ({a: 2}, {a})
    b, c = added(s, Sequence(30, 1), Sequence(5, 1))  # b in the second slot, c in the first
    assert step(s) == ({c: 5, b: 5}, {c})


def test_a_prompt_goes_where_the_last_one_began_alike():
    s = make("llama.cpp", budget=100, seqs=3)
    a, b = added(s, Sequence(32, 1, block_keys=(1, 2)), Sequence(32, 1, block_keys=(3, 4)))
    assert step(s) == ({a: 32, b: 32}, {a, b})
    c, d, e = added(
        s,
        Sequence(64, 1, block_keys=(3, 4, 5, 6)),  # half of it is in the slot of b
        # not a tenth: the third slot, which nobody had
        Sequence(170, 1, block_keys=(1, *range(10, 19))),
        Sequence(64, 1, block_keys=(1, 2, 7, 8)),
    )
    assert step(s) == ({e: 64, c: 36}, {e})
    assert step(s) == ({c: 28, d: 72}, {c})


def test_short_prompts_have_what_all_begin_with_in_the_first_free_slot():
    s = make("llama.cpp", budget=10, seqs=3, common_prefix_tokens=2)
    a, b, c = added(s, Sequence(2, 1), Sequence(2, 3), Sequence(2, 1))
    assert step(s) == ({a: 2, b: 2, c: 2}, {a, b, c})
    (d,) = added(s, Sequence(19, 1))
    assert step(s) == ({b: 1, d: 9}, {b})  # in the first slot
    assert step(s) == ({b: 1, d: 9}, {b})
    assert step(s) == ({d: 1}, {d})
    # a tenth and no more: in the third, which was free for longest
    (e,) = added(s, Sequence(20, 1))
    assert step(s) == ({e: 10}, set())
    (f,) = added(s, Sequence(4, 1))  # in the first, though the second was free for longer
    assert step(s) == ({f: 4, e: 6}, {f})
    assert s.policy.slots == [f, None, e]


def test_who_has_a_slot_has_room_to_the_end():
    s = make("llama.cpp", budget=100, kv_tokens=64)  # 4 blocks
    a, b = added(s, Sequence(16, 17), Sequence(16, 2))  # 3 blocks at the end of a, 2 for b
    assert step(s) == ({a: 16}, {a})
    while not a.is_finished:
        assert step(s) == ({a: 1}, {a})
    assert step(s) == ({b: 16}, {b})


def test_one_that_leaves_before_its_first_token_leaves_its_slot():
    s = make("llama.cpp", budget=10, seqs=2)
    a, b, c = added(s, Sequence(15, 9), Sequence(5, 9), Sequence(6, 9))
    assert step(s) == ({a: 10}, set())  # b has a slot, and no token yet
    s.finish(b)
    assert step(s) == ({a: 5, c: 5}, {a})
