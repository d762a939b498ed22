"""Native reader: the reading thread in C, see _reader.c. All methods but ``stop`` return at once."""

class Reader:
    """Starts its thread. Raises OSError."""

    reads: int
    """The reads of all streams so far."""
    behind_ns: int
    """How long the last read bytes had lain in the kernel, in ns; 0 when nothing is left to read."""

    event_fd: int
    """The descriptor is readable while ``next`` has a stream."""

    def add(self, fd: int, sent_ns: int, awaited: bool, tls: bool, /) -> None:
        """Read from this socket until its end, or ``remove``. Raises OSError.

        A stamp before ``sent_ns`` does not belong to this answer. ``awaited``: naps are short until ``calm``. ``tls``: the
        bytes are TLS records, and are not decrypted here."""
    def sent(self, fd: int, sent_ns: int, /) -> None:
        """Note when the request was sent."""
    def calm(self, fd: int, most: int, chunked: bool, patience_ns: int, /) -> None:
        """From now on ``next`` gives this stream at its end, and when more than ``most`` bytes wait.

        With ``chunked`` it also gives it when the last HTTP chunk may have come, and over TLS after an unusual record.
        Otherwise it gives it ``patience_ns`` after any bytes, if that is not 0."""
    def take(self, fd: int, /) -> tuple[bytes, bytes, list[bytes], int, int, int, int, bool]:
        """The reads since the last call: (stamps, since, the bytes of each read, end, unstamped, bad stamps, read lag,
        unusual).

        Stamps and since are as in ``Response``, as the bytes of arrays of int64. End: 0 if there is none yet, -1 where the
        peer closed, else an errno. The next three count from the begin; the lag is in ns. Unusual: the last read ended a TLS
        record that is short, or longer than all others since ``calm``."""
    def newest(self, fd: int, /) -> int:
        """The stamp of the last read in monotonic ns. 0: there is none, or no such stream."""
    def remove(self, fd: int, /) -> bool:
        """Stop reading from this socket before this returns. Returns whether bytes came that were not taken."""
    def sweep(self, quiet_ns: int, waited_ns: int, /) -> None:
        """Let ``next`` give the streams whose last waiting read is older than ``quiet_ns``, or the first one than
        ``waited_ns``."""
    def next(self) -> int:
        """The descriptor of a stream to decode. -1: there is none. Raises OSError if its thread ended."""
    def stop(self) -> None:
        """End the thread before this returns."""

def plain_events(
    reads: list[bytes], first: int, before: bytes, behind: bytes, /
) -> tuple[list[tuple[int, str, bytes] | tuple[list[int], bytes]], int, int]:
    """(events, how many reads, their bytes) of the first reads that hold only whole HTTP chunks of one event each,
    ``data: {...}`` and a blank line. ``first`` is the number of the first read.

    The parser and ``EventDecoder`` make the same events of them, when both are between two chunks and two events. ``before``
    and ``behind`` are the bytes around the text of a chunk, or nothing. Chunks in a row that differ in a text of plain ASCII
    come as (the read of each, the last one), and need not be decoded."""
