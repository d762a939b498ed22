"""The open streams of a process: what the event loop does with what the reader's thread has read
and stamped.

One thread a process waits on all streaming sockets. It is in C where that was compiled
(client/reader/_reader.c), and reads without Python's lock; else in Python (python_reader.py), with
the same methods. It makes the stamps, by the kernel's clock where that stamps (SO_TIMESTAMPNS, see
socket(7)), so that not even its own lateness moves one. What came lies there, with its stamps,
until the event loop takes it: of those streams that have something to report, a first chunk or an
end. All that is here runs in the event loop.

A stream belongs to the thread from ``add`` until it is over; only then may its socket be used or
closed by others (the number of a closed socket is given to the next one).
"""

import gc
import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from functools import partial
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from gevent.monkey import get_original

from locust_llm.client.connection import Connection, ask_for_stamps
from locust_llm.client.response_chunks import (
    DECODE_BYTES,
    QUIET_NS,
    WAITED_NS,
    Response,
    describe_exception,
)
from locust_llm.client.tls_layer import SLICE_BYTES, TLSLayer
from locust_llm.records.outcomes import CLIENT_ERROR

from . import native_reader

if TYPE_CHECKING:
    from ._reader import Reader as NativeReader
    from .python_reader import PythonReader

_socket: Final = get_original("socket", "socket")
_sleep: Final = get_original("time", "sleep")

SWITCH_S: Final = 0.0005
"""The thread waits at most so long for a greenlet that computes. With Python's own 5 ms, chunks
pile up and merge."""
COLLECTIONS: Final = (50_000, 10, 14)
"""The thresholds of garbage collection (gc.set_threshold; Python's are 700, 10, 10). A request
leaves no garbage. A young collection looks at a hundred objects for each open request, which takes
milliseconds. A full one takes a quarter of a second with 10,000 users."""
SWEEP_S: Final = 0.5
"""The interval between checks for streams that have been quiet for long. With 10,000 streams a
check takes 5 ms."""
DIED: Final = "the thread that reads the responses ended unexpectedly"
BEHIND_NS: Final = 3_000_000
"""Above this lag, greenlets give way to the thread."""
PATIENCE_NS: Final = 4_000_000
"""Bytes wait at most so long before they are decrypted or parsed, where nobody can know whether
they hold the end."""
TLS_PATIENCE_NS: Final = 500_000_000
"""The same bound for TLS, where the record shows the end: what came meanwhile is decrypted at once,
which takes a fifth of the time."""
HIDDEN_ENDS: Final = 128
"""After an end that did not show, so many answers over TLS wait for PATIENCE_NS only. Whatever
share of the ends does not show, they are noticed 1.5 ms later on average."""

LOOKS: Final = 8
LOOKS_NS: Final = 10_000_000
"""How many streams are decoded in one turn of the loop (about 20 µs each), and for how long. Sends
that are due come between."""


DECRYPT_NS: Final = 5_000_000
"""Decryption runs at most so long without a pause, as others wait meanwhile."""


def collect_garbage_seldom() -> None:
    """From now on, in a process whose requests or records leave no garbage."""
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)


class ReaderFailed(Exception):
    """The thread is dead: this process sends nothing more."""


class OpenStream:
    """A stream from ``OpenStreams.add`` until it has ended."""

    __slots__ = (
        "_decrypted",
        "connection",
        "dropped",
        "encrypted",
        "end",
        "end_shows",
        "ended",
        "on_first",
        "stream",
    )

    def __init__(
        self, connection: Connection, stream: Response, on_first: Callable[[], object] | None = None
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.on_first = on_first
        """Called in the event loop when the first chunk has come, or an error in its place. It must
        not block."""
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None
        self.end = 0
        """The end of the connection, as ``Reader.take`` returns it."""
        self.encrypted: deque[tuple[int, int, bytes]] = deque()
        """Reads that are not decrypted yet: stamp, since (both as in ``Response.append_read``),
        bytes."""
        self.end_shows: bool | None = None
        """Whether the last read may hold the end, as far as TLS records show it. None: all reads
        are decrypted at once."""
        self._decrypted = b""
        """The decrypted bytes of the first of them."""

    def note_closed(self) -> None:
        """The peer closed the connection."""
        tls = self.connection.tls
        self.stream.note_closed(cut=tls is not None and not tls.closed)

    def decrypt(self, patience_ns: int | None = DECRYPT_NS) -> bool:
        """Decrypt what was read; each read keeps its stamp. Returns whether it must be decoded now.

        After ``patience_ns`` the rest stays in ``encrypted``; None: decrypt all at once.
        """
        stream = self.stream
        tls = self.connection.tls
        must_decode = False
        until_ns = None if patience_ns is None else time.monotonic_ns() + patience_ns
        while self.encrypted and tls is not None:
            stamp_ns, since_ns, data = self.encrypted.popleft()
            rest = data[SLICE_BYTES:]
            plain = self._decrypted + tls.decrypt(data[:SLICE_BYTES])
            over = bool(tls.failure) or tls.closed
            if rest and not over:
                self.encrypted.appendleft((stamp_ns, since_ns, rest))
                self._decrypted = plain
            elif stream.over:
                # it was read before the end was known; the TLS layer needs it for the next answer
                self._decrypted = b""
                stream.frame.closed_by_peer |= bool(plain)
            else:
                self._decrypted = b""
                if plain and stream.append_read(stamp_ns, since_ns, plain):
                    must_decode = True
                self._end_by_tls(tls)
            if over:
                self._drop_encrypted()
            elif until_ns is not None and time.monotonic_ns() > until_ns:
                break
        return must_decode

    def decrypt_few(self, stamps: bytes, since: bytes, data: list[bytes]) -> None:
        """Decrypt reads of at most SLICE_BYTES as the native reader gives them, where nothing waits
        in ``encrypted``. After DECRYPT_NS the rest waits there. ``stamps`` and ``since`` are the
        bytes of arrays of int64."""
        tls = self.connection.tls
        assert tls is not None
        plain = list[bytes]()
        until_ns = time.monotonic_ns() + DECRYPT_NS
        for read in data:
            plain.append(tls.decrypt(read))
            if time.monotonic_ns() > until_ns:
                break
        if len(plain) < len(data):
            reads = zip(array("q", stamps), array("q", since), data, strict=True)
            self.encrypted += islice(reads, len(plain), None)
        if len(plain) < len(data) or not all(plain):
            stamps = array("q", compress(array("q", stamps), plain)).tobytes()
            since = array("q", compress(array("q", since), plain)).tobytes()
            plain = list(filter(None, plain))
        self.stream.append_reads(stamps, since, plain)
        self._end_by_tls(tls)

    def _end_by_tls(self, tls: TLSLayer) -> None:
        if tls.failure:
            self.stream.end_with("tls", tls.failure)
            self.stream.frame.closed_by_peer = True
        elif tls.closed and not self.stream.over:
            self.note_closed()

    def _drop_encrypted(self) -> None:
        """Drop the encrypted reads: nothing behind this can be decrypted."""
        self.encrypted.clear()


class OpenStreams:
    """The open streams of a process: see reader_choice.py. Its thread starts before it, so make it
    after any fork."""

    def __init__(self, thread: "NativeReader | PythonReader") -> None:
        self._thread = thread
        in_c = native_reader.Reader is not None and isinstance(thread, native_reader.Reader)
        self._plain_events = native_reader.plain_events if in_c else None
        self.failure = ""
        """Why the thread died; empty while it lives."""
        self._open: set[OpenStream] = set()
        """The streams whose ends are not passed on yet."""
        self._readings: dict[int, OpenStream] = {}
        """The streams that the thread reads, by descriptor."""
        self._drops: deque[OpenStream] = deque()
        self._notices: deque[tuple[OpenStream, bool]] = deque()
        """The first chunk (False) or the end (True) of a stream, to be reported to its waiting
        greenlet."""
        self._waiting: set[OpenStream] = set()
        """The streams that have bytes to decode, or ``[DONE]`` without an end."""
        self._encrypted: deque[OpenStream] = deque()
        """The streams that have more to decrypt than one slice."""
        self._impatient = 0
        """The number of next answers over TLS whose end may not show: see HIDDEN_ENDS."""
        loop = gevent.get_hub().loop
        # referenced, so that the loop waits, while streams are open
        self._to_loop = loop.async_(ref=False)
        self._to_loop.start(self._report)
        self._due = loop.io(thread.event_fd, 1, ref=False)  # 1: to read
        self._due.start(self._run, self._decode_due)
        self._sweeper = loop.timer(SWEEP_S, SWEEP_S, ref=False)
        self._sweeper.start(self._run, lambda: self._sweep(time.monotonic_ns()))
        self._next_turn = loop.timer(0.0, ref=False)
        self._drop_turn = loop.timer(0.0, ref=False)
        # The kernel stamps only while some socket wants it, and begins a moment after the first one
        # does: this one always does, so that the first answer has stamps too.
        self._stamped = _socket()
        ask_for_stamps(self._stamped)
        _sleep(0.005)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        collect_garbage_seldom()

    def add(
        self,
        connection: Connection,
        stream: Response,
        on_first: Callable[[], object] | None = None,
        *,
        awaited: bool = False,
    ) -> OpenStream:
        """Let the thread read this connection into this stream. Raises ReaderFailed.

        ``on_first``: see OpenStream. ``awaited``: the first chunk frees a slot that others wait
        for.
        """
        if self.failure:
            raise ReaderFailed(self.failure)
        reading = OpenStream(connection, stream, on_first)
        self._open.add(reading)
        self._to_loop.ref = True
        fd = connection.fd
        self._readings[fd] = reading
        self._thread.add(fd, stream.sent_ns, awaited, connection.tls is not None)
        stream.newest = partial(self._thread.newest, fd)
        stream.plain_events = self._plain_events
        return reading

    def sent(self, reading: OpenStream, sent_ns: int) -> None:
        """Note when the request went out: nothing of its answer came before."""
        reading.stream.sent_ns = sent_ns
        self._thread.sent(reading.connection.fd, sent_ns)

    def drop(self, reading: OpenStream, outcome: str, message: str) -> None:
        """Give a stream up, with what came until then. ``reading.ended`` is set when that is
        done."""
        reading.dropped = (outcome, message)
        self._drops.append(reading)
        self._drop_turn.start(self._run, self._process_drops)

    @property
    def reads(self) -> int:
        """The number of reads of all streams so far, the open ones included."""
        return self._thread.reads

    def give_way(self) -> None:
        """Let the thread catch up before a greenlet computes: a late read merges chunks, a late
        record harms nobody.

        This stops the whole event loop, for 20 ms at most. The thread needs the GIL, not the loop.
        """
        for _ in range(20):
            if self._thread.behind_ns < BEHIND_NS:
                return
            _sleep(0.001)

    @property
    def open_streams(self) -> int:
        return len(self._open)

    def _run(self, work: Callable[[], None]) -> None:
        """Run ``work``, and then report what it found. An exception that it does not catch ends
        this reader."""
        try:
            work()
        except BaseException as error:
            self._fail_reader(error)
        try:
            self._report()
        except BaseException:  # of a hook: gevent would stop the watcher whose callback raises
            gevent.get_hub().handle_error(self, *sys.exc_info())

    def _fail_reader(self, error: BaseException) -> None:
        # it holds what was read last, and memory may be what there is none of
        error.__traceback__ = None
        failure = DIED
        with suppress(Exception):
            failure = f"{DIED}: {describe_exception(error)}"
        self.stop()
        self.failure = failure

    def stop(self) -> None:
        """Stop the thread: nothing reads any more when this returns, also in a forked child."""
        self._due.stop()
        self._sweeper.stop()
        self._next_turn.stop()
        self._thread.stop()

    def _decode_due(self) -> None:
        """Decode a few streams. The loop comes back while there are more."""
        if self._plain_events is None:  # the thread in Python, which needs the lock for each read
            self.give_way()
        until_ns = time.monotonic_ns() + LOOKS_NS
        for _ in range(LOOKS):
            fd = self._thread.next()
            if fd < 0:
                break
            reading = self._readings.get(fd)
            if reading is not None:
                self._run_for_one(reading, self._process)
            if time.monotonic_ns() > until_ns:
                break

    def _decrypt_next(self) -> None:
        """Decrypt a slice of one stream in a turn of the loop."""
        reading = self._encrypted.popleft()
        if self._readings.get(reading.connection.fd) is reading:
            self._run_for_one(reading, self._process)
        if self._encrypted:
            self._next_turn.start(self._run, self._decrypt_next)

    def _run_for_one(self, reading: OpenStream, work: Callable[..., None], *args: Any) -> None:
        """Run ``work`` so that a fault of this program ends one request, and not the thread that
        all requests need."""
        try:
            work(reading, *args)
        except Exception as error:
            reading.stream.give_up(
                "malformed", f"the response could not be read: {describe_exception(error)}"
            )
            self._finish(reading)

    def _process_drops(self) -> None:
        """Drop a few streams: deadlines of many may end in one turn of the loop."""
        until_ns = time.monotonic_ns() + LOOKS_NS
        while self._drops:
            if time.monotonic_ns() > until_ns:
                self._drop_turn.start(self._run, self._process_drops)
                return
            self._run_for_one(self._drops.popleft(), self._drop)

    def _drop(self, reading: OpenStream) -> None:
        if self._readings.get(reading.connection.fd) is reading and reading.dropped is not None:
            self._take(reading)
            reading.decrypt()
            reading.stream.end_with(*reading.dropped)
            self._finish(reading)

    def _sweep(self, now_ns: int) -> None:
        self._thread.sweep(QUIET_NS, WAITED_NS)
        for reading in list(self._waiting):
            if reading.stream.must_decode(now_ns):
                self._run_for_one(reading, self._process)

    def _process(self, reading: OpenStream) -> None:
        stream = reading.stream
        now_ns = time.monotonic_ns()
        seen = stream.first_seen
        must_decode = False
        if not reading.encrypted:  # else the server waits, as there is more than can be decrypted
            must_decode = self._take(reading)
        if reading.encrypted and reading.decrypt():
            must_decode = True
        if must_decode or stream.over or stream.must_decode(now_ns):
            stream.decode_pending(now_ns)
        if reading.end and not stream.over and not reading.encrypted:
            self._end(reading, reading.end)
        if stream.over:
            self._learn_how_ends_show(reading)
            self._finish(reading)
            return
        if reading.encrypted:
            if reading not in self._encrypted:
                self._encrypted.append(reading)
            self._next_turn.start(self._run, self._decrypt_next)
        if stream.first_seen and not seen:
            self._notices.append((reading, False))
            self._relax(reading)
        if stream.waiting_bytes or stream.answer.done_read is not None:
            self._waiting.add(reading)
        else:
            self._waiting.discard(reading)

    def _take(self, reading: OpenStream) -> bool:
        """Move what was read into its stream. Returns whether it must be decoded now; what waits
        in ``encrypted`` decides that later."""
        stream = reading.stream
        (
            stamps,
            since,
            data,
            reading.end,
            stream.unstamped,
            stream.bad_stamps,
            stream.read_lag_ns,
            unusual,
        ) = self._thread.take(reading.connection.fd)
        if reading.connection.tls is None:
            stream.append_reads(stamps, since, data)
            return True
        reading.end_shows = None if reading.end_shows is None else unusual
        largest = max(map(len, data), default=0)
        if not reading.encrypted and not stream.over and largest <= SLICE_BYTES:
            reading.decrypt_few(stamps, since, data)
            return True
        reading.encrypted += zip(array("q", stamps), array("q", since), data, strict=True)
        return False

    def _end(self, reading: OpenStream, number: int) -> None:
        """The connection ended without the end of the message. ``number``: see ``Reader.take``."""
        tls = reading.connection.tls
        if number == ENOMEM:
            raise MemoryError
        if tls is not None and tls.failure:
            reading.stream.end_with("tls", tls.failure)
            reading.stream.frame.closed_by_peer = True
        elif number < 0:
            reading.note_closed()
        else:
            reading.stream.end_with(
                "reset", describe_exception(OSError(number, os.strerror(number)))
            )

    def _relax(self, reading: OpenStream) -> None:
        """The first chunk has come: later bytes have time, except for the end."""
        stream, fd = reading.stream, reading.connection.fd
        # not all of those that begin together at one moment
        most = (DECODE_BYTES + stream.sent_ns % DECODE_BYTES) // 2
        frame = stream.frame
        if frame.content_length is not None:
            return
        if not frame.chunked:  # its end is that of the connection
            self._thread.calm(fd, most, False, 0)
        elif reading.connection.tls is None:
            self._thread.calm(fd, most, True, PATIENCE_NS)
        else:
            reading.end_shows = False
            self._thread.calm(fd, most, False, PATIENCE_NS if self._impatient else TLS_PATIENCE_NS)

    def _learn_how_ends_show(self, reading: OpenStream) -> None:
        """Learn how the server's ends show over TLS."""
        frame = reading.stream.frame
        if reading.end_shows is None or not frame.complete:
            return
        if reading.end_shows:
            self._impatient = max(0, self._impatient - 1)
        else:
            self._impatient = HIDDEN_ENDS

    def _finish(self, reading: OpenStream) -> None:
        reading.stream.over, reading.stream.newest = True, None
        fd = reading.connection.fd
        if self._readings.pop(fd, None) is not None and (
            self._thread.remove(fd) or reading.encrypted
        ):
            # bytes behind the end: the next answer would lack them
            reading.stream.frame.closed_by_peer = True
        self._waiting.discard(reading)
        self._notices.append((reading, True))

    def _report(self) -> None:
        """Report first chunks and ends to the waiting greenlets. It runs in the loop itself and
        must not block."""
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
        """The thread is dead: every open stream fails."""
        for reading in self._open:
            with suppress(Exception):
                self._take(reading)
        self._readings.clear()
        for reading in self._open:
            try:
                reading.stream.end_with(CLIENT_ERROR, self.failure)
            except Exception:  # perhaps what the thread died of
                reading.stream.give_up(CLIENT_ERROR, self.failure)
            self._notices.append((reading, True))
