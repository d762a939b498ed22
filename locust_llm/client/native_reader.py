"""The stream reader whose thread is in C, where that was compiled: it reads and stamps without Python's lock.

There is no second thread in Python: the event loop takes what was read (_reader.c) of those streams that have something to
tell, a first chunk or an end, and decodes it. Until then what came lies in the thread's memory, with its stamps. A thread
between the two would cost a change of threads and of Python's lock for each of them, while a slot of the gate waits.
"""

import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from functools import partial
from typing import Final

import gevent

from locust_llm.client.open_stream import OpenStream
from locust_llm.client.reader import SWEEP_S, StreamReader
from locust_llm.client.response import DECODE_BYTES, QUIET_NS, WAITED_NS, describe
from locust_llm.client.route.tls import SLICE_BYTES

from .native import Reader, plain_events

PATIENCE_NS: Final = 4_000_000
"""How long what came may lie there where nobody can tell, before it is decrypted or parsed, whether it is the end."""
TLS_PATIENCE_NS: Final = 500_000_000
"""The same over TLS, where the end shows by its record: what came meanwhile is decrypted at once, which takes a fifth."""
HIDDEN_ENDS: Final = 128
"""After an end that did not show, so many answers over TLS have PATIENCE_NS: whatever share of the ends does not show, they
are noticed 1.5 ms later on average."""

LOOKS: Final = 8
LOOKS_NS: Final = 10_000_000
"""How many streams are decoded in one turn of the loop, at about 20 µs each, and how long: what is due comes between."""


class NativeReader(StreamReader):
    """All of it that is in Python runs in the event loop."""

    def _begin_reading(self) -> None:
        assert Reader is not None
        self._native = Reader()
        loop = gevent.get_hub().loop
        self._due = loop.io(self._native.event_fd, 1, ref=False)  # 1: to read
        self._due.start(self._run, self._look_into_due)
        self._sweeper = loop.timer(SWEEP_S, SWEEP_S, ref=False)
        self._sweeper.start(self._run, lambda: self._sweep(time.monotonic_ns()))
        self._waiting: set[OpenStream] = set()
        """They have bytes that are not decoded, or ``[DONE]`` and no end."""
        self._sealed: deque[OpenStream] = deque()
        """They have more to decrypt than one look may take."""
        self._next_turn = loop.timer(0.0, ref=False)
        self._impatient = 0
        """Answers over TLS whose end may not show, see HIDDEN_ENDS."""

    def _begin(self, reading: OpenStream, awaited: bool) -> None:
        fd = reading.connection.fd
        self._native.add(fd, reading.stream.sent_ns, awaited, reading.connection.tls is not None)
        reading.stream.newest = partial(self._native.newest, fd)
        reading.stream.plain_events = plain_events

    def sent(self, reading: OpenStream, sent_ns: int) -> None:
        reading.stream.sent_ns = sent_ns
        self._native.sent(reading.connection.fd, sent_ns)

    def drop(self, reading: OpenStream, outcome: str, message: str) -> None:
        reading.dropped = (outcome, message)
        self._drops.append(reading)
        self._run(self._give_up)

    @property
    def reads(self) -> int:
        return self._native.reads

    def _behind(self) -> int:
        return self._native.behind_ns

    def _run(self, work: Callable[[], None]) -> None:
        """``work``, and then whatever it has to tell. What it does not catch itself is the end of this reader."""
        try:
            work()
        except BaseException as error:
            self._dies(error)
        try:
            self._pass_on()
        except BaseException:  # of a hook: gevent would stop the watcher whose callback raises
            gevent.get_hub().handle_error(self, *sys.exc_info())

    def stop(self) -> None:
        self._due.stop()
        self._sweeper.stop()
        self._next_turn.stop()
        self._native.stop()

    def _look_into_due(self) -> None:
        """The loop comes back while there are more."""
        until_ns = time.monotonic_ns() + LOOKS_NS
        for _ in range(LOOKS):
            fd = self._native.next()
            if fd < 0:
                break
            reading = self._readings.get(fd)
            if reading is not None:
                self._guarded(reading, self._look)
            if time.monotonic_ns() > until_ns:
                break

    def _look_into_sealed(self) -> None:
        """One, in a turn of the loop."""
        reading = self._sealed.popleft()
        if self._readings.get(reading.connection.fd) is reading:
            self._guarded(reading, self._look)
        if self._sealed:
            self._next_turn.start(self._run, self._look_into_sealed)

    def _give_up(self) -> None:
        while self._drops:
            self._guarded(self._drops.popleft(), self._drop)

    def _drop(self, reading: OpenStream) -> None:
        if self._readings.get(reading.connection.fd) is reading:
            self._take(reading)
        super()._drop(reading)

    def _sweep(self, now_ns: int) -> None:
        self._native.sweep(QUIET_NS, WAITED_NS)
        for reading in list(self._waiting):
            if reading.stream.due(now_ns):
                self._guarded(reading, self._look)

    def _look(self, reading: OpenStream) -> None:
        stream, now_ns = reading.stream, time.monotonic_ns()
        seen = stream.first_seen
        end = 0 if reading.sealed else self._take(reading)  # the server waits while there is more than can be decrypted
        if not reading.sealed or reading.unseal() or stream.over or stream.due(now_ns):
            stream.look(now_ns)
        if end and not stream.over and not reading.sealed:
            self._end(reading, end)
        if stream.over:
            self._learn(reading)
            self._over(reading)
            return
        if reading.sealed:
            if reading not in self._sealed:
                self._sealed.append(reading)
            self._next_turn.start(self._run, self._look_into_sealed)
        if stream.first_seen and not seen:
            self._notices.append((reading, False))
            self._calm(reading)
        if stream.waiting_bytes or stream.answer.done_read is not None:
            self._waiting.add(reading)
        else:
            self._waiting.discard(reading)

    def _take(self, reading: OpenStream) -> int:
        """What was read, into its stream; its end."""
        stream = reading.stream
        stamps, since, data, end, stream.unstamped, stream.bad_stamps, stream.read_lag_ns, unusual = self._native.take(
            reading.connection.fd
        )
        if reading.connection.tls is None:
            stream.took(stamps, since, data)
            return end
        reading.end_shows = None if reading.end_shows is None else unusual
        if not reading.sealed and not stream.over and sum(map(len, data)) <= SLICE_BYTES:
            reading.unseal_few(stamps, since, data)
        else:
            reading.sealed += zip(array("q", stamps), array("q", since), data, strict=True)
        return end

    def _end(self, reading: OpenStream, number: int) -> None:
        """The connection ended without the end of the message; ``number``: see ``Reader.take``."""
        tls = reading.connection.tls
        if number == ENOMEM:
            raise MemoryError
        if tls is not None and tls.failure:
            reading.stream.failed("tls", tls.failure)
            reading.stream.frame.closed_by_peer = True
        elif number < 0:
            reading.closed()
        else:
            reading.stream.failed("reset", describe(OSError(number, os.strerror(number))))

    def _calm(self, reading: OpenStream) -> None:
        """Its first chunk is there: what follows has time, but for the end."""
        stream, fd = reading.stream, reading.connection.fd
        most = (DECODE_BYTES + stream.sent_ns % DECODE_BYTES) // 2  # not all of those that begin together at one moment
        frame = stream.frame
        if frame.content_length is not None:
            return
        if not frame.chunked:  # its end is that of the connection
            self._native.calm(fd, most, False, 0)
        elif reading.connection.tls is None:
            self._native.calm(fd, most, True, PATIENCE_NS)
        else:
            reading.end_shows = False
            self._native.calm(fd, most, False, PATIENCE_NS if self._impatient else TLS_PATIENCE_NS)

    def _learn(self, reading: OpenStream) -> None:
        """How ends show over TLS."""
        frame = reading.stream.frame
        if reading.end_shows is None or not frame.complete:
            return
        if reading.end_shows:
            self._impatient = max(0, self._impatient - 1)
        else:
            self._impatient = HIDDEN_ENDS

    def _over(self, reading: OpenStream) -> None:
        reading.stream.over, reading.stream.newest = True, None
        fd = reading.connection.fd
        if self._readings.pop(fd, None) is not None and (self._native.remove(fd) or reading.sealed):
            reading.stream.frame.closed_by_peer = True  # bytes behind the end: the next answer would lack them
        self._waiting.discard(reading)
        self._notices.append((reading, True))

    def _end_all(self) -> None:
        for reading in self._open:
            with suppress(Exception):
                self._take(reading)
        super()._end_all()
