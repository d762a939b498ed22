"""The address of a server, in one form however it was written; of several replicas with commas between."""

import errno
from urllib.parse import parse_qsl, unquote_plus, urlsplit


def base_url(host: str) -> str:
    """``localhost:8000``, ``http://localhost:8000/``, ``http://localhost:8000/v1``: all ``http://localhost:8000``. The first
    of several. A path before ``/v1`` and a query stay: see ``url_of``."""
    host = host.partition(",")[0].strip()
    if host and "://" not in host:
        host = "http://" + host
    parts = urlsplit(host)
    path = parts.path.rstrip("/").removesuffix("/v1")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{query}" if host else ""


def url_of(address: str, path: str) -> str:
    """``path``, with its query if it has one, at a server: below the path of its address, and with the query of that. A
    parameter that both name is that of ``path``."""
    base, _, query = address.partition("?")
    if not query:
        return address + path
    own = {name for name, _ in parse_qsl(path.partition("?")[2], keep_blank_values=True)}
    more = "&".join(part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in own)
    return base + path + (("&" if "?" in path else "?") + more if more else "")


def replica_urls(hosts: str) -> tuple[str, ...]:
    """Of each, where there are several, with commas between."""
    found = tuple(dict.fromkeys(base_url(host) for host in hosts.split(",") if host.strip()))
    return found if len(found) > 1 else ()


def page_url(url: str) -> str:
    """Of metrics: ``replica:8000`` is ``http://replica:8000/metrics``. What is no URL stays as it is."""
    url = url.strip()
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return url if parts.path.strip("/") else parts._replace(path="/metrics").geturl()


def metrics_port(text: str) -> tuple[str, int]:
    """Address and port of ``9646`` (this machine alone) or ``0.0.0.0:9646``. Raises ValueError of one sentence."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 2**16:
        raise ValueError(f"--metrics-port takes a port or ADDR:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def not_opened(text: str, error: OSError) -> str:
    """Why that port cannot be had, and what to do."""
    used = "another program has it, give another port" if error.errno == errno.EADDRINUSE else error.strerror or error
    return f"--metrics-port {text} cannot be opened: {used}"
