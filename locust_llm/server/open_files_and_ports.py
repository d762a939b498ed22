"""Open files and ports: whether this machine has the open files and the ports for so many
connections to one server.

A user keeps its connection from request to request, so a run of N users needs N of them at once.
What is missing shows as failed connections in the middle of a run, which look like the server's
fault.
"""

import contextlib
import resource
from pathlib import Path
from typing import Final

SPARE_FILES: Final = 40
"""The open files of a process beside its connections. Locust, its sockets to other processes, and
ours are 9 alone and 15 in a worker. Visitors of the web page, and closing connections, come on
top."""
MAX_FILES: Final = 100_000
"""No process asks for more, as there are fewer ports. Some programs go through all files that they
may open, and a container may allow a billion."""
WIDEST_PORTS: Final = (1024, 65_535)
PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def explain_shortage(
    users: int,
    processes: int,
    files: int | None,
    ports: tuple[int, int] | None,
    sources: int = 1,
    addresses: int = 1,
) -> str | None:
    """Why ``users`` connections at once are impossible, with the number and what to do. None: they
    are possible.

    ``processes`` are on this machine; Locust divides the users evenly between them. ``files`` is
    how many one process may open (RLIMIT_NOFILE, see getrlimit(2)). ``ports`` are the first and
    last local port, see ip(7). A connection to one server address and port needs its own local
    port, on the loopback device too. None for either: it is unknown, and counts as enough.

    ``sources`` is the number of local addresses, each with so many ports. ``addresses`` is the
    number of servers, to each of which a user has a connection.
    """
    each = -(-users // processes) * addresses + SPARE_FILES
    room = None if files is None else max(0, files - SPARE_FILES) // addresses
    there = None if ports is None else _count(ports) * sources
    reasons = list[str]()
    if ports is not None and there is not None and users > there:
        apiece = f" at each of {sources} addresses" if sources > 1 else ""
        reasons.append(
            f"{users} users (-u) need as many ports to the server, but this machine has {there} "
            f"({ports[0]} to {ports[1]}{apiece}): "
            f"{_widen(users, there, sources)}{-(-users // _count(ports))} source addresses "
            "(--source-ip), or workers on more machines (--master, --worker)"
        )
    if files is not None and room is not None and each > files:
        share = "" if processes == 1 else f" over {processes} processes"
        share += "" if addresses == 1 else f" and {addresses} addresses"
        more = f", --processes {-(-users // room)}" if room else ""
        reasons.append(
            f"with -u {users}{share} a process needs {each} open files, but the system allows "
            f"{files}: run ulimit -Hn {each} (as root; for a container: --ulimit "
            f"nofile={each}){more}"
        )
    if not reasons:
        return None
    limits = [there] if room is None else [there, room * processes]
    most = min(limit for limit in limits if limit is not None)
    fewer = f"at most {most} users" if most else "fewer users"
    return f"{'; and '.join(reasons)}, or {fewer}"


def _widen(users: int, there: int, sources: int) -> str:
    """The command for the widest range of ports, where that is enough and changes something."""
    if not there < users <= _count(WIDEST_PORTS) * sources:
        return ""
    first, last = WIDEST_PORTS
    return f"sysctl -w net.ipv4.ip_local_port_range='{first} {last}' (as root), "


def raise_open_files() -> int:
    """Let this process and its later forks open as many files as the system allows. Returns their
    number.

    The soft limit is often 1,024. Locust raises it to 10,000 and no further, and not at all where
    the hard limit is lower (locust/main.py).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MAX_FILES if soft == resource.RLIM_INFINITY else soft


def read_local_ports(file: Path = PORT_RANGE) -> tuple[int, int] | None:
    """(first, last) local port, for IPv6 too. None: the kernel has no such file."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):
        return None
    return first, last


def _count(ports: tuple[int, int]) -> int:
    return ports[1] - ports[0] + 1


# -- checks ----------------------------------------------------------------------------------------
