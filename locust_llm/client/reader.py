"""The stream reader: one native thread a process that waits on all streaming sockets and asks the kernel for the time.

The thread is made of functions that gevent has not patched, so a busy event loop does not hold it up; what it reads is
stamped by the kernel (SO_TIMESTAMPNS, see socket(7)), so not even its own lateness moves a stamp. It wakes the event
loop, through libev's thread-safe async watcher, twice a request: at the first chunk with content, and at the end.

A stream belongs to the thread from ``add`` until it is over; only then may its socket be used or closed by others (the
number of a closed socket is given to the next one, and two threads must not use one TLS object).
"""

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.monkey import get_original

from locust_llm.core.record import CLIENT_ERROR

from .connection import Connection, TLSClosed, ask_for_stamps
from .response import Response, describe
from .syscalls import MOST_READY, READ_BYTES, make_poll, make_recvmsg

_epoll: Final = get_original("select", "epoll")
_socket: Final = get_original("socket", "socket")
_sleep: Final = get_original("time", "sleep")
_start_thread: Final = get_original("_thread", "start_new_thread")
_EPOLLIN: Final = 0x001
_EDGES: Final = _EPOLLIN | 0x2000 | (1 << 31)
"""EPOLLIN | EPOLLRDHUP | EPOLLET: each arrival is told once, which spares the kernel a second look at every socket. What a
read leaves behind is told again when the descriptor is set anew, hence ``_go_on``; see epoll(7)."""
READS: Final = 2
"""Of one connection between two polls: the end of an answer and the close behind it; or 128 kB, where a server sends faster
than that can be decoded."""

SWITCH_S: Final = 0.0005
"""How long the thread may have to wait for a greenlet that computes. Python's own 5 ms let chunks pile up and merge."""
FULL_COLLECTIONS: Final = 1000
"""How many collections of the younger garbage to one of all objects (Python: 10), which stops every thread: with 10,000
users for a quarter of a second."""
NAP_S: Final = 0.00075
"""How long the thread sleeps after it has read all there was, when it has many streams: waking it costs more than a read,
and the kernel stamps what comes meanwhile. Below ``stream.SLOW_READ_NS``, and only while the chunks of a stream come too
far apart to merge."""
SHORT_NAP_S: Final = 0.00025
"""Where chunks come fast, and while a slot of the gate waits for a first chunk."""
LOOKS: Final = 16
"""How many streams are looked into between two polls, at about 20 µs each: a burst of first chunks must not hold up the
reading."""
LOOKS_NS: Final = 2_000_000
"""None is begun later than this: of a server that sends without end one takes 30 ms."""
SWEEP_S: Final = 0.5
"""How often it is looked at whether streams have been quiet for long; with 10,000 of them it takes 5 ms."""
DIED: Final = "the thread that reads the answers died"
TIGHT_NS: Final = 3 * int(NAP_S * 1e9)
"""Two reads of a stream that are no further apart might have been one after a nap."""
TIGHT_SHARE: Final = 0.05
WINDOW: Final = 1024
"""After so many reads it is decided anew how long to nap."""
NAP_STREAMS: Final = 32
"""From how many. Below, an answer is worth being noticed at once, and there is CPU enough."""
BEHIND_NS: Final = 3_000_000
"""From this lag on, greenlets give way to the thread."""


class OpenStream:
    """A stream on its way: the connection it comes on and the two things its greenlet may wait for."""

    __slots__ = ("connection", "dropped", "ended", "left_since_ns", "looking", "read_ns", "stream")

    def __init__(self, connection: Connection, stream: Response) -> None:
        self.connection = connection
        self.stream = stream
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None
        self.read_ns = 0
        """Before the last read, monotonic ns."""
        self.left_since_ns = 0
        """What the last read may have left in the kernel came after this, monotonic ns; 0: it left nothing."""
        self.looking = False
        """It waits to be looked into."""


class ReaderFailed(Exception):
    """The thread is dead: this process sends nothing more."""


class StreamReader:
    """Make one a process with ``stream_reader()``; the thread starts with the first stream, after any fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.failure = ""
        """Why the thread died; empty while it lives."""
        self._open: set[OpenStream] = set()
        """Of which the end was not passed on yet. Of the event loop alone, so it is whole whatever becomes of the thread."""
        self._readings: dict[int, OpenStream] = {}
        self._looks: deque[OpenStream] = deque()
        self._drops: deque[OpenStream] = deque()
        self._news: deque[tuple[OpenStream, bool]] = deque()
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
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
        self._receive = make_recvmsg()
        self._stamps = True
        self._behind_ns = 0
        self._awaited: set[int] = set()
        """The descriptors whose first chunk frees a slot of a limited gate."""
        self._nap_s = SHORT_NAP_S
        self.reads = 0
        """So far, of all streams: those that are open too."""
        self._tight_reads = 0
        self._judged_at = WINDOW
        _start_thread(self._run, ())

    def add(self, connection: Connection, stream: Response, *, awaited: bool = False) -> OpenStream:
        """From now on the thread reads this connection into this stream. ``awaited``: others wait for its first chunk.
        Raises ReaderFailed."""
        if self.failure:
            raise ReaderFailed(self.failure)
        reading = OpenStream(connection, stream)
        self._open.add(reading)
        self._to_loop.ref = True
        self._readings[connection.fd] = reading
        if awaited:
            self._awaited.add(connection.fd)
        self._epoll.register(connection.fd, _EDGES)
        return reading

    def drop(self, reading: OpenStream, outcome: str, message: str) -> None:
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
        try:
            self._read_all()
        except BaseException as error:
            error.__traceback__ = None  # it holds what was read last, and memory may be what there is none of
            failure = DIED
            with suppress(Exception):
                failure = f"{DIED}: {describe(error)}"
            self.failure = failure
            while not self._sent():  # else whoever waits would wait for ever
                _sleep(0.01)

    def _sent(self) -> bool:
        try:
            self._to_loop.send()
        except MemoryError:
            return False
        return True

    def _read_all(self) -> None:
        poll, readings, looks = make_poll(self._epoll.fileno()), self._readings, self._looks
        since_ns = sweep_ns = 0
        while True:
            asked_ns = time.monotonic_ns()
            ready = poll()
            if not ready and not looks:
                ready = [(what, fd) for fd, what in self._epoll.poll(SWEEP_S if readings else None)]
            begun_ns = time.monotonic_ns()
            offset_ns = wall_minus_monotonic_ns()
            for what, fd in ready:
                reading = readings.get(fd)
                if reading is not None:
                    self._guarded(reading, self._read, since_ns, begun_ns, offset_ns, what != _EPOLLIN)
                elif fd == self._wake:
                    self._give_up()
            if len(ready) < MOST_READY:  # what had come before this poll was asked for was in its answer
                since_ns = asked_ns
            if begun_ns > sweep_ns:
                sweep_ns = begun_ns + int(SWEEP_S * 1e9)
                self._sweep(begun_ns)
            if looks:
                self._look_into_some(time.monotonic_ns() + LOOKS_NS)
            if self._news:
                self._to_loop.send()
            if not looks:
                self._behind_ns = 0
                if self._stamps and len(readings) >= NAP_STREAMS:
                    _sleep(SHORT_NAP_S if self._awaited else self._nap_s)

    def _guarded(self, reading: OpenStream, work: Callable[..., None], *args: Any) -> None:
        """A mistake of ours must end this request, not the thread that all requests need."""
        try:
            work(reading, *args)
        except Exception as error:
            reading.stream.given_up("malformed", f"the answer could not be read: {describe(error)}")
            self._over(reading)

    def _read(self, reading: OpenStream, since_ns: int, begun_ns: int, offset_ns: int, closing: bool) -> None:
        """Read once, and again where the peer closes or more may lie there than one read takes: READS times at most, so
        that a server that sends faster than it is read cannot keep the thread from its other duties.

        ``since_ns``: what is read came after it, if nothing had been left behind. ``begun_ns``: before this read.
        """
        stream, fd = reading.stream, reading.connection.fd
        if reading.left_since_ns:
            since_ns, reading.left_since_ns = reading.left_since_ns, 0
        elif reading.read_ns > since_ns:
            since_ns = reading.read_ns
        reading.read_ns = begun_ns
        if (
            reading.looking and stream.waiting_bytes >= READ_BYTES
        ):  # it comes faster than it is decoded: the server waits
            reading.left_since_ns = since_ns
            return
        reads = READS
        while not stream.over:
            try:
                data, kernel_ns = self._receive(fd)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                stream.failed("reset", describe(error))
                break
            now_ns = time.monotonic_ns()
            stamp_ns = kernel_ns - offset_ns
            if not stream.sent_ns <= stamp_ns <= now_ns:
                stamp_ns = now_ns
                self._without_stamp(stream, kernel_ns, data)
            self._behind_ns = now_ns - stamp_ns
            if self._behind_ns > stream.read_lag_ns:
                stream.read_lag_ns = self._behind_ns
            if stream.stamps and stamp_ns - stream.stamps[-1] < TIGHT_NS:
                self._tight_reads += 1
            self.reads += 1
            if data and reading.connection.tls is None:
                look = stream.arrived(stamp_ns, since_ns, data)
            else:
                look = self._through_tls(reading, stamp_ns, since_ns, data)
            if look:
                self._enqueue(reading)
            if len(data) < READ_BYTES:  # it took all that was there; else the rest may be as old as what was read
                if not closing:
                    break
                since_ns = begun_ns
            reads -= 1
            if not reads:
                if not stream.over:
                    reading.left_since_ns = since_ns
                    self._go_on(reading)
                break
        if self.reads >= self._judged_at:
            self._nap_s = NAP_S if self._tight_reads < TIGHT_SHARE * WINDOW else SHORT_NAP_S
            self._tight_reads, self._judged_at = 0, self.reads + WINDOW
        if stream.over and (stream.first_seen or not stream.stamps):
            self._over(reading)
        elif stream.over:
            self._enqueue(reading)  # what it brought may be a first chunk

    def _go_on(self, reading: OpenStream) -> None:
        """Read on from this connection between the next two polls; where it waits to be looked into, after that."""
        if not reading.looking:
            self._epoll.modify(reading.connection.fd, _EDGES)

    def _enqueue(self, reading: OpenStream) -> None:
        if not reading.looking:
            reading.looking = True
            self._looks.append(reading)

    def _sweep(self, now_ns: int) -> None:
        """Streams that are quiet may have ended with ``[DONE]``, which nobody looks for while chunks come."""
        for reading in list(self._readings.values()):
            if reading.stream.due(now_ns):
                self._enqueue(reading)

    def _look_into_some(self, until_ns: int) -> None:
        looks = self._looks
        for _ in range(min(LOOKS, len(looks))):
            reading = looks.popleft()
            reading.looking = False
            if self._readings.get(reading.connection.fd) is reading:
                self._guarded(reading, self._look)
                if time.monotonic_ns() > until_ns:
                    break

    def _look(self, reading: OpenStream) -> None:
        """Decode what came. Between the reads, because a read that is late merges chunks, and a late look harms little."""
        stream = reading.stream
        seen = stream.first_seen
        stream.look(time.monotonic_ns())
        if stream.over:
            self._over(reading)
            return
        if stream.first_seen and not seen:
            self._awaited.discard(reading.connection.fd)
            self._news.append((reading, False))
        if reading.left_since_ns:
            self._go_on(reading)

    def _without_stamp(self, stream: Response, kernel_ns: int, data: bytes) -> None:
        if kernel_ns:  # the wall clock was set between the arrival and the read, or it is no stamp of this answer
            stream.bad_stamps += 1
        elif data:  # the end of a connection has no stamp
            stream.unstamped += 1
            self._stamps = False  # this thread's clock is all there is: no time to sleep

    def _through_tls(self, reading: OpenStream, stamp_ns: int, since_ns: int, data: bytes) -> bool:
        """``Response.arrived`` with what TLS makes of these bytes; none: the peer closed."""
        stream, tls = reading.stream, reading.connection.tls
        if not data or tls is None:
            stream.closed()
            return False
        try:
            plain = tls.received(data)
        except TLSClosed as error:
            stream.failed("tls", str(error))
            return False
        look = bool(plain) and stream.arrived(stamp_ns, since_ns, plain)
        if tls.outgoing.pending > READ_BYTES:  # what TLS itself would answer, and nobody sends while an answer comes
            stream.failed("tls", "the server asks for answers of the TLS layer without end")
        if tls.closed and not stream.over:
            stream.closed()
        return look

    def _give_up(self) -> None:
        os.eventfd_read(self._wake)
        while self._drops:
            self._guarded(self._drops.popleft(), self._drop)

    def _drop(self, reading: OpenStream) -> None:
        if self._readings.get(reading.connection.fd) is reading and reading.dropped is not None:
            reading.stream.failed(*reading.dropped)
            self._over(reading)

    def _over(self, reading: OpenStream) -> None:
        fd = reading.connection.fd
        reading.stream.over = True
        self._readings.pop(fd, None)
        self._awaited.discard(fd)
        with suppress(OSError):
            self._epoll.unregister(fd)
        self._news.append((reading, True))

    # -- in the event loop ---------------------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        return len(self._open)

    def _tell(self) -> None:
        """Pass on what the thread found. Runs in the loop itself: must not block."""
        news = self._news
        if self.failure:  # it was the last thing that the thread did
            self._end_all()
        try:
            while news:
                reading, ended = news.popleft()
                stream = reading.stream
                if ended and reading in self._open:
                    self._open.remove(reading)
                    reading.ended.set()
                    self._to_loop.ref = bool(self._open)
                if stream.on_first is not None and stream.first_seen:
                    on_first, stream.on_first = stream.on_first, None
                    on_first()
        finally:
            if news:  # a hook raised; the others' news are not lost with it
                self._to_loop.send()

    def _end_all(self) -> None:
        """The thread is dead: whoever waits for it shall not."""
        self._readings.clear()
        for reading in self._open:
            try:
                reading.stream.failed(CLIENT_ERROR, self.failure)
            except Exception:  # perhaps what the thread died of
                reading.stream.given_up(CLIENT_ERROR, self.failure)
            self._news.append((reading, True))


_reader: StreamReader | None = None


def stream_reader() -> StreamReader:
    """The reader of this process; a forked child gets its own."""
    global _reader
    if _reader is None or _reader.pid != os.getpid():
        _reader = StreamReader()
    return _reader


def reader_failure() -> str:
    """Why this process sends nothing more; empty while it can."""
    return _reader.failure if _reader is not None and _reader.pid == os.getpid() else ""


def new_reader() -> None:
    """A dead one has no place in the run that begins."""
    global _reader
    if reader_failure():
        _reader = None


def reads_so_far() -> int:
    """Of the reader of this process; makes none."""
    return _reader.reads if _reader is not None and _reader.pid == os.getpid() else 0


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
