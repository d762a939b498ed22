"""Server address: where the server is, in one form however it was written. Several replicas
have commas between."""

import argparse
import errno
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote_plus, urlsplit

_ONE: Final = r"(?:https?://)?(?:[^\s/,@]+@)?(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w.-]+(?=:\d)|\[[0-9a-fA-F:.]+\])(?::\d+)?(?:[/?][^\s,]*)?"
_ADDRESS: Final = re.compile(rf"https?://\S+|{_ONE}(?:,{_ONE})*")
"""``localhost``, ``replica:8000``, ``10.0.0.7``, ``llm.example.com/v1``, ``[::1]:8000``, or any
URL; several with commas."""


def is_address(word: str) -> bool:
    """Whether the word reads as a server's address: it is neither a class name nor an existing
    file."""
    return bool(_ADDRESS.fullmatch(word)) and not Path(word).exists()


def add_host_option(parser: argparse.ArgumentParser) -> None:
    """Add the address to a command that queries one server. It stands alone or after ``--host``:
    see ``choose_given_host``."""
    parser.add_argument(
        "address", nargs="?", metavar="HOST", help="the server, such as localhost:8000"
    )
    parser.add_argument("-H", "--host", metavar="HOST", help="the server, as in locust-llm run")


def choose_given_host(address: str | None, host: str | None) -> str:
    """The one server of a command line. Raises ValueError of one sentence."""
    if not address and not host:
        raise ValueError("the server's address is missing, such as localhost:8000")
    if address and host and normalise_base_url(address) != normalise_base_url(host):
        raise ValueError("two addresses are given: use one")
    return address or host or ""


def normalise_base_url(host: str) -> str:
    """``localhost:8000``, ``http://localhost:8000/`` and ``http://localhost:8000/v1`` all become
    ``http://localhost:8000``.

    Of several addresses it is the first. A path before ``/v1`` and a query stay: see
    ``join_server_url``.
    """
    host = host.partition(",")[0].strip()
    if host and "://" not in host:
        host = "http://" + host
    parts = urlsplit(host)
    path = parts.path.rstrip("/").removesuffix("/v1")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{query}" if host else ""


def join_server_url(address: str, path: str) -> str:
    """The URL of ``path`` (with its query) at a server, below the path of the server's address and
    with its query. A parameter of both has the value of ``path``."""
    base, _, query = address.partition("?")
    if not query:
        return address + path
    own = {name for name, _ in parse_qsl(path.partition("?")[2], keep_blank_values=True)}
    more = "&".join(
        part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in own
    )
    if not more:
        return base + path
    joint = "&" if "?" in path else "?"
    return f"{base}{path}{joint}{more}"


def split_replica_urls(hosts: str) -> tuple[str, ...]:
    """The URL of each replica. Several have commas between."""
    urls = tuple(
        dict.fromkeys(normalise_base_url(host) for host in hosts.split(",") if host.strip())
    )
    return urls if len(urls) > 1 else ()


def complete_page_url(url: str) -> str:
    """The URL of a metrics page: ``replica:8000`` becomes ``http://replica:8000/metrics``. A text
    that is no address stays as it is."""
    url = url.strip()
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return url if parts.path.strip("/") else parts._replace(path="/metrics").geturl()


def parse_metrics_port(text: str) -> tuple[str, int]:
    """(address, port) of ``9646`` (this machine alone) or ``0.0.0.0:9646``. Raises ValueError of
    one sentence."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 2**16:
        raise ValueError(f"--metrics-port takes a port or ADDR:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def explain_unopened_port(text: str, error: OSError, flag: str = "--metrics-port") -> str:
    """Why the port cannot be opened, and what to do."""
    used = (
        "another program uses it: choose another port"
        if error.errno == errno.EADDRINUSE
        else error.strerror or error
    )
    return f"{flag} {text} cannot be opened: {used}"
