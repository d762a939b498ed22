"""The supply of sessions: each comes once, and whoever waits for one hears when there are no
more."""

import gevent
import pytest

from locust_llm.gate.gate import GateClosed
from locust_llm.wire.worker_messages import SessionCounts
from locust_llm.worker.send_permits import SessionQueue, SessionTicket


def turn() -> None:
    for _ in range(4):
        gevent.sleep(0)


def test_it_asks_when_it_is_empty_and_when_a_quarter_is_left() -> None:
    asks: list[int] = []
    supply = SessionQueue(lambda: asks.append(1))
    first = gevent.spawn(supply.take)
    turn()
    assert len(asks) == 1
    supply.grant("profiling", [b"a", b"b", b"c", b"d"], over=False)
    turn()
    assert first.value == SessionTicket("profiling", b"a")
    assert [supply.take().item for _ in range(2)] == [b"b", b"c"]
    assert len(asks) == 2  # one of four is left
    assert supply.take().item == b"d"
    assert len(asks) == 2  # the answer is still on its way


def test_the_answer_may_come_at_once() -> None:
    given = iter([b"a", b"b"])

    def answer() -> None:
        item = next(given, None)
        supply.grant("profiling", [] if item is None else [item], over=item is None)

    supply = SessionQueue(answer)
    assert [supply.take().item, supply.take().item] == [b"a", b"b"]
    with pytest.raises(GateClosed):
        supply.take()


def test_the_last_ones_are_taken_and_then_everybody_is_sent_away() -> None:
    supply = SessionQueue(lambda: None)
    users = [gevent.spawn(supply.take) for _ in range(3)]
    turn()
    supply.grant("profiling", [None], over=False)
    turn()
    supply.grant("profiling", [], over=True)
    turn()
    assert users[0].value == SessionTicket("profiling", None)
    assert all(isinstance(user.exception, GateClosed) for user in users[1:])


def test_another_phase_begins_anew() -> None:
    supply = SessionQueue(lambda: None)
    supply.grant("warmup", [b"w", b"x"], over=False)
    supply.grant("profiling", [b"p"], over=False)
    assert supply.take() == SessionTicket("profiling", b"p")
    supply.grant("profiling", [], over=True)
    supply.ask_again("profiling")  # it is still the same one: nothing more
    with pytest.raises(GateClosed):
        supply.take()
    supply.ask_again("another")
    waiter = gevent.spawn(supply.take)
    turn()
    assert not waiter.ready()
    supply.close()
    turn()
    assert isinstance(waiter.exception, GateClosed)


def test_what_was_dealt_is_not_lost_when_something_changes_elsewhere() -> None:
    supply = SessionQueue(lambda: None)
    supply.grant("profiling", [b"a"], over=True)
    supply.ask_again("profiling")
    assert supply.take().item == b"a"


def test_it_tells_how_many_of_a_phase_were_begun_and_how_many_have_ended() -> None:
    supply = SessionQueue(lambda: None)
    supply.grant("warmup", [None, None, None], over=False)
    supply.take()
    supply.take()
    supply.end("warmup")
    assert supply.counts == SessionCounts("warmup", begun=2, ended=1)
    supply.grant("profiling", [b"a"], over=False)
    supply.end("warmup")
    supply.take()
    assert supply.counts == supply.counts == SessionCounts("profiling", begun=1, ended=0)


def test_what_nobody_here_waits_for_is_given_to_others() -> None:
    supply = SessionQueue(lambda: None)
    supply.grant("profiling", [b"a", b"b", b"c", b"d"], over=False)
    supply.take()
    assert supply.release_idle("warmup") == []
    assert supply.release_idle("profiling") == [b"b", b"c", b"d"]
    assert supply.release_idle("profiling") == []
    waiter = gevent.spawn(supply.take)
    turn()
    supply.grant("profiling", [b"e", b"f"], over=False)
    assert supply.release_idle("profiling") == [b"f"]  # the waiter has not had its turn yet
    turn()
    assert waiter.value.item == b"e"
