"""The secret of what the server sends on a TLS 1.3 connection, as Python's ssl tells it: with it the native reader decrypts.

A key log is all that tells it. This one is a file in memory, without a name that other users could open, and emptied
after each handshake.
"""

import os
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from . import Opener

if TYPE_CHECKING:
    from ._reader import Opener as NativeOpener

LABEL: Final = b"SERVER_TRAFFIC_SECRET_0"
"""Of the line: label, random of the client, secret (RFC 9850)."""

_log: tuple[int, int] | None = None
"""(process, descriptor)."""
_names = set[str]()


def log_secrets(context: ssl.SSLContext) -> None:
    """From now on ``opener`` finds the secrets of its connections. Not where it has a key log of its own, by
    SSLKEYLOGFILE."""
    global _log
    if Opener is None or context.keylog_filename not in (None, *_names):
        return
    with suppress(OSError):
        if _log is None or _log[0] != os.getpid():  # a forked child must not empty that of its parent
            _log = os.getpid(), os.memfd_create("locust-llm")
        name = f"/proc/self/fd/{_log[1]}"
        if context.keylog_filename != name:
            _names.add(name)
            context.keylog_filename = name


def wipe() -> None:
    """Of a handshake that failed: what it has logged is of no use."""
    if _log is not None and _log[0] == os.getpid():
        os.ftruncate(_log[1], 0)


def opener(connection: ssl.SSLObject, client_random: bytes) -> "NativeOpener | None":
    """For what the server sends from now on. Comes at once after the handshake; None: only Python's ssl can read it, as
    before TLS 1.3, or where there is no libcrypto."""
    cipher = connection.cipher()
    if Opener is None or _log is None or cipher is None:
        wipe()
        return None
    log = os.pread(_log[1], os.fstat(_log[1]).st_size, 0)
    os.ftruncate(_log[1], 0)
    head = b"%s %s " % (LABEL, client_random.hex().encode())
    secret = next((line[len(head) :] for line in log.splitlines() if line.startswith(head)), None)
    if secret is not None:
        with suppress(ValueError, OSError):
            return Opener(cipher[0], bytes.fromhex(secret.decode()))
    return None
