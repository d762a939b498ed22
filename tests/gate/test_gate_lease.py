"""The lease: nobody is admitted without leave of the control, it hears at once what others wait
for, and with its shares nearly all of the limit is in use and nobody waits much longer than in one
queue.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import gevent
import pytest
from gevent.event import Event
from support.leases import LeasedGate, turn

from locust_llm.gate.gate import Slot
from locust_llm.gate.shares import LEASE_S, GateLease, GateShares, GateStatus, Share


def test_nobody_is_admitted_without_a_lease() -> None:
    one = LeasedGate(users=2)
    one.lease.renew(Share(5, 1))
    turn()
    assert one.gate.used == 0  # said unasked: it may be old
    one.lease.renew(Share(5, 1, limit=9), at=49.0)
    turn()
    assert (one.gate.used, one.slots[0].limit) == (2, 9)
    one.now = 49.0 + LEASE_S
    one.go()
    one.come()
    assert (one.gate.used, one.gate.waiting) == (1, 1)
    one.lease.renew(Share(5, 1), at=one.now)
    turn()
    assert (one.gate.used, one.gate.waiting) == (2, 0)
    one.close()


def test_a_turn_that_came_before_its_lease_is_reported_when_it_is_over() -> None:
    """Its last status says that it uses nothing: the others wait for the next one, which is due at
    once."""
    one = LeasedGate(users=1)
    one.lease.renew(Share(1, 1, turns=1, limit=1, wanted=True))
    one.report_due()
    assert one.gate.used == 0
    one.lease.renew(Share(1, 1, turns=1, limit=1, wanted=True), at=one.now)
    turn()
    assert one.gate.used == 1
    one.due.clear()
    one.go()
    assert one.due.is_set()
    one.close()


def test_who_was_admitted_while_the_process_slept_goes_back_to_the_head_of_the_queue() -> None:
    one = LeasedGate(users=1)
    one.lease.renew(Share(1, 1), at=50.0)
    one.come()
    first, second = one.users
    one.slots[0].release()  # the second is admitted, and before its turn comes the process sleeps
    one.now += LEASE_S + 5
    turn()
    assert (one.gate.used, one.gate.waiting, one.gate.admitted) == (0, 1, 1)
    one.come()
    one.lease.renew(Share(1, 1), at=one.now)
    turn()
    assert second.ready()
    assert not one.users[2].ready()
    one.close()
    assert first.ready()


def test_a_quota_that_was_overtaken_is_void() -> None:
    one = LeasedGate()
    one.lease.renew(Share(3, 2), at=50.0)
    one.lease.renew(Share(7, 1), at=50.0)
    assert (one.gate.share, one.lease.number) == (3, 2)
    one.lease.renew(Share(7, 3))  # unasked, and the lease is good
    assert one.gate.share == 7


def test_it_is_told_at_once_when_a_smaller_quota_is_kept() -> None:
    one = LeasedGate(users=3)
    one.lease.renew(Share(3, 1), at=50.0)
    turn()
    one.report_due()
    one.lease.renew(Share(1, 2))
    assert one.report_due()
    one.go()
    assert one.report_due()
    one.go()
    assert one.report_due()
    one.go()
    assert not one.report_due()  # now it is within its share, and nobody waits for it
    one.close()


def test_it_is_told_at_once_when_somebody_waits_or_a_slot_is_free_that_others_want() -> None:
    one = LeasedGate(users=1)
    one.lease.renew(Share(2, 1, wanted=True), at=50.0)
    turn()
    assert one.report_due()  # one of the two is free
    one.come()
    assert not one.report_due()
    one.come()
    assert one.report_due()  # one waits
    one.come()
    assert not one.report_due()
    one.go()
    one.go()
    assert not one.report_due()  # those who waited are in
    one.go()
    assert one.report_due()
    one.close()


def test_a_turn_is_over_after_its_admissions_and_said_with_the_last_prefill() -> None:
    one = LeasedGate(users=3)
    one.lease.renew(Share(1, 1, turns=2), at=50.0)
    turn()
    one.report_due()
    one.go()
    assert (one.gate.admitted, one.gate.share, one.gate.used) == (2, 0, 1)
    one.report_due()
    one.go()
    assert one.report_due()
    told, again = one.lease.status(), one.lease.status()
    assert (told.used, told.waiting, told.number, told.exhausted) == (0, 1, 1, True)
    assert again.serial == told.serial + 1
    one.lease.renew(Share(1, 1, turns=2), at=50.0)  # the same again: no new turn
    turn()
    assert one.gate.used == 0
    one.lease.renew(Share(1, 2, turns=2), at=50.0)
    turn()
    assert one.gate.used == 1
    one.close()


def test_a_turn_is_over_when_nobody_is_left() -> None:
    one = LeasedGate(users=1)
    one.lease.renew(Share(1, 1, turns=8), at=50.0)
    turn()
    one.report_due()
    one.go()
    assert one.report_due()
    assert one.lease.status().exhausted
    two = LeasedGate()
    two.lease.renew(Share(1, 1, turns=8), at=50.0)
    assert two.report_due()
    assert two.lease.status().exhausted


# -- use and fairness, in virtual time -------------------------------------------------------------

WIRE_S = 0.002
"""How long a message takes."""
AT_ONCE_S, NEWS_S, LOOK_S = 0.005, 0.25, 0.25


class Load:
    """Processes whose users ask again ``think_s`` after their first token; the server takes
    ``prefill_s`` for each."""

    def __init__(self, limit: int, users: list[int], prefill_s: float, think_s: float) -> None:
        self.now, self.number = 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.prefill_s, self.think_s = prefill_s, think_s
        self.used, self.used_s, self.since = 0, 0.0, 0.0
        self.waits_s: list[float] = []
        self.messages = 0
        self.shares = GateShares(self._tell, gated=True)
        self.seats = {
            f"w{number}": Seat(self, f"w{number}", count) for number, count in enumerate(users)
        }
        for name in self.seats:
            self.shares.join(name, 0.0)
        self.shares.set_limit(limit)
        self.at(0.0, self._look)

    def at(self, delay_s: float, do: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.events, (self.now + delay_s, self.number, do))

    def _look(self) -> None:
        self.shares.expire(self.now)
        self.at(LOOK_S, self._look)

    def _tell(self, name: str, share: Share, at: float | None = None) -> None:
        self.messages += 1
        self.at(WIRE_S, lambda: self.seats[name].told(share, at))

    def hear(self, name: str, status: GateStatus, at: float | None) -> None:
        self.messages += 1
        self.shares.update(name, status, self.now)
        if at is not None:
            self._tell(name, self.shares.share(name), at)

    def count(self, change: int) -> None:
        """One more at the server, or one less."""
        self.used_s += self.used * (self.now - self.since)
        self.used, self.since = self.used + change, self.now

    def run(self, seconds: float) -> "Load":
        while self.events[0][0] < seconds:
            self.now, _, do = heappop(self.events)
            do()
            for seat in self.seats.values():
                seat.settle()
        self.now = seconds
        self.count(0)
        for seat in self.seats.values():
            gevent.killall(seat.users)
        return self


class Seat:
    """One process of a load."""

    def __init__(self, load: Load, name: str, users: int) -> None:
        self.load, self.name = load, name
        self.due = Event()
        self.lease = GateLease(self.due, clock=lambda: load.now)
        self.gate = self.lease.gate
        self.users: list[Any] = []
        self.admitted: list[tuple[float, Slot]] = []
        self.free_at = 0.0
        self.pushing = False
        for number in range(users):
            load.at(number * 0.001, self.come)
        load.at(0.0, self.news)

    def come(self) -> None:
        asked_at = self.load.now
        self.users = [user for user in self.users if not user.ready()]
        self.users.append(gevent.spawn(lambda: self.admitted.append((asked_at, self.gate.enter()))))

    def news(self) -> None:
        status, at = self.lease.status(), self.load.now
        self.load.at(WIRE_S, lambda: self.load.hear(self.name, status, at))
        self.load.at(NEWS_S, self.news)

    def push(self) -> None:
        self.pushing, self.free_at = False, self.load.now + AT_ONCE_S
        status = self.lease.status()
        self.load.at(WIRE_S, lambda: self.load.hear(self.name, status, None))

    def told(self, share: Share, at: float | None) -> None:
        self.lease.renew(share, at)

    def through(self, slot: Slot) -> None:
        self.load.count(-1)
        slot.release()
        self.load.at(self.load.think_s, self.come)

    def settle(self) -> None:
        turn()
        for asked_at, slot in self.admitted:
            self.load.waits_s.append(self.load.now - asked_at)
            self.load.count(+1)
            self.load.at(self.load.prefill_s, lambda slot=slot: self.through(slot))
        self.admitted.clear()
        if self.due.is_set() and not self.pushing:
            self.due.clear()
            self.pushing = True
            self.load.at(max(0.0, self.free_at - self.load.now), self.push)


def test_nearly_all_of_the_limit_is_used_where_one_process_has_all_the_demand() -> None:
    load = Load(8, [40, 0, 0, 0], prefill_s=0.1, think_s=0.2).run(10.0)
    assert load.used_s / 80 > 0.98
    assert load.messages / 10 < 60  # a second, whatever the rate of requests: here 80 a second


def test_demand_that_moves_is_followed() -> None:
    """Each process has more users than slots in prefill now and then."""
    load = Load(8, [12, 6, 6, 3], prefill_s=0.1, think_s=0.15).run(10.0)
    alone = Load(8, [27], prefill_s=0.1, think_s=0.15).run(10.0)
    assert load.used_s > 0.95 * alone.used_s
    assert max(load.waits_s) < 2 * max(alone.waits_s)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, pytest.param(2, marks=pytest.mark.full), 3])
@pytest.mark.parametrize(
    "users", [[8, 8, 8, 8], [20, 4, 4, 4], [29, 1, 1, 1], [2, 2, 2, 2]], ids=str
)
def test_below_one_slot_each_nobody_waits_twice_as_long_as_in_one_queue(
    limit: int, users: list[int]
) -> None:
    load = Load(limit, users, prefill_s=0.1, think_s=0.05).run(30.0)
    alone = Load(limit, [sum(users)], prefill_s=0.1, think_s=0.05).run(30.0)
    print(
        f"limit {limit}, users {users}: used {load.used_s / alone.used_s:.1%} of one queue's, "
        f"longest wait "
        f"{max(load.waits_s):.2f} s against {max(alone.waits_s):.2f} s, {load.messages / 30:.0f} "
        f"messages/s"
    )
    assert load.used_s > 0.9 * alone.used_s
    assert max(load.waits_s) < 2 * max(alone.waits_s)
