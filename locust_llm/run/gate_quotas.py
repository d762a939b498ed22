"""The quotas: the global limit divided over the processes that send, so that it holds at every moment.

A quota is a number of slots, absolute and numbered. It falls at once; it rises only into what the others have given up
for certain: shrink, acknowledge, grow. Quotas follow the demand: requests in prefill or at the gate. Processes whose share
of the limit is below one slot take turns: one has a slot for so many admissions, then gives it up by itself.

A process may use its quota only for ``LEASE_S`` after a word of its own that the control has answered, by its own clock.
The control gives the quota of a silent one away later than that. So neither needs to know the clock of the other, nor how
long messages take (Gray and Cheriton, Leases: an efficient fault-tolerant mechanism for distributed file cache consistency,
SOSP 1989).

No clock and no messages of its own: whoever holds it passes both.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf
from typing import Any, Final, NamedTuple

from gevent.event import Event

from locust_llm.client.gate import Gate

LEASE_S: Final = 3.0
"""A process whose words have not been answered for so long admits nobody."""
SILENT_S: Final = 4.0
"""The quota of a process that has said nothing for so long goes to the others. Above LEASE_S: clocks differ in their rate,
and between an admission and its send lies a moment."""
ROUND: Final = 8
"""Admissions of each process, on average, until all that take turns have had one."""
OWED: Final = 0.5
"""Slot seconds that a process has had too few or too many, by rounding, before two change places."""
UNLIMITED: Final = 1 << 30
"""What a process may be using that was told of no limit."""


class Quota(NamedTuple):
    """What a process is told."""

    limit: int | None
    """Slots; None: no gate."""
    number: int
    """A later one has a higher number."""
    turns: int | None = None
    """After so many admissions the process gives it up by itself; None: it keeps it."""
    total: int | None = None
    """The limit over all processes."""
    wanted: bool = False
    """There are more requests than slots: say at once when one is free."""


class GateStatus(NamedTuple):
    """What a process says."""

    used: int
    """Requests in prefill."""
    waiting: int
    """At the gate."""
    number: int
    """Of the last quota that reached it."""
    spent: bool = False
    """It has given that one up."""
    waited_s: float = 0.0
    """For how long the first at the gate has waited."""


class _Part:
    """What is known of one process."""

    def __init__(self, quota: int | None, now: float) -> None:
        self.quota = quota
        self.turns: int | None = None
        self.number = 0
        self.held = 0
        """As many slots as it may still be using."""
        self.used = self.waiting = 0
        self.since = inf
        """When the first at its gate came there."""
        self.heard_at = now
        self.silent = False
        self.ideal: float | None = None
        """Slots by demand, where there are too few; of whole ones it has one more or less."""
        self.owed = 0.0
        """Slot seconds that it had too few."""

    @property
    def demand(self) -> int:
        return self.used + self.waiting

    @property
    def wish(self) -> int:
        """The slots that there are, or one more or less where the rounding was against it, or for it, for too long."""
        return (self.quota or 0) + (self.owed > OWED) - (self.owed < -OWED)


def apportion(limit: int, ideals: Sequence[float], quotas: Sequence[int]) -> list[int]:
    """Whole numbers that sum to ``limit``, as the ``ideals`` do, each less than one from its ideal; where two would do, the
    one that is nearer to the quota that there is."""
    ideals = [round(ideal, 9) for ideal in ideals]
    parts = [min(max(quota, floor(ideal)), ceil(ideal)) for ideal, quota in zip(ideals, quotas, strict=True)]
    while (over := sum(parts) - limit) != 0:
        step = 1 if over > 0 else -1
        place = max(range(len(parts)), key=lambda at: step * (parts[at] - ideals[at]))
        parts[place] -= step
    return parts


class Quotas:
    """``tell(worker, quota)`` sends a message. ``limit``: over all processes; None: no gate."""

    def __init__(self, tell: Callable[[str, Quota], object], *, gated: bool) -> None:
        """``gated``: in some phase of the run there is a limit, so until it is known nothing is admitted."""
        self.limit: int | None = None
        self.prefill_s = 0.0
        """The longest prefill seen so far: so long a request may still be in prefill whose process is silent."""
        self._tell, self._known = tell, not gated
        self._looked_at: float | None = None
        self._parts: dict[str, _Part] = {}

    def set_limit(self, limit: int | None) -> None:
        """From now on."""
        self.limit, self._known = limit, True
        self._share_out(anew=True)

    def join(self, worker: str, now: float) -> None:
        """A process is there, and has its orders."""
        if worker not in self._parts:
            self._parts[worker] = _Part(None if self._known and self.limit is None else 0, now)
        self._tell(worker, self.quota(worker))
        self._share_out(anew=True)

    def leave(self, worker: str) -> None:
        """A process is gone for certain, and its connections with it: it uses nothing any more."""
        if self._parts.pop(worker, None) is not None:
            self._share_out(anew=True)

    def heard(self, worker: str, stand: GateStatus, now: float) -> None:
        """A process says how it stands."""
        part = self._parts.get(worker)
        if part is None:
            return
        part.heard_at, part.used, part.waiting = now, stand.used, stand.waiting
        part.since = now - stand.waited_s if stand.waiting else inf
        joins, part.silent = part.silent, False
        if stand.number == part.number:  # else a quota is on its way to it, or lost
            if stand.spent and part.turns is not None:
                part.quota, part.turns = 0, None
            part.held = UNLIMITED if part.quota is None else max(part.quota, stand.used)
        self._share_out(anew=joins)

    def look(self, now: float) -> list[str]:
        """Time has passed: what silent processes had goes to the others, as soon as it can be in use no more. Those that
        have just become silent."""
        patience_s = max(SILENT_S, LEASE_S + self.prefill_s)
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        silent = []
        for worker, part in self._parts.items():
            part.owed += 0.0 if part.ideal is None else (part.ideal - (part.quota or 0)) * passed_s
            part.owed = 0.0 if part.ideal is None else min(max(part.owed, -1.0), 1.0)
            if not part.silent and now - part.heard_at > patience_s:
                silent.append(worker)
                part.silent = True
                part.used = part.waiting = part.held = 0
                if self.limit is not None:
                    part.quota, part.turns, part.number = 0, None, part.number + 1
        self._share_out()
        return silent

    def quota(self, worker: str) -> Quota:
        """What this process is to know now."""
        part = self._parts[worker]
        if part.quota is None:
            return Quota(None, part.number)
        return Quota(part.quota, part.number, part.turns, self.limit, self._wanted)

    @property
    def held(self) -> dict[str, int]:
        """By process: as many slots as it may be using."""
        return {worker: part.held for worker, part in self._parts.items()}

    @property
    def _wanted(self) -> bool:
        return self.limit is not None and sum(part.demand for part in self._parts.values()) > self.limit

    def _share_out(self, *, anew: bool = False) -> None:
        """``anew``: also where everybody has what it needs."""
        parts = {worker: part for worker, part in self._parts.items() if not part.silent}
        if self.limit is None:
            for worker, part in parts.items():
                if self._known and part.quota is not None:
                    self._give(worker, part, None, None)
            return
        targets = self._targets(self.limit, parts, anew)
        for worker, (slots, turns) in targets.items():
            part = parts[worker]
            turned = (turns is None) != (part.turns is None)
            if part.quota is None or slots < part.quota or (slots == part.quota > 0 and turned):
                self._give(worker, part, slots, turns)
        free = self.limit - sum(part.held for part in self._parts.values())
        for worker in sorted(targets, key=lambda worker: parts[worker].since):
            part, (slots, turns) = parts[worker], targets[worker]
            quota = min(slots, part.held + free)  # whatever the others still use
            if part.quota is not None and quota > part.quota:
                free -= max(0, quota - part.held)
                self._give(worker, part, quota, turns)

    def _give(self, worker: str, part: _Part, quota: int | None, turns: int | None) -> None:
        part.quota, part.turns = quota, turns
        part.held = UNLIMITED if quota is None else max(part.held, quota)
        part.number += 1
        self._tell(worker, self.quota(worker))

    def _targets(self, limit: int, parts: Mapping[str, _Part], anew: bool) -> dict[str, tuple[int, int | None]]:
        """(slots, turns) for each process."""
        total = sum(part.demand for part in parts.values())
        for part in parts.values():
            part.ideal = None
        if total > limit:
            return self._scarce(limit, total, parts)
        quotas = [part.quota or 0 for part in parts.values()]
        enough = all(quota >= part.demand for quota, part in zip(quotas, parts.values(), strict=True))
        if parts and (anew or not enough or sum(quotas) != limit):
            spare = (limit - total) / len(parts)
            quotas = apportion(limit, [part.demand + spare for part in parts.values()], quotas)
        return {worker: (quota, None) for worker, quota in zip(parts, quotas, strict=True)}

    def _scarce(self, limit: int, total: int, parts: Mapping[str, _Part]) -> dict[str, tuple[int, int | None]]:
        """By demand. Those whose share is below one slot take turns on the slots that they have together."""
        targets: dict[str, tuple[int, int | None]] = dict.fromkeys(parts, (0, None))
        small = {worker: part for worker, part in parts.items() if 0 < part.demand * limit < total}
        large = {worker: part for worker, part in parts.items() if part.demand * limit >= total}
        pool = round(limit * sum(part.demand for part in small.values()) / total)
        pool = min(max(1, pool), limit - len(large)) if small else 0
        if large:
            rest, demand = limit - pool - len(large), sum(part.demand for part in large.values())
            over = demand - len(large)
            for part in large.values():
                part.ideal = 1 + rest * (part.demand - 1) / over if over else 1.0
            ideals = [part.ideal or 0.0 for part in large.values()]
            slots = apportion(limit - pool, ideals, [part.wish for part in large.values()])
            targets |= {worker: (count, None) for worker, count in zip(large, slots, strict=True)}
        targets |= self._turns(pool, small)
        return targets

    def _turns(self, pool: int, small: Mapping[str, _Part]) -> dict[str, tuple[int, int | None]]:
        """Whose turn it is: those that have a slot, then those at whose gates somebody has waited longest."""
        if len(small) <= pool:
            return dict.fromkeys(small, (1, None))
        holders = [worker for worker, part in small.items() if part.quota][:pool]
        others = sorted((worker for worker in small if worker not in holders), key=lambda worker: small[worker].since)
        next_ones = [worker for worker in others if small[worker].waiting][: pool - len(holders)]
        waiting = sum(part.waiting for part in small.values())
        turns = {
            worker: max(1, min(part.waiting, round(ROUND * len(small) * part.waiting / max(1, waiting))))
            for worker, part in small.items()
        }
        return {worker: (1, turns[worker]) for worker in (*holders, *next_ones)}


# -- the lease -------------------------------------------------------------------------------------------------------


class _State(NamedTuple):
    """What the control must hear of at once when it changes to its gain."""

    held: int
    """Slots in use, or to be used without asking."""
    free: int
    """Of them, those that nobody here needs while others wait."""
    hungry: bool


class Lease:
    """Of one gate, for one run. ``stir`` is set when the control should hear how it stands; setting it must not block."""

    def __init__(self, gate: Gate, stir: Event) -> None:
        self.number = -1
        """Of the last quota that was told."""
        self._gate, self._stir = gate, stir
        self._quota: int | None = 0
        self._last: int | None = None
        """The admission, by the gate's count, with which a turn is over."""
        self._wanted = self._spent = False
        self._said = self._state()

    def told(
        self,
        limit: int | None,
        number: int,
        turns: int | None = None,
        total: int | None = None,
        wanted: bool = False,
        at: float | None = None,
    ) -> None:
        """A quota (quotas.Quota). ``at``: when the word was said here that this answers, in seconds of the gate's clock;
        None: it answers none."""
        gate, before = self._gate, self._quota
        if at is not None:
            gate.lapses_at = max(gate.lapses_at, at + LEASE_S)
        if number > self.number:  # else it was overtaken by a later one, or comes again
            self.number, self._quota, self._spent = number, limit, False
            self._last = None if turns is None else gate.admitted + turns
            self._said = self._said._replace(held=max(self._said.held, limit or 0))
        gate.total, self._wanted = total, wanted
        limit = 0 if self._spent or gate.lapsed else self._quota
        if limit != gate.limit:
            gate.set_limit(limit)
        if limit is not None and (before is None or limit < before):
            self._stir.set()  # it may be what others wait for
        self.changed()

    def stand(self) -> dict[str, Any]:
        """What to tell the control: a quotas.Stand."""
        self._said = self._state()
        gate = self._gate
        return {
            "used": gate.used, "waiting": gate.waiting, "waited_s": gate.waited_s, "number": self.number,
            "spent": self._spent,
        }  # fmt: skip

    def _state(self) -> _State:
        gate = self._gate
        limit, hungry = gate.limit, gate.waiting > 0
        if limit is None:
            return _State(0, 0, False)
        return _State(max(limit, gate.used), 0 if hungry or not self._wanted else max(0, limit - gate.used), hungry)

    def changed(self) -> None:
        """Called in the event loop, at each change of the gate."""
        gate = self._gate
        if self._last is not None and not self._spent:
            nobody = gate.used == gate.waiting == 0
            if gate.admitted >= self._last or nobody:
                self._spent = True
                gate.set_limit(0)
        state, said = self._state(), self._said
        if state.held < said.held or state.free > said.free or state.hungry > said.hungry:
            self._stir.set()
