"""Permits: N asked for is N sent, over any number of processes, in whatever order messages and
requests end."""

from collections import deque
from functools import partial

import gevent
import pytest
from gevent import GreenletExit
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.gate.gate import GateClosed
from locust_llm.records.phase_plan import OVER, PROFILING, UNCOUNTED_SHARE, WARMUP, PhasePlan
from locust_llm.worker.send_permits import Permit, PermitQueue


def turn() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(4):
        gevent.sleep(0)


# -- one process -----------------------------------------------------------------------------------


def phase(budget: PermitQueue) -> str:
    return budget.take().phase


class Asks:
    """A budget, and how often it asked."""

    def __init__(self) -> None:
        self.count = 0
        self.budget = PermitQueue(self._ask)

    def _ask(self) -> None:
        self.count += 1


def test_a_user_that_shall_go_waits_no_longer_but_within_a_session() -> None:
    budget = PermitQueue(lambda: None)
    first, second = gevent.spawn(budget.take, 1), gevent.spawn(budget.take, 2)
    later = gevent.spawn(partial(budget.take, 3, later=True))
    turn()
    budget.dismiss(1)
    budget.dismiss(3)
    turn()
    assert isinstance(first.exception, GateClosed)
    budget.grant(PROFILING, 2)
    turn()
    assert (second.value.phase, later.value.phase) == (PROFILING, PROFILING)


def test_it_asks_once_and_again_when_a_quarter_is_left() -> None:
    asks = Asks()
    user = gevent.spawn(phase, asks.budget)
    turn()
    assert asks.count == 1
    asks.budget.grant(WARMUP, 8)
    turn()
    assert user.value == WARMUP
    for _ in range(4):
        asks.budget.take()
    assert asks.count == 1
    asks.budget.take()  # two of eight are left
    assert asks.count == 2
    asks.budget.take()
    asks.budget.take()
    assert asks.count == 2  # the answer is still on its way


def test_the_answer_may_come_at_once() -> None:
    plan = PhasePlan(None, 3)
    budget = PermitQueue(lambda: budget.grant(plan.phase, plan.grant(1)))
    assert [phase(budget) for _ in range(3)] == [PROFILING] * 3


def test_an_empty_answer_is_not_asked_about_again_until_something_changed() -> None:
    asks = Asks()
    user = gevent.spawn(phase, asks.budget)
    turn()
    asks.budget.grant(WARMUP, 0)
    turn()
    second = gevent.spawn(phase, asks.budget)
    turn()
    assert asks.count == 1
    asks.budget.ask_again()
    turn()
    assert asks.count == 2
    asks.budget.grant(PROFILING, 2)
    turn()
    assert (user.value, second.value) == (PROFILING, PROFILING)


def test_a_share_of_plenty_does_not_end() -> None:
    asks = Asks()
    users = [gevent.spawn(phase, asks.budget) for _ in range(50)]
    turn()
    asks.budget.grant(PROFILING, UNCOUNTED_SHARE)
    turn()
    assert [user.value for user in users] == [PROFILING] * 50
    assert [phase(asks.budget) for _ in range(10_000)] == [PROFILING] * 10_000
    asks.budget.put_back(Permit(PROFILING))
    assert phase(asks.budget) == PROFILING
    assert (asks.count, asks.budget.release_all()) == (1, UNCOUNTED_SHARE - 50 - 10_000)


def test_closing_wakes_everyone() -> None:
    asks, turned_away = Asks(), []

    def user(number: int) -> None:
        try:
            asks.budget.take()
        except GateClosed:
            turned_away.append(number)

    users = [gevent.spawn(user, number) for number in range(20)]
    turn()
    asks.budget.close()
    turn()
    assert turned_away == list(range(20))
    assert all(user.ready() for user in users)
    with pytest.raises(GateClosed):
        asks.budget.take()

    other = Asks().budget
    other.grant(PROFILING, 7)
    other.take()
    assert other.close() == 0  # nothing of it had been due
    with pytest.raises(GateClosed):
        other.take()


def test_the_share_of_a_killed_waiter_goes_to_the_next() -> None:
    budget = Asks().budget
    gone, doomed, heir = (gevent.spawn(phase, budget) for _ in range(3))
    turn()
    gone.kill()
    doomed.kill(block=False)
    budget.grant(PROFILING, 1)  # it is the turn of the doomed one, and the kill comes first
    turn()
    assert isinstance(doomed.value, GreenletExit)
    assert (heir.value, budget.release_all()) == (PROFILING, 0)


def test_what_is_left_of_an_earlier_phase_is_void() -> None:
    budget = Asks().budget
    budget.grant(WARMUP, 5)
    budget.take()
    budget.grant(PROFILING, 2)
    assert (phase(budget), budget.release_all()) == (PROFILING, 1)


def test_release_all_gives_up_the_share_and_asks_for_another_when_somebody_comes() -> None:
    asks = Asks()
    asks.budget.grant(PROFILING, 5)
    asks.budget.take()
    assert (asks.budget.release_all(), asks.budget.release_all(), asks.count) == (4, 0, 0)
    user = gevent.spawn(phase, asks.budget)
    turn()
    assert asks.count == 1
    asks.budget.grant(PROFILING, 2)
    turn()
    assert (user.value, asks.budget.release_all()) == (PROFILING, 1)


def test_put_back_serves_who_waits() -> None:
    budget = Asks().budget
    budget.grant(PROFILING, 1)
    budget.take()
    waiter = gevent.spawn(phase, budget)
    turn()
    assert not waiter.ready()
    budget.put_back(Permit(PROFILING))
    turn()
    assert waiter.value == PROFILING


# -- many processes, any history -------------------------------------------------------------------


class World:
    """A plan, and processes that ask it over messages which take their time; a process's questions,
    its records and its answers each keep their order, and nothing else does."""

    def __init__(self, warmup: int | None, count: int, users: list[int]) -> None:
        self.plan = PhasePlan(warmup, count)
        self.wants: list[deque[None]] = [deque() for _ in users]
        self.answers: list[deque[tuple[str, int] | None]] = [deque() for _ in users]
        self.records: list[deque[str]] = [deque() for _ in users]
        self.backs: list[deque[tuple[str, int]]] = [deque() for _ in users]
        self.budgets = [PermitQueue(partial(wants.append, None)) for wants in self.wants]
        self.running: dict[Event, bool] = {}
        """The requests that run, and whether each will have been sent when it ends."""
        self.sent: list[str] = []
        self.over = 0
        self.places = [place for place, many in enumerate(users) for _ in range(many)]
        self.users = [gevent.spawn(self._user, place) for place in self.places]
        turn()

    def _user(self, place: int) -> None:
        while True:
            try:
                permit = self.budgets[place].take()
            except GateClosed:
                return
            end = Event()
            self.running[end] = True
            try:
                end.wait()
            finally:  # killed: then it was cut, which is recorded like everything else
                if self.running.pop(end):
                    self.sent.append(permit.phase)
                    self.records[place].append(permit.phase)
                else:
                    self.budgets[place].put_back(permit)

    def end(self, which: int, sent: bool) -> None:
        if self.running:
            event = list(self.running)[which % len(self.running)]
            self.running[event] = sent
            event.set()

    def kill(self, which: int) -> None:
        """Wherever it is; another takes its place, as Locust would see to."""
        user = which % len(self.users)
        self.users[user].kill(block=False)
        self.users[user] = gevent.spawn(self._user, self.places[user])

    def desert(self, place: int) -> None:
        """All users of a process leave it for good, unless they are the last ones."""
        stay = [
            (user, where)
            for user, where in zip(self.users, self.places, strict=True)
            if where != place
        ]
        if stay:
            gone = [
                user for user, where in zip(self.users, self.places, strict=True) if where == place
            ]
            self.users, self.places = [user for user, _ in stay], [where for _, where in stay]
            gevent.killall(gone, block=False)

    def release_all(self, place: int) -> None:
        budget = self.budgets[place]
        if place not in self.places and (left := budget.release_all()):
            self.backs[place].append((budget.phase, left))

    def hear_back(self, place: int) -> None:
        if self.backs[place]:
            self.plan.put_back(*self.backs[place].popleft())
            for answers in self.answers:
                answers.append(None)

    def hear_want(self, place: int) -> None:
        if self.wants[place]:
            self.wants[place].popleft()
            phase = self.plan.phase
            self.answers[place].append((phase, self.plan.grant(len(self.budgets))))

    def hear_answer(self, place: int) -> None:
        if self.answers[place]:
            answer = self.answers[place].popleft()
            if answer is None:
                self.budgets[place].ask_again()
            else:
                self.budgets[place].grant(*answer)

    def hear_record(self, place: int) -> None:
        if self.records[place] and self.plan.returned(self.records[place].popleft(), 1):
            self.over += self.plan.phase == OVER
            for answers in self.answers:
                answers.append(None)

    def do(self, action: str, which: int) -> None:
        place = which % len(self.budgets)
        if action in ("end", "put back"):
            self.end(which, sent=action == "end")
        elif action == "kill":
            self.kill(which)
        else:
            getattr(self, action)(place)

    def run_on(self) -> None:
        """Until nothing moves any more."""
        for place in range(len(self.budgets)):
            self.release_all(place)
        while self.running or any(map(len, self.wants + self.answers + self.records + self.backs)):
            for place in range(len(self.budgets)):
                for action in MESSAGES:
                    self.do(action, place)
            self.end(0, sent=True)
            turn()


MESSAGES = ("hear_want", "hear_answer", "hear_record", "release_all", "hear_back")
ACTIONS = st.tuples(
    st.sampled_from(["end", "put back", "kill", *MESSAGES, "desert"]), st.integers(0, 60)
)


@examples(200)
@given(
    warmup=st.none() | st.integers(1, 12),
    count=st.integers(1, 40),
    users=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    # an action, and whether the greenlets get a turn before the next
    actions=st.lists(st.tuples(ACTIONS, st.booleans()), min_size=40, max_size=160),
)
def test_exactly_n_are_sent_whatever_happens(
    warmup: int | None, count: int, users: list[int], actions: list[tuple[tuple[str, int], bool]]
) -> None:
    """Processes without users or left by them, users killed while they wait or send, requests taken
    and not sent."""
    world = World(warmup, count, users)
    for action, pause in actions:
        world.do(*action)
        if pause:
            turn()
    turn()
    world.run_on()
    assert world.sent == [WARMUP] * (warmup or 0) + [PROFILING] * count
    assert (world.plan.phase, world.over) == (OVER, 1)
    assert [budget.release_all() for budget in world.budgets] == [0] * len(users)
    for budget in world.budgets:
        budget.close()
    turn()
    assert all(user.ready() for user in world.users)


# -- arrivals --------------------------------------------------------------------------------------


def arrival(due_at: float, slot: int | None = None) -> Permit:
    return Permit(PROFILING, due_at, slot)


def test_arrivals_go_in_their_order_to_who_waited_longest() -> None:
    budget = Asks().budget
    users = [gevent.spawn(budget.take, number) for number in range(3)]
    turn()
    budget.arrive([arrival(1.0), arrival(2.0)])
    turn()
    assert [user.value for user in users] == [arrival(1.0), arrival(2.0), None]
    budget.arrive([arrival(3.0), arrival(4.0), arrival(5.0)])
    turn()
    assert users[2].value == arrival(3.0)
    assert [budget.unreserved(until) for until in (4.0, 4.5, 9.0)] == [0, 1, 2]
    assert budget.take() == arrival(4.0)
    assert budget.close(now=4.9) == 0
    other = Asks().budget
    other.arrive([arrival(1.0), arrival(2.0), arrival(3.0)])
    assert other.close(now=2.5) == 2  # the third was not due yet


def test_a_session_that_goes_on_comes_before_new_ones() -> None:
    budget = Asks().budget
    new = gevent.spawn(budget.take, 1)
    turn()
    later = gevent.spawn(lambda: budget.take(2, later=True))
    turn()
    budget.arrive([arrival(1.0)])
    turn()
    assert (later.value, new.value) == (arrival(1.0), None)


def test_an_arrival_that_was_taken_and_not_used_comes_again_in_its_order() -> None:
    budget = Asks().budget
    budget.arrive([arrival(1.0), arrival(2.0), arrival(3.0)])
    first, second = budget.take(), budget.take()
    budget.put_back(second)
    budget.put_back(first)
    assert [budget.take().due_at for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_slot_belongs_to_one_user_and_a_user_has_one_slot() -> None:
    budget = Asks().budget
    budget.arrive([arrival(n / 2, n % 2) for n in range(4)])
    assert [budget.take(user) for user in (7, 8, 8, 7)] == [
        arrival(0.0, 0), arrival(0.5, 1), arrival(1.5, 1), arrival(1.0, 0),
    ]  # fmt: skip
    stranger = gevent.spawn(budget.take, 9)
    budget.arrive([arrival(2.0, 0)])
    turn()
    assert stranger.value is None  # it is user 7's, however long that one takes
    budget.leave(7)
    budget.arrive([arrival(3.0, 0)])
    turn()
    assert stranger.value == arrival(2.0, 0)


def test_what_nobody_here_waits_for_is_given_to_others() -> None:
    asks = Asks()
    asks.budget.grant(PROFILING, 5)
    asks.budget.take()
    assert asks.budget.release_idle() == 4
    assert asks.budget.release_idle() == 0
    user = gevent.spawn(phase, asks.budget)
    turn()
    assert asks.count == 1  # it may ask again
    asks.budget.grant(PROFILING, 1)
    assert asks.budget.release_idle() == 0
    turn()
    assert user.value == PROFILING


def test_arrivals_that_nobody_here_can_have_are_given_up() -> None:
    budget = Asks().budget
    budget.arrive([arrival(1.0), arrival(2.0)])
    assert budget.unassignable(3) == []
    assert budget.unassignable(0) == [arrival(1.0), arrival(2.0)]
    assert budget.unreserved(9.0) == 0
    budget.arrive([arrival(n / 2, n % 3) for n in range(6)])
    assert budget.take(7).slot == 0
    assert budget.unassignable(3) == []  # of its three slots one is taken, and two users are free
    assert [permit.slot for permit in budget.unassignable(2)] == [2, 2]
    assert [permit.slot for permit in budget.unassignable(1)] == [1, 1]
    assert [budget.take(7).due_at] == [1.5]


def test_the_last_arrivals_of_a_warmup_come_before_those_of_the_load_that_goes_on() -> None:
    budget = Asks().budget
    budget.arrive([Permit(WARMUP, 1.0), Permit(WARMUP, 2.0), arrival(3.0)])
    assert [budget.take() for _ in range(3)] == [
        Permit(WARMUP, 1.0), Permit(WARMUP, 2.0), arrival(3.0)
    ]  # fmt: skip


def test_arrivals_of_an_earlier_stage_are_void_and_release_all_gives_them_up() -> None:
    budget = Asks().budget
    earlier = "profiling 1"
    budget.arrive([Permit(earlier, 1.0), Permit(earlier, 2.0), arrival(3.0), arrival(4.0)])
    assert budget.take() == arrival(3.0)
    assert (budget.release_all(), budget.unreserved(9.0)) == (0, 1)
    assert (budget.release_all(arrivals=True), budget.unreserved(9.0)) == (1, 0)
