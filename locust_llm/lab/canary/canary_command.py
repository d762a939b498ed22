"""Command ``locust-llm canary`` parses its options, sends the stream, and handles signals and its
port."""

import locust_llm.locust_adapter.command_line_parser  # noqa: F401  first: Locust patches before the network is imported

# isort: split
import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import gevent
from gevent.event import Event
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, start_http_server

from locust_llm.access.headers_and_api_key import KeyHeaders
from locust_llm.access.proxy_notes import list_passed_proxies
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import ENDING_SIGNALS, fail
from locust_llm.gate.gate import Gate
from locust_llm.lab.canary.canary_arithmetic import CanaryRound, measure_round
from locust_llm.lab.duration_option import make_duration_reader
from locust_llm.lab.lab_request import TIMEOUT_S, add_lab_request_options, make_lab_request
from locust_llm.lab.probe.prefill_costs import prefill_cost_per_token_s
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.locust_adapter.option_names_of_other_tools import unknown_options
from locust_llm.locust_adapter.signals import leave_process
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import SIMULATED
from locust_llm.server.discovery import (
    LINE_BYTES,
    WAIT_ADVICE,
    DiscoveryFailed,
    discover_server,
    find_request_form,
)
from locust_llm.server.refusals import strip_web_page
from locust_llm.server.refused_request_fields import REFUSED, RequestForm
from locust_llm.server.server_counters import ServerCounters, found_other_requests
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import (
    add_host_option,
    explain_unopened_port,
    normalise_base_url,
    parse_metrics_port,
    split_replica_urls,
)
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.text.console import write_console
from locust_llm.text.format import print_json
from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

from .canary_session import CanaryPlan, CanarySession

INPUT_TOKENS: Final = 48
"""Each prompt has enough tokens for a number of its own, so that no cache contains it."""
parse_canary_duration: Final = make_duration_reader("1s", "744h")


class Canary:
    """Sends one stream at each call of ``ask``."""

    def __init__(
        self,
        settings: Settings,
        headers: Mapping[str, str],
        model: str | None,
        tokens: int,
        say: Callable[[str], object] = write_console,
    ) -> None:
        self._say = say
        self._settings = settings
        self._headers = headers
        self._model = model
        self._tokens = tokens
        self._line = UserConnection()
        self._gate = Gate()
        self._prompts = Prompts(
            PromptLengthModel(),
            input_tokens=(INPUT_TOKENS, 0.0),
            output_tokens=(tokens, 0.0),
            seed=None,
        )
        self._form: RequestForm | None = None
        """The server accepts requests of this form. None: it accepts the form of the settings."""
        self._metrics = ServerCounters(settings, headers)
        self._others: bool | None = None
        """Another client sent requests during the last exchange. None: unknown."""
        self._forced: bool | None = None
        """The server accepts ``ignore_eos``. None: not tried yet."""

    def ask(self) -> CanaryRound:
        at = time.time()
        record = self._exchange(self._forced or False)
        if (
            record.outcome == OK
            and self._forced is None
            and (record.output_tokens or 0) < self._tokens
        ):
            self._forced = True  # from the next round on
        elif record.status in (400, 422) and self._forced:
            self._forced = False
            at = time.time()
            record = self._exchange(False)
        elif record.status in REFUSED and self._form is None:
            self._find_form()
            at = time.time()
            record = self._exchange(False)
        if record.outcome != OK:
            # read again: a new key may have replaced the first one
            secrets = collect_secrets(self._headers, self._headers)
            return CanaryRound(
                at=at,
                error=sanitise_text(
                    f"{record.outcome}: {strip_web_page(record.error)}", secrets, most=LINE_BYTES
                ),
            )
        if not record.chunk_us:
            return CanaryRound(at=at, error="the response came in one piece: there are no gaps")
        measured_round = measure_round(at, [us / 1e6 for us in record.chunk_us])
        return replace(measured_round, input_tokens=record.input_tokens, others=self._others)

    def _find_form(self) -> None:
        settings = self._settings
        deadline_s = time.monotonic() + TIMEOUT_S
        verify = False if settings.insecure else find_trusted_certificates()
        self._form, _, notes = find_request_form(
            settings, self._headers, self._model, deadline_s, verify=verify
        )
        for note in notes:
            self._say(f"{sanitise_text(note, most=LINE_BYTES)}\n")

    def _exchange(self, forced: bool) -> Record:
        asked = make_lab_request(
            self._settings, self._headers, self._model, self._prompts.draw().text, self._tokens,
            form=self._form, forced=forced, name="canary",
        )  # fmt: skip
        before = self._metrics.read()
        record = exchange_request(self._line, self._gate, asked.request, 0.0)
        self._others = found_other_requests(before, self._metrics.read(), record.input_tokens)
        if isinstance(keys := self._headers, KeyHeaders) and keys.expired(
            asked.headers, record.status
        ):
            return self._exchange(forced) if keys.another(asked.headers) else record
        return record

    def close(self) -> None:
        self._line.close()
        self._metrics.close()


def run_canary(words: list[str]) -> int:
    parser = _make_parser()
    if refusal := unknown_options(words, parser._option_string_actions):
        return fail(refusal)
    options = parser.parse_args(words)
    say = partial(write_console, out=sys.stderr if options.json else None)
    try:
        headers = read_access_options(options)
        settings = _build_settings(options)
        plan = _read_plan(options)
        refusal = next(validate_settings(settings), "")
        if split_replica_urls(options.host):
            refusal = (
                "canary watches one address at a time: a router, or each replica with its own "
                "canary"
            )
        discovery = (
            None
            if refusal
            else discover_server(
                settings,
                headers,
                verify=False if settings.insecure else find_trusted_certificates(),
            )
        )
        folder = options.report_dir or Path("reports") / f"canary-{time.strftime('%Y%m%d-%H%M%S')}"
        if discovery is not None:
            folder.mkdir(parents=True, exist_ok=True)
        session = CanarySession(plan, folder, say)
        if discovery is not None and options.metrics_port:
            _serve(session, options.metrics_port)
    except (OSError, ValueError, DiscoveryFailed) as error:
        refusal = str(error).removesuffix(WAIT_ADVICE)
        discovery = None
    if refusal or discovery is None:
        return fail(refusal)
    through = f" through the proxy {proxy}" if (proxy := list_passed_proxies(settings)) else ""
    say(f"canary on {settings.host}{through}: {plan.promise}\n")
    if discovery.simulated:
        say(f"{SIMULATED}\n")
    canary = Canary(settings, headers, discovery.model, plan.output_tokens, say)
    stop = Event()
    for number in ENDING_SIGNALS:
        gevent.signal_handler(number, _end_session, stop, number)
    try:
        status = session.run(canary.ask, lambda seconds: bool(stop.wait(seconds)), time.monotonic)
    finally:
        canary.close()
    if options.json:
        print_json(session.result)
    return status


def _end_session(stop: Event, number: int) -> None:
    """Ends the session after this round at the first signal, and the process at the second."""
    if stop.is_set():
        leave_process(128 + number)
    stop.set()


def _serve(session: CanarySession, address: str) -> None:
    """Serves the session's metrics. Raises OSError and ValueError."""
    host, port = parse_metrics_port(address)
    registry = CollectorRegistry()
    registry.register(session)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ValueError(explain_unopened_port(address, error)) from None


def _parse_tokens(text: str) -> int:
    value = int(text)
    if not 16 <= value <= 1024:
        raise argparse.ArgumentTypeError(f"must be from 16 to 1024, got {text}")
    return value


def _read_plan(options: argparse.Namespace) -> CanaryPlan:
    """Reads the plan from the options. Raises ValueError."""
    token_s = None if options.token_price is None else options.token_price / 1e6
    if options.probe is not None:
        if token_s is not None:
            raise ValueError("--token-price and --probe exclude each other: use one of them")
        token_s = prefill_cost_per_token_s(options.probe)
    if token_s is not None and not token_s > 0:
        raise ValueError(f"--token-price must be above 0, got {options.token_price:g}")
    return CanaryPlan(
        every_s=options.every, for_s=options.for_s, window_s=options.window,
        output_tokens=options.output_tokens,
        input_tokens=INPUT_TOKENS, token_s=token_s,
    )  # fmt: skip


def _build_settings(options: argparse.Namespace) -> Settings:
    """Builds the settings of one user. Raises ValueError."""
    path = options.endpoint or PROTOCOLS[options.endpoint_type].path
    return Settings(
        host=normalise_base_url(options.host), model=options.model, insecure=options.insecure,
        probe=False, users=1,
        endpoint_type=options.endpoint_type, endpoint="/" + path.lstrip("/"),
        max_tokens_field=options.max_tokens_field,
        synthetic_input_tokens_mean=INPUT_TOKENS, output_tokens_mean=options.output_tokens,
    )  # fmt: skip


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm canary",
        description=(
            "Watch a shared server with a few short requests per minute. Gaps in their streams "
            "show the prefill load that other clients cause."
        ),
        epilog="example: locust-llm canary localhost:8000 --for 8h",
    )
    add = parser.add_argument
    add_host_option(parser)
    add(
        "--every",
        type=parse_canary_duration,
        default=20.0,
        metavar="TIME",
        help="time between two requests (default: 20s)",
    )
    add(
        "--for",
        dest="for_s",
        type=parse_canary_duration,
        default=3600.0,
        metavar="TIME",
        help="total time to watch (default: 1h)",
    )
    add(
        "--window",
        type=parse_canary_duration,
        default=300.0,
        metavar="TIME",
        help="interval that each printed line summarises (default: 5m)",
    )
    add(
        "--output-tokens",
        type=_parse_tokens,
        default=64,
        metavar="N",
        help="output tokens of each request (default: %(default)s)",
    )
    add(
        "--token-price",
        type=float,
        metavar="US",
        help="prefill time per prompt token in microseconds, to show the load in tokens/s",
    )
    add(
        "--probe",
        type=Path,
        metavar="DIR",
        help="probe's run folder, for the prefill time per token",
    )
    add(
        "--report-dir",
        type=Path,
        metavar="DIR",
        help="folder for canary.jsonl (default: reports/canary-<time>)",
    )
    add(
        "--metrics-port",
        metavar="[ADDR:]PORT",
        help="serve Prometheus metrics at this port (default address: 127.0.0.1)",
    )
    add_lab_request_options(parser)
    add(
        "--json",
        action="store_true",
        help="print the result as JSON at the end, and the lines of the rounds to standard error",
    )
    add_access_options(parser)
    return parser
