"""API key process: a program that prints the API key, run at the start, and again when a key has
expired.

A request whose key the server refuses (HTTP 401) waits for the next one, and so do later requests
that are refused; streams go on. Past its lifetime a key is renewed in a greenlet, while requests go
out with the old one.
"""

import logging
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import gevent
from gevent.lock import BoundedSemaphore

from locust_llm.text.hide_secrets import Secrets
from locust_llm.text.sanitise import sanitise_text

from .operator_command import ChildProgram

logger = logging.getLogger("locust_llm")

FLAG: Final = "--api-key-command"
LIMIT_S: Final = 30.0
"""The command may take so long."""
MAX_BYTES: Final = 1 << 14
"""The command may print so many bytes."""
AGAIN_S: Final = 30.0
"""The time between two runs of the command, if the server took none of the last key."""
ERROR_BYTES: Final = 200
HEADER_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")


class KeyFailed(ValueError):
    """The command gave no key. The text has the reason on one line, and no key that the command
    printed."""


class KeyCommand:
    """The key command of a process."""

    def __init__(
        self,
        words: Sequence[str],
        lifetime_s: float | None = None,
        *,
        run: Callable[[Sequence[str]], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[..., object] = gevent.spawn,
    ) -> None:
        """``run`` runs the words and returns what they print; it raises KeyFailed. ``clock`` gives
        monotonic seconds."""
        self._words, self._lifetime_s = words, lifetime_s
        self._run = run or capture_program_output
        self._clock = clock
        self._spawn = spawn
        self._key = ""
        self.keys: set[str] = set()
        """All keys so far: none of them may be shown."""
        self.taken = False
        """The server accepted the key that is in force."""
        self._got_at = self._ran_at = self._doubted_at = -AGAIN_S
        self._busy = BoundedSemaphore(1)

    def key(self) -> str:
        """The key in force. The first key is waited for; a key past its lifetime is renewed
        meanwhile. Raises KeyFailed."""
        if not self._key:
            self._renew("")
        elif self._lifetime_s is not None and self._aged(self._lifetime_s):
            self._ran_at = self._clock()  # one greenlet is enough
            self._spawn(self._try, self._key)
        return self._key

    def begin(self) -> None:
        """Begin a run with a new key, unless the key is just made. Raises KeyFailed."""
        if self._clock() - self._ran_at >= AGAIN_S:
            self._renew(self._key)

    def accepted(self, key: str) -> None:
        """Note that the server accepted the key."""
        self.taken = self.taken or key == self._key

    def doubt(self) -> None:
        """Note that the server refused a request with a new key, too: the refusal is not about the
        key's age."""
        self._doubted_at = self._clock()

    def next(self, refused: str) -> bool:
        """Whether there is another key than ``refused``. Waits for the command.

        The command runs once for each key that the server had accepted, and not soon again for a
        key that it never accepted.
        """
        now = self._clock()
        may = (self.taken or now - self._ran_at >= AGAIN_S) and now - self._doubted_at >= AGAIN_S
        if refused == self._key and may:
            self._try(refused)
        else:
            with self._busy:  # of another greenlet
                pass
        return refused != self._key

    def _aged(self, lifetime_s: float) -> bool:
        now = self._clock()
        return now - self._got_at >= lifetime_s and now - self._ran_at >= min(lifetime_s, AGAIN_S)

    def _try(self, old: str) -> None:
        try:
            self._renew(old)
        except KeyFailed as error:
            logger.warning(f"{error}: requests continue with the old key")

    def _renew(self, old: str) -> None:
        """Replace ``old``, unless another greenlet has done so. Raises KeyFailed."""
        with self._busy:
            if self._key != old:
                return
            self.taken = False
            try:
                text = self._run(self._words)
            finally:
                self._ran_at = self._clock()
            key = text.strip()
            if not key:
                raise KeyFailed(f"{FLAG} printed nothing: it must print the API key")
            if not HEADER_VALUE.fullmatch(key):
                raise KeyFailed(
                    f"{FLAG} printed more than one line: it must print only the API key"
                )
            self._key, self._got_at = key, self._ran_at
            self.keys.add(key)
        if old:
            logger.info(
                "a new API key is in use" if key != old else f"{FLAG} printed the old key again"
            )


@cache
def get_key_command(text: str, lifetime_s: float | None) -> KeyCommand:
    """The key command of this process. Raises KeyFailed."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise KeyFailed(f"{FLAG} is not a valid command: {error}") from None
    if not words:
        raise KeyFailed(f"{FLAG} is empty")
    return KeyCommand(words, lifetime_s)


def capture_program_output(words: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """The output of a program, without a shell; other greenlets run meanwhile. Raises KeyFailed."""
    with tempfile.TemporaryFile() as errors:
        try:
            program = ChildProgram(words, errors.fileno(), os.environ)
        except OSError as error:
            raise KeyFailed(f"{FLAG} cannot be started: {error.strerror or error}") from None
        with program:
            data, status = program.wait_for_end(limit_s, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise KeyFailed(
                f"{FLAG} printed more than {MAX_BYTES >> 10} kB: it must print only the API key"
            )
        if status is None:
            raise KeyFailed(f"{FLAG} did not end within {limit_s:g} s")
        text = str(data, "utf-8", "replace")
        if status:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4 * ERROR_BYTES))
            raise KeyFailed(_failure(status, errors.read(), text))
        return text


def _failure(status: int, errors: bytes, printed: str) -> str:
    last = (errors.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    message = sanitise_text(last, Secrets(printed.split()), most=ERROR_BYTES)
    return f"{FLAG} ended with status {status}{f': {message}' if message else ''}"
