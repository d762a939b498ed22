"""Connection: opened before the gate, checked after it, one for each user, and never replaced
silently."""

import errno
import os
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from struct import Struct
from typing import Any, Final

import gevent.socket
import msgspec
from gevent import Timeout

from .event_loop_yields import yield_to_event_loop
from .proxy_tunnel import Proxy, ProxyFailed
from .source_address_rotation import SourceAddresses, connect_socket
from .tls_layer import SLICE_BYTES, TLSLayer

SO_TIMESTAMPNS: Final[int | None] = 35 if sys.platform == "linux" else None
"""The socket module does not name this option. Systems other than Linux have no stamp that is as
exact."""
CONNECT_TIMEOUT_S: Final = 30.0
READ_BYTES: Final = 16_384
"""The event loop reads so many bytes at once, and of TLS SLICE_BYTES."""
MAX_HANDSHAKE_BYTES: Final = 1 << 19
"""The server's side of a TLS handshake may have so many bytes: five times the longest certificate
list that OpenSSL takes."""
NO_SOCKET: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS)
"""Errors of connect(2) and socket(2) when this machine has no open file, no port, no address of its
own, or no memory left for it."""
TICKET_READS: Final = 32
TICKETS_S: Final = 0.01
"""The event loop waits at most so long for session tickets. What a server sends beyond them between
two answers may have no end."""
UNREACHABLE: Final = (
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EAFNOSUPPORT,
    errno.EACCES, errno.EPERM,
)  # fmt: skip
"""This machine has no route to the server, or its firewall forbids the connection."""
# struct tcp_info of linux/tcp.h: offsets of what is read of it
_U32: Final = Struct("I")
_TCPI_RTT: Final = 68
_TCPI_TOTAL_RETRANS: Final = 100
_TCP_INFO_BYTES: Final = 104
_TCPI_MIN_RTT: Final = 148
_TCP_INFO_WITH_MIN: Final = 152
_NO_RTT: Final = 2**32 - 1
"""The kernel reports this while it has no sample yet."""


class Target(msgspec.Struct, frozen=True):
    """The server to connect to. ``tls`` is None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy: Proxy | None = None
    """None: the connection is direct."""
    sources: SourceAddresses | None = None
    """The local addresses from which connections leave, also to the proxy. None: the kernel
    chooses."""


def _is_address(host: str) -> bool:
    """Whether the host is an address, which needs no lookup."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class ConnectFailed(Exception):
    """``outcome`` is an outcome of the record: refused, dns, tls, connect_timeout, no_socket,
    unreachable, reset or proxy."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class TLSClosed(Exception):
    """The peer's TLS layer sent bytes that cannot be read."""


class Connection:
    """One HTTP/1.1 connection. ``used`` counts the requests that were sent on it."""

    def __init__(self, target: Target, timeout: float = CONNECT_TIMEOUT_S) -> None:
        """Open the connection. Raises ConnectFailed. A greenlet that is killed meanwhile leaves no
        socket behind."""
        self.target = target
        self.tls: TLSLayer | None = None
        self.used = 0
        self._retransmits = 0
        self._socket: Any = None
        self._reached = target.proxy is None
        """The proxy has let the connection through: later failures are the server's."""
        self._opened_s: float | None = None
        """How long the TCP connection took to open."""
        self._opened_at = began = time.monotonic()
        limit = Timeout.start_new(
            timeout
        )  # no OSError, which create_connection takes for a reason to try the next address
        try:
            self._socket = self._opened(target, began)
            if target.tls is not None:
                self._handshake(target.tls, target.host)
        except BaseException as error:
            self.close()
            where = f"{target.host}:{target.port}"
            if error is limit:
                error = TimeoutError(f"no connection within {timeout:g} s")
            if isinstance(error, Exception):
                outcome = _outcome(error)
                if not self._reached and outcome != "no_socket":
                    outcome = "proxy"
                    error = _by_proxy(target, error)
                raise ConnectFailed(outcome, f"{where}: {error}") from error
            raise
        finally:
            limit.close()
        self.connect_s = (self._opened_s or 0.0) + time.monotonic() - self._opened_at
        self.fd: int = self._socket.fileno()

    def _opened(self, target: Target, began: float) -> Any:
        """The socket to the server, or through the proxy. Raises OSError and ProxyFailed."""
        proxy = target.proxy
        if proxy is not None and proxy.mistake:
            raise ProxyFailed(proxy.mistake)
        near = proxy or target
        # so that close() finds it
        self._socket = sock = connect_socket(near.host, near.port, target.sources)
        self._opened_at = time.monotonic()
        self._opened_s = self._by_kernel(near.host, self._opened_at - began)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        if proxy is not None:
            sock.sendall(proxy.connect(target.host, target.port))
            reply = b""
            while not proxy.opened(reply):
                if not (data := sock.recv(READ_BYTES)):
                    raise ProxyFailed("closed the connection without a response to CONNECT")
                reply += data
                yield_to_event_loop()
            self._reached = True
        return sock

    def _by_kernel(self, host: str, seconds: float) -> float:
        """How long the TCP connection to an address took, by the kernel's round trip, as this
        process may have noticed its end later.

        Gives ``seconds``, the time measured here, for a name (whose lookup takes time) and where a
        segment was lost.
        """
        rtt_us, again = self._tcp_info()
        known = rtt_us is not None and not again and _is_address(host)
        return min(seconds, rtt_us / 1e6) if known and rtt_us is not None else seconds

    def _handshake(self, context: ssl.SSLContext, host: str) -> None:
        self.tls = tls = TLSLayer(context, host)
        data, received = b"", 0
        while True:
            if answer := tls.handshake(data):
                self._socket.sendall(answer)
            if tls.established:
                return
            # where more lies there, recv gives nobody else a turn, nor the deadline
            yield_to_event_loop()
            data = self._socket.recv(SLICE_BYTES)
            received += len(data)
            if received > MAX_HANDSHAKE_BYTES:
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the server's TLS handshake does not end")
            if not data:
                raise ssl.SSLError(
                    ssl.SSL_ERROR_EOF, "the server closed the connection during the TLS handshake"
                )
            # a page, of one that took the handshake for HTTP 0.9
            if data.startswith((b"HTTP/", b"<")):
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the server speaks plain HTTP: use http://")

    def alive(self) -> bool:
        """The server has not closed the connection, as far as this machine knows. Never blocks."""
        if self.tls is not None and not self.tls.reusable:  # known since the end of the last answer
            return False
        try:
            if self.tls is None:
                self._socket._sock.recv(1, socket.MSG_PEEK)
                return False  # closed, or bytes nobody asked for
            until = time.monotonic() + TICKETS_S
            for _ in range(TICKET_READS):  # session tickets lie here after the handshake
                data = self._socket._sock.recv(SLICE_BYTES)
                if (
                    not data
                    or self.tls.decrypt(data)
                    or not self.tls.reusable
                    or time.monotonic() > until
                ):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def encrypt(self, request: Sequence[bytes]) -> Sequence[bytes]:
        """The bytes of ``request`` as they go over the wire, encrypted for TLS. Call it before the
        reader has the connection: see TLSLayer."""
        return request if self.tls is None else (self.tls.encrypt(request),)

    def round_trip(self) -> tuple[int | None, int]:
        """(round trip in microseconds, segments sent again since the last call), as in tcp(7).
        Through a proxy there is no round trip: the kernel knows only the way to the proxy."""
        rtt_us, total = self._tcp_info()
        again = total - self._retransmits
        self._retransmits = total
        return (rtt_us if self.target.proxy is None else None), max(0, again)

    def _tcp_info(self) -> tuple[int | None, int]:
        """(shortest round trip of the last minutes in microseconds, segments sent again so far).

        Older kernels have the smoothed round trip alone. It also holds the time for which the
        server's kernel delays its acknowledgement.
        """
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_WITH_MIN)
        except (OSError, AttributeError):  # Linux alone has it
            return None, self._retransmits
        if len(info) < _TCP_INFO_BYTES:
            return None, self._retransmits
        (rtt_us,) = _U32.unpack_from(info, _TCPI_RTT)
        (total,) = _U32.unpack_from(info, _TCPI_TOTAL_RETRANS)
        if len(info) >= _TCP_INFO_WITH_MIN:
            (least_us,) = _U32.unpack_from(info, _TCPI_MIN_RTT)
            rtt_us = rtt_us if least_us == _NO_RTT else least_us
        return rtt_us, total

    def send(self, sealed: Sequence[bytes]) -> int:
        """Write all pieces. Returns the monotonic ns just before the first byte was written. Raises
        OSError.

        The first write goes straight to the socket, right after the stamp. gevent's own ``send``
        could let other greenlets run between the two.
        """
        self.used += 1
        write, clock = self._socket._sock.sendmsg, time.monotonic_ns
        while True:
            sent_ns = clock()
            try:
                written = write(sealed)
                break
            except BlockingIOError:
                gevent.socket.wait_write(self.fd)
        for piece in sealed:
            if written < len(piece):
                self._socket.sendall(memoryview(piece)[written:])
            written = max(0, written - len(piece))
        return sent_ns

    def receive(self) -> bytes | None:
        """Wait for the next bytes; None: the peer closed. Not to be used beside the stream reader,
        which reads the same socket.

        The event loop has a turn with each read, however fast the peer sends. Raises OSError and
        TLSClosed.
        """
        most = READ_BYTES if self.tls is None else SLICE_BYTES
        while not self._over_by_tls() and (data := self._socket.recv(most)):
            yield_to_event_loop()
            plain = bytes(data) if self.tls is None else self.tls.decrypt(data)
            if plain:
                return plain  # else it was a part of a TLS record, or a session ticket
        return None

    def _over_by_tls(self) -> bool:
        """Whether TLS has ended, also where its last record came with data: the peer may keep the
        TCP connection open. Raises TLSClosed."""
        if self.tls is not None and self.tls.failure:
            raise TLSClosed(self.tls.failure)
        return self.tls is not None and self.tls.closed

    @property
    def cut(self) -> bool:
        """The peer closed the connection without TLS's own end, so that anybody on the way may have
        cut it."""
        return self.tls is not None and not self.tls.closed

    def close(self) -> None:
        """Close at once, also for the peer: gevent closes only in the next turn of its loop."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


def ask_for_stamps(sock: Any) -> None:
    """Ask the kernel to stamp what arrives. Where it does not, the reader's clock serves, and the
    record has that."""
    if SO_TIMESTAMPNS is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def _by_proxy(target: Target, error: Exception) -> ProxyFailed:
    """Turns a failure of the connection into a failure of the proxy."""
    assert target.proxy is not None
    proxy = target.proxy
    named = f"the proxy {proxy.name}" if proxy.host else "the proxy"
    if isinstance(error, ProxyFailed):
        return ProxyFailed(f"{named} {error}")
    why = getattr(error, "strerror", None) or error
    return ProxyFailed(
        f"{named} {'gave' if isinstance(error, TimeoutError) else 'cannot be used:'} {why}"
    )


def _outcome(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    match error:
        case TimeoutError():
            return "connect_timeout"
        case MemoryError() | RuntimeError():  # there can be no thread that looks the name up
            return "no_socket"
        case ssl.SSLError():
            return "tls"
        case ConnectionRefusedError():
            return "refused"
        case OSError() if number in NO_SOCKET or _files_are_out():
            return "no_socket"
        case OSError() if number in UNREACHABLE:
            return "unreachable"
        case socket.gaierror() | UnicodeError():  # no name that could be asked for
            return "dns"
        case _:
            return "reset"


def _files_are_out() -> bool:
    """This process cannot open one more file.

    A failed lookup of a name does not show this: getaddrinfo(3) reports EAI_SYSTEM, for which
    Python gives the wrong errno.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False
