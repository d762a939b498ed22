"""Prepare a run: the address, the headers and the report folder are checked and the server is asked,
before any load. What is wrong ends the start with one line."""

import contextlib
import logging
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
from .open_files_and_ports import explain_shortage, raise_open_files, read_local_ports
from .spans.span_receiver import try_span_receiver

MAX_COUNT_DIFFERENCE: Final = 0.02
"""Two servers whose token counts differ by more get a note."""
SAME_WORDS: Final = (
    "--random-seed {} sends the same words in each run, so an earlier run may have filled the "
    "server's prefix cache; --fresh-words sends new words"
)

logger = logging.getLogger("locust_llm")

PASSED: Final = (
    "requests pass through the proxy {} (a CONNECT tunnel), so every latency includes the proxy "
    "and the path to it. Timestamps come from this machine's kernel; the round trip to the server "
    "is unknown"
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
            f"the host {wanted} is ignored: requests go to {checked}, the address that was checked"
        )
    return checked or wanted


def prepare_run(settings: Settings, headers: Mapping[str, str], *, here: bool) -> Discovery:
    """The server was asked, and the run may begin. ``here``: its users are on this machine. Raises
    Refused."""
    if not settings.host:
        refuse_run("--host is missing: add the server's address, such as --host localhost:8000")
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
            f"(use --report-dir to choose another folder)"
        )
    try:
        discovery = discover_server(
            settings,
            headers,
            verify=find_trusted_certificates(),
            sleep=gevent.sleep,
            times_response=settings.spreads_start
            or (settings.compares and settings.shortens_blocks)
            or bool(settings.swept_limits and settings.run_time_s),
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
    gateway = first.gateway
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
                f"{host} and {settings.host} are different servers: {other.server or '-'}, "
                f"{first.server or '-'}"
            )
        a, b = first.lengths.tokens_a_word, other.lengths.tokens_a_word
        if (
            first.lengths.measured
            and other.lengths.measured
            and abs(b - a) > MAX_COUNT_DIFFERENCE * a
        ):
            notes.append(
                f"{host} counts tokens differently: {b:.3f} tokens per word, and {a:.3f} at "
                f"{settings.host}"
            )
        contexts.append(other.context)
        simulated = simulated or other.simulated
        gateway = gateway or other.gateway
    return replace(
        first,
        notes=tuple(notes),
        context=min(filter(None, contexts), default=None),
        simulated=simulated,
        gateway=gateway,
    )
