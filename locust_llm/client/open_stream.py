"""A streamed answer on its way: what the reader's thread and the greenlet that waits for it both hold."""

from collections.abc import Callable

from gevent.event import Event

from .connection import Connection
from .response import Response


class OpenStream:
    """From ``StreamReader.add`` until it has ended."""

    __slots__ = ("connection", "dropped", "ended", "left_since_ns", "looking", "on_first", "read_ns", "stream")

    def __init__(self, connection: Connection, stream: Response, on_first: Callable[[], object] | None = None) -> None:
        self.connection = connection
        self.stream = stream
        self.on_first = on_first
        """Called in the event loop when the first chunk is there, or an error in its place: must not block."""
        self.ended = Event()
        self.dropped: tuple[str, str] | None = None
        self.read_ns = 0
        """Before the last read, monotonic ns."""
        self.left_since_ns = 0
        """What the last read may have left in the kernel came after this, monotonic ns; 0: it left nothing."""
        self.looking = False
        """It waits to be looked into."""
