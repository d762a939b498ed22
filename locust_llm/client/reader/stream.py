"""A streamed answer on its way: what the reader and the greenlet that waits for it both hold."""

import time
from array import array
from collections import deque
from collections.abc import Callable
from itertools import compress
from typing import Final

from gevent.event import Event

from locust_llm.client.connection import Connection
from locust_llm.client.response import Response
from locust_llm.client.tls import SLICE_BYTES, TLSLayer

UNSEAL_NS: Final = 5_000_000
"""So long is decrypted without a pause: others wait meanwhile."""


class OpenStream:
    """From ``StreamReader.add`` until it has ended."""

    __slots__ = (
        "_opened",
        "connection",
        "dropped",
        "end",
        "end_shows",
        "ended",
        "on_first",
        "sealed",
        "stream",
    )

    def __init__(
        self, connection: Connection, stream: Response, on_first: Callable[[], object] | None = None
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.on_first = on_first
        """Called in the event loop when the first chunk is there, or an error in its place: must
        not block."""
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None
        self.end = 0
        """As of ``Reader.take``."""
        self.sealed: deque[tuple[int, int, bytes]] = deque()
        """Reads that are not decrypted yet: stamp, since (both as of ``Response.arrived``),
        bytes."""
        self.end_shows: bool | None = None
        """The last read may hold the end, as far as TLS records show it; None: all reads are
        decrypted at once."""
        self._opened = b""
        """What the first of them held as far as it is decrypted."""

    def closed(self) -> None:
        """The peer closed the connection."""
        tls = self.connection.tls
        self.stream.closed(cut=tls is not None and not tls.closed)

    def unseal(self, patience_ns: int | None = UNSEAL_NS) -> bool:
        """Decrypt what was read; each read keeps its stamp. Returns whether it shall be decoded
        now. ``patience_ns``: after it ``sealed`` has the rest; None: all at once."""
        stream, tls, sealed, look = self.stream, self.connection.tls, self.sealed, False
        until_ns = None if patience_ns is None else time.monotonic_ns() + patience_ns
        while sealed and tls is not None:
            stamp_ns, since_ns, data = sealed.popleft()
            piece, rest = data[:SLICE_BYTES], data[SLICE_BYTES:]
            plain = self._opened + tls.received(piece)
            over = bool(tls.failure) or tls.closed
            if rest and not over:
                sealed.appendleft((stamp_ns, since_ns, rest))
                self._opened = plain
            elif (
                stream.over
            ):  # read before that was known: the TLS layer of the next answer needs it
                self._opened = b""
                stream.frame.closed_by_peer |= bool(plain)
            else:
                self._opened = b""
                look = (bool(plain) and stream.arrived(stamp_ns, since_ns, plain)) or look
                self._end_by_tls(tls)
            if over:
                self._forget()
            elif until_ns is not None and time.monotonic_ns() > until_ns:
                break
        return look

    def unseal_few(self, stamps: bytes, since: bytes, data: list[bytes]) -> None:
        """The same of SLICE_BYTES at most, as the native reader has them, where nothing waits in
        ``sealed``. Stamps and since: each the bytes of an array of int64."""
        tls = self.connection.tls
        assert tls is not None
        plain = [tls.received(read) for read in data]
        if not all(plain):
            stamps = array("q", compress(array("q", stamps), plain)).tobytes()
            since = array("q", compress(array("q", since), plain)).tobytes()
            plain = list(filter(None, plain))
        self.stream.took(stamps, since, plain)
        self._end_by_tls(tls)

    def _end_by_tls(self, tls: TLSLayer) -> None:
        if tls.failure:
            self.stream.failed("tls", tls.failure)
            self.stream.frame.closed_by_peer = True
        elif tls.closed and not self.stream.over:
            self.closed()

    def _forget(self) -> None:
        """Nothing behind this can be decrypted."""
        self.sealed.clear()
