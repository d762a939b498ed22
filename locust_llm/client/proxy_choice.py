"""Proxy choice: which proxy a connection takes, by the environment's variables."""

from functools import cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

import requests

from .proxy_tunnel import Proxy, format_authority

PORTS: Final = {"http": 80, "https": 443}
PORT: Final = 80
"""The port of a proxy whose URL names none. curl and requests use the same."""


@cache
def find_proxy(scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, lower case first, as requests
    reads them. Connections to this machine itself use none: the proxy would connect to its own
    machine."""
    if is_loopback(host):
        return None
    url = f"{scheme}://{format_authority(host, port)}"
    return _proxy(requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url)) or "")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _proxy(url: str) -> Proxy | None:
    """Make the proxy from a variable's value. An empty value gives None."""
    url = url.strip()
    if not url:
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.hostname or ""
        port = parts.port or PORT
    except ValueError:
        return Proxy("", 0, mistake="its URL in the environment is not valid")
    login = ""
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if parts.scheme != "http":
        return Proxy(
            host, port, login, f"is a proxy for {parts.scheme}, but only http:// is supported"
        )
    if not host:
        return Proxy("", 0, mistake="its URL in the environment has no host")
    return Proxy(host, port, login)


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
