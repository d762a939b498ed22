"""The stream reader: one native thread a process that waits on all streaming sockets and asks the kernel for the time.

The thread is made of functions that gevent has not patched, so a busy event loop does not hold it up; what it reads is
stamped by the kernel (SO_TIMESTAMPNS, see socket(7)), so not even its own lateness moves a stamp. It wakes the event
loop, through libev's thread-safe async watcher, twice a request: at the first chunk with content, and at the end.

A stream belongs to the thread from ``add`` until it is over; only then may its socket be used or closed by others (the
number of a closed socket is given to the next one, and two threads must not use one TLS object).
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import gevent
from gevent.event import Event
from gevent.monkey import get_original

from .connection import Connection, TLSClosed, ask_for_stamps
from .recvmsg import READ_BYTES, receiver
from .stream import Stream, describe

_epoll: Final = get_original("select", "epoll")
_socket: Final = get_original("socket", "socket")
_sleep: Final = get_original("time", "sleep")
_start_thread: Final = get_original("_thread", "start_new_thread")
_EPOLLIN: Final = 0x001

SWITCH_S: Final = 0.0005
"""How long the thread may have to wait for a greenlet that computes. Python's own 5 ms let chunks pile up and merge."""
NAP_S: Final = 0.00025
"""How long the thread sleeps after it has read all there was, when it has many streams: waking it costs more than a read,
and the kernel stamps what comes meanwhile."""
BEHIND_NS: Final = 3_000_000
"""From this lag on, greenlets give way to the thread."""
NAP_STREAMS: Final = 64
"""From how many. Below, a slot of the gate goes on sooner without the nap, and there is CPU enough."""


class Reading:
    """A stream on its way: the connection it comes on and the two things its greenlet may wait for."""

    __slots__ = ("connection", "dropped", "ended", "stream")

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None


class StreamReader:
    """Make one a process with ``stream_reader()``; the thread starts with the first stream, after any fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.open_streams = 0
        self._readings: dict[int, Reading] = {}
        self._drops: deque[Reading] = deque()
        self._news: deque[tuple[Reading, bool]] = deque()
        self._epoll = _epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, _EPOLLIN)
        self._to_loop = gevent.get_hub().loop.async_(
            ref=False
        )  # referenced, so that the loop waits, while streams are open
        self._to_loop.start(self._tell)
        # The kernel stamps only while some socket wants it, and begins a moment after the first one does: this one always
        # does, so that the first answer has stamps too.
        self._stamped = _socket()
        ask_for_stamps(self._stamped)
        _sleep(0.005)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._receive = receiver()
        self._nap_s = NAP_S
        self._behind_ns = 0
        _start_thread(self._run, ())

    def add(self, connection: Connection, stream: Stream) -> Reading:
        """From now on the thread reads this connection into this stream."""
        reading = Reading(connection, stream)
        self.open_streams += 1
        self._to_loop.ref = True
        self._readings[connection.fd] = reading
        self._epoll.register(connection.fd, _EPOLLIN)
        return reading

    def drop(self, reading: Reading, outcome: str, message: str) -> None:
        """Ask the thread to give a stream up, with what came until then; ``reading.ended`` tells when it has."""
        reading.dropped = (outcome, message)
        self._drops.append(reading)
        os.eventfd_write(self._wake, 1)

    def give_way(self) -> None:
        """Let the thread catch up, before a greenlet computes: a late read merges chunks, a late record harms nobody.

        Stops the whole event loop, for 20 ms at most; the thread needs the GIL, not the loop.
        """
        for _ in range(20):
            if self._behind_ns < BEHIND_NS:
                return
            _sleep(0.001)

    # -- in the thread: no gevent, no logging, no locks ----------------------------------------------------------------

    def _run(self) -> None:
        poll, readings = self._epoll.poll, self._readings
        while True:
            ready = poll()
            begun_ns = time.monotonic_ns()
            offset_ns = wall_minus_monotonic_ns()
            for fd, _ in ready:
                reading = readings.get(fd)
                if reading is not None:
                    self._read(reading, begun_ns, offset_ns)
                elif fd == self._wake:
                    self._give_up()
            if self._news:
                self._to_loop.send()
            self._behind_ns = 0
            if self._nap_s and len(readings) >= NAP_STREAMS:
                _sleep(self._nap_s)

    def _read(self, reading: Reading, begun_ns: int, offset_ns: int) -> None:
        stream = reading.stream
        try:
            data, kernel_ns = self._receive(reading.connection.fd)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            stream.failed("reset", describe(error))
            self._over(reading)
            return
        now_ns = time.monotonic_ns()
        stamp_ns = now_ns
        if kernel_ns:
            stamp_ns = kernel_ns - offset_ns
            if not stream.sent_ns <= stamp_ns <= now_ns:
                # the wall clock was set between the arrival and the read, or it is no stamp of this answer
                stamp_ns = now_ns
                stream.bad_stamps += 1
        elif data:  # the end of a connection has no stamp
            stream.unstamped += 1
            self._nap_s = 0.0  # its stamps are this thread's: no time to sleep
        lag_ns = now_ns - stamp_ns
        self._behind_ns = lag_ns
        if lag_ns > stream.read_lag_ns:
            stream.read_lag_ns = lag_ns
        if len(data) == READ_BYTES:
            begun_ns = stream.sent_ns  # there may be more, and nothing says since when
        seen = stream.first_seen
        self._into(reading, stamp_ns, begun_ns, data)
        if stream.over:
            self._over(reading)
        elif stream.first_seen and not seen:
            self._news.append((reading, False))

    def _into(self, reading: Reading, stamp_ns: int, begun_ns: int, data: bytes) -> None:
        """Bytes of the socket into the stream, through TLS where there is TLS."""
        stream, tls = reading.stream, reading.connection.tls
        try:
            if not data:
                stream.closed()
            elif tls is None:
                stream.arrived(stamp_ns, begun_ns, data)
            else:
                plain = tls.received(data)
                if plain:
                    stream.arrived(stamp_ns, begun_ns, plain)
                if tls.closed and not stream.over:
                    stream.closed()
        except TLSClosed as error:
            stream.failed("tls", str(error))
        except Exception as error:  # a mistake of ours must end this request, not the thread that all requests need
            stream.failed("malformed", f"the answer could not be read: {describe(error)}")
            stream.over = True

    def _give_up(self) -> None:
        os.eventfd_read(self._wake)
        while self._drops:
            reading = self._drops.popleft()
            if not reading.stream.over and reading.dropped is not None:
                reading.stream.failed(*reading.dropped)
                self._over(reading)

    def _over(self, reading: Reading) -> None:
        fd = reading.connection.fd
        del self._readings[fd]
        self._epoll.unregister(fd)
        self._news.append((reading, True))

    # -- in the event loop ---------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Pass on what the thread found. Runs in the loop itself: must not block."""
        news = self._news
        try:
            while news:
                reading, ended = news.popleft()
                stream = reading.stream
                if ended:
                    reading.ended.set()
                    self.open_streams -= 1
                    self._to_loop.ref = self.open_streams > 0
                if stream.on_first is not None and stream.first_seen:
                    on_first, stream.on_first = stream.on_first, None
                    on_first()
        finally:
            if news:  # a hook raised; the others' news are not lost with it
                self._to_loop.send()


_reader: StreamReader | None = None


def stream_reader() -> StreamReader:
    """The reader of this process; a forked child gets its own."""
    global _reader
    if _reader is None or _reader.pid != os.getpid():
        _reader = StreamReader()
    return _reader


def wall_minus_monotonic_ns(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """What to take from a wall clock stamp of this moment to get a monotonic one, good to 20 µs.

    Two clocks cannot be read at once: where the thread was held up between them, it reads again.
    """
    best_ns, offset_ns = 1 << 63, 0
    for _ in range(8):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        if after - before < best_ns:
            best_ns, offset_ns = after - before, wall - (before + after) // 2
        if best_ns < 20_000:
            break
    return offset_ns


__all__ = ["Reading", "StreamReader", "stream_reader", "wall_minus_monotonic_ns"]
