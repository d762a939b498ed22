"""Reliable delivery: messages that must come, in their order and once, between the controller and
one process that sends.

Locust's connection is made anew when it breaks, and nobody says what was lost with the first. So
these messages are numbered; a status and its answer say how far the other end has come, and what
stays away is sent again, with all that followed (go-back-N). Nothing is sent for this alone, and
nothing waits for it.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

AGAIN_S: Final = 1.0
"""The oldest message is sent again after so long without news of it: four statuses and a long
way."""


class OutgoingPost:
    """The sending end. ``send`` sends packed bytes, which may get lost."""

    def __init__(
        self, send: Callable[[bytes], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._clock = send, clock
        self._last = 0
        self._out: deque[tuple[int, bytes]] = deque()
        """The messages that may not have arrived."""
        self._since = 0.0

    def post(self, pack: Callable[[int], bytes]) -> None:
        """``pack(number)``: the message with its number, from 1."""
        if not self._out:
            self._since = self._clock()
        self._last += 1
        packed = pack(self._last)
        self._out.append((self._last, packed))
        self._send(packed)

    def heard(self, number: int) -> None:
        """The other end has all messages up to this one. Send again what has been missing for a
        while."""
        now = self._clock()
        while self._out and self._out[0][0] <= number:
            self._out.popleft()
            self._since = now
        if self._out and now - self._since > AGAIN_S:
            self._since = now
            for _, packed in self._out:
                self._send(packed)


class IncomingPost:
    """The receiving end."""

    def __init__(self) -> None:
        self.heard = 0
        """All messages up to this one came."""

    def take(self, number: int) -> bool:
        """Whether this is the next message. Else it is a repetition, or one before it is
        missing."""
        if number != self.heard + 1:
            return False
        self.heard = number
        return True
