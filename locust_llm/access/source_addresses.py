"""Source addresses: the addresses of --source-ip, from which connections leave. They are read and
checked before any load."""

import socket
from argparse import Namespace
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from itertools import chain, islice
from typing import Final

from locust_llm.client.proxy_choice import first_hop_address
from locust_llm.client.source_address_rotation import (
    VERSIONS,
    SourceAddresses,
    address_family,
    bind_source_address,
    current_source_addresses,
    set_source_addresses,
)
from locust_llm.settings.environment_and_config_file import read_variable_lines
from locust_llm.settings.run_options import Settings

VARIABLE: Final = "LOCUST_LLM_SOURCE_IP"
MOST: Final = 1024
"""The most addresses. Each is tried before the run. With Linux's ports they allow 28 million
connections."""
LEAVES_FROM: Final = "connections leave from {} in turn (--source-ip)"


def use_source_options(options: Namespace) -> None:
    """Use the addresses of the flag and of the environment, in this process and its later forks.
    Raises ValueError of one sentence."""
    set_source_addresses(None)
    given = [*read_variable_lines(VARIABLE), *options.source_ip]
    if addresses := parse_source_addresses(given):
        for address in addresses:
            _try_out(address)
        set_source_addresses(SourceAddresses(addresses))


def parse_source_addresses(texts: Iterable[str]) -> tuple[str, ...]:
    """Read addresses and networks with commas between. Gives each address once, in order. Raises
    ValueError of one sentence."""
    parts = filter(None, map(str.strip, ",".join(texts).split(",")))
    try:
        addresses = list(islice(chain.from_iterable(map(_hosts, parts)), MOST + 1))
    except ValueError as error:
        raise ValueError(
            f"--source-ip takes addresses and networks, such as 10.0.0.2,10.0.0.8/29: {error}"
        ) from None
    if len(addresses) > MOST:
        raise ValueError(f"--source-ip takes at most {MOST} addresses")
    return tuple(dict.fromkeys(addresses))


def _hosts(part: str) -> Iterator[str]:
    """The hosts of a network, without its network and broadcast addresses. Raises ValueError."""
    for address in ip_network(part).hosts() if "/" in part else (ip_address(part),):
        if address.is_unspecified or address.is_multicast:
            raise ValueError(f"{address} is not a valid source address")
        yield str(address)


def _try_out(address: str) -> None:
    try:
        with socket.socket(address_family(address), socket.SOCK_STREAM) as sock:
            bind_source_address(sock, address)
    except OSError as error:
        raise ValueError(
            f"--source-ip {address} is not an address of this machine ({error.strerror}). 'ip "
            "address' lists them, and 'ip address add' adds one (as root)"
        ) from None


def note_source_addresses() -> str:
    """The note on where the connections of a run leave from. Empty: the kernel chooses."""
    sources = current_source_addresses()
    if sources is None:
        return ""
    few = (
        sources.addresses
        if len(sources.addresses) <= 4
        else (*sources.addresses[:2], "...", sources.addresses[-1])
    )
    more = f"{len(sources.addresses)} addresses: " * (len(few) != len(sources.addresses))
    return LEAVES_FROM.format(more + ", ".join(few))


def count_source_addresses(settings: Settings) -> int:
    """From how many source addresses a run reaches each server, or its proxy. 1: the kernel chooses
    one.

    Raises ValueError of one sentence if one of them does not lead there.
    """
    sources = current_source_addresses()
    if sources is None:
        return 1
    return min(
        _ways(sources, *first_hop_address(address))
        for address in filter(None, (*settings.addresses, settings.candidate))
    )


def _ways(sources: SourceAddresses, host: str, port: int) -> int:
    """How many sources reach the first address of ``host`` that any source reaches, as connections
    do."""
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return len(sources.addresses)  # who asks the server will say so
    mistakes = []
    for family, _, _, _, address in resolved:
        own_addresses = sources.of(family)
        lost = next(
            filter(None, (_no_way(family, source, address) for source in own_addresses)), ""
        )
        if own_addresses and not lost:
            return len(own_addresses)
        mistakes.append(lost)
    versions = sorted({VERSIONS[family] for family, *_ in resolved if family in VERSIONS})
    raise ValueError(
        next(
            filter(None, mistakes),
            f"--source-ip has no {' or '.join(versions)} address, as {host} has",
        )
    )


def _no_way(family: int, source: str, address: tuple[object, ...]) -> str:
    """Why no connection is possible. The kernel reports it for a datagram socket, which connects
    without sending."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            bind_source_address(sock, source)
            sock.connect(address)
    except OSError as error:
        return f"--source-ip {source} cannot reach {address[0]}: {error.strerror}"
    return ""
