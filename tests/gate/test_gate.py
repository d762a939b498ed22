"""The gate: the limit is never exceeded, slots come back exactly once, waiters stay in order."""

import gevent
import pytest
from gevent import GreenletExit
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.gate.gate import CEILING, Gate, GateClosed
from locust_llm.gate.ramp import follow_limit_steps, make_limit_ramp


def turn() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(3):
        gevent.sleep(0)


def test_a_slot_comes_back_once_however_often_it_is_released() -> None:
    gate = Gate(1)
    slot = gate.enter()
    assert (gate.used, slot.limit) == (1, 1)
    assert slot.release() is True
    assert slot.release() is False
    assert gate.used == 0
    assert gate.enter().release() is True


def test_two_thousand_waiters_stay_in_order() -> None:
    gate, order = Gate(3), []

    def user(number: int) -> None:
        slot = gate.enter()
        order.append(number)
        assert gate.used <= 3
        gevent.sleep(0)
        slot.release()

    users = [gevent.spawn(user, number) for number in range(2000)]
    gevent.joinall(users, raise_error=True)
    assert order == list(range(2000))


def test_a_newcomer_of_the_same_turn_does_not_overtake() -> None:
    gate, order = Gate(1), []
    held = gate.enter()
    waiter = gevent.spawn(lambda: (gate.enter(), order.append("waited")))
    turn()
    held.release()  # handed over at once, though the waiter has not run yet
    newcomer = gevent.spawn(lambda: (gate.enter(), order.append("newcomer")))
    turn()
    assert order == ["waited"]
    gevent.killall([waiter, newcomer])


def test_a_gate_is_crowded_when_more_wait_than_it_has_slots() -> None:
    gate, seen = Gate(2), []
    for _ in range(5):
        gevent.spawn(gate.enter)
        turn()
        seen.append((gate.waiting, gate.crowded))
    assert seen == [(0, False), (0, False), (1, False), (2, False), (3, True)]
    gate.set_limit(None)  # all are through
    turn()
    assert (gate.waiting, gate.crowded) == (0, False)


def test_a_lower_limit_is_a_debt_that_is_paid_before_any_waiter() -> None:
    gate, order = Gate(3), []
    slots = [gate.enter() for _ in range(3)]
    waiter = gevent.spawn(lambda: (gate.enter(), order.append("in")))
    turn()
    gate.set_limit(1)
    assert gate.used == 3  # what runs goes on
    slots.pop().release()
    slots.pop().release()
    turn()
    assert (gate.used, order) == (1, [])
    slots.pop().release()
    turn()
    assert (gate.used, order) == (1, ["in"])
    waiter.kill()


def test_a_higher_limit_lets_the_oldest_in_at_once() -> None:
    gate, order = Gate(0), []
    waiters = [gevent.spawn(lambda n=n: (gate.enter(), order.append(n))) for n in range(5)]
    turn()
    gate.set_limit(2)
    turn()
    assert order == [0, 1]
    gate.set_limit(None)
    turn()
    assert order == [0, 1, 2, 3, 4]
    gevent.joinall(waiters)


def test_killed_while_waiting_and_killed_after_the_hand_over() -> None:
    gate = Gate(1)
    held = gate.enter()
    first, second = gevent.spawn(gate.enter), gevent.spawn(gate.enter)
    turn()
    first.kill()
    assert gate.waiting == 1
    second.kill(block=False)
    held.release()  # the second is admitted, and the kill reaches it before its turn
    second.join()
    assert isinstance(second.value, GreenletExit)
    assert (gate.used, gate.waiting) == (0, 0)
    gate.enter().release()


def test_a_slot_knows_the_limit_at_which_it_was_given() -> None:
    gate = Gate(0)
    waiter = gevent.spawn(gate.enter)
    turn()
    gate.set_limit(5)
    gate.set_limit(1)  # before the waiter has its turn
    waiter.join()
    assert waiter.value is not None
    assert waiter.value.limit == 5
    waiter.value.release()
    assert (gate.used, gate.enter().limit) == (0, 1)


def test_closing_turns_waiters_away_and_keeps_who_is_in() -> None:
    gate = Gate(1)
    held = gate.enter()
    results = []

    def user() -> None:
        try:
            gate.enter()
        except GateClosed:
            results.append("turned away")

    waiting = gevent.spawn(user)
    turn()
    gate.close()
    waiting.join()
    assert results == ["turned away"]
    assert held.release() is True
    with pytest.raises(GateClosed):
        gate.enter()


def test_the_bound_catches_a_permit_that_was_never_taken() -> None:
    gate = Gate(2)

    def too_often() -> None:
        for _ in range(CEILING):
            gate._give_back()

    with pytest.raises(ValueError, match="released too many times"):
        too_often()


def test_the_ramp_of_the_seed_page_steps_at_7_5_15_22_5_and_30_s() -> None:
    assert list(make_limit_ramp(5, 30)) == [(0, 1), (7.5, 2), (15, 3), (22.5, 4), (30, 5)]
    assert list(make_limit_ramp(1, 30)) == [(0, 1)]
    assert list(make_limit_ramp(4, None)) == [(0, 4)]
    assert list(make_limit_ramp(3, 6, 6)) == [(0, 6), (2, 5), (4, 4), (6, 3)]
    assert list(make_limit_ramp(6, 1, 4)) == [(0, 4), (0.5, 5), (1, 6)]
    assert list(make_limit_ramp(4, 9, 4)) == [(0, 4)]


def test_following_a_ramp_does_not_add_up_lateness() -> None:
    now, seen = [100.0], []

    def set_limit(limit: int) -> None:
        seen.append((now[0] - 100, limit))

    def sleep(seconds: float) -> None:
        now[0] += seconds + 0.4  # always 0.4 s late

    follow_limit_steps(set_limit, make_limit_ramp(5, 30), clock=lambda: now[0], sleep=sleep)
    assert [limit for _, limit in seen] == [1, 2, 3, 4, 5]
    assert [at for at, _ in seen] == pytest.approx([0, 7.9, 15.4, 22.9, 30.4])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("kill"), st.integers(0, 30)),
        st.tuples(st.just("limit"), st.integers(0, 6)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=60,
)


@examples(200)
@given(ACTIONS)
def test_any_history_keeps_the_limit_the_order_and_every_slot(
    actions: list[tuple[str, int]],
) -> None:
    """Against a plain list: who is in never exceeds the limit except after a fall, and the queue is
    first in first out."""
    gate, limit = Gate(2), 2
    inside: dict[int, object] = {}
    users, order, asked, killed = {}, [], [], set()

    def user(number: int) -> None:
        slot = gate.enter()
        inside[number] = slot
        order.append(number)

    for action, place in actions:
        before = len(inside)
        if action == "enter":
            number = len(users)
            users[number] = gevent.spawn(user, number)
            asked.append(number)
        elif action == "release" and inside:
            number = sorted(inside)[place % len(inside)]
            inside.pop(number).release()
        elif action == "kill" and users:
            number = place % len(users)
            if number not in inside and number not in order:
                users[number].kill()
                killed.add(number)
        elif action == "limit":
            limit = place
            gate.set_limit(limit)
        turn()
        assert len(inside) <= max(limit, before)  # above the limit only what was in before it fell
        assert gate.used == len(inside)
        if gate.waiting:
            assert gate.used >= limit  # nobody waits beside a free slot
    assert order == [number for number in asked if number not in killed][: len(order)]
    gevent.killall(list(users.values()))
    for slot in inside.values():
        slot.release()
    assert (gate.used, gate.waiting) == (0, 0)


def test_seconds_of_requests_by_pencil() -> None:
    """One in prefill from 0 to 3 s, another waits from 1 to 3 s, then is in prefill to 3.5 s."""
    now = [0.0]
    gate = Gate(1, clock=lambda: now[0])
    first = gate.enter()
    now[0] = 1.0
    other = gevent.spawn(gate.enter)
    gevent.sleep(0)
    now[0] = 2.0
    assert (gate.used_seconds.total, gate.waiting_seconds.total) == (2.0, 1.0)
    now[0] = 3.0
    first.release()
    second = other.get(timeout=1)
    now[0] = 3.5
    second.release()
    now[0] = 9.0
    assert (gate.used_seconds.total, gate.waiting_seconds.total) == (3.5, 2.0)


def test_who_is_turned_away_or_admitted_by_a_higher_limit_waits_no_longer() -> None:
    now = [0.0]
    gate = Gate(0, clock=lambda: now[0])
    waiting = [gevent.spawn(gate.enter) for _ in range(3)]
    gevent.sleep(0)
    now[0] = 1.0
    gate.set_limit(2)
    now[0] = 3.0
    gate.close()
    now[0] = 9.0
    assert gate.waiting_seconds.total == 3 * 1.0 + 1 * 2.0
    assert gate.used_seconds.total == 2 * 8.0
    gevent.joinall(waiting, timeout=1)
