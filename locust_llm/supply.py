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


class Supply:
    """``ask`` is called when it is empty and somebody waits, or has become low; the answer comes through ``grant``."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._asked = False
        self._over = False
        self._low = 0
        self._phase = ""
        self._begins: deque[Begin] = deque()
        self._more = Event()
        self._ended = 0

    def take(self) -> Begin:
        """The next session. Raises GateClosed when there is none any more."""
        while not self._begins:
            if self._over:
                raise GateClosed
            self._more.clear()
            self._refill()
            if not self._begins and not self._over:  # the answer may come at once
                self._more.wait()
        begin = self._begins.popleft()
        if len(self._begins) <= self._low:
            self._refill()
        return begin

    def grant(self, phase: str, items: Iterable[bytes | None], *, over: bool) -> None:
        """More sessions of ``phase``; those of an earlier one are void. ``over``: they are the last."""
        if phase != self._phase:
            self._begins.clear()
            self._phase = phase
        self._begins.extend(Begin(phase, item) for item in items)
        self._low = len(self._begins) // 4
        self._over, self._asked = over, False
        self._more.set()

    def ended(self) -> None:
        """A session that was taken has come to its end."""
        self._ended += 1

    def told(self) -> int:
        """How many have come to their end since this was last asked."""
        ended, self._ended = self._ended, 0
        return ended

    def again(self, phase: str) -> None:
        """Something changed at the control; a phase that is new here has sessions of its own."""
        if phase != self._phase:
            self._begins.clear()
            self._phase, self._over = phase, False
        self._asked = False
        self._more.set()

    def close(self) -> None:
        self._over = True
        self._begins.clear()
        self._more.set()

    def _refill(self) -> None:
        if not self._asked and not self._over:
            self._asked = True
            self._ask()
