"""Cross-site guard: which requests the web pages answer: none from a page of another site, and none
under a foreign host name.

Locust accepts any POST and lets any page read its responses (``Access-Control-Allow-Origin: *``).
On loopback every page of the user's browser reaches it, too. So this guards all of its routes, ours
and a locustfile's. See https://web.dev/articles/fetch-metadata and, for names,
https://en.wikipedia.org/wiki/DNS_rebinding.
"""

import logging
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

logger = logging.getLogger("locust_llm")

SAFE_METHODS: Final = ("GET", "HEAD")
MAX_HEADER_CHARS: Final = 100
"""The characters of a header in a refusal."""
Start = Callable[..., Any]
"""WSGI's ``start_response``."""
App = Callable[[dict[str, Any], Start], Iterable[bytes]]


def guard_origin(app: App, allowed: Collection[str]) -> App:
    """``app`` behind a guard. ``allowed`` has further names, perhaps with a port."""
    refused: set[str] = set()

    def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        asked = {
            name: environ.get(f"HTTP_{name.upper().replace('-', '_')}") for name in GUARD_HEADERS
        }
        if not (
            why := check_host_name(asked, allowed)
            or check_page_origin(environ["REQUEST_METHOD"], asked, allowed)
        ):
            return app(
                environ,
                lambda status, headers, *more: start(status, drop_cors_headers(headers), *more),
            )
        if why not in refused and len(refused) < MAX_HEADER_CHARS:
            refused.add(why)
            logger.warning(
                f"a request to {environ.get('PATH_INFO', '')[:MAX_HEADER_CHARS]!r} was refused: "
                f"{why}"
            )
        kind = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start("403 Forbidden", drop_cors_headers(kind))
        return [f"403: {why}\n".encode()]

    return answer


GUARD_HEADERS: Final = ("Host", "Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")


def check_host_name(asked: Mapping[str, str | None], allowed: Collection[str]) -> str:
    """Why a request's host name is not ours. Empty: it is.

    A page of another site can point its own name at this machine, and then has the same origin. A
    request without a name comes from no browser.
    """
    host = asked["Host"]
    if (
        host is None
        or (name := _name(host)) in {"localhost", *map(_name, allowed)}
        or _is_address(name)
    ):
        return ""
    if name and name in _own_names():
        return ""
    shown = host[:MAX_HEADER_CHARS]
    return f"{shown!r} is not a known name of this machine: add it with --web-allowed-host"


def check_page_origin(
    method: str, asked: Mapping[str, str | None], allowed: Collection[str]
) -> str:
    """Why the page that made the request may not. Empty: it may, or no page made it.

    A link of another site may lead here, as a whole page and by GET.
    """
    origin, site = asked["Origin"], asked["Sec-Fetch-Site"]
    page = (
        "a page of another site"
        if origin in (None, "null")
        else f"a page of {str(origin)[:MAX_HEADER_CHARS]!r}"
    )
    place = _place(origin or "")
    if place in allowed:
        return ""
    # browsers say so, and no page can change it; but not to plain HTTP of other machines
    if site is not None:
        link = method in SAFE_METHODS and (asked["Sec-Fetch-Mode"], asked["Sec-Fetch-Dest"]) == (
            "navigate",
            "document",
        )
        foreign = site not in ("same-origin", "none") and not link
    else:
        foreign = origin is not None and place != (asked["Host"] or "").lower()
    return f"it came from {page}; only pages of this server are allowed" if foreign else ""


def drop_cors_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers without Locust's permission for all sites to read the response, and with a ban on
    foreign frames."""
    kept_headers = [
        (name, value) for name, value in headers if not name.lower().startswith("access-control-")
    ]
    return [*kept_headers, ("X-Frame-Options", "SAMEORIGIN")]


def parse_allowed_hosts(text: str | None, web_host: str | None) -> frozenset[str]:
    """The names of ``--web-allowed-host``, with commas between, and of ``--web-host`` if it has
    one."""
    given = [*(text or "").split(","), "" if web_host == "*" else web_host or ""]
    return frozenset(filter(None, (name.strip().lower() for name in given)))


def _name(host: str) -> str:
    """The name without the port. Empty: there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """Name and port. Empty: there is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Whether it is an address, which no name server can claim for another machine."""
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


@cache
def _own_names() -> frozenset[str]:
    return frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn()))
