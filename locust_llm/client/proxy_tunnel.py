"""Proxy tunnel: a proxy and the tunnel through it (CONNECT, RFC 9110, 9.3.6). proxy_choice.py finds
the proxy.

Plain http goes through a tunnel, too. The bytes of the answer then come as the server sends them,
each with the kernel's stamp, over a connection that is kept. For a plain request (absolute form)
the proxy would read the answer and send its own, and its errors would look like the server's.
"""

import re
from base64 import b64encode
from typing import Final

import msgspec

from locust_llm.text.hide_secrets import Secrets
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text

MAX_REPLY_BYTES: Final = 1 << 14
"""The head of an answer to CONNECT has at most so many bytes."""
_BEGINS: Final = b"HTTP/1."
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")
_SCHEMES: Final = re.compile(
    rb"^proxy-authenticate:[ \t]*([!-+\--~]+)", re.IGNORECASE | re.MULTILINE
)


class ProxyFailed(Exception):
    """There is no tunnel. The text has the reason and what to do, on one line without the login."""


class Proxy(msgspec.Struct, frozen=True):
    """The proxy at which a tunnel begins."""

    host: str
    port: int
    login: str = ""
    """User and password with a colon between them. Only the proxy gets them."""
    mistake: str = ""
    """Why its URL cannot be used."""

    def __repr__(self) -> str:
        return f"Proxy({self.name})"

    @property
    def name(self) -> str:
        """The proxy in texts, without its login."""
        return sanitise_text(format_authority(self.host, self.port), self.secrets, most=NAME_BYTES)

    @property
    def secrets(self) -> Secrets:
        """The login, which no text may hold."""
        return Secrets((self._basic, self.login.partition(":")[2])) if self.login else Secrets()

    @property
    def _basic(self) -> str:
        return f"Basic {b64encode(self.login.encode()).decode()}"

    def connect(self, host: str, port: int) -> bytes:
        """The bytes that request a tunnel to this host and port."""
        to = format_authority(host, port)
        login = f"Proxy-Authorization: {self._basic}\r\n" if self.login else ""
        return f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{login}\r\n".encode()

    def opened(self, data: bytes) -> bool:
        """Whether ``data``, all that has come so far, opens the tunnel. False: more must come.
        Raises ProxyFailed."""
        if len(data) > MAX_REPLY_BYTES:
            raise ProxyFailed("sent endless headers")
        while True:
            if not data.startswith(_BEGINS[: len(data)]):
                raise ProxyFailed(f"did not answer with HTTP: {self._quoted(data)}")
            end = _END.search(data)
            if end is None:
                return False
            status = _STATUS.match(data)
            if status is None:
                raise ProxyFailed(f"did not answer with HTTP: {self._quoted(data)}")
            code = int(status[1])
            head = data[: end.end()]
            data = data[end.end() :]
            if code >= 200:  # else it is an interim one
                break
        if code >= 300:
            raise ProxyFailed(self._refusal(code, status[2] or b"", head))
        if data:
            raise ProxyFailed("sent its own bytes into the tunnel")
        return True

    def _refusal(self, code: int, reason: bytes, head: bytes) -> str:
        answer = " ".join(
            filter(None, (f"HTTP {code}", sanitise_text(reason, self.secrets, most=NAME_BYTES)))
        )
        todo = {403: _NOT_ALLOWED, 405: _NOT_ALLOWED}.get(code, "")
        if code in (401, 407):  # tinyproxy's of a login that it refuses is 401
            schemes = [scheme.decode("ascii").lower() for scheme in _SCHEMES.findall(head)]
            if schemes and "basic" not in schemes:
                todo = (
                    f"it takes {sanitise_text(', '.join(schemes), most=NAME_BYTES)}, but only "
                    "Basic is supported"
                )
            elif self.login:
                todo = "it refuses the user name and password in its URL"
            else:
                todo = (
                    "it requires a user name and password: set HTTPS_PROXY to "
                    "http://USER:PASSWORD@HOST:PORT"
                )
        elif code >= 500:
            todo = "it cannot connect to the server"
        return f"answered CONNECT with {answer}{f'; {todo}' if todo else ''}"

    def _quoted(self, data: bytes) -> str:
        return repr(sanitise_text(data[:80], self.secrets, most=80))


_NOT_ALLOWED: Final = (
    "it does not allow a tunnel to this host or port (ConnectPort in tinyproxy, SSL_ports in "
    "squid). NO_PROXY lists hosts to reach without the proxy"
)


def format_authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
