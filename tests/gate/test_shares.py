"""The shares: at no moment can the processes use more than the limit; permits go where requests
wait, and nobody starves."""

import math
from collections import deque
from typing import Any
from unittest.mock import patch

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.leases import LeasedGate, turn

from locust_llm.gate import gate as gates
from locust_llm.gate.gate import Slot
from locust_llm.gate.shares import LEASE_S, SILENT_S, GateShares, GateStatus, Share, apportion

# -- whole numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "ideals", "shares", "parts"),
    [
        (6, [2, 2, 2], [0, 0, 0], [2, 2, 2]),
        (5, [5 / 3] * 3, [0, 0, 0], [2, 2, 1]),
        (5, [5 / 3] * 3, [1, 2, 2], [1, 2, 2]),  # as it is
        (1, [1 / 3] * 3, [0, 1, 0], [0, 1, 0]),
        (0, [0, 0], [3, 1], [0, 0]),
        (7, [7], [2], [7]),
        (5, [2.7, 2.3], [2, 3], [2, 3]),  # each is less than one away
        (5, [3.3, 1.7], [2, 3], [3, 2]),
    ],
)
def test_whole_numbers_by_pencil(
    limit: int, ideals: list[float], shares: list[int], parts: list[int]
) -> None:
    assert apportion(limit, ideals, shares) == parts


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=40),
)
def test_whole_numbers_sum_to_the_limit_each_less_than_one_from_its_ideal(
    limit: int, processes: list[tuple[int, int]]
) -> None:
    total = sum(demand for demand, _ in processes)
    ideals = [limit * demand / total for demand, _ in processes]
    parts = apportion(limit, ideals, [share for _, share in processes])
    assert sum(parts) == limit
    assert all(abs(part - ideal) < 1 for part, ideal in zip(parts, ideals, strict=True))
    assert apportion(limit, ideals, parts) == parts


# -- the control's end, by pencil ------------------------------------------------------------------


class Control:
    """The control's shares, what it sent to the workers, and what they know of it."""

    def __init__(self, limit: int | None, *workers: str) -> None:
        self.now = 100.0
        self.sent: list[tuple[str, Share]] = []
        self.known: dict[str, Share] = {}
        self.shares = GateShares(self._send, gated=limit is not None)
        for worker in workers:
            self.shares.join(worker, self.now)
        self.shares.set_limit(limit)

    def _send(self, worker: str, share: Share) -> None:
        self.sent.append((worker, share))
        self.known[worker] = share

    def report(
        self, worker: str, used: int, waiting: int = 0, **more: Any
    ) -> list[tuple[str, int | None]]:
        """A worker's status, after the last share that was sent to it; the (worker, slots) that are
        sent then."""
        self.sent.clear()
        status = {"number": self.known[worker].number, **more}
        self.shares.update(worker, GateStatus(used, waiting, **status), self.now)
        return [(worker, share.share) for worker, share in self.sent]

    @property
    def slots(self) -> dict[str, int | None]:
        return {worker: share.share for worker, share in self.known.items()}


def test_a_newcomer_gets_its_share_when_the_others_have_given_it_up() -> None:
    control = Control(6, "a", "b")
    assert control.slots == {"a": 3, "b": 3}
    control.report("a", used=3, waiting=5)
    control.report("b", used=3, waiting=5)
    old = control.known["b"].number
    control.sent.clear()
    control.shares.join("c", control.now)
    assert [(worker, share.share) for worker, share in control.sent] == [("c", 0)]
    assert control.report("c", used=0, waiting=8) == [("a", 2), ("b", 2)]
    assert control.report("a", used=3, waiting=5) == []  # one of its three is still in prefill
    assert (
        control.report("b", used=2, waiting=5, number=old) == []
    )  # its last share had not reached it: it may use three
    assert control.report("b", used=2, waiting=5) == [("c", 1)]
    assert control.report("a", used=2, waiting=6) == [("c", 2)]


def test_of_many_processes_shares_change_now_and_then() -> None:
    """Of 40 processes with one request each, one has the only slot. It gives the slot up at once,
    and the next one gets it with the first status after a pause of 0.4 ms."""
    workers = [f"w{i:02}" for i in range(40)]
    control = Control(1, *workers)
    for place, worker in enumerate((*workers, *workers)):
        control.now += 1
        control.report(worker, used=0, waiting=1, waited_s=10.0 - place / 100)
    (holder,) = (worker for worker, slots in control.slots.items() if slots)
    other = next(worker for worker in workers if worker != holder)
    control.now += 1
    assert control.report(other, used=0, waiting=1) == []
    control.now += 1e-4
    assert control.report(holder, used=0, exhausted=True) == []
    control.now += 2e-4
    assert control.report(other, used=0, waiting=1) == []
    control.now += 2e-4
    ((next_one, slots),) = control.report(other, used=0, waiting=1)
    assert (next_one != holder, slots) == (True, 1)


def test_all_of_the_limit_goes_where_all_of_the_demand_is() -> None:
    control = Control(8, "a", "b", "c", "d")
    assert list(control.slots.values()) == [2, 2, 2, 2]
    assert control.report("a", used=2, waiting=20) == [("b", 0), ("c", 0), ("d", 0)]
    assert [control.report(worker, used=0) for worker in "bcd"] == [
        [("a", 4)],
        [("a", 6)],
        [("a", 8)],
    ]
    assert control.report("d", used=0, waiting=1) == [("a", 7)]
    assert control.known["a"].wanted
    assert control.report("a", used=7, waiting=20) == [("d", 1)]


def test_where_there_is_enough_nothing_moves() -> None:
    control = Control(8, "a", "b")
    assert (
        control.report("a", used=3)
        == control.report("b", used=1)
        == control.report("a", used=4)
        == []
    )
    assert control.report("a", used=4, waiting=1) == [("b", 2)]  # of the two to spare each has one
    assert not control.known["b"].wanted
    assert control.report("b", used=1) == [("a", 6)]


def test_below_one_slot_each_they_take_turns_the_longest_waiting_first() -> None:
    control = Control(1, "a", "b", "c")
    assert control.slots == {"a": 1, "b": 0, "c": 0}
    control.report("a", used=1, waiting=5)
    control.report("b", used=0, waiting=2, waited_s=1.0)
    control.report("c", used=0, waiting=2, waited_s=3.0)
    assert control.known["a"] == Share(1, control.known["a"].number, turns=5, limit=1, wanted=True)
    # its last one is in prefill
    assert control.report("a", used=1, waiting=5, exhausted=True) == []
    assert control.report("a", used=0, waiting=5, exhausted=True) == [("c", 1)]
    assert control.known["c"].turns == 2
    assert control.report("c", used=0, waiting=1, exhausted=True) == [("b", 1)]


def test_turns_are_as_long_as_the_queues() -> None:
    control = Control(1, "a", "b", "c", "d")
    control.report("a", used=1, waiting=999)
    for worker in "bcd":
        control.report(worker, used=0, waiting=100, waited_s=1.0)
    control.report("a", used=0, waiting=1000, exhausted=True)
    (turn_of,) = [worker for worker in "bcd" if control.known[worker].share]
    assert control.known[turn_of].turns == 2  # of a round of 32: 100 of the 1,300 that wait
    control.report("a", used=0, waiting=1000, waited_s=2.0)
    control.report(turn_of, used=0, waiting=98, exhausted=True)
    assert (control.known["a"].share, control.known["a"].turns) == (1, 25)


def test_few_with_little_demand_share_a_slot_beside_one_with_much() -> None:
    control = Control(4, "a", "b", "c", "d")
    for worker in "bcd":
        control.report(worker, used=1)
    control.report("a", used=1, waiting=29)
    # by demand a had 3.6 of the 4 slots, the others 0.36 together: one, in turns
    assert [share.turns for share in control.known.values()] == [None, 1, None, None]
    for worker in "cd":
        control.report(worker, used=0, waiting=1)
    assert control.slots == {"a": 3, "b": 1, "c": 0, "d": 0}


def test_a_slot_that_two_have_half_a_right_to_changes_hands() -> None:
    control = Control(3, "a", "b")
    slot_s = {"a": 0.0, "b": 0.0}
    for _ in range(80):
        control.now += 0.25
        control.shares.expire(control.now)
        for worker in slot_s:
            control.report(
                worker,
                used=control.known[worker].share or 0,
                waiting=8 - (control.known[worker].share or 0),
            )
            slot_s[worker] += 0.25 * (control.known[worker].share or 0)
    assert sum(slot_s.values()) >= 59.0  # of 20 s of three slots
    assert abs(slot_s["a"] - slot_s["b"]) <= 2.0


def test_a_silent_process_loses_its_quota_when_its_lease_and_its_prefills_are_over() -> None:
    control = Control(6, "a", "b")
    control.shares.prefill_s = 2.5
    control.report("a", used=3)
    for second in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        control.now = 100.0 + second
        control.report("b", used=3)
        assert control.shares.expire(control.now) == []
    assert control.slots == {"a": 3, "b": 3}
    control.now = 100.0 + SILENT_S + 2.5 + 0.01
    control.sent.clear()
    assert control.shares.expire(control.now) == ["a"]
    assert [(worker, share.share) for worker, share in control.sent] == [("b", 6)]
    # it comes back, with what it had heard before, and with requests in prefill
    # and until that is sure nothing to a
    assert control.report("a", used=2, waiting=1) == [("b", 3)]
    assert control.report("b", used=3) == [("a", 3)]
    assert SILENT_S > LEASE_S


def test_a_status_that_a_later_one_overtook_is_void() -> None:
    """It was true once: three in prefill, of which the control must not believe again."""
    control = Control(3, "a")
    control.shares.set_limit(1)
    control.report("a", used=2, serial=2)
    assert control.shares.reserved == {"a": 2}
    control.report("a", used=3, waiting=5, serial=1)
    assert control.shares.reserved == {"a": 2}
    control.report("a", used=1, serial=3)
    assert control.shares.reserved == {"a": 1}


def test_what_a_dead_one_had_is_free_at_once() -> None:
    control = Control(6, "a", "b")
    control.report("b", used=3, waiting=3)
    control.shares.leave("a")
    assert control.slots["b"] == 6


def test_without_a_limit_there_is_no_gate() -> None:
    control = Control(None, "a")
    assert control.known["a"].share is None
    assert control.report("a", used=50) == []
    control.shares.join("b", 100.0)
    assert control.known["b"].share is None
    control.shares.set_limit(4)
    assert control.slots == {"a": 4, "b": 0}
    control.shares.set_limit(None)
    assert control.slots == {"a": None, "b": None}


def test_nothing_is_admitted_before_the_limit_is_known() -> None:
    control = Control(5)
    early = GateShares(control._send, gated=True)
    early.join("a", 100.0)
    assert control.known["a"].share == 0
    early.update("a", GateStatus(0, 7, 0), 100.0)
    assert control.known["a"].share == 0
    early.set_limit(None)
    assert control.known["a"].share is None


def test_a_limit_after_none_is_shared_out_when_what_runs_without_one_is_known() -> None:
    control = Control(None, "a", "b")
    control.shares.set_limit(4)
    assert control.slots == {"a": 2, "b": 2}
    control.shares.join("c", 100.0)
    assert control.slots["c"] == 0
    control.report("a", used=9)
    control.report("b", used=1, waiting=1)
    control.report("c", used=0, waiting=2)
    # one of which it could do with, and may not have yet
    assert control.slots == {"a": 3, "b": 0, "c": 0}
    control.report("a", used=2, waiting=3)
    assert control.slots == {"a": 2, "b": 1, "c": 0}
    control.report("a", used=2, waiting=3)
    assert control.slots == {"a": 2, "b": 1, "c": 1}


# -- both ends, over a bad wire --------------------------------------------------------------------

PREFILL_S = 2.0


class Process(LeasedGate):
    """One with messages under way. The server has its prefills, and ends them also while it
    sleeps."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.asleep = False
        self.down: deque[tuple[Share, float | None]] = deque()
        self.up: deque[tuple[GateStatus, float]] = deque()
        self.prefills: list[tuple[float, Slot]] = []
        """At the server: (since when, its slot)."""
        self.unread: list[Slot] = []
        """First tokens that are there."""

    def settle(self, now: float) -> None:
        """What its greenlets do when they have their turn: first tokens are read, those who were
        admitted send."""
        turn()
        while not self.asleep and (self.unread or self.slots):
            self.prefills += [(now, slot) for slot in self.slots]
            self.slots.clear()
            while self.unread:
                self.unread.pop().release()
            turn()

    def come(self, now: float, count: int = 1) -> None:  # type: ignore[override]
        if not self.asleep:
            self.users += [gevent.spawn(self._user) for _ in range(count)]
            self.settle(now)

    def end(self, now: float, slots: list[Slot]) -> None:
        """Their first tokens are sent."""
        self.unread += slots
        self.settle(now)

    def obey(self, now: float, place: int, *, once: bool) -> None:
        share, at = self.down[place]
        if not self.asleep:
            if once:
                del self.down[place]
            self.lease.renew(share, at)
            self.settle(now)

    @property
    def could_use(self) -> float:
        """In prefill at the server, or to be sent without another word of the control's; and what
        is promised to it."""
        limit = self.gate.share
        promised = [
            math.inf if share.share is None else share.share
            for share, at in self.down
            if share.number > self.lease.number
            and self.now < max(self.gate.lapses_at, -math.inf if at is None else at + LEASE_S)
        ]
        if limit is None:
            return math.inf
        return max([len(self.prefills), 0 if self.gate.lapsed else limit, *promised])


class Site:
    """Messages are late, lost, doubled and out of order; processes join, are killed, sleep; the
    limit goes up and down."""

    def __init__(self) -> None:
        self.now, self.joined, self.total = 1000.0, 0, 0
        self.shares = GateShares(self._send, gated=True)
        self.shares.prefill_s = PREFILL_S
        self.processes: dict[str, Process] = {}
        self.shares.set_limit(3)

    def _send(self, worker: str, share: Share) -> None:
        if worker in self.processes:
            self.processes[worker].down.append((share, None))

    def do(self, action: str, number: int) -> None:
        """``number`` chooses what else there is to choose."""
        if action == "limit":
            self.shares.set_limit(1 + number % 6)
        elif action == "join":
            self._join(0.9 + number % 3 / 10)
        elif action == "time":
            self._pass((0.01, 0.3, 1.0, 2.5, 4.5)[number % 5])
        elif action == "round":
            self._pass(0.2)
            for name, process in self.processes.items():
                self._speak(name)
                while process.up:
                    self._hear(name, 0, once=True)
                self._obey_all(name)
        elif self.processes:
            number, which = divmod(number, len(self.processes))
            number, once = divmod(number, 2)
            name = list(self.processes)[which]
            if action in ("speak", "hear", "obey", "lose"):
                self._pass_message(action, name, number, once=bool(once))
            else:
                self._change_process(action, name, number)

    def _change_process(self, action: str, name: str, number: int) -> None:
        """What happens in the process itself, and to it."""
        process = self.processes[name]
        if action == "kill":
            process.close()
            del self.processes[name]
            self.shares.leave(name)
        elif action == "sleep or wake":
            process.asleep = not process.asleep
            process.settle(self.now)
        elif action == "come" and process.gate.waiting < 6:
            process.come(self.now, 1 + number % 6)
        elif action == "first token" and process.prefills:
            process.end(self.now, [process.prefills.pop(number % len(process.prefills))[1]])

    def _pass_message(self, action: str, name: str, number: int, *, once: bool) -> None:
        """One message between the control and a process is sent, taken or lost. ``once``: it does
        not come again."""
        process = self.processes[name]
        if action == "speak":
            self._speak(name)
        elif action == "hear":
            self._hear(name, number, once=once)
        elif action == "obey" and process.down:
            process.obey(self.now, number % len(process.down), once=once)
        elif action == "lose":
            way: list[Any] = process.up if once else process.down
            if way:
                del way[number % len(way)]

    def _join(self, rate: float) -> None:
        if len(self.processes) < 5:
            self.joined += 1
            name = f"w{self.joined}"
            self.processes[name] = Process(rate)
            self.shares.join(name, self.now)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for process in self.processes.values():
            process.now += seconds * process.rate
            process.end(
                self.now,
                [slot for since, slot in process.prefills if self.now - since >= PREFILL_S],
            )
            process.prefills = [one for one in process.prefills if self.now - one[0] < PREFILL_S]
        self.shares.expire(self.now)

    def _speak(self, name: str) -> None:
        process = self.processes[name]
        if not process.asleep:
            process.up.append((process.lease.status(), process.now))

    def _hear(self, name: str, place: int, *, once: bool) -> None:
        process = self.processes[name]
        if process.up:
            place %= len(process.up)
            status, at = process.up[place]
            if once:
                del process.up[place]
            self.shares.update(name, status, self.now)
            process.down.append((self.shares.share(name), at))

    def _obey_all(self, name: str) -> None:
        while (process := self.processes[name]).down and not process.asleep:
            process.obey(self.now, 0, once=True)

    def check(self) -> None:
        """No process may use more than the control believes, and that is within the limit; above it
        only what there was when it fell, never rising."""
        reserved = self.shares.reserved
        for name, process in self.processes.items():
            assert process.could_use <= reserved[name], name
        assert self.shares.limit is not None
        assert sum(reserved.values()) <= max(self.shares.limit, self.total)
        self.total = sum(reserved.values())

    def end(self) -> None:
        """From here on nothing is lost and nobody sleeps: everybody who waits gets through."""
        for process in self.processes.values():
            process.asleep = False
            process.up.clear()
            process.down.clear()
            process.settle(self.now)
        for _ in range(100):
            for process in self.processes.values():
                while process.prefills:
                    process.end(self.now, [process.prefills.pop(0)[1]])
            self.do("round", 0)
            self.check()
            if not any(
                process.gate.waiting or process.prefills for process in self.processes.values()
            ):
                break
        else:
            raise AssertionError("somebody waits for ever")
        for process in self.processes.values():
            process.close()


def test_what_a_slow_clock_began_late_is_over_before_its_slots_go_to_others() -> None:
    """Its lease of 3 s lasts 3.33 s here, and a prefill 2 s: both together 5.33 s."""
    site = Site()
    site.do("join", 0)  # 0.9 of its seconds pass in one of ours
    site.do("round", 0)
    (process,) = site.processes.values()
    for seconds in (1.0, 1.0, 1.0, 0.3):
        site._pass(seconds)
    process.come(site.now)
    for _ in range(19):
        assert len(process.prefills) == 1
        site.check()
        site._pass(0.1)
    site._pass(0.11)
    assert (process.could_use, site.shares.reserved) == (0, {"w1": 3})
    site._pass(SILENT_S + PREFILL_S - 3.3 - 2.0)
    assert site.shares.reserved == {"w1": 0}
    process.close()


ACTIONS = (
    *["round", "come", "first token", "obey", "hear", "speak"] * 3, "round", "come", "time", "time",
    "sleep or wake", "lose",
    "limit", "join", "kill",
)  # fmt: skip


@pytest.mark.slow
@examples(100)
@given(st.lists(st.integers(0, 1 << 20), min_size=150, max_size=400))
def test_at_no_moment_could_the_processes_use_more_than_the_limit(numbers: list[int]) -> None:
    site = Site()
    # a gate takes its permits one by one, and these are many gates
    with patch.object(gates, "CEILING", 64):
        for number in [ACTIONS.index("join")] * 3 + numbers:
            site.do(ACTIONS[number % len(ACTIONS)], number // len(ACTIONS))
            site.check()
        site.end()
