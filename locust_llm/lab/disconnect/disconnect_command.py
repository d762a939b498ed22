"""Command ``locust-llm disconnect``: what a server does when clients leave. Parses its options, sends
the rounds, and prints the result."""

import locust_llm.locust_adapter.command_line_parser  # first: Locust patches before the network is imported

# isort: split
import argparse
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

import gevent
from gevent.event import Event

import locust_llm
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import BY_RULES, ENDING_SIGNALS, ExitStatus, fail, worst_exit_status
from locust_llm.lab.duration_option import make_duration_reader
from locust_llm.lab.lab_request import add_lab_request_options
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.locust_adapter.option_names_of_other_tools import unknown_options
from locust_llm.locust_adapter.signals import leave_process
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.server.discovery import (
    LINE_BYTES,
    WAIT_ADVICE,
    Discovery,
    DiscoveryFailed,
    discover_server,
)
from locust_llm.server.server_counters import ServerCounters
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import (
    add_host_option,
    normalise_base_url,
    split_replica_urls,
)
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo.metric_definitions import GHOST_TOKENS
from locust_llm.slo.rules import Rule, parse_rule
from locust_llm.text.console import write_console
from locust_llm.text.format import print_json
from locust_llm.text.hide_secrets import remove_login_and_query
from locust_llm.text.sanitise import sanitise_text

from .disconnect_result import (
    DisconnectResult,
    describe_ghosts,
    format_disconnect_result,
    judge_ghost_rules,
    summarise_ghosts,
    summarise_rounds,
)
from .disconnect_rounds import (
    INPUT_TOKENS,
    LEAST_GHOSTS,
    SITUATIONS,
    DisconnectBench,
    DisconnectFailed,
    DisconnectRound,
)

LEAST_PASSES: Final = 2
"""Each situation has at least so many rounds: one has no interval."""
NO_COUNTERS: Final = "none"
OTHERS: Final = (
    "other requests were in the server in at least {count} of {of} rounds: their counters do not "
    "count, and the others may be off; send no other load"
)
parse_disconnect_time: Final = make_duration_reader("10s", "24h")


def run_disconnect(words: list[str]) -> int:
    parser = _make_parser()
    if refusal := unknown_options(words, parser._option_string_actions):
        return fail(refusal)
    options = parser.parse_args(words)
    say = partial(write_console, out=sys.stderr if options.json else None)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        headers = read_access_options(options)
        settings = _build_settings(options)
        rules = [_parse_ghost_rule(text) for text in options.slo]
        refusal = next(validate_settings(settings), "")
        if split_replica_urls(options.host):
            refusal = "disconnect tests one address at a time: give one replica, or the router"
        if refusal:
            return fail(refusal)
        verify = False if settings.insecure else find_trusted_certificates()
        discovery = discover_server(settings, headers, verify=verify)
        counters = _open_counters(options.counters, settings, headers)
        bench = _make_bench(options, settings, headers, discovery, counters)
        say(
            f"disconnect on {settings.host}: {options.clients} clients who leave, a witness stream\n"
        )
        say(f"{bench.calibrate()}\n")
    except (OSError, ValueError, DiscoveryFailed, DisconnectFailed) as error:
        return fail(sanitise_text(str(error).removesuffix(WAIT_ADVICE), most=LINE_BYTES))
    stop = Event()
    for number in ENDING_SIGNALS:
        gevent.signal_handler(number, _end_rounds, stop, number)
    notes = list[str]()
    rounds = list[DisconnectRound]()
    try:
        _run_rounds(bench, options.time, stop, rounds, say)
    except DisconnectFailed as error:
        notes.append(f"ended early: {sanitise_text(str(error), most=LINE_BYTES)}")
    finally:
        if counters is not None:
            counters.close()
    disturbed = sum(one.others for one in rounds)
    if disturbed:
        notes.append(OTHERS.format(count=disturbed, of=len(rounds)))
    situations = summarise_rounds(rounds, options.cancellations_per_day)
    result = DisconnectResult(
        url=remove_login_and_query(settings.host),
        server=discovery.server,
        started=started,
        version=locust_llm.__version__,
        simulated=discovery.simulated,
        clients=options.clients,
        situations=situations,
        rules=judge_ghost_rules(rules, situations) if situations else (),
        notes=tuple(notes),
    )
    say(f"\n{format_disconnect_result(result)}")
    if situations:
        say(f"{summarise_ghosts(situations)}\n")
    if options.json:
        print_json(result)
    statuses = [BY_RULES[one.verdict] for one in result.rules]
    statuses += [ExitStatus.INCOMPLETE] * (len(situations) < len(SITUATIONS))
    return worst_exit_status([ExitStatus.OK, *statuses])


def _run_rounds(
    bench: DisconnectBench,
    time_s: float,
    stop: Event,
    rounds: list[DisconnectRound],
    say: Callable[[str], object],
) -> None:
    """Adds rounds of all situations in turn until the time is over. Raises DisconnectFailed."""
    began = time.monotonic()
    number = 0
    while not stop.is_set():
        number += 1
        for situation in SITUATIONS:
            if stop.is_set() or (number > LEAST_PASSES and time.monotonic() - began > time_s):
                return
            rounds.append(bench.run_round(situation))
            so_far = next(
                one for one in summarise_rounds(rounds, None) if one.situation == situation
            )
            say(
                f"{time.monotonic() - began:4.0f} s  {SITUATIONS[situation]}: "
                f"{describe_ghosts(so_far.ghosts)}\n"
            )


def _end_rounds(stop: Event, number: int) -> None:
    """Ends the rounds after this one at the first signal, and the process at the second."""
    if stop.is_set():
        leave_process(128 + number)
    stop.set()


def _open_counters(
    where: str | None, settings: Settings, headers: Mapping[str, str]
) -> ServerCounters | None:
    """The counters of ``--counters``. The key goes to the server under test alone."""
    if where == NO_COUNTERS:
        return None
    if where is None:
        return ServerCounters(settings, headers)
    other = Settings(host=normalise_base_url(where), insecure=settings.insecure)
    return ServerCounters(other, headers if other.host == settings.host else {})


def _make_bench(
    options: argparse.Namespace,
    settings: Settings,
    headers: Mapping[str, str],
    discovery: Discovery,
    counters: ServerCounters | None,
) -> DisconnectBench:
    return DisconnectBench(
        settings, headers, discovery.model, discovery.form, counters, discovery.context,
        options.clients,
    )  # fmt: skip


def _parse_ghost_rule(text: str) -> Rule:
    """Raises ValueError."""
    rule = parse_rule(text)
    if rule.metric != GHOST_TOKENS or rule.where:
        raise ValueError(
            f"SLO {text.strip()[:80]!r}: disconnect takes rules such as ghost_tokens < 10"
        )
    return rule


def _parse_clients(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be from 1 to 256, got {text}")
    return int(text)


def _build_settings(options: argparse.Namespace) -> Settings:
    """Builds the settings of one user. Raises ValueError."""
    path = options.endpoint or PROTOCOLS[options.endpoint_type].path
    return Settings(
        host=normalise_base_url(options.host), model=options.model, insecure=options.insecure,
        probe=False, users=1,
        endpoint_type=options.endpoint_type, endpoint="/" + path.lstrip("/"),
        max_tokens_field=options.max_tokens_field,
        synthetic_input_tokens_mean=INPUT_TOKENS, output_tokens_mean=LEAST_GHOSTS,
    )  # fmt: skip


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm disconnect",
        description="Measure the work that a server does for clients who left.",
        epilog="example: locust-llm disconnect localhost:8000 --slo 'ghost_tokens < 10'",
    )
    add = parser.add_argument
    add_host_option(parser)
    add(
        "--clients",
        type=_parse_clients,
        default=8,
        metavar="N",
        help="clients who leave together, in a crowd four times as many (default: %(default)s)",
    )
    add(
        "-t",
        "--time",
        type=parse_disconnect_time,
        default=120.0,
        metavar="TIME",
        help="approximate time of the test (default: 2m)",
    )
    add(
        "--counters",
        metavar="URL",
        help="server whose /metrics count, such as the one behind a gateway; none: a witness "
        "stream alone (default: HOST)",
    )
    add(
        "--cancellations-per-day",
        type=float,
        metavar="N",
        help="your number of cancellations, to show the ghost tokens of a day",
    )
    add(
        "--slo",
        action="append",
        default=[],
        metavar="RULE",
        help="rule such as 'ghost_tokens < 10'",
    )
    add_lab_request_options(parser)
    add(
        "--json",
        action="store_true",
        help="print the result as JSON at the end, and all else to standard error",
    )
    add_access_options(parser)
    return parser
