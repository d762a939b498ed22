"""TLS flood: a server in a process of its own sends records without data and without end. The
records are available alone, too."""

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
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT, HANDSHAKE, DATA = 21, 22, 23
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
FIRST: Final = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
BATCH: Final = 1 << 15


class Sealer:
    """Seals records like the server of one connection (RFC 8446, 5.2 and 7)."""

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
        """``asks`` requires one from the client, too."""
        sealed = self.record(HANDSHAKE, b"\x18\0\0\1" + bytes([asks]))
        self._use(self._expand(b"traffic upd", hashlib.new(self._hash).digest_size))
        return sealed


class Sealer12:
    """Seals records with TLS 1.2 and AES-GCM (RFC 5246, 6.2.3.3 and 6.3; RFC 5288)."""

    def __init__(
        self, master: bytes, client_random: bytes, server_random: bytes, suite: str
    ) -> None:
        self._hash = "sha384" if suite.endswith("SHA384") else "sha256"
        key_bytes = 32 if "AES256" in suite else 16
        block = self._expand(
            master, b"key expansion" + server_random + client_random, 2 * key_bytes + 8
        )
        self._cipher = AESGCM(block[key_bytes : 2 * key_bytes])
        self._salt = block[-4:]
        self._sequence = 1
        """The end of the handshake was the first record."""

    def _expand(self, secret: bytes, seed: bytes, size: int) -> bytes:
        out, link = b"", seed
        while len(out) < size:
            link = hmac.new(secret, link, self._hash).digest()
            out += hmac.new(secret, link + seed, self._hash).digest()
        return out[:size]

    def record(self, kind: int, content: bytes) -> bytes:
        number = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        head = bytes([kind]) + b"\3\3"
        sealed = self._cipher.encrypt(
            self._salt + number, content, number + head + len(content).to_bytes(2, "big")
        )
        return head + (len(number) + len(sealed)).to_bytes(2, "big") + number + sealed


def ticket(size: int = 1) -> bytes:
    body = b"\0\0\x1c\x20" + b"\0\0\0\1" + b"\1x" + size.to_bytes(2, "big") + b"t" * size + b"\0\0"
    return b"\4" + len(body).to_bytes(3, "big") + body


Flood = Callable[[Any], bytes]

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
"""Each entry makes one record."""

HELLO_REQUEST: Final = bytes(4)

WITHOUT_DATA_12: Final[dict[str, Flood]] = {
    "empty": lambda sealer: sealer.record(DATA, b""),
    "renegotiations": lambda sealer: sealer.record(HANDSHAKE, HELLO_REQUEST),
    "many_renegotiations": lambda sealer: sealer.record(HANDSHAKE, HELLO_REQUEST * 4_000),
    "half_renegotiations": lambda sealer: sealer.record(HANDSHAKE, HELLO_REQUEST[:3]),
    "warnings": lambda sealer: sealer.record(ALERT, b"\1\x5a"),
    "tickets": lambda sealer: sealer.record(HANDSHAKE, b"\4\0\0\7" + bytes(4) + b"\0\1t"),
    "plain_ccs": lambda sealer: b"\x14\3\3\0\1\1",
    "sealed_ccs": lambda sealer: sealer.record(20, b"\1"),
}
"""Each entry makes one record of TLS 1.2, which lets a server request another handshake."""


def mixed(seed: int) -> Iterator[Flood]:
    """Yields runs of one kind each, of any length, without end."""
    drawn = random.Random(seed)
    harmless = [
        WITHOUT_DATA[name]
        for name in ("tickets", "many_tickets", "large_tickets", "new_keys", "asked_keys")
    ]
    while True:
        yield from [drawn.choice(harmless)] * drawn.choice((1, 10, 100, 1000))
        # with a little data in between, that no count of bytes without it ends it
        if drawn.random() < 0.5:
            yield lambda sealer: sealer.record(DATA, b"1\r\n:\r\n")


def secret_of(key_log: str) -> bytes:
    """Returns the secret of the last connection in the file."""
    lines = Path(key_log).read_text().splitlines()
    return bytes.fromhex(
        [line.split()[2] for line in lines if line.startswith("SERVER_TRAFFIC_SECRET_0")][-1]
    )


def sealer_12(key_log: str, hello: bytes, suite: str) -> Sealer12:
    """Makes a sealer. ``hello`` are the first bytes of the server."""
    _, client_random, master = Path(key_log).read_text().splitlines()[-1].split()
    return Sealer12(bytes.fromhex(master), bytes.fromhex(client_random), hello[11:43], suite)


def context_of(
    certificate: str, key_log: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = version
    context.set_ciphers("AESGCM")
    context.load_cert_chain(certificate)
    context.num_tickets = 0  # the first record after the handshake is number 0
    context.keylog_filename = key_log
    return context


def serve(client: socket.socket, certificate: str, where: str) -> None:
    version = ssl.TLSVersion.TLSv1_2 if where == "tls 1.2" else ssl.TLSVersion.TLSv1_3
    with client, tempfile.NamedTemporaryFile() as log, suppress(OSError, ssl.SSLError):
        incoming = ssl.MemoryBIO()
        outgoing = ssl.MemoryBIO()
        server = context_of(certificate, log.name, version).wrap_bio(
            incoming, outgoing, server_side=True
        )
        done, hello = False, b""
        while not done:
            incoming.write(client.recv(65_536))
            with suppress(ssl.SSLWantReadError):
                server.do_handshake()
                done = True
            data = outgoing.read()
            hello = hello or data
            if where == "handshake" and data:
                client.sendall(data[: 5 + int.from_bytes(data[3:5], "big")])
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
        if where == "tls 1.2":
            flood(client, sealer_12(log.name, hello, cipher[0]), request, WITHOUT_DATA_12)
        else:
            flood(client, Sealer(secret_of(log.name), cipher[0]), request, WITHOUT_DATA)


def flood(
    client: socket.socket, sealer: Sealer | Sealer12, request: bytes, kinds: dict[str, Flood]
) -> None:
    """Yields a flood by name or seed. An odd seed, or a name that begins with ``late_``, has a
    first chunk before it."""
    name = request.split()[1].decode().rpartition("/")[2]
    late = name.startswith("late_") or (name.isdecimal() and int(name) % 2 == 1)
    name = name.removeprefix("late_")
    if not name.isdecimal() and name not in kinds:
        name = os.environ.get("FLOOD", "0")
    batch = bytearray()
    if late or name.isdecimal():
        batch += sealer.record(DATA, HEAD + FIRST * late)
    for make in mixed(int(name)) if name.isdecimal() else cycle([kinds[name]]):
        batch += make(sealer)
        if len(batch) > BATCH:
            client.sendall(batch)
            batch.clear()


def main(certificate: str, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, certificate, where), daemon=True).start()


@contextmanager
def flooding(certificate: Path, where: str = "answer") -> Iterator[str]:
    """Yields the server's URL. The last part of a path is the name of a flood, or a seed. ``where``
    is the place of the flood, ``handshake``, or ``tls 1.2``."""
    command = [sys.executable, __file__, str(certificate), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"https://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
