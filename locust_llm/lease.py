"""The lease: this process's end of the quotas. It sets the gate to what the control told, and knows what the control
should hear at once. quotas.py has the rules.
"""

from typing import Any, NamedTuple

from gevent.event import Event

from .gate import Gate
from .quotas import LEASE_S


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
