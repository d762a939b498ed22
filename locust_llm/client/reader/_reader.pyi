"""The thread that reads, in C: see _reader.c. All but ``stop`` return at once."""

class Reader:
    """Starts its thread. Raises OSError."""

    reads: int
    """So far, of all streams."""
    behind_ns: int
    """How long what was read last had lain in the kernel; 0 when all there was has been read."""

    event_fd: int
    """A descriptor, readable while ``next`` has a stream."""

    def add(self, fd: int, sent_ns: int, awaited: bool, tls: bool, /) -> None:
        """Read from this socket until its end, or ``remove``. A stamp before ``sent_ns`` is none of this answer.
        ``awaited``: naps are short until ``calm``. ``tls``: what comes is TLS records, and stays so. Raises OSError."""
    def sent(self, fd: int, sent_ns: int, /) -> None:
        """The request was sent, and not before."""
    def calm(self, fd: int, most: int, chunked: bool, patience_ns: int, /) -> None:
        """From now on ``next`` gives this stream when more than ``most`` bytes were not taken; with ``chunked`` when the
        last HTTP chunk may have come, over TLS when an unusual record has; else ``patience_ns`` after anything came, if
        that is not 0; and at its end."""
    def take(self, fd: int, /) -> tuple[bytes, bytes, list[bytes], int, int, int, int, bool]:
        """What came since the last time: (stamps, since, the bytes of each read, end, unstamped, bad stamps, read lag,
        unusual).

        Stamps and since: those of ``Response``, as the bytes of an array of int64. End: 0 if there is none yet, -1 where the
        peer closed, else an errno. The three behind it: so far, the lag in ns. Unusual: the last read ended a TLS record
        that is short, or longer than all before it since ``calm``."""
    def newest(self, fd: int, /) -> int:
        """The stamp of the last read, monotonic ns; 0: there is none, or no such stream."""
    def remove(self, fd: int, /) -> bool:
        """Read no more from this socket: when it returns, nobody does. Whether something came that was not taken."""
    def sweep(self, quiet_ns: int, waited_ns: int, /) -> None:
        """Let ``next`` give the streams whose last read is older than ``quiet_ns``, or whose first is older than
        ``waited_ns``."""
    def next(self) -> int:
        """The descriptor of a stream to look into; -1: there is none. Raises OSError: its thread ended."""
    def stop(self) -> None:
        """End the thread: when it returns, nobody reads."""

def plain_events(
    reads: list[bytes], first: int, before: bytes, behind: bytes, /
) -> tuple[list[tuple[int, str, bytes] | tuple[list[int], bytes]], int, int]:
    """The events of those reads, from the beginning, that hold nothing but whole HTTP chunks of one event each,
    ``data: {...}`` and a blank line: (events, how many reads, their bytes). ``first``: the number of the first read.

    The same as the parser and ``EventDecoder`` make of them, when both are between two chunks and two events. ``before`` and
    ``behind``: what stands around the text of a chunk, or nothing. Chunks that are the same but for another text, of plain
    ASCII, come as (the read of each, the last one), and need not be decoded."""
