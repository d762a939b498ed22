"""Reference server: streams chunks, and ends each stream with the moments just before and just
after each of its sends.

``python -I -S reference_server.py GAP_MS SPREAD [CERTIFICATE]``, with a listening socket as
descriptor 0, as inetd(8) would start it, and the end of a pipe as descriptor 1: when nobody has the
other end any more, it is over. Standard library only.

A request (``POST``, with ``max_tokens`` in its JSON) is answered with so many chunks. All streams
send at the same ticks, ``GAP_MS`` apart, each moved by up to ``SPREAD`` of that, so that they keep
no step with anything. The last event before ``[DONE]`` has ``{"truth": {"arrived": ns, "sends":
[[before, after], ...]}}``, in ns of CLOCK_MONOTONIC, which all processes of a machine share and
nobody sets. ``arrived`` is the kernel's stamp of the request.
"""

import gc
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
READ_BYTES = 65_536
MOST_BYTES = 1 << 20
"""A request may have so many bytes."""
MOST_CHUNKS = 4096
MOST_CONNECTIONS = 4096
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: truth\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
    b"chunked\r\n\r\n"
)
CHUNK = (
    b'data: {"id":"truth","object":"chat.completion.chunk","created":0,"model":"truth","choices":[{"index":0,'
    b'"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)


def frame_as_http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


NEXT = frame_as_http_chunk(CHUNK)
FIRST = HEAD + NEXT
END = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d},"truth":{"arrived":%d,"sends":%s}}\n\n'
    b"data: [DONE]\n\n"
)
_timespec = struct.Struct("qq")


class Gone(Exception):
    """This connection is of no more use."""


class Plain:
    """Plain text on the wire. The TLS layer has the same two functions."""

    def __init__(self) -> None:
        self.opened: Callable[[bytes], tuple[bytes, bytes]] = lambda data: (data, b"")
        self.sealed: Callable[[bytes], bytes] = lambda data: data


def tls_of(certificate: str) -> Callable[[], Plain]:
    """Returns what makes the TLS layer of a connection. It uses memory BIOs, so that reads and
    sends stay plain reads and sends of a socket."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def made() -> Plain:
        incoming = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        layer = context.wrap_bio(incoming, outgoing, server_side=True)
        link = Plain()

        def opened(data: bytes) -> tuple[bytes, bytes]:
            incoming.write(data)
            plain = b""
            try:
                while part := layer.read(READ_BYTES):  # does the handshake first
                    plain += part
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise Gone from error
            return plain, outgoing.read()

        def sealed(data: bytes) -> bytes:
            layer.write(data)
            return outgoing.read()

        link.opened, link.sealed = opened, sealed
        return link

    return made


class TruthConnection:
    """A connection, and the stream on it, if there is one."""

    def __init__(self, sock: socket.socket, link: Plain) -> None:
        self.sock, self.link = sock, link
        self.left = -1
        """The chunks left to send; 0: the end is next; -1: there is no stream."""
        self._in = b""
        self._arrived = 0
        self._sends: list[tuple[int, int]] = []

    def readable(self) -> None:
        """Read what came; a whole request begins a stream. Raises Gone and OSError."""
        data, arrived = received(self.sock)
        if not data:
            raise Gone
        plain, reply = self.link.opened(data)
        if reply:
            self._send(reply)
        self._in += plain
        end = self._in.find(b"\r\n\r\n")
        if len(self._in) > MOST_BYTES:
            raise Gone
        if end < 0:
            return
        head = self._in[: end + 2].lower()
        whole = end + 4 + (number_after(head, b"\r\ncontent-length:") or 0)
        if len(self._in) < whole:
            return
        tokens = number_after(self._in[end:whole], b'"max_tokens":')
        if not head.startswith(b"post ") or tokens is None or self.left >= 0:
            raise Gone
        self._in = self._in[whole:]
        self._arrived, self._sends = arrived, []
        self.left = max(1, min(tokens, MOST_CHUNKS))

    def tick(self) -> None:
        """Send the next chunk, or the end. Raises Gone and OSError."""
        if self.left:
            self._sends.append(self._send(self.link.sealed(NEXT if self._sends else FIRST)))
        else:
            sends = str(list(map(list, self._sends))).replace(" ", "").encode()
            end = END % (len(self._sends), self._arrived, sends)
            self._send(self.link.sealed(frame_as_http_chunk(end) + b"0\r\n\r\n"))
        self.left -= 1

    def _send(self, data: bytes) -> tuple[int, int]:
        """Returns the monotonic ns just before and just after the send. Raises Gone where not all
        bytes go out at once."""
        clock, send = time.monotonic_ns, self.sock.send
        before = clock()
        sent = send(data)
        after = clock()
        if sent < len(data):
            raise Gone
        return before, after


def number_after(data: bytes, name: bytes) -> int | None:
    """The digits that follow ``name``, at most ten."""
    _, _, rest = data.partition(name)
    digits = rest.lstrip(b" ")[:10]
    digits = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    return int(digits) if digits else None


def received(sock: socket.socket) -> tuple[bytes, int]:
    """(bytes, when the newest of them arrived in monotonic ns), by the kernel's stamp, else by the
    clock after the read."""
    data, control, _, _ = sock.recvmsg(READ_BYTES, 128)
    now = time.monotonic_ns()
    for level, kind, value in control:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) == _timespec.size:
            seconds, nanoseconds = _timespec.unpack(value)
            return data, min(now, seconds * 1_000_000_000 + nanoseconds - wall_minus_monotonic_ns())
    return data, now


def wall_minus_monotonic_ns() -> int:
    """The difference at this moment, from the closest of eight pairs of readings."""
    pairs = []
    for _ in range(8):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        pairs.append((after - before, wall - (before + after) // 2))
    return min(pairs)[1]


def serve_truth(
    listener: socket.socket, alive: int, gap_ns: int, spread: float, link: Callable[[], Plain]
) -> None:
    """Serve until nobody has the other end of the pipe ``alive``."""
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    poll.register(alive, 0)  # errors and hang-ups are always reported
    connections: dict[int, TruthConnection] = {}
    streams: set[int] = set()
    tick_ns = 0
    while True:
        wait_s = max(0, tick_ns - time.monotonic_ns()) / 1e9 if streams else None
        for fd, _ in poll.poll(wait_s):
            if fd == alive:
                return
            if fd == listener.fileno():
                accept(listener, poll, connections, link)
            elif fd in connections and begins_stream(fd, connections, streams):
                if not streams:
                    tick_ns = time.monotonic_ns() + gap_ns
                streams.add(fd)
        now = time.monotonic_ns()
        if streams and now >= tick_ns:
            tick_streams(connections, streams)
            # random itself takes 3 ms to import
            chance = int.from_bytes(os.urandom(2), "little") / 32768 - 1
            tick_ns = max(now, tick_ns + int(gap_ns * (1 + spread * chance)))


def begins_stream(fd: int, connections: dict[int, TruthConnection], streams: set[int]) -> bool:
    """Read what came on a connection. Returns whether its request begins a stream. A connection
    that is gone is dropped."""
    try:
        connections[fd].readable()
    except BlockingIOError:
        return False
    except (Gone, OSError):
        drop_connection(fd, connections, streams)
        return False
    return connections[fd].left >= 0 and fd not in streams


def tick_streams(connections: dict[int, TruthConnection], streams: set[int]) -> None:
    """Send the next chunk of each stream. Streams that ended, or whose client is gone, leave
    ``streams``."""
    for fd in list(streams):
        try:
            connections[fd].tick()
        except (Gone, OSError):
            drop_connection(fd, connections, streams)
        else:
            if connections[fd].left < 0:
                streams.discard(fd)


def drop_connection(fd: int, connections: dict[int, TruthConnection], streams: set[int]) -> None:
    streams.discard(fd)
    connections.pop(fd).sock.close()


def accept(
    listener: socket.socket,
    poll: "select.epoll",
    connections: dict[int, TruthConnection],
    link: Callable[[], Plain],
) -> None:
    """Accept one connection, if there is room for it."""
    try:
        sock, _ = listener.accept()
    except OSError:
        return
    if len(connections) >= MOST_CONNECTIONS:
        sock.close()
        return
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    connections[sock.fileno()] = TruthConnection(sock, link())
    poll.register(sock.fileno(), select.EPOLLIN)


def main(arguments: list[str]) -> None:
    gap_ms, spread, *certificate = arguments
    link = tls_of(certificate[0]) if certificate else Plain
    with socket.socket(fileno=0) as listener:
        listener.setblocking(False)
        gc.disable()  # nothing here refers to itself
        serve_truth(listener, 1, int(float(gap_ms) * 1e6), float(spread), link)


if __name__ == "__main__":
    main(sys.argv[1:])
