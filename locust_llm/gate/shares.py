"""The limit on concurrent prefills, divided into a share for each process, so that it holds over
all of them at any moment.

A share is an absolute number of requests in prefill, with a serial number. It falls at once; it
rises only into what other processes are known to have released: shrink, acknowledge, grow. Shares
follow the demand: requests in prefill or at the gate. Processes whose part of the limit is below
one take turns: one has a share of 1 for so many admissions, then releases it by itself.

A process may use its share only for ``LEASE_S`` after a status of its own that the controller has
answered, by its own clock. The controller gives the share of a silent process to others later than
that. So neither needs to know the clock of the other, nor how long messages take (Gray and
Cheriton, Leases: an efficient fault-tolerant mechanism for distributed file cache consistency, SOSP
1989).

No clock and no messages of its own: the caller passes both.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace, nsmallest
from math import ceil, floor, inf
from typing import Final, NamedTuple

from gevent.event import Event

from locust_llm.gate.gate import Gate
from locust_llm.records.control_message import ControlMessage

LEASE_S: Final = 3.0
"""A process admits nobody when its status has not been answered for so long."""
SILENT_S: Final = 4.0
"""The share of a process that has sent no status for so long, and for the longest prefill more, goes
to the others. Above LEASE_S: clocks differ in their rate, and between an admission and its send lies
a moment."""
ADMISSIONS_PER_ROUND: Final = 8
"""The average admissions of each process before all that take turns have had one turn."""
MAX_DEFICIT_S: Final = 0.5
"""The share seconds by which rounding may favour or harm a process before two change places."""
MANY: Final = 32
DIVISION_S: Final = 1e-5
"""Of more processes than MANY, a status changes the shares only where so long for each of them has
passed since the last time. So this takes a tenth of a core at most, however many there are."""
NO_TURN: Final = 0, None
"""(share, turns) of a process that has no share now."""
UNLIMITED: Final = 1 << 30
"""The share of a process without a gate."""


class GateStatus(ControlMessage, frozen=True):
    """The state of the prefill gate of one process."""

    used: int
    """Requests in prefill."""
    waiting: int
    """Requests at the gate."""
    number: int
    """The serial number of the last share that reached it."""
    exhausted: bool = False
    """The admissions of this share are used up: it may go to another process."""
    waited_s: float = 0.0
    """The seconds for which the first request at the gate has waited so far."""
    serial: int = 0
    """A later status of the process has a higher serial number."""


class Share(ControlMessage, frozen=True):
    """The share of one process in the limit on concurrent prefills."""

    share: int | None
    """None: there is no gate."""
    number: int
    """A later one has a higher number."""
    turns: int | None = None
    """The process gives the share up after so many admissions. None: it keeps the share."""
    limit: int | None = None
    """The limit over all processes."""
    wanted: bool = False
    """Demand is above the limit: a process reports at once when a slot of its share is free."""


class _Process:
    def __init__(self, share: int | None, now: float) -> None:
        self.share = share
        self.turns: int | None = None
        self.number = 0
        self.reserved = 0
        """The requests that it may have in prefill, by its last report."""
        self.used = self.waiting = 0
        self.since = inf
        """When the first request at its gate arrived."""
        self.seen_at = now
        self.heard = 0
        """The serial number of its latest status that came."""
        self.silent = False
        self.fraction: float | None = None
        """Its fractional part of a scarce limit, in proportion to demand. The integer share is
        within one of it."""
        self.deficit = 0.0
        """The share seconds that it lacks."""

    @property
    def demand(self) -> int:
        return self.used + self.waiting

    @property
    def target(self) -> int:
        """Its share, or one more or less where rounding favoured or harmed it for too long."""
        return (self.share or 0) + (self.deficit > MAX_DEFICIT_S) - (self.deficit < -MAX_DEFICIT_S)


def apportion(limit: int, ideals: Sequence[float], shares: Sequence[int]) -> list[int]:
    """Whole numbers that sum to ``limit``, as the ``ideals`` do, each less than one from its ideal.
    Where two would do, the one nearer to the present share is taken."""
    ideals = [round(ideal, 9) for ideal in ideals]
    parts = [
        min(max(share, floor(ideal)), ceil(ideal))
        for ideal, share in zip(ideals, shares, strict=True)
    ]
    over = sum(parts) - limit
    step = 1 if over > 0 else -1
    furthest = [(step * (ideals[at] - parts[at]), at) for at in range(len(parts))]
    heapify(furthest)
    for _ in range(abs(over)):
        place = furthest[0][1]
        parts[place] -= step
        heapreplace(furthest, (step * (ideals[place] - parts[place]), place))
    return parts


class GateShares:
    """``send(worker, share)`` sends a message. ``limit`` holds over all processes; None: there is
    no gate."""

    def __init__(self, send: Callable[[str, Share], object], *, gated: bool) -> None:
        """``gated``: some phase of the run has a limit. Nothing is admitted until the limit is
        known."""
        self.limit: int | None = None
        self.prefill_s = 0.0
        """The longest prefill so far. A request of a silent process may still be in prefill for so
        long."""
        self._send, self._known = send, not gated
        self._updated_at: float | None = None
        self._divided_at = -inf
        self._is_anew = self._is_scarce = False
        """A process has joined since the last division; demand was above the limit then."""
        self._processes: dict[str, _Process] = {}

    def set_limit(self, limit: int | None) -> None:
        self.limit, self._known = limit, True
        self._share_out(anew=True)

    def join(self, worker: str, now: float) -> None:
        """A process joins, and has its orders."""
        if worker not in self._processes:
            self._processes[worker] = _Process(
                None if self._known and self.limit is None else 0, now
            )
        self._send(worker, self.share(worker))
        self._share_out(anew=True)

    def leave(self, worker: str) -> None:
        """A process and its connections are gone for certain: it uses nothing any more."""
        if self._processes.pop(worker, None) is not None:
            self._share_out(anew=True)

    def update(self, worker: str, status: GateStatus, now: float) -> None:
        part = self._processes.get(worker)
        if part is None or status.serial < part.heard:  # a later status overtook it
            return
        part.heard, part.seen_at = status.serial, now
        part.used, part.waiting = status.used, status.waiting
        part.since = now - status.waited_s if status.waiting else inf
        joins, part.silent = part.silent, False
        if status.number == part.number:  # else a share is on its way to it, or lost
            if status.exhausted and part.turns is not None:
                part.share, part.turns = 0, None
            part.reserved = UNLIMITED if part.share is None else max(part.share, status.used)
        self._is_anew = self._is_anew or joins
        count = len(self._processes)
        if count <= MANY or now - self._divided_at >= count * DIVISION_S:
            self._divided_at = now
            self._share_out(anew=self._is_anew)

    def excuse(self, held_s: float) -> None:
        """The controller was stopped, and heard nobody, for so long."""
        for part in self._processes.values():
            part.seen_at += held_s

    def expire(self, now: float) -> list[str]:
        """Give the shares of silent processes to the others, as soon as they cannot be in use any
        more. Returns the processes that have just become silent."""
        patience_s = SILENT_S + self.prefill_s
        passed_s = 0.0 if self._updated_at is None else now - self._updated_at
        self._updated_at = now
        silent = []
        for worker, part in self._processes.items():
            part.deficit += (
                0.0 if part.fraction is None else (part.fraction - (part.share or 0)) * passed_s
            )
            part.deficit = 0.0 if part.fraction is None else min(max(part.deficit, -1.0), 1.0)
            if not part.silent and now - part.seen_at > patience_s:
                silent.append(worker)
                part.silent = True
                part.used = part.waiting = part.reserved = 0
                if self.limit is not None:
                    part.share = 0
                    part.turns = None
                    part.number = part.number + 1
        self._share_out(anew=self._is_anew)
        return silent

    def share(self, worker: str) -> Share:
        part = self._processes[worker]
        if part.share is None:
            return Share(None, part.number)
        return Share(part.share, part.number, part.turns, self.limit, self._is_scarce)

    @property
    def reserved(self) -> dict[str, int]:
        """How many requests each process may have in prefill."""
        return {worker: part.reserved for worker, part in self._processes.items()}

    def _share_out(self, *, anew: bool = False) -> None:
        """With ``anew``, shares change even where each process has what it needs."""
        self._is_anew = False
        demand = reserved = 0
        parts: dict[str, _Process] = {}
        # a master with a thousand workers comes here a hundred times a second: few loops, no calls
        for worker, part in self._processes.items():
            demand += part.used + part.waiting
            reserved += part.reserved
            if not part.silent:
                parts[worker] = part
        self._is_scarce = self.limit is not None and demand > self.limit
        if self.limit is None:
            for worker, part in parts.items():
                if self._known and part.share is not None:
                    self._give(worker, part, None, None)
            return
        targets = self._targets(self.limit, demand, parts, anew)
        growing = list[str]()
        for worker, part in parts.items():
            share, turns = targets.get(worker, NO_TURN)
            turned = (turns is None) != (part.turns is None)
            if part.share is None or share < part.share or (share == part.share > 0 and turned):
                self._give(worker, part, share, turns)
            elif share > part.share:
                growing.append(worker)
        free = self.limit - reserved
        for worker in sorted(growing, key=lambda worker: parts[worker].since):
            part, (target, turns) = parts[worker], targets[worker]
            share = min(target, part.reserved + free)  # whatever the others still use
            if part.share is not None and share > part.share:
                free -= max(0, share - part.reserved)
                self._give(worker, part, share, turns)

    def _give(self, worker: str, part: _Process, share: int | None, turns: int | None) -> None:
        part.share, part.turns = share, turns
        part.reserved = UNLIMITED if share is None else max(part.reserved, share)
        part.number += 1
        self._send(worker, self.share(worker))

    def _targets(
        self, limit: int, total: int, parts: Mapping[str, _Process], anew: bool
    ) -> dict[str, tuple[int, int | None]]:
        """(share, turns) of each process, of which NO_TURN may be left out. ``total`` is the demand
        of all."""
        for part in parts.values():
            part.fraction = None
        if total > limit:
            return self._scarce(limit, total, parts)
        shares = [part.share or 0 for part in parts.values()]
        enough = all(
            share >= part.demand for share, part in zip(shares, parts.values(), strict=True)
        )
        if parts and (anew or not enough or sum(shares) != limit):
            spare = (limit - total) / len(parts)
            shares = apportion(limit, [part.demand + spare for part in parts.values()], shares)
        return {worker: (share, None) for worker, share in zip(parts, shares, strict=True)}

    def _scarce(
        self, limit: int, total: int, parts: Mapping[str, _Process]
    ) -> dict[str, tuple[int, int | None]]:
        """Divide by demand. The processes whose fraction is below one take turns on their common
        part."""
        small: dict[str, _Process] = {}
        large: dict[str, _Process] = {}
        demand_of_small = 0
        for worker, part in parts.items():
            demand = part.used + part.waiting
            if demand * limit >= total:
                large[worker] = part
            elif demand:
                small[worker] = part
                demand_of_small += demand
        pool = round(limit * demand_of_small / total)
        pool = min(max(1, pool), limit - len(large)) if small else 0
        targets = self._turns(pool, small)
        if large:
            rest = limit - pool - len(large)
            demand_of_large = sum(part.demand for part in large.values())
            over = demand_of_large - len(large)
            for part in large.values():
                part.fraction = 1 + rest * (part.demand - 1) / over if over else 1.0
            ideals = [part.fraction or 0.0 for part in large.values()]
            shares = apportion(limit - pool, ideals, [part.target for part in large.values()])
            targets |= {worker: (share, None) for worker, share in zip(large, shares, strict=True)}
        return targets

    def _turns(self, pool: int, small: Mapping[str, _Process]) -> dict[str, tuple[int, int | None]]:
        """Choose whose turn it is: the processes that have a share, then the processes at whose
        gates a request has waited longest."""
        if len(small) <= pool:
            return dict.fromkeys(small, (1, None))
        holders = list[str]()
        others = list[str]()
        waiting = 0
        for worker, part in small.items():
            waiting += part.waiting
            if part.share:
                holders.append(worker)
            elif part.waiting:
                others.append(worker)
        chosen = holders[:pool]
        chosen += nsmallest(pool - len(chosen), others, key=lambda worker: small[worker].since)
        turns = dict[str, tuple[int, int | None]]()
        for worker in chosen:
            own = small[worker].waiting
            fair = round(ADMISSIONS_PER_ROUND * len(small) * own / max(1, waiting))
            turns[worker] = 1, max(1, min(own, fair))
        return turns


# -- the lease -------------------------------------------------------------------------------------


class _State(NamedTuple):
    """What the controller gets at once when it changes in favour of other processes."""

    reserved: int
    """Requests in prefill, or that may start it without a new share."""
    free: int
    """The reserved slots that nobody here needs while others wait."""
    hungry: bool


class GateLease:
    """The gate of one process for one run, and the lease of its share. ``urgent`` is set when the
    control needs a status at once; setting it must not block."""

    def __init__(
        self,
        urgent: Event,
        *,
        shared: bool = True,
        on_enter: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``shared``: other processes have shares too, so nothing is admitted without a lease.
        ``on_enter``: see Gate."""
        self.gate = (
            Gate(0, lapses_at=-inf, on_change=self.changed, on_enter=on_enter, clock=clock)
            if shared
            else Gate(0, on_enter=on_enter, clock=clock)
        )
        self.number = -1
        """The serial number of the last share that came."""
        self._statuses = 0
        self._urgent = urgent
        self._share: int | None = 0
        self._last: int | None = None
        """The admission (by the gate's count) that ends this turn."""
        self._wanted = self._exhausted = False
        self._reported = self._state()

    def renew(self, share: Share, at: float | None = None) -> None:
        """``at`` is when the answered status was sent, in seconds of the gate's clock. None: this
        answers no status."""
        gate, before = self.gate, self._share
        if at is not None:
            gate.lapses_at = max(gate.lapses_at, at + LEASE_S)
        if share.number > self.number:  # else it was overtaken by a later one, or comes again
            self.number, self._share, self._exhausted = share.number, share.share, False
            self._last = None if share.turns is None else gate.admitted + share.turns
        gate.limit, self._wanted = share.limit, share.wanted
        usable = 0 if self._exhausted or gate.lapsed else self._share
        # what the controller believes from here on, though no status has it: after a lapse with the
        # number that there was
        self._reported = self._reported._replace(reserved=max(self._reported.reserved, usable or 0))
        if usable != gate.share:
            gate.set_share(usable)
        if usable is not None and (before is None or usable < before):
            self._urgent.set()  # it may be what others wait for
        self.changed()

    def status(self) -> GateStatus:
        """The status for the controller."""
        self._reported = self._state()
        self._statuses += 1
        gate = self.gate
        return GateStatus(
            gate.used, gate.waiting, self.number, self._exhausted, gate.waited_s, self._statuses
        )

    def _state(self) -> _State:
        gate = self.gate
        share = gate.share
        hungry = gate.waiting > 0
        if share is None:
            return _State(0, 0, False)
        return _State(
            max(share, gate.used),
            0 if hungry or not self._wanted else max(0, share - gate.used),
            hungry,
        )

    def changed(self) -> None:
        """Called in the event loop at each change of the gate."""
        gate = self.gate
        if self._last is not None and not self._exhausted:
            nobody = gate.used == gate.waiting == 0
            if gate.admitted >= self._last or nobody:
                self._exhausted = True
                gate.set_share(0)
        state = self._state()
        reported = self._reported
        if (
            state.reserved < reported.reserved
            or state.free > reported.free
            or state.hungry > reported.hungry
        ):
            self._urgent.set()
