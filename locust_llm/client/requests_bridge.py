"""Requests bridge: a request that requests has prepared, as bytes and a target; and what its
session takes from the answer: cookies, hooks. The TLS settings are in tls_settings.py, the proxy in
proxy_choice.py.

On a redirect to another host, a session of requests removes ``Authorization`` and no other header.
It sends both to any URL that it is given. ``keep_headers_on_server`` sends all headers that carry a
key to the run's server only. Our own requests follow no redirect.
"""

from collections.abc import Callable, Mapping
from email.message import Message
from functools import partial
from http.cookiejar import CookieJar
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.cookies import MockRequest, MockResponse

from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text

from .connection import Target
from .proxy_choice import PORTS, find_proxy
from .response_chunks import Response
from .source_address_rotation import current_source_addresses
from .tls_settings import find_client_certificate, make_tls_context

ERROR_BYTES: Final = 300
COOKIES: Final = 50
COOKIE_BYTES: Final = 4096
"""The least number and size that RFC 6265, 6.1 requires of a browser. Each cookie goes with every
later request."""


def format_request_head(prepared: requests.PreparedRequest) -> bytes:
    """Request line and headers, each with its line end (RFC 9112)."""
    parts = urlsplit(prepared.url or "")
    lines = [
        f"{prepared.method} {prepared.path_url} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
    ]
    lines += [f"{name}: {decode_header_value(value)}" for name, value in prepared.headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def decode_header_value(value: str | bytes) -> str:
    """The value of a header as bytes. requests allows text, too."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def make_target(url: str, verify: bool | str | None, cert: Any) -> Target:
    """The server of ``url`` and its proxy. ``verify`` and ``cert`` have requests' meaning; without
    a ``cert`` it is the environment's. Raises OSError for files that they name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or PORTS.get(parts.scheme, 80)
    context = (
        make_tls_context(verify, cert or find_client_certificate())
        if parts.scheme == "https"
        else None
    )
    return Target(
        host, port, context, find_proxy(parts.scheme, host, port), current_source_addresses()
    )


def keep_headers_on_server(
    session: requests.Session, headers: Mapping[str, str], home: Callable[[], str]
) -> None:
    """Send these headers to the server ``home`` only, and to no other host, scheme or port in a
    base URL, a request's URL or a redirect. If a request has its own value for one of them, only a
    redirect removes that."""
    session.rebuild_auth = partial(_stripped, session, tuple(headers))  # type: ignore[method-assign]
    send = session.send

    def send_home(request: requests.PreparedRequest, **how: Any) -> requests.Response:
        strip_headers_elsewhere(session, headers, home(), request)
        return send(request, **how)

    session.send = send_home  # type: ignore[method-assign]


def strip_headers_elsewhere(
    session: requests.Session,
    headers: Mapping[str, str],
    home: str,
    request: requests.PreparedRequest,
) -> None:
    """Remove ``headers`` from a request to another host, scheme or port than ``home``. The
    session's headers are removed too, as they may still hold an earlier key."""
    if session.should_strip_auth(home, request.url):  # type: ignore[no-untyped-call]
        for name, value in headers.items():
            if decode_header_value(request.headers.get(name, "")) in (
                value,
                decode_header_value(session.headers.get(name, value)),
            ):
                request.headers.pop(name, None)


class PlainRequestEvent:
    """Locust's event of a session's requests, for plain ones. Their errors quote the server, so an
    unsafe text is replaced."""

    def __init__(
        self, event: Any, headers: Mapping[str, str | bytes], own: Mapping[str, str]
    ) -> None:
        self._event, self._headers, self._own = event, headers, own

    def fire(self, **request: Any) -> None:
        if request.get("exception") is not None:
            text = str(request["exception"])
            fit = sanitise_text(text, collect_secrets(self._headers, self._own), most=ERROR_BYTES)
            if fit != text:
                request["exception"] = requests.RequestException(fit)
        self._event.fire(**request)


def _stripped(
    session: requests.Session,
    names: tuple[str, ...],
    prepared: requests.PreparedRequest,
    answer: requests.Response,
) -> None:
    if session.should_strip_auth(answer.request.url, prepared.url):  # type: ignore[no-untyped-call]
        for name in ("Authorization", "Proxy-Authorization", *names):
            prepared.headers.pop(name, None)


def update_session(
    session: requests.Session, prepared: requests.PreparedRequest, stream: Response
) -> None:
    """Take over cookies, for the host that set them, and call response hooks, as requests' users
    expect."""
    if not stream.frame.has_headers:
        return
    if cookies := stream.frame.get("set-cookie"):
        headers = Message()
        jar: CookieJar = session.cookies
        for cookie in [cookies] if isinstance(cookies, str) else cookies:
            if (
                len(cookie) <= COOKIE_BYTES
                and len(jar) < COOKIES
                and cookie.isascii()
                and cookie.isprintable()
            ):
                headers["Set-Cookie"] = cookie
        jar.extract_cookies(MockResponse(headers), MockRequest(prepared))  # type: ignore[arg-type]
    if hooks := prepared.hooks.get("response"):
        response = requests.Response()
        response.status_code = stream.status or 0
        response.headers.update({k: str(v) for k, v in stream.frame.items()})
        response._content = stream.body
        response.url = prepared.url or ""
        response.request = prepared
        for hook in hooks if isinstance(hooks, list) else [hooks]:
            hook(response)
