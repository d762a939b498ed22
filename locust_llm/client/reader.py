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
from gevent.monkey import get_original

from locust_llm.core.record import CLIENT_ERROR

from .connection import Connection, ask_for_stamps
from .kernel_clock import wall_minus_monotonic_ns
from .open_stream import OpenStream
from .response import Response, describe
from .syscalls import MAX_READY, READ_BYTES, make_poll, make_recvmsg

_epoll: Final = get_original("select", "epoll")
_socket: Final = get_original("socket", "socket")
_sleep: Final = get_original("time", "sleep")
_start_thread: Final = get_original("_thread", "start_new_thread")
_EPOLLIN: Final = 0x001
_EDGES: Final = _EPOLLIN | 0x2000 | (1 << 31)
"""EPOLLIN | EPOLLRDHUP | EPOLLET: each arrival is reported once, which spares the kernel a second look at every socket. What
a read leaves behind is reported again when the descriptor is set anew, hence ``_go_on``; see epoll(7)."""
MAX_READS: Final = 2
"""Of one connection between two polls: the end of an answer and the close behind it; or 128 kB, where a server sends faster
than that can be decoded."""

SWITCH_S: Final = 0.0005
"""How long the thread may have to wait for a greenlet that computes. Python's own 5 ms let chunks pile up and merge."""
COLLECTIONS: Final = (50_000, 10, 14)
"""Of garbage, see gc.set_threshold (Python: 700, 10, 10), as a request leaves none. One of the youngest looks at all objects
of the requests under way, a hundred each, for milliseconds; one of all with 10,000 users for a quarter of a second."""
NAP_S: Final = 0.00075
"""How long the thread sleeps after it has read all there was, when it has many streams: waking it costs more than a read,
and the kernel stamps what comes meanwhile. Below ``response.SLOW_READ_NS``, and only while the chunks of a stream come too
far apart to merge."""
SHORT_NAP_S: Final = 0.00025
"""Where chunks come fast, and while a slot of the gate waits for a first chunk."""
MAX_LOOKS: Final = 16
"""How many streams are decoded between two polls, at about 20 µs each: a burst must not hold up the reading."""
LOOKS_NS: Final = 2_000_000
"""No decoding begins later than this after a poll: that of a server that sends without end takes 30 ms."""
SWEEP_S: Final = 0.5
"""Between looks at whether streams have been quiet for long; with 10,000 of them it takes 5 ms."""
DIED: Final = "the thread that reads the answers died"
TIGHT_NS: Final = 3 * int(NAP_S * 1e9)
"""Two reads of a stream that are no further apart might have been one after a nap."""
TIGHT_SHARE: Final = 0.05  # of the reads; from there on naps are short
NAP_READS: Final = 1024
"""Reads after which the length of the nap is set again."""
NAP_STREAMS: Final = 32
"""Open streams from which on the thread naps: with fewer there is CPU enough to notice each answer at once."""
BEHIND_NS: Final = 3_000_000
"""From this lag on, greenlets give way to the thread."""


class ReaderFailed(Exception):
    """The thread is dead: this process sends nothing more."""


class StreamReader:
    """One a process, see process_reader.py. Its thread starts with it, so it is made after any fork."""

    def __init__(self) -> None:
        self.failure = ""
        """Why the thread died; empty while it lives."""
        self._open: set[OpenStream] = set()
        """Their ends are not passed on yet. Only the event loop uses it, so it is whole whatever becomes of the thread."""
        self._readings: dict[int, OpenStream] = {}
        self._looks: deque[OpenStream] = deque()
        self._drops: deque[OpenStream] = deque()
        self._notices: deque[tuple[OpenStream, bool]] = deque()
        """For the event loop: a first chunk (False), or an end (True)."""
        # referenced, so that the loop waits, while streams are open
        self._to_loop = gevent.get_hub().loop.async_(ref=False)
        self._to_loop.start(self._pass_on)
        # The kernel stamps only while some socket wants it, and begins a moment after the first one does: this one always
        # does, so that the first answer has stamps too.
        self._stamped = _socket()
        ask_for_stamps(self._stamped)
        _sleep(0.005)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        self._begin_reading()

    def _begin_reading(self) -> None:
        self._epoll = _epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, _EPOLLIN)
        self._receive = make_recvmsg()
        self._stamps = True
        self._behind_ns = 0
        self._awaited: set[int] = set()
        """The descriptors whose first chunk frees a slot of a limited gate."""
        self._nap_s = SHORT_NAP_S
        self._reads = 0
        self._tight_reads = 0
        self._nap_due = NAP_READS
        _start_thread(self._run, (self._read_all,))

    def add(
        self,
        connection: Connection,
        stream: Response,
        on_first: Callable[[], object] | None = None,
        *,
        awaited: bool = False,
    ) -> OpenStream:
        """From now on the thread reads this connection into this stream. ``on_first``: see OpenStream. ``awaited``: its
        first chunk frees a slot that others wait for. Raises ReaderFailed."""
        if self.failure:
            raise ReaderFailed(self.failure)
        reading = OpenStream(connection, stream, on_first)
        self._open.add(reading)
        self._to_loop.ref = True
        self._readings[connection.fd] = reading
        self._begin(reading, awaited)
        return reading

    def _begin(self, reading: OpenStream, awaited: bool) -> None:
        fd = reading.connection.fd
        if awaited:
            self._awaited.add(fd)
        self._epoll.register(fd, _EDGES)

    def sent(self, reading: OpenStream, sent_ns: int) -> None:
        """The request went out: nothing of its answer came before."""
        reading.stream.sent_ns = sent_ns

    def drop(self, reading: OpenStream, outcome: str, message: str) -> None:
        """Ask the thread to give a stream up, with what came until then; ``reading.ended`` is set when it has."""
        reading.dropped = (outcome, message)
        self._drops.append(reading)
        os.eventfd_write(self._wake, 1)

    @property
    def reads(self) -> int:
        """So far, of all streams: those that are open too."""
        return self._reads

    def give_way(self) -> None:
        """Let the thread catch up, before a greenlet computes: a late read merges chunks, a late record harms nobody.

        Stops the whole event loop, for 20 ms at most; the thread needs the GIL, not the loop.
        """
        for _ in range(20):
            if self._behind() < BEHIND_NS:
                return
            _sleep(0.001)

    def _behind(self) -> int:
        return self._behind_ns

    # -- in the thread: no gevent, no logging, no locks ----------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._dies(error)
            while not self._sent():  # else whoever waits would wait for ever
                _sleep(0.01)

    def _dies(self, error: BaseException) -> None:
        error.__traceback__ = None  # it holds what was read last, and memory may be what there is none of
        failure = DIED
        with suppress(Exception):
            failure = f"{DIED}: {describe(error)}"
        self.stop()
        self.failure = failure

    def stop(self) -> None:
        """Nothing reads any more when this returns; also in a forked child."""

    def _sent(self) -> bool:
        with suppress(MemoryError):
            self._to_loop.send()
            return True
        return False

    def _read_all(self) -> None:
        poll, readings, looks = make_poll(self._epoll.fileno()), self._readings, self._looks
        since_ns = sweep_ns = 0
        while True:
            asked_ns = time.monotonic_ns()
            ready = poll()
            if not ready and not looks:
                ready = [(events, fd) for fd, events in self._epoll.poll(SWEEP_S if readings else None)]
            begun_ns = time.monotonic_ns()
            offset_ns = wall_minus_monotonic_ns()
            for events, fd in ready:
                reading = readings.get(fd)
                if reading is not None:
                    self._guarded(reading, self._read, since_ns, begun_ns, offset_ns, events != _EPOLLIN)
                elif fd == self._wake:
                    self._give_up()
            if len(ready) < MAX_READY:  # what had come before this poll was asked for was in its answer
                since_ns = asked_ns
            if begun_ns > sweep_ns:
                sweep_ns = begun_ns + int(SWEEP_S * 1e9)
                self._sweep(begun_ns)
            if looks:
                self._look_into_some(time.monotonic_ns() + LOOKS_NS)
            if self._notices:
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
        """Read once, and again where the peer closes or more may lie there than one read takes: MAX_READS at most, so
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
            reading.looking and stream.waiting_bytes + reading.sealed_bytes >= READ_BYTES
        ):  # faster than it is decoded: the server waits
            reading.left_since_ns = since_ns
            return
        reads = MAX_READS
        while not stream.over:
            try:
                data, kernel_ns = self._receive(fd)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                reading.unseal(None)
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
            if stamp_ns - reading.stamp_ns < TIGHT_NS:
                self._tight_reads += 1
            reading.stamp_ns = stamp_ns
            self._reads += 1
            if reading.took(stamp_ns, since_ns, data):
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
        if self._reads >= self._nap_due:
            self._set_nap()
        if stream.over and (stream.first_seen or not stream.stamps):
            self._over(reading)
        elif stream.over:
            self._enqueue(reading)  # what it brought may be a first chunk

    def _set_nap(self) -> None:
        """Once in NAP_READS reads: short where chunks came close to each other."""
        self._nap_s = NAP_S if self._tight_reads < TIGHT_SHARE * NAP_READS else SHORT_NAP_S
        self._tight_reads, self._nap_due = 0, self._reads + NAP_READS

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
        for _ in range(min(MAX_LOOKS, len(looks))):
            reading = looks.popleft()
            reading.looking = False
            if self._readings.get(reading.connection.fd) is reading:
                self._guarded(reading, self._look)
                if time.monotonic_ns() > until_ns:
                    break

    def _look(self, reading: OpenStream) -> None:
        """Decode what came. Between the reads, because a read that is late merges chunks, and a late look harms little."""
        stream = reading.stream
        seen, now_ns = stream.first_seen, time.monotonic_ns()
        if not reading.sealed or reading.unseal() or stream.over or stream.due(now_ns):
            stream.look(now_ns)
        if stream.over:
            self._over(reading)
            return
        if reading.sealed:
            self._enqueue(reading)
        if stream.first_seen and not seen:
            self._awaited.discard(reading.connection.fd)
            self._notices.append((reading, False))
        if reading.left_since_ns:
            self._go_on(reading)

    def _without_stamp(self, stream: Response, kernel_ns: int, data: bytes) -> None:
        if kernel_ns:  # the wall clock was set between the arrival and the read, or it is no stamp of this answer
            stream.bad_stamps += 1
        elif data:  # the end of a connection has no stamp
            stream.unstamped += 1
            self._stamps = False  # this thread's clock is all there is: no time to sleep

    def _give_up(self) -> None:
        os.eventfd_read(self._wake)
        while self._drops:
            self._guarded(self._drops.popleft(), self._drop)

    def _drop(self, reading: OpenStream) -> None:
        if self._readings.get(reading.connection.fd) is reading and reading.dropped is not None:
            reading.unseal()
            reading.stream.failed(*reading.dropped)
            self._over(reading)

    def _over(self, reading: OpenStream) -> None:
        fd = reading.connection.fd
        reading.stream.over = True
        if reading.sealed:  # the TLS layer of the next answer would lack it
            reading.stream.frame.closed_by_peer = True
        self._readings.pop(fd, None)
        self._awaited.discard(fd)
        with suppress(OSError):
            self._epoll.unregister(fd)
        self._notices.append((reading, True))

    # -- in the event loop ---------------------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        return len(self._open)

    def _pass_on(self) -> None:
        """First chunks and ends, to those who wait for them. Runs in the loop itself: must not block."""
        notices = self._notices
        if self.failure:  # it was the last thing that the thread did
            self._end_all()
        try:
            while notices:
                reading, ended = notices.popleft()
                if ended and reading in self._open:
                    self._open.remove(reading)
                    reading.ended.set()
                    self._to_loop.ref = bool(self._open)
                if reading.on_first is not None and reading.stream.first_seen:
                    on_first, reading.on_first = reading.on_first, None
                    on_first()
        finally:
            if notices:  # a hook raised; the others must not wait for it
                self._to_loop.send()

    def _end_all(self) -> None:
        """The thread is dead: every open stream has failed."""
        self._readings.clear()
        for reading in self._open:
            try:
                reading.stream.failed(CLIENT_ERROR, self.failure)
            except Exception:  # perhaps what the thread died of
                reading.stream.given_up(CLIENT_ERROR, self.failure)
            self._notices.append((reading, True))
