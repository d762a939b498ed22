"""Greenlets that can wait: they let the event loop turn where it has not for long, and stay in
their order."""

import gevent

from locust_llm.client.event_loop_yields import LONG_S, LoopTurns


def test_the_loop_turns_where_it_has_not_for_long() -> None:
    loop = gevent.get_hub().loop
    ages = [2 * LONG_S, LONG_S / 2]
    turns = LoopTurns(clock=lambda: loop.now() + ages.pop(0))
    gevent.sleep(0.001)
    before = loop.iteration
    turns.take()
    assert loop.iteration == before + 1
    turns.take()
    assert (loop.iteration, ages) == (before + 1, [])


def test_a_wall_clock_that_was_set_holds_nobody_up() -> None:
    loop = gevent.get_hub().loop
    turns = LoopTurns(clock=lambda: loop.now() + 3600)
    before = loop.iteration
    turns.take()
    turns.take()
    assert loop.iteration == before + 2


def test_one_after_the_other() -> None:
    loop, done = gevent.get_hub().loop, list[int]()
    ages = [1.0] * 3
    turns = LoopTurns(clock=lambda: loop.now() + ages.pop(0))

    def work(number: int) -> None:
        turns.take()
        done.append(number)

    gevent.joinall([gevent.spawn(work, number) for number in range(3)], raise_error=True)
    assert (done, ages) == ([0, 1, 2], [])
