"""A streamed answer on its way: what the reader's thread and the greenlet that waits for it both hold."""

from collections.abc import Callable

from gevent.event import Event

from .connection import Connection
from .response import Response


class OpenStream:
    """From ``StreamReader.add`` until it has ended."""

    __slots__ = (
        "connection", "dropped", "ended", "left_since_ns", "looking", "on_first", "read_ns", "sealed", "sealed_bytes",
        "stamp_ns", "stream",
    )  # fmt: skip

    def __init__(self, connection: Connection, stream: Response, on_first: Callable[[], object] | None = None) -> None:
        self.connection = connection
        self.stream = stream
        self.on_first = on_first
        """Called in the event loop when the first chunk is there, or an error in its place: must not block."""
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None
        self.read_ns = 0
        """Before the last read, monotonic ns."""
        self.stamp_ns = 0
        """Of the last read."""
        self.left_since_ns = 0
        """What the last read may have left in the kernel came after this, monotonic ns; 0: it left nothing."""
        self.looking = False
        """It waits to be looked into."""
        self.sealed: list[tuple[int, int, bytes]] = []
        """Reads that are not decrypted yet: stamp, since (both as of ``Response.arrived``), bytes."""
        self.sealed_bytes = 0

    def took(self, stamp_ns: int, since_ns: int, data: bytes) -> bool:
        """One read; no bytes: the peer closed. Returns whether it shall be looked into: TLS is decrypted then, between the
        reads, as all is decoded."""
        if not data:
            self.unseal()
            self.stream.closed()
            return False
        if self.connection.tls is None:
            return self.stream.arrived(stamp_ns, since_ns, data)
        self.sealed.append((stamp_ns, since_ns, data))
        self.sealed_bytes += len(data)
        return True

    def unseal(self) -> bool:
        """Decrypt what was read; each read keeps its stamp. Returns whether it shall be decoded now."""
        stream, tls, look = self.stream, self.connection.tls, False
        sealed, self.sealed, self.sealed_bytes = self.sealed, [], 0
        for stamp_ns, since_ns, data in sealed:
            if tls is None:
                break
            plain = tls.received(data)
            if stream.over:  # read before that was known: the TLS layer of the next answer needs it
                stream.frame.closed_by_peer |= bool(plain)
                continue
            look = (bool(plain) and stream.arrived(stamp_ns, since_ns, plain)) or look
            if tls.failure:
                stream.failed("tls", tls.failure)
                stream.frame.closed_by_peer = True
                break
            if tls.closed and not stream.over:
                stream.closed()
        return look
