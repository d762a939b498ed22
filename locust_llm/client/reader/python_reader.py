"""Python reader: the thread that reads, with the same methods as _reader.c, made of calls that
every system has.

It stamps with the clock right after the read, or with the kernel's stamp where there is one
(Linux). It uses functions that gevent has not patched, and no selectors, which would take gevent's
functions by name. Polling is level-triggered: what a read leaves behind is read in the next round.
"""

import errno
import math
import os
import time
from array import array
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from gevent.monkey import get_original

from locust_llm.client.connection import SO_TIMESTAMPNS

from .kernel_clock_offset import measure_clock_offset_ns

_socket: Final = get_original("socket", "socket")
_sleep: Final = get_original("time", "sleep")
_start_thread: Final = get_original("_thread", "start_new_thread")
_allocate_lock: Final = get_original("_thread", "allocate_lock")
_POLLIN: Final = 1
"""The event for "ready to read", of poll(2) and epoll(7)."""

READ_BYTES: Final = 65_536
CONTROL_BYTES: Final = 64
_timespec: Final = Struct("qq")
CLOSED: Final = -1
HEADER_BYTES: Final = 5
SHORT_RECORD: Final = 64
"""The longest short TLS record, as in _reader.c."""
LOOK_S: Final = 0.005
"""The longest wait for bytes of open streams; as in _reader.c."""
NAP_S: Final = 0.0005
"""With many streams and kernel stamps, the thread sleeps so long after a round, as waking it costs
more than a read."""
NAP_STREAMS: Final = 32


class _Stream:
    """What came of one answer and was not taken yet."""

    __slots__ = (
        "bad_stamps", "bytes", "calm", "chunked", "data", "end", "fd", "lag_ns", "left_since_ns",
        "longest", "most",
        "patience_ns", "paused", "queued", "read_ns", "removed", "sent_ns", "since", "sock",
        "stamp_ns", "stamps", "tls",
        "unstamped", "unusual", "waits",
    )  # fmt: skip

    def __init__(self, fd: int, sent_ns: int, tls: bool) -> None:
        self.fd, self.tls = fd, tls
        self.sock: Any = _socket(fileno=fd)
        self.sent_ns = sent_ns
        self.stamps = array("q")
        self.since = array("q")
        self.data = list[bytes]()
        self.bytes = self.end = self.read_ns = self.stamp_ns = self.left_since_ns = self.lag_ns = 0
        self.unstamped = self.bad_stamps = 0
        self.calm = self.chunked = self.paused = self.queued = self.waits = self.removed = False
        self.most = self.patience_ns = self.longest = 0
        self.unusual = False


class PythonReader:
    """Has the methods of the native ``Reader``: see client/reader/_reader.pyi. It starts its
    thread."""

    def __init__(self) -> None:
        self.reads = 0
        self.behind_ns = 0
        self._pid = os.getpid()
        self._lock = _allocate_lock()
        """Held for one read, one take, or a removal, so that a removed stream is never read."""
        self._streams: dict[int, _Stream] = {}
        self._due: deque[_Stream] = deque()
        self._waiting: deque[tuple[int, _Stream]] = deque()
        """Streams to be taken, with the moment from which on they are due."""
        self._since_ns = 0
        """Bytes that are there now, and not read yet, came after this moment."""
        self._failure: BaseException | None = None
        self._stopped = False
        self._stamps = True
        """The kernel stamps all that comes."""
        self.event_fd, self._event = _pipe()
        self._woken, self._wake = _pipe()
        self._notified = False
        self._poll, self._unit_s = make_poll()
        self._poll.register(self._woken, _POLLIN)
        _start_thread(self._run, ())

    # -- in the event loop -------------------------------------------------------------------------

    def add(self, fd: int, sent_ns: int, awaited: bool, tls: bool, /) -> None:
        if fd in self._streams:
            raise ValueError(f"the descriptor {fd} cannot be added")
        stream = _Stream(fd, sent_ns, tls)
        try:
            self._poll.register(fd, _POLLIN)
        except BaseException:
            stream.sock.detach()
            raise
        self._streams[fd] = stream
        self._wake_up()

    def sent(self, fd: int, sent_ns: int, /) -> None:
        if fd in self._streams:
            self._streams[fd].sent_ns = sent_ns

    def calm(self, fd: int, most: int, chunked: bool, patience_ns: int, /) -> None:
        stream = self._streams[fd]
        stream.most, stream.chunked, stream.patience_ns, stream.calm = (
            most,
            chunked,
            patience_ns,
            True,
        )

    def take(self, fd: int, /) -> tuple[bytes, bytes, list[bytes], int, int, int, int, bool]:
        stream = self._streams[fd]
        with self._lock:
            stamps, since, data = stream.stamps, stream.since, stream.data
            stream.stamps = array("q")
            stream.since = array("q")
            stream.data = []
            stream.bytes = 0
            if stream.paused and not (stream.end or stream.removed):
                stream.paused = False
                self._poll.register(fd, _POLLIN)
                self._wake_up()
        return (
            stamps.tobytes(), since.tobytes(), data, stream.end, stream.unstamped,
            stream.bad_stamps, stream.lag_ns,
            stream.unusual,
        )  # fmt: skip

    def newest(self, fd: int, /) -> int:
        return self._streams[fd].stamp_ns if fd in self._streams else 0

    def remove(self, fd: int, /) -> bool:
        with self._lock:
            stream = self._streams.pop(fd, None)
            if stream is None:
                return False
            stream.removed = True
            self._unregister(stream)
            stream.sock.detach()
            return bool(stream.data)

    def sweep(self, quiet_ns: int, waited_ns: int, /) -> None:
        now = time.monotonic_ns()
        with self._lock:
            for stream in self._streams.values():
                stamps = stream.stamps
                if stamps and (now - stamps[-1] > quiet_ns or now - stamps[0] > waited_ns):
                    self._enqueue(stream)

    def next(self) -> int:
        """Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            self._enqueue_waiting(time.monotonic_ns())
            while self._due:
                stream = self._due.popleft()
                stream.queued = False
                if not stream.removed:
                    return stream.fd
            self._notified = False
            with suppress(BlockingIOError):
                os.read(self.event_fd, 64)
        return -1

    def stop(self) -> None:
        """Nothing is read when this returns. A forked child has no such thread, and its lock is in
        the parent's state."""
        if self._stopped:
            return
        if self._pid != os.getpid():
            self._detach_sockets()
            return
        with self._lock:
            self._detach_sockets()
        self._wake_up()

    def _wake_up(self) -> None:
        """Wake the thread: poll(2) does not see what is registered while it waits."""
        with suppress(OSError):
            os.write(self._wake, b".")

    def _detach_sockets(self) -> None:
        """Detach the sockets, as these objects would close them, and others may have their numbers
        by then."""
        self._stopped = True
        for stream in self._streams.values():
            stream.removed = True
            stream.sock.detach()

    # -- in the thread: no gevent, no logging ------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._read_all()
        except BaseException as error:
            # it holds what was read last, and memory may be what there is none of
            error.__traceback__ = None
            self._failure = error
            self._notify()

    def _read_all(self) -> None:
        """Read each ready stream once."""
        asked_ns = time.monotonic_ns()
        ready = self._poll.poll(self._until_due(asked_ns))
        begun_ns = time.monotonic_ns()
        offset_ns = measure_clock_offset_ns()
        for fd, _ in ready:
            if fd == self._woken:
                os.read(fd, 64)
                continue
            with self._lock:
                stream = self._streams.get(fd)
                if stream is not None and not (stream.end or stream.paused or self._stopped):
                    self._read(stream, begun_ns, offset_ns)
        self._since_ns = asked_ns  # what had come before this round was asked for was in its answer
        self.behind_ns = 0
        with self._lock:
            self._enqueue_waiting(time.monotonic_ns())
        if self._stamps and len(self._streams) >= NAP_STREAMS:
            _sleep(NAP_S)

    def _read(self, stream: _Stream, begun_ns: int, offset_ns: int) -> None:
        since_ns = stream.left_since_ns or max(self._since_ns, stream.read_ns)
        stream.left_since_ns, stream.read_ns = 0, begun_ns
        try:
            data, control, _, _ = stream.sock.recvmsg(READ_BYTES, CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end_stream(stream, error.errno or errno.EIO)
            return
        stamp_ns = self._choose_stamp(stream, control, offset_ns, bool(data))
        self.reads += 1
        if not data:
            self._end_stream(stream, CLOSED)
            return
        stream.stamps.append(stamp_ns)
        # the kernel stamps bytes shortly before it reports them: a poll in between did not see them
        stream.since.append(min(since_ns, stamp_ns))
        stream.data.append(data)
        stream.bytes += len(data)
        if len(data) == READ_BYTES:  # what it left may be as old
            stream.left_since_ns = since_ns
        if stream.bytes >= READ_BYTES:  # faster than it is decoded: the server waits
            stream.paused = True
            self._unregister(stream)
        self._queue_for_loop(stream, data)

    def _choose_stamp(
        self,
        stream: _Stream,
        control: list[tuple[int, int, bytes]],
        offset_ns: int,
        has_several: bool,
    ) -> int:
        """The monotonic ns of what was just read. The thread's clock replaces a kernel stamp that
        cannot belong to this answer."""
        now = time.monotonic_ns()
        kernel_ns = kernel_stamp_ns(control)
        stamp_ns = kernel_ns - offset_ns
        if not stream.sent_ns <= stamp_ns <= now:
            stamp_ns = now
            # the wall clock was set between the arrival and the read, or it is no stamp of this
            # answer
            if kernel_ns:
                stream.bad_stamps += 1
            elif has_several:  # the end of a connection has no stamp
                stream.unstamped += 1
                self._stamps = False  # this thread's clock is all there is: no time to sleep
        self.behind_ns = now - stamp_ns
        stream.lag_ns = max(stream.lag_ns, self.behind_ns)
        stream.stamp_ns = stamp_ns
        return stamp_ns

    def _end_stream(self, stream: _Stream, number: int) -> None:
        stream.end = number
        self._unregister(stream)
        self._enqueue(stream)

    def _queue_for_loop(self, stream: _Stream, data: bytes) -> None:
        """Show the stream at once, soon or later: a chunked body may end in this read, and only the
        parser knows."""
        if stream.tls:
            ends = stream.unusual = stream.calm and self._is_unusual(stream, data)
        else:
            ends = stream.chunked and (len(data) < 5 or data.endswith(b"0\r\n\r\n"))
        if ends or not stream.calm or stream.bytes > stream.most:
            self._enqueue(stream)
        elif (
            stream.patience_ns
            and not stream.waits
            and (not stream.chunked or data.find(b"\r\n\r\n") >= 0)
        ):
            stream.waits = True
            self._waiting.append((time.monotonic_ns() + stream.patience_ns, stream))

    def _is_unusual(self, stream: _Stream, data: bytes) -> bool:
        """Whether the read is not one whole record as long as the others: only such a read can be
        an end."""
        size = int.from_bytes(data[3:HEADER_BYTES], "big")
        usual = len(data) == HEADER_BYTES + size and SHORT_RECORD < size <= stream.longest
        if len(data) == HEADER_BYTES + size:
            stream.longest = max(stream.longest, size)
        return not usual

    def _unregister(self, stream: _Stream) -> None:
        with suppress(KeyError, OSError):  # it was before
            self._poll.unregister(stream.fd)

    def _until_due(self, now_ns: int) -> float | None:
        """The wait until the next stream is due, in units of poll's time-out. While streams are
        open it is short, so that what comes together after a silence, as when the server stood
        still, is known to have come after it."""
        waiting = self._waiting
        look_s = LOOK_S if self._streams else math.inf
        due_s = max(0.0, (waiting[0][0] - now_ns) / 1e9) if waiting else math.inf
        wait_s = min(due_s, look_s)
        return wait_s / self._unit_s if wait_s < math.inf else None

    # -- with the lock -----------------------------------------------------------------------------

    def _enqueue(self, stream: _Stream) -> None:
        if not stream.queued:
            stream.queued = True
            self._due.append(stream)
            self._notify()

    def _enqueue_waiting(self, now_ns: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, stream = self._waiting.popleft()
            stream.waits = False
            self._enqueue(stream)

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            with suppress(OSError):
                os.write(self._event, b".")


def kernel_stamp_ns(control: list[tuple[int, int, bytes]]) -> int:
    """The kernel's stamp of the newest byte that was read, in Unix ns; 0 where there is none."""
    for _, kind, value in control:
        if kind == SO_TIMESTAMPNS and len(value) == _timespec.size:
            seconds, nanoseconds = _timespec.unpack(value)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return 0


def make_poll() -> tuple[Any, float]:
    """What waits for many sockets (epoll(7), else poll(2)), and the unit of its time-out in
    seconds."""
    try:
        return get_original("select", "epoll")(), 1.0
    except AttributeError:
        return get_original("select", "poll")(), 0.001


def _pipe() -> tuple[int, int]:
    """(read end, write end) of a pipe; neither blocks."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
