"""A TLS 1.3 server that sends records without data and without end, in a process of its own; and its records alone."""

import hashlib
import hmac
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT, HANDSHAKE, DATA = 21, 22, 23
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BATCH: Final = 1 << 15


class Sealer:
    """Seals records as the server of one connection does (RFC 8446, 5.2 and 7)."""

    def __init__(self, secret: bytes, suite: str) -> None:
        self._hash = "sha384" if suite.endswith("SHA384") else "sha256"
        self._key_bytes = 32 if "256_GCM" in suite else 16
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret, self._sequence = secret, 0
        self._cipher = AESGCM(self._expand(b"key", self._key_bytes))
        self._nonce = int.from_bytes(self._expand(b"iv", 12), "big")

    def _expand(self, label: bytes, size: int) -> bytes:
        info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0\1"
        return hmac.new(self._secret, info, self._hash).digest()[:size]

    def record(self, kind: int, content: bytes, padding: int = 0) -> bytes:
        plain = content + bytes([kind]) + bytes(padding)
        header = b"\x17\x03\x03" + (len(plain) + 16).to_bytes(2, "big")
        nonce = (self._nonce ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        return header + self._cipher.encrypt(nonce, plain, header)

    def update(self, *, asks: bool) -> bytes:
        """A new key; ``asks``: the client shall take one too."""
        sealed = self.record(HANDSHAKE, b"\x18\0\0\1" + bytes([asks]))
        self._use(self._expand(b"traffic upd", hashlib.new(self._hash).digest_size))
        return sealed


def ticket(size: int = 1) -> bytes:
    body = b"\0\0\x1c\x20" + b"\0\0\0\1" + b"\1x" + size.to_bytes(2, "big") + b"t" * size + b"\0\0"
    return b"\4" + len(body).to_bytes(3, "big") + body


Flood = Callable[[Sealer], bytes]

WITHOUT_DATA: Final[dict[str, Flood]] = {
    "empty": lambda sealer: sealer.record(DATA, b""),
    "padded": lambda sealer: sealer.record(DATA, b"", 16_000),
    "tickets": lambda sealer: sealer.record(HANDSHAKE, ticket()),
    "many_tickets": lambda sealer: sealer.record(HANDSHAKE, ticket() * 400),
    "large_tickets": lambda sealer: sealer.record(HANDSHAKE, ticket(16_000)),
    "new_keys": lambda sealer: sealer.update(asks=False),
    "asked_keys": lambda sealer: sealer.update(asks=True),
    "warnings": lambda sealer: sealer.record(ALERT, b"\1\x5a"),
    "no_handshake": lambda sealer: sealer.record(HANDSHAKE, b""),
    "plain_ccs": lambda sealer: b"\x14\3\3\0\1\1",
}
"""By name: one record."""


def mixed(seed: int) -> Iterator[Flood]:
    """Without end: runs of one kind each, of any length."""
    drawn = random.Random(seed)
    harmless = [WITHOUT_DATA[name] for name in ("tickets", "many_tickets", "large_tickets", "new_keys", "asked_keys")]
    while True:
        yield from [drawn.choice(harmless)] * drawn.choice((1, 10, 100, 1000))
        if drawn.random() < 0.5:  # with a little data in between, that no count of bytes without it ends it
            yield lambda sealer: sealer.record(DATA, b"1\r\n:\r\n")


def floods(name: str) -> Iterator[Flood]:
    """``name``: one of WITHOUT_DATA, or a seed."""
    return cycle([WITHOUT_DATA[name]]) if name in WITHOUT_DATA else mixed(int(name) if name.isdecimal() else 0)


def secret_of(key_log: str) -> bytes:
    """Of the last connection in it."""
    lines = Path(key_log).read_text().splitlines()
    return bytes.fromhex([line.split()[2] for line in lines if line.startswith("SERVER_TRAFFIC_SECRET_0")][-1])


def context_of(certificate: str, key_log: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.num_tickets = 0  # the first record after the handshake is number 0
    context.keylog_filename = key_log
    return context


def serve(client: socket.socket, certificate: str, handshake_only: bool) -> None:
    with client, tempfile.NamedTemporaryFile() as log, suppress(OSError, ssl.SSLError):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context_of(certificate, log.name).wrap_bio(incoming, outgoing, server_side=True)
        done = False
        while not done:
            incoming.write(client.recv(65_536))
            with suppress(ssl.SSLWantReadError):
                server.do_handshake()
                done = True
            data = outgoing.read()
            if handshake_only and data:
                hello = 5 + int.from_bytes(data[3:5], "big")
                client.sendall(data[:hello])
                while True:
                    client.sendall(b"\x14\3\3\0\1\1" * 10_000)
            client.sendall(data)
        request = b""
        while b"\r\n\r\n" not in request:
            try:
                request += server.read(65_536)
            except ssl.SSLWantReadError:
                incoming.write(client.recv(65_536))
        cipher = server.cipher()
        assert cipher is not None
        flood(client, Sealer(secret_of(log.name), cipher[0]), request)


def flood(client: socket.socket, sealer: Sealer, request: bytes) -> None:
    name = request.split()[1].decode().rpartition("/")[2]
    if not name.isdecimal() and name not in WITHOUT_DATA:
        name = os.environ.get("FLOOD", "0")
    batch = bytearray()
    if name.isdecimal():
        batch += sealer.record(DATA, HEAD)
    for make in floods(name):
        batch += make(sealer)
        if len(batch) > BATCH:
            client.sendall(batch)
            batch.clear()


def main(certificate: str, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, certificate, where == "handshake"), daemon=True).start()


@contextmanager
def flooding(certificate: Path, where: str = "answer") -> Iterator[str]:
    """Its URL. The last part of a path is the name of a flood, or a seed. ``where``: or ``handshake``."""
    command = [sys.executable, __file__, str(certificate), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"https://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
