"""The dispatcher, in virtual time: every arrival goes out once, about a second ahead, evenly over
the processes."""

from collections import Counter
from typing import Any

import msgspec

from locust_llm.controller.arrival_dispatcher import AHEAD_S, Dispatcher, SessionDispatcher
from locust_llm.controller.schedule import DueArrival
from locust_llm.records.control_message import ControlMessage
from locust_llm.wire.worker_messages import Arrivals, ReleaseSessions, SessionCounts
from locust_llm.wire.worker_messages import Sessions as SessionsMessage
from locust_llm.workload.dataset_formats import DatasetSession, Turn


class World:
    def __init__(self, **users: int) -> None:
        self.now = 100.0
        self.sent: list[tuple[Arrivals, str, float]] = []
        self.users = users
        self.dealt: Counter[str] = Counter()
        self.dispatcher = Dispatcher(
            self.send, lambda: self.users, self.deal, clock=lambda: self.now, sleep=self.sleep
        )

    def deal(self, worker: str, count: int) -> None:
        self.dealt[worker] += count

    def send(self, message: ControlMessage, worker: str) -> None:
        assert isinstance(message, Arrivals)
        self.sent.append((message, worker, self.now - 100.0))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def due_of(self, worker: str) -> list[float]:
        return [
            at_s for message, to, _ in self.sent if to == worker for at_s, *_ in message.arrivals
        ]


def test_arrivals_go_out_once_a_second_ahead_and_in_turn() -> None:
    world = World(a=3, b=3)
    dues = [DueArrival(n / 10) for n in range(50)]
    world.dispatcher.deal_out(iter(dues), "profiling", 4999.5, 0.5)
    assert world.dealt == {"a": 25, "b": 25}
    assert sorted(world.due_of("a") + world.due_of("b")) == [due.at_s for due in dues]
    assert world.due_of("a") == [n / 5 for n in range(25)]
    for message, _, sent_s in world.sent:
        assert (message.phase, message.started_at) == ("profiling", 5000.0)
        assert all(
            sent_s - 0.5 <= max(-0.5, at_s - AHEAD_S + 0.11) and at_s <= sent_s - 0.5 + AHEAD_S
            for at_s, *_ in message.arrivals
        )


def test_a_slot_stays_with_its_process() -> None:
    world = World(a=2, b=1)
    world.dispatcher.deal_out((DueArrival(n / 10, n % 3) for n in range(12)), "profiling", 0.0, 0.0)
    slots = {
        worker: {
            slot
            for message, to, _ in world.sent
            if to == worker
            for _, slot, *_ in message.arrivals
        }
        for worker in "ab"
    }
    assert slots == {"a": {0, 1}, "b": {2}}


def test_what_has_been_due_is_counted_not_what_was_dealt_ahead() -> None:
    world = World(a=1)

    def dues() -> Any:
        for n in range(1000):
            if n == 45:
                # 3.4 s have passed, in steps of a tenth
                assert world.dispatcher.due()[0] in (34, 35)
            yield DueArrival(n / 10)

    world.dispatcher.deal_out(dues(), "profiling", 0.0, 0.0)
    world.now += AHEAD_S
    count, span_s = world.dispatcher.due()
    assert (count, round(span_s, 6)) == (1000, 100.0)  # 1,000 arrivals, 0.1 s apart


def test_a_session_counts_with_all_its_turns_and_comes_whole() -> None:
    world = World(a=1)
    item = DatasetSession(
        id="x", turns=(Turn(row=1, input_tokens=5), Turn(row=2, input_tokens=6)), row=1
    )
    world.dispatcher.deal_out(iter([DueArrival(0.0, None, item)]), "profiling", 0.0, 0.0)
    assert world.dealt == {"a": 2}
    (_, _, packed, _) = world.sent[0][0].arrivals[0]
    assert msgspec.msgpack.decode(packed, type=DatasetSession) == item


def test_processes_get_as_many_arrivals_as_they_have_users_for() -> None:
    world = World(a=1, b=3, c=0)
    world.dispatcher.deal_out((DueArrival(n / 10) for n in range(40)), "profiling", 0.0, 0.0)
    assert world.dealt == {"a": 10, "b": 30}


def test_arrivals_wait_for_somebody_to_send_them() -> None:
    world = World()
    slept = world.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if world.now > 103.0:
            world.users = {"a": 1}

    world.dispatcher._sleep = sleep
    world.dispatcher.deal_out((DueArrival(n / 10) for n in range(50)), "profiling", 0.0, 0.0)
    assert world.due_of("a") == [n / 10 for n in range(50)]
    assert world.dispatcher.due()[0] <= 50


def test_slots_follow_the_users_when_processes_come_and_go() -> None:
    """Seven users over two processes, then four on each of three, then one process is lost."""
    world = World(a=4, b=3)

    def dues() -> Any:
        for n in range(7 * 9):
            if n == 21:
                world.users = {"a": 2, "b": 2, "c": 3}
            if n == 42:
                world.users = {"b": 3, "c": 4}
            yield DueArrival(float(n // 7), n % 7)

    world.dispatcher.deal_out(dues(), "profiling", 0.0, 0.0)
    for first, counts in (
        (1.0, {"a": 4, "b": 3}),
        (4.0, {"a": 2, "b": 2, "c": 3}),
        (7.0, {"b": 3, "c": 4}),
    ):
        slots: dict[str, set[int]] = {}
        for message, to, _ in world.sent:
            for at_s, slot, *_ in message.arrivals:
                if at_s == first:
                    slots.setdefault(to, set()).add(slot)
        assert {worker: len(its) for worker, its in slots.items()} == counts
        assert set().union(*slots.values()) == set(range(7))


def test_arrivals_that_come_back_go_to_another() -> None:
    world = World(a=1, b=1)
    world.dispatcher.deal_out(
        (DueArrival(float(n), n % 2) for n in range(4)), "profiling", 5000.0, 0.5
    )
    world.sent.clear()
    world.users = {"a": 2, "b": 0}
    # Unix time, as the other end has it
    assert world.dispatcher.put_back("profiling", [(5003.5, 1, None, "")]) == 1
    ((message, to, _),) = world.sent
    assert (to, message.arrivals, message.started_at) == ("a", [(3.0, 1, None, "")], 5000.5)
    assert world.dispatcher.put_back("warmup", [(5003.5, 1, None, "")]) == 0
    world.users = {}
    assert world.dispatcher.put_back("profiling", [(5003.5, 1, None, "")]) == 0


# -- sessions --------------------------------------------------------------------------------------


class Sessions:
    """A dealer of sessions, and what it sent."""

    def __init__(self, count: int | None, senders: int = 2) -> None:
        self.sent: list[tuple[ControlMessage, str]] = []
        self.overs = 0
        self.said: list[str] = []
        self.dispatcher = SessionDispatcher(
            self._send, lambda: senders, self._over, self.said.append
        )
        self.dispatcher.begin("profiling", None if count is None else map(self._item, range(count)))

    def _item(self, number: int) -> DatasetSession:
        return DatasetSession(id=str(number), turns=(Turn(row=number, input_tokens=1),), row=number)

    def _send(self, message: ControlMessage, worker: str) -> None:
        assert isinstance(message, SessionsMessage | ReleaseSessions)
        assert message.phase == "profiling"
        self.sent.append((message, worker))

    def _over(self) -> None:
        self.overs += 1

    def ask(self, worker: str) -> list[tuple[str, str, Any]]:
        """What is sent then: with the numbers of the sessions, or None when they are over."""
        self.sent.clear()
        self.dispatcher.ask(worker)
        return self.answers()

    def answers(self) -> list[tuple[str, str, Any]]:
        return [
            ("sessions", worker, None if message.last else ids(message.items))
            if isinstance(message, SessionsMessage)
            else ("release", worker, None)
            for message, worker in self.sent
        ]


def ids(items: Any) -> list[int]:
    return [int(msgspec.msgpack.decode(item, type=DatasetSession).id) for item in items]


def packed(*numbers: int) -> list[bytes]:
    return [
        msgspec.msgpack.encode(
            DatasetSession(id=str(number), turns=(Turn(row=number, input_tokens=1),), row=number)
        )
        for number in numbers
    ]


def test_sessions_are_dealt_until_there_are_none_and_all_have_ended() -> None:
    sessions = Sessions(40)
    assert sessions.ask("a") == [("sessions", "a", list(range(32)))]
    assert sessions.ask("b") == [("sessions", "b", list(range(32, 40)))]
    sessions.dispatcher.update("a", SessionCounts("profiling", 32, 30))
    sessions.dispatcher.update("b", SessionCounts("profiling", 8, 8))
    assert sessions.ask("a") == [("sessions", "a", None)]
    assert (sessions.overs, sessions.dispatcher.out) == (0, 2)
    sessions.dispatcher.update("a", SessionCounts("warmup", 50, 50))  # of another phase
    sessions.dispatcher.update("a", SessionCounts("profiling", 32, 32))
    assert sessions.overs == 1
    assert sessions.ask("b") == [("sessions", "b", None)]


def test_who_asks_when_there_are_none_gets_what_others_do_not_begin() -> None:
    sessions = Sessions(10)
    assert sessions.ask("a") == [("sessions", "a", list(range(10)))]
    assert sessions.ask("b") == [("release", "a", None)]
    assert sessions.ask("b") == []  # the answer is still to come
    sessions.sent.clear()
    sessions.dispatcher.update("a", SessionCounts("profiling", 4, 0))
    sessions.dispatcher.put_back("a", packed(4, 5, 6, 7, 8, 9))
    # and the rest for whoever asks next
    assert sessions.answers() == [("sessions", "b", [4, 5, 6])]
    assert sessions.ask("a") == [("sessions", "a", [7])]
    assert sessions.ask("b") == [("sessions", "b", [8])]
    assert sessions.ask("b") == [("sessions", "b", [9])]
    assert sessions.dispatcher.out == 10


def test_without_anything_to_spare_they_are_over() -> None:
    sessions = Sessions(3)
    sessions.ask("a")
    assert sessions.ask("b") == [("release", "a", None)]
    sessions.sent.clear()
    sessions.dispatcher.update("a", SessionCounts("profiling", 3, 0))
    sessions.dispatcher.put_back("a", [])
    assert sessions.answers() == [("sessions", "b", None)]


def test_what_a_lost_process_had_not_begun_goes_to_others_each_once() -> None:
    sessions = Sessions(8)
    sessions.ask("a")
    sessions.dispatcher.update("a", SessionCounts("profiling", 2, 1))
    assert sessions.ask("b") == [("release", "a", None)]
    sessions.sent.clear()
    assert sessions.dispatcher.lost("a", "profiling", (5, 3)) == 2
    assert sessions.answers() == [("sessions", "b", [5])]
    assert [sessions.ask("b")[0][2] for _ in range(3)] == [[6], [7], None]
    sessions.dispatcher.update("b", SessionCounts("profiling", 3, 3))
    assert (sessions.overs, sessions.dispatcher.out) == (1, 0)
    other = Sessions(4)
    other.ask("a")
    # what it last told was of another phase
    assert other.dispatcher.lost("a", "warmup", (9, 9)) == 4


def test_where_nobody_knows_what_a_lost_process_had_begun_nothing_of_it_is_sent_again() -> None:
    sessions = Sessions(4)
    sessions.ask("a")
    sessions.dispatcher.update("a", SessionCounts("profiling", 1, 1))
    assert sessions.dispatcher.lost("a", "profiling", None) == 3
    assert sessions.ask("b") == [("sessions", "b", None)]
    assert sessions.overs == 1


def test_sessions_that_are_made_up_do_not_end() -> None:
    sessions = Sessions(None, senders=4)
    sessions.dispatcher.ask("a")
    assert [
        message.items for message, _ in sessions.sent if isinstance(message, SessionsMessage)
    ] == [[None] * 16]


def test_a_broken_row_ends_the_dataset_and_is_said() -> None:
    sessions = Sessions(2)

    def items() -> Any:
        yield sessions._item(0)
        raise ValueError("row 2 is broken")

    sessions.dispatcher.begin("profiling", items())
    sessions.ask("a")
    assert sessions.said == ["WARNING: the dataset ends early: row 2 is broken"]
