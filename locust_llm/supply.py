"""Sessions that this process may begin: dealt out by the control, so that each of a file, or of a number, comes once."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gevent.event import Event

from .gate import GateClosed


class Begin(NamedTuple):
    """To begin one session."""

    phase: str
    item: bytes | None = None
    """What it says, packed (formats.Item); None: something made up."""


class Sessions(NamedTuple):
    """How far this process is with those of a phase."""

    phase: str
    begun: int
    ended: int


class Supply:
    """``ask`` is called when it is empty and somebody waits, or has become low; the answer comes through ``grant``."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.begun = self.ended = 0
        """Sessions of this phase."""
        self.on_change: Callable[[], object] | None = None
        """Called when one was begun, or has ended."""
        self._ask = ask
        self._asked = False
        self._over = False
        self._low = 0
        self._phase = ""
        self._begins: deque[Begin] = deque()
        self._more = Event()
        self._waiting = 0

    def take(self) -> Begin:
        """The next session. Raises GateClosed when there is none any more."""
        while not self._begins:
            if self._over:
                raise GateClosed
            self._more.clear()
            self._refill()
            if not self._begins and not self._over:  # the answer may come at once
                self._wait()
        begin = self._begins.popleft()
        self.begun += 1
        self._changed()
        if len(self._begins) <= self._low:
            self._refill()
        return begin

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._more.wait()
        finally:
            self._waiting -= 1

    def grant(self, phase: str, items: Iterable[bytes | None], *, over: bool) -> None:
        """More sessions of ``phase``; those of an earlier one are void. ``over``: they are the last."""
        self._enter(phase)
        self._begins.extend(Begin(phase, item) for item in items)
        self._low = len(self._begins) // 4
        self._over, self._asked = over, False
        self._more.set()

    def spare(self, phase: str) -> list[bytes | None]:
        """Others wait for sessions of ``phase``: give up those that nobody here waits for."""
        if phase != self._phase:
            return []
        keep = min(self._waiting, len(self._begins))
        spared = [self._begins.pop().item for _ in range(len(self._begins) - keep)]
        self._low = 0
        return spared[::-1]

    def again(self, phase: str) -> None:
        """Something changed at the control; a phase that is new here has sessions of its own."""
        self._enter(phase)
        self._asked = False
        self._more.set()

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._begins.clear()
            self._phase, self._over = phase, False
            self.begun = self.ended = 0

    def end(self, phase: str) -> None:
        """A session that was taken in ``phase`` has come to its end."""
        if phase == self._phase:
            self.ended += 1
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def told(self) -> Sessions:
        """What the control shall know."""
        return Sessions(self._phase, self.begun, self.ended)

    def close(self) -> None:
        self._over = True
        self._begins.clear()
        self._more.set()

    def _refill(self) -> None:
        if not self._asked and not self._over:
            self._asked = True
            self._ask()
