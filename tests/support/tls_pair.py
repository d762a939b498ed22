"""TLS pair: holds both sides of a connection in memory, after their handshake."""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from locust_llm.client.tls_layer import TLSLayer


class Pair(NamedTuple):
    client: TLSLayer
    server: ssl.SSLObject
    to_client: ssl.MemoryBIO
    """The server's tickets come first."""

    def says(self, *pieces: bytes) -> bytes:
        """Returns the bytes on the wire. Each piece is at least a record."""
        for piece in pieces:
            self.server.write(piece)
        return self.to_client.read()

    def closes(self) -> bytes:
        """Sends a close_notify."""
        with suppress(ssl.SSLWantReadError):  # there is none of the client yet
            self.server.unwrap()
        return self.to_client.read()


def pair(certificate: Path, server: ssl.SSLContext | None = None) -> Pair:
    """Makes a pair. With TLS 1.3 the server's last handshake record may still be missing, see
    ``Pair.server``."""
    context = server or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    client = TLSLayer(ssl.create_default_context(cafile=str(certificate)), "localhost")
    to_server = ssl.MemoryBIO()
    to_client = ssl.MemoryBIO()
    other = context.wrap_bio(to_server, to_client, server_side=True)
    while not client.established:
        to_server.write(client.handshake(to_client.read()))
        # it waits, or sends an alert, which comes with what it says next
        with suppress(ssl.SSLError):
            other.do_handshake()
    return Pair(client, other, to_client)
