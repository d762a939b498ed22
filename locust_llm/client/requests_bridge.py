"""Requests bridge: a request that requests has prepared, as bytes and a target; and what its
session takes from the answer: cookies, hooks.

On a redirect to another host, a session of requests removes ``Authorization`` and no other header.
It sends both to any URL that it is given. ``keep_headers_on_server`` sends all headers that carry a
key to the run's server only. Our own requests follow no redirect.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from email.message import Message
from functools import cache, partial
from http.cookiejar import CookieJar
from typing import Any, Final
from urllib.parse import urlsplit

import certifi
import requests
from requests.cookies import MockRequest, MockResponse

from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text

from .connection import Target
from .proxy_tunnel import Proxy, find_proxy
from .response_chunks import Response
from .source_address_rotation import current_source_addresses

PORTS: Final = {"http": 80, "https": 443}
CLIENT_CERT: Final = "LOCUST_LLM_CLIENT_CERT"
CLIENT_KEY: Final = "LOCUST_LLM_CLIENT_KEY"
"""The environment variables that the flags of these names set."""
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


def resolve_proxy(url: str) -> Proxy | None:
    """The proxy of a request. None: it goes directly."""
    parts = urlsplit(url)
    return find_proxy(parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 80))


def first_hop_address(url: str) -> tuple[str, int]:
    """(host, port) to which the connection is made: the proxy or the server."""
    parts = urlsplit(url)
    proxy = resolve_proxy(url)
    return (
        (proxy.host, proxy.port)
        if proxy
        else (parts.hostname or "", parts.port or PORTS.get(parts.scheme, 80))
    )


def session_proxies(url: str) -> dict[str, str]:
    """The proxies for a session of requests: only the server of ``url`` has one."""
    if resolve_proxy(url) is None:
        return {}
    parts = urlsplit(url)
    proxies = requests.utils.get_environ_proxies(url)
    return {f"{parts.scheme}://{parts.hostname}": requests.utils.select_proxy(url, proxies) or ""}


def find_trusted_certificates() -> str:
    """The trusted certificates: the environment's, as requests and OpenSSL look for them, else
    certifi's."""
    names = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    return next((path for name in names if (path := os.environ.get(name))), "") or certifi.where()


def find_client_certificate() -> tuple[str, str] | str | None:
    """The client's certificate, with the file of its key where it is another file."""
    cert = os.environ.get(CLIENT_CERT, "")
    key = os.environ.get(CLIENT_KEY, "")
    return (cert, key) if cert and key else cert or None


@cache
def make_tls_context(verify: bool | str | None, cert: Any) -> ssl.SSLContext:
    """The TLS settings of a requests session as a context. Certificates are verified unless
    ``verify`` is False."""
    trusted = verify if isinstance(verify, str) else find_trusted_certificates()
    folder = os.path.isdir(trusted)
    context = ssl.create_default_context(
        cafile=None if folder else trusted, capath=trusted if folder else None
    )
    context.set_ciphers(":".join(select_quick_ciphers(context)))
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        file, key = (cert, None) if isinstance(cert, str) else cert
        # an empty one: OpenSSL would ask for it on the terminal
        context.load_cert_chain(file, key, password=str)
    return context


def select_quick_ciphers(context: ssl.SSLContext) -> list[str]:
    """The ciphers, without the ones before TLS 1.3 whose primes a server chooses. A prime of 10,000
    bits takes OpenSSL 0.6 s."""
    return [cipher["name"] for cipher in context.get_ciphers() if cipher["kea"] != "kx-dhe"]


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
