"""Source address rotation: connections leave from each of several addresses in turn, so that each
has all its ports for a server.

A port belongs to a source address and a destination (ip(7)), so N addresses have N times the ports
of one. This holds where the kernel chooses the port in connect(2), when it knows the destination:
IP_BIND_ADDRESS_NO_PORT. Else bind(2) chooses it, and all connections of the address share one range
of ports.
"""

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any, Final

import gevent.socket
from gevent.monkey import get_original

_getaddrinfo: Final = get_original("socket", "getaddrinfo")
# Linux; Python does not name it
IP_BIND_ADDRESS_NO_PORT: Final[int] = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)
VERSIONS: Final[dict[int, str]] = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def address_family(address: str) -> int:
    """Raises ValueError if the text is no address."""
    return socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6


class SourceAddresses:
    """Addresses of this machine, in the order of their turns. Each process begins with another
    one."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = tuple(addresses)
        self._of: dict[int, tuple[str, ...]] = dict.fromkeys(VERSIONS, ())
        for address in self.addresses:
            self._of[address_family(address)] += (address,)
        self._connections = 0

    def of(self, family: int) -> tuple[str, ...]:
        return self._of.get(family, ())

    def turn(self, family: int) -> Iterator[str]:
        """The next address, and then all others once, for when the ports of one are used up."""
        own_addresses = self.of(family)
        # those that --processes forks have numbers in a row
        first = os.getpid() + self._connections
        self._connections += 1
        return (own_addresses[(first + n) % len(own_addresses)] for n in range(len(own_addresses)))


_used: SourceAddresses | None = None


def set_source_addresses(sources: SourceAddresses | None) -> None:
    """Set the addresses of this process and of later forks. None: the kernel chooses."""
    global _used
    _used = sources


def current_source_addresses() -> SourceAddresses | None:
    return _used


def connect_socket(host: str, port: int, sources: SourceAddresses | None) -> Any:
    """A gevent socket that is connected to the first address of ``host`` that accepts it. Raises
    OSError."""
    failed = OSError(errno.EAFNOSUPPORT, f"no address of --source-ip can reach {host}")
    for family, kind, protocol, _, address in _find_addresses(host, port):
        for source in ("",) if sources is None else sources.turn(family):
            sock = None
            try:
                sock = gevent.socket.socket(family, kind, protocol)
                if source:
                    bind_source_address(sock, source)
                sock.connect(address)
                return sock
            except OSError as error:
                if sock is not None:
                    sock.close()
                failed = error
                # that: all its ports are taken, and another may have some
                if error.errno != errno.EADDRNOTAVAIL:
                    break
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
    raise failed


def _find_addresses(host: str, port: int) -> list[Any]:
    """As getaddrinfo returns them. It asks nobody for the address of an address, and needs no
    thread to wait in."""
    addresses: list[Any]
    try:
        addresses = _getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:  # a name
        addresses = gevent.socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    return addresses


def bind_source_address(sock: Any, source: str) -> None:
    """Raises OSError if it is no address of this machine."""
    sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # of IPv6 too
    sock.bind((source, 0))
