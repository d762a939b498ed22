"""The TLS layer of a connection: Python's ssl over memory BIOs, so that the reader's thread reads the same socket in the
same way and gets the same stamps. What a server sends by TLS 1.3 the native reader decrypts itself."""

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from locust_llm.client.native.key_log import log_secrets, opener

if TYPE_CHECKING:
    from locust_llm.client.native._reader import Opener

RECORD_BYTES: Final = 16_384
"""Most plain bytes of a TLS record (RFC 8446, 5.1): a call of OpenSSL gives one record."""
RANDOM: Final = slice(11, 43)
"""Of the client, in its first record: behind two headers and the version (RFC 8446, 4.1.2)."""
SLICE_BYTES: Final = 16_384
"""Of what came, opened without a pause: the worst of it, new keys without end, takes OpenSSL 15 ms."""
MAX_WITHOUT_DATA: Final = 1 << 18
"""Bytes of records in a row that hold nothing of an answer. Servers send a few session tickets, of 16 kB with a long list of
certificates in each."""
MAX_ANSWERS: Final = 65_536
"""Bytes of the TLS layer's own answers, which nobody sends while an answer comes."""
ENDLESS: Final = "the server sends TLS records without data, and without end"
HEADER_BYTES: Final = 5
"""Of a record."""
HANDSHAKE: Final = 22
"""Kind of a record."""
RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""In place of a server's random: it asks for another key (RFC 8446, 4.1.3)."""
SLOW_KEYS: Final = {b"\0\x33\0\2\1\3": 6144, b"\0\x33\0\2\1\4": 8192}
"""The extension that asks for a key of so many bits: they take OpenSSL 40 and 90 ms."""
NO_DATA: Final = -2
"""The same as a failure of the native part."""
ALERTS: Final = {
    10: "unexpected message", 20: "bad record MAC", 22: "record overflow", 40: "handshake failure", 42: "bad certificate",
    43: "unsupported certificate", 44: "certificate revoked", 45: "certificate expired", 46: "certificate unknown",
    48: "unknown CA", 49: "access denied", 51: "decrypt error", 70: "protocol version", 71: "insufficient security",
    80: "internal error", 112: "unrecognized name", 116: "certificate required",
}  # fmt: skip
"""RFC 8446, 6."""


class TLS:
    """Its two buffers. Used by one thread at a time: see reader.py."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        log_secrets(context)
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._random = b""
        self._greeting = Greeting()
        self._closed = False
        self._failure = ""
        self._without_data = 0
        self.established = False
        """The handshake is done."""
        self.opener: Opener | None = None
        """Decrypts in place of Python's ssl."""

    def handshake(self, data: bytes = b"") -> bytes:
        """``data`` is what came; what is to be sent. Raises ssl.SSLError."""
        self._greeting.add(data)
        if bits := self._greeting.slow_key:  # which OpenSSL would make at once
            raise ssl.SSLError(
                ssl.SSL_ERROR_SSL, f"the server asks for a Diffie-Hellman key of {bits:,} bits: use X25519"
            )
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self._establish()
        answer = self._outgoing.read()
        self._random = self._random or answer[RANDOM]
        return answer

    def _establish(self) -> None:
        self.established = True
        self.opener = opener(self._object, self._random)
        if self.opener is not None and self._incoming.pending and self.opener.received(self._incoming.read()):
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the server sent data before any request")

    def sealed(self, pieces: Sequence[bytes]) -> bytes:
        """As they go over the wire."""
        for piece in pieces:
            self._object.write(piece)
        return self._outgoing.read()

    @property
    def closed(self) -> bool:
        """The peer has said that it sends no more."""
        return self._closed or (self.opener is not None and self.opener.closed)

    @property
    def reusable(self) -> bool:
        """Another request may be sent."""
        return not (self.closed or self.failure or (self.opener is not None and self.opener.update_owed))

    @property
    def failure(self) -> str:
        """Why nothing more can be read; empty while it can."""
        if self.opener is None or not self.opener.failure:
            return self._failure
        alert = self.opener.failure
        if alert == NO_DATA:
            return ENDLESS
        if alert < 0:
            return "what came cannot be decrypted"
        return f"the server's TLS alert {alert}" + (f", {ALERTS[alert]}" if alert in ALERTS else "")

    def received(self, data: bytes) -> bytes:
        """Plain bytes out of what came over the socket; may be none. Sets ``closed`` and ``failure``."""
        plain = self.opener.received(data) if self.opener is not None else self._opened(data)
        self._without_data = 0 if plain else self._without_data + len(data)
        if self._without_data > MAX_WITHOUT_DATA:
            self._failure = self._failure or ENDLESS
        return plain

    def _opened(self, data: bytes) -> bytes:
        """By Python's ssl."""
        incoming, read = self._incoming, self._object.read
        incoming.write(data)
        plain = b""
        try:
            while part := read(RECORD_BYTES):
                plain = plain + part if plain else part
                if not incoming.pending:  # else asking once more would cost an exception
                    break
            self._closed = self._closed or not part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._closed = True
        except ssl.SSLError as error:
            self._failure = f"{type(error).__name__}: {error.reason or error}"
        if self._outgoing.pending > MAX_ANSWERS:
            self._failure = "the server asks for answers of the TLS layer without end"
        return plain


class Greeting:
    """The first message of a server, of whatever records it is made."""

    def __init__(self) -> None:
        self._records, self._message, self._whole = bytearray(), bytearray(), False

    def add(self, data: bytes) -> None:
        """What came next."""
        if self._whole:
            return
        records = self._records
        records += data
        while not self._whole and len(records) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(records[3:HEADER_BYTES], "big")
            if len(records) < end:
                return
            if records[0] == HANDSHAKE:
                self._message += records[HEADER_BYTES:end]
            del records[:end]
            self._whole = len(self._message) >= 4 + int.from_bytes(self._message[1:4], "big")

    @property
    def slow_key(self) -> int:
        """Bits of a key that takes long, if it asks for one; else 0."""
        if not self._whole or RETRY not in self._message:
            return 0
        return next((bits for extension, bits in SLOW_KEYS.items() if extension in self._message), 0)
