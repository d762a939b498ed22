"""TLS: Python's ssl over memory BIOs. The reader's thread reads the same socket in the same way and
gets the same stamps; the bytes are decrypted afterwards."""

import ssl
from collections.abc import Sequence
from typing import Final

RECORD_BYTES: Final = 16_384
"""A TLS record has at most so many plain bytes (RFC 8446, 5.1). One call of OpenSSL gives one
record."""
SLICE_BYTES: Final = 2048
"""So many bytes are decrypted without a look at the clock or a turn of the event loop. At worst
they are 75 records that ask for new keys, of 50 µs each on a slow machine."""
MAX_WITHOUT_DATA: Final = 1 << 18
"""Records without data may have so many bytes in a row. Servers send a few session tickets of up to
16 kB, with a long list of certificates in each."""
MAX_ANSWERS: Final = 65_536
"""The TLS layer's own answers may have so many bytes, as nobody sends them while an answer
comes."""
ENDLESS: Final = "the server keeps sending TLS records without data"
HEADER_BYTES: Final = 5
"""A TLS record begins with so many bytes."""
HANDSHAKE: Final = 22
"""The kind of a handshake record."""
RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The server random that asks for another key (RFC 8446, 4.1.3)."""
SLOW_KEYS: Final = {b"\0\x33\0\2\1\3": 6144, b"\0\x33\0\2\1\4": 8192}
"""Extensions that ask for a key of so many bits. Such keys take OpenSSL 40 and 90 ms."""


class TLSLayer:
    """The two buffers of a connection's TLS. One thread at a time uses it: see
    reader/open_streams.py."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._greeting = ServerHello()
        self._without_data = 0
        self.established = False
        """The handshake is done."""
        self.closed = False
        """The peer has announced that it sends no more."""
        self.failure = ""
        """Why nothing more can be read; empty while reading works."""

    def handshake(self, data: bytes = b"") -> bytes:
        """Feed ``data`` from the peer. Returns what to send. Raises ssl.SSLError."""
        self._greeting.add(data)
        if bits := self._greeting.slow_key:  # which OpenSSL would make at once
            raise ssl.SSLError(
                ssl.SSL_ERROR_SSL,
                f"the server asks for a Diffie-Hellman key of {bits:,} bits: use X25519",
            )
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self.established = True
        return self._outgoing.read()

    def encrypt(self, pieces: Sequence[bytes]) -> bytes:
        for piece in pieces:
            self._object.write(piece)
        return self._outgoing.read()

    @property
    def reusable(self) -> bool:
        """Another request may be sent."""
        return not (self.closed or self.failure)

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt what came over the socket; there may be no plain bytes in it. Sets ``closed`` and
        ``failure``, after which nothing comes."""
        if self.closed or self.failure:
            return b""
        incoming, read = self._incoming, self._object.read
        incoming.write(data)
        plain = b""
        try:
            while part := read(RECORD_BYTES):
                plain = plain + part if plain else part
                if not incoming.pending:  # else asking once more would cost an exception
                    break
            self.closed = self.closed or not part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.closed = True
        except ssl.SSLError as error:
            self.failure = f"{type(error).__name__}: {error.reason or error}"
        self._without_data = 0 if plain else self._without_data + len(data)
        if self._outgoing.pending > MAX_ANSWERS:
            self.failure = "the server keeps sending TLS requests that need a reply"
        elif self._without_data > MAX_WITHOUT_DATA:
            self.failure = self.failure or ENDLESS
        return plain


class ServerHello:
    """The first message of a server, in however many records it comes."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._message = bytearray()
        self._whole = False

    def add(self, data: bytes) -> None:
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
        """The bits of a slow key, if the server asks for one; else 0."""
        if not self._whole or RETRY not in self._message:
            return 0
        return next(
            (bits for extension, bits in SLOW_KEYS.items() if extension in self._message), 0
        )
