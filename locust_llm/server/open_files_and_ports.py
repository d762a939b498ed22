"""Open files and ports: whether this machine has the open files and the ports for so many
connections to one server.

A user keeps its connection from request to request, so a run of N users needs N of them at once.
What is missing shows as failed connections in the middle of a run, which look like the server's
fault.
"""

import contextlib
import logging
import resource
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gevent
from msgspec.structs import replace

from locust_llm.access.headers_and_api_key import read_headers_at_start
from locust_llm.access.proxy_notes import list_passed_proxies
from locust_llm.access.source_addresses import count_source_addresses, note_source_addresses
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.records.machine import find_commit
from locust_llm.records.run_facts import make_run_folder
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.server_address import normalise_base_url

from .discovery import Discovery, DiscoveryFailed, discover_server
from .spans.span_receiver import try_span_receiver

MAX_COUNT_DIFFERENCE: Final = 0.02
SAME_WORDS: Final = (
    "--random-seed {} sends the same words in each run, so the server's prefix cache may be warm "
    "from an earlier one; "
    "--fresh-words sends new ones"
)
"""Two servers whose token counts differ by more get a note."""
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
            f"{users} users (-u) need as many ports towards the server, and this machine has "
            f"{there} ({ports[0]} to {ports[1]}{apiece}): "
            f"{_widen(users, there, sources)}{-(-users // _count(ports))} addresses of this "
            f"machine (--source-ip), workers on more machines (--master, --worker)"
        )
    if files is not None and room is not None and each > files:
        share = "" if processes == 1 else f" over {processes} processes"
        share += "" if addresses == 1 else f" and {addresses} addresses"
        more = f", --processes {-(-users // room)}" if room else ""
        reasons.append(
            f"with -u {users}{share} a process needs {each} open files, and the system lets it "
            f"have {files}: ulimit -Hn {each} (as root; "
            f"of a container: --ulimit nofile={each}){more}"
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

logger = logging.getLogger("locust_llm")
PASSED: Final = (
    "through a proxy: requests pass {} (a tunnel, CONNECT), and what it and the way to it take is "
    "in every latency. Stamps "
    "are the kernel's of this machine; the round trip to the server is not known"
)


def read_run_headers(options: Namespace | None) -> Mapping[str, str]:
    """The headers of every request with the key, a new one where a command prints it. Raises
    Refused."""
    try:
        return read_headers_at_start(options)
    except OSError as error:
        refuse_run(f"--api-key-file {error.filename}: {error.strerror}")
    except ValueError as error:
        refuse_run(str(error))


def find_locustfile_host(ours: type, every: type) -> str | None:
    """The host of the user classes below ``ours``, as the locustfile has it.

    None: they have none, or not all classes below ``every`` have the same, as Locust gives all of
    them the run's host.
    """
    hosts = _hosts(ours)
    return hosts.pop() if len(hosts) == 1 and _hosts(every) <= hosts else None


def _hosts(base: type) -> set[str]:
    classes = [base]
    hosts = set()
    while classes:
        user_class = classes.pop()
        classes += user_class.__subclasses__()
        hosts.add(getattr(user_class, "host", None) or "")
    return hosts - {""}


def choose_run_address(now: str | None, checked: str) -> str:
    """The address of a run that begins: ``checked``, whatever Locust's host ``now`` has become;
    without a checked address, Locust's host."""
    wanted = normalise_base_url(now or "")
    if checked and wanted and wanted != checked:
        logger.warning(
            f"the host {wanted} is ignored: the requests go to {checked}, the address that was "
            f"checked"
        )
    return checked or wanted


def prepare_run(settings: Settings, headers: Mapping[str, str], *, here: bool) -> Discovery:
    """The server was asked, and the run may begin. ``here``: its users are on this machine. Raises
    Refused."""
    if not settings.host:
        refuse_run("--host is missing: the server's address, such as --host localhost:8000")
    try:
        sources = count_source_addresses(settings)
    except ValueError as error:
        refuse_run(str(error))
    if settings.max_users_asked and here:
        short = explain_shortage(
            settings.max_users_asked,
            settings.processes,
            raise_open_files(),
            read_local_ports(),
            sources,
            len(settings.addresses),
        )
        if short:
            refuse_run(short)
    if settings.otlp_receiver:
        try:
            try_span_receiver(settings.otlp_receiver)
        except ValueError as error:
            refuse_run(str(error))
    try:
        folder = make_run_folder(settings, settings.model)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()  # the run makes it when it starts; a refused one leaves nothing
    except OSError as error:
        refuse_run(
            f"the report folder cannot be written: {error.filename}: {error.strerror} "
            f"(--report-dir names another)"
        )
    try:
        discovery = discover_server(
            settings,
            headers,
            verify=find_trusted_certificates(),
            sleep=gevent.sleep,
            times_response=settings.spreads_start,
        )
    except DiscoveryFailed as error:
        refuse_run(f"{settings.host}: {error}" if settings.hosts else str(error))
    discovery = _with_replicas(discovery, settings, headers) if settings.hosts else discovery
    proxy = list_passed_proxies(settings)
    commit = find_commit(Path.cwd()) if settings.git else None
    known = settings.random_seed is not None and not settings.sends_fresh_words
    warm = SAME_WORDS.format(settings.random_seed) if known else ""
    notes = (
        *discovery.notes,
        *filter(None, (PASSED.format(proxy) if proxy else "", note_source_addresses(), warm)),
    )
    return replace(discovery, proxy=proxy, commit=commit, notes=notes)


def _with_replicas(first: Discovery, settings: Settings, headers: Mapping[str, str]) -> Discovery:
    """Query the other replicas for the same things. Differences are among the notes. Raises
    Refused."""
    notes = list(first.notes)
    contexts = [first.context]
    simulated = first.simulated
    alone = replace(settings, hosts=(), model=first.model if settings.model_mix is None else None)
    for host in settings.hosts[1:]:
        try:
            other = discover_server(
                replace(alone, host=host),
                headers,
                verify=find_trusted_certificates(),
                sleep=gevent.sleep,
            )
        except DiscoveryFailed as error:
            refuse_run(f"{host}: {error}")
        notes += (f"{host}: {note}" for note in other.notes if note not in first.notes)
        if (other.server, other.length_way) != (first.server, first.length_way):
            notes.append(
                f"{host} is another server than {settings.host}: {other.server or '-'}, "
                f"{first.server or '-'}"
            )
        a, b = first.lengths.tokens_a_word, other.lengths.tokens_a_word
        if (
            first.lengths.measured
            and other.lengths.measured
            and abs(b - a) > MAX_COUNT_DIFFERENCE * a
        ):
            notes.append(
                f"{host} counts tokens differently: {b:.3f} tokens a word, and {a:.3f} at "
                f"{settings.host}"
            )
        contexts.append(other.context)
        simulated = simulated or other.simulated
    return replace(
        first,
        notes=tuple(notes),
        context=min(filter(None, contexts), default=None),
        simulated=simulated,
    )
