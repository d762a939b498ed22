"""Command ``locust-llm check HOST``: the features of a server, from a few requests in ten seconds,
and what they mean for a run."""

import argparse
import math
import resource
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import locust  # noqa: F401  first: it patches the process before the network is imported

import msgspec
import requests
from msgspec.structs import replace

from locust_llm.access.proxy_notes import list_passed_proxies
from locust_llm.access.source_addresses import count_source_addresses
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import format_request_head, make_target
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.gate.gate import Gate
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.locust_adapter.option_names_of_other_tools import unknown_options
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.buffering import DELAYED, TOKENS_A_CHUNK, WHOLE, Buffering
from locust_llm.records.outcomes import OK
from locust_llm.records.record import MIN_EARLY_S, Record
from locust_llm.server.discovery import (
    LINE_BYTES,
    WAIT_ADVICE,
    Discovery,
    DiscoveryFailed,
    discover_server,
    find_request_form,
    find_spoken_protocols,
)
from locust_llm.server.http_get import PROBE_HEADER
from locust_llm.server.identity import answers_itself
from locust_llm.server.length_control import LENGTH_PROMPT, LENGTH_TOKENS, obeys_length
from locust_llm.server.local_servers import show_local_servers
from locust_llm.server.open_files_and_ports import (
    explain_shortage,
    raise_open_files,
    read_local_ports,
)
from locust_llm.server.refusals import advise_on_error, has_key, strip_web_page
from locust_llm.server.refused_request_fields import REFUSED, RequestForm
from locust_llm.settings.option_declaration import declared_options
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import (
    add_host_option,
    join_server_url,
    normalise_base_url,
    split_replica_urls,
)
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.text.format import format_count, format_duration, print_safely
from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

MAX_S: Final = 10.0
PROMPT_TOKENS: Final = 800.0
"""The prompt is long enough to show a prefix cache, and short enough for a slow server."""
OUTPUT_TOKENS: Final = 32
MAX_CACHED_RATIO: Final = 0.6
"""TTFT of the second time / first time. A prompt below this ratio was not computed again."""
FAR_RTT_US: Final = 20_000
MAX_LENGTH_DEVIATION: Final = 0.05
"""The share by which an output may be shorter than requested. A report warns beyond it."""
FINE: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "PROBLEM"
NOTED: Final = {"context": "lengths", "TLS": "certificate", "model": "models"}
"""The subject of a note of the discovery, by the first of these words in it."""


class CheckFinding(NamedTuple):
    """One line of the output."""

    level: str
    """FINE, NOTE (a run works, with a remark) or PROBLEM."""
    what: str
    found: str
    advice: str = ""


class CheckedRequest(NamedTuple):
    """One request of the check: its record, and the time of an event without content before the
    first chunk."""

    record: Record
    early_s: float | None


class Checker:
    """Sends requests to one server, one at a time, until its time is up."""

    def __init__(
        self, settings: Settings, headers: Mapping[str, str], discovery: Discovery, seconds: float
    ) -> None:
        self.settings, self.headers, self.model = settings, headers, discovery.model
        self.gateway = discovery.gateway
        self.tries_types = answers_itself(discovery.server, discovery.gateway)
        """Other endpoint types may be tried: see answers_itself."""
        self.until = time.monotonic() + seconds
        self.line = UserConnection()
        self.gate = Gate()
        self.secrets = collect_secrets(headers, headers)
        self.form = RequestForm()
        """The form of its requests that the server accepts."""
        self.failed = self.advice = ""
        """Why the last request failed, and what to do about it."""
        self.refused = False
        """The server has refused it, perhaps because of one of its fields."""

    def ask(self, text: str, tokens: int, **more: Any) -> CheckedRequest | None:
        """None: there is no time left, or the request failed (see ``failed``)."""
        left_s = self.until - time.monotonic()
        if left_s <= 0.1:
            self.failed = "there was no time left"
            return None
        settings = self.settings
        own = PROTOCOLS[settings.endpoint_type]
        data = encode_request_body(
            settings.endpoint_type, self.model, [{"role": "user", "content": text}] * own.least_texts,
            tokens,
            **self.form.fields(settings), **more,
        )  # fmt: skip
        prepared = self._prepared(data)
        where = make_target(
            prepared.url or "", False if settings.insecure else find_trusted_certificates(), None
        )
        request = Request(
            target=where,
            data=format_request_head(prepared) + b"\r\n" + data,
            labels={"id": "check"},
            timeout_s=left_s,
            kind=settings.endpoint_type,
        )
        record = exchange_request(self.line, self.gate, request, 0.0)
        failure = sanitise_text(
            f"{record.outcome}: {strip_web_page(record.error)}", self.secrets, most=LINE_BYTES
        )
        self.failed = "" if record.outcome == OK else failure
        self.refused = record.status in REFUSED
        self.advice = (
            ""
            if record.outcome == OK
            else advise_on_error(record.status, failure, settings, key=has_key(self.headers))
        )
        return CheckedRequest(record, self._early_s()) if record.outcome == OK else None

    def find_form(self) -> tuple[str, list[str]]:
        """Find the form of requests that the server accepts, and use it from here on. Returns (why
        it accepts none, what the user must know)."""
        settings = self.settings
        verify = False if settings.insecure else find_trusted_certificates()
        self.form, why, notes = find_request_form(
            settings,
            self.headers,
            self.model,
            self.until,
            tries_types=self.tries_types,
            verify=verify,
        )
        return why, notes

    def _prepared(self, data: bytes) -> requests.PreparedRequest:
        own = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            PROBE_HEADER: "1",
            **self.headers,
        }
        return requests.Request(
            "POST",
            join_server_url(self.settings.host, self.settings.endpoint),
            data=data,
            headers=own,
        ).prepare()

    def _early_s(self) -> float | None:
        stream = self.line.stream
        if stream is None or not stream.answer.chunk_reads:
            return None
        first, early = stream.answer.chunk_reads[0], stream.answer.early_read
        return 0.0 if early is None else (stream.stamps[first] - stream.stamps[early]) / 1e9

    def close(self) -> None:
        self.line.close()


def check_server(
    settings: Settings, headers: Mapping[str, str], files: int | None, seconds: float = MAX_S
) -> Iterator[CheckFinding]:
    """The findings, as soon as they are known. ``files``: how many this process may open."""
    try:
        discovery = discover_server(
            replace(settings, probe=False),
            headers,
            verify=False if settings.insecure else find_trusted_certificates(),
        )
    except DiscoveryFailed as error:
        unreachable = str(error).startswith(
            ("cannot reach", "TLS with", "--host")
        ) or " was not reached: " in str(error)
        yield CheckFinding(
            PROBLEM, "reachable" if unreachable else "refused", str(error).removesuffix(WAIT_ADVICE)
        )
        return
    yield CheckFinding(
        FINE, "reachable", f"{settings.host}{f' ({discovery.server})' if discovery.server else ''}"
    )
    passed = list_passed_proxies(settings), discovery.gateway
    if proxy := ", ".join(filter(None, passed)):
        yield CheckFinding(
            NOTE, "proxy", proxy, "every latency includes the proxy and the path to it"
        )
    yield from _model(discovery)
    yield from _slots(discovery, settings.users or 1)
    checker = Checker(settings, headers, discovery, seconds)
    try:
        yield from _answers(
            checker,
            PROMPT_TOKENS
            if discovery.context is None
            else min(PROMPT_TOKENS, discovery.context / 2),
        )
        yield from _check_endpoint_types(checker)
    finally:
        checker.close()
    yield from _sockets(settings, files)


def _model(discovery: Discovery) -> Iterator[CheckFinding]:
    if discovery.model:
        yield CheckFinding(FINE, "model", discovery.model)
    if discovery.context is not None:
        yield CheckFinding(FINE, "context", f"{discovery.context:,} tokens")
    for note in discovery.notes:
        yield CheckFinding(
            NOTE, next((what for word, what in NOTED.items() if word in note), "note"), note
        )
    if discovery.simulated:
        yield CheckFinding(
            NOTE,
            "simulated",
            "this is the simulator: its results do not predict a real GPU, model or server",
        )


def _slots(discovery: Discovery, users: int) -> Iterator[CheckFinding]:
    """How many requests llama.cpp answers at a time."""
    if not (slots := discovery.server_flags.get("total_slots", "")).isdecimal():
        return
    few = users > int(slots)
    waiting = "1 waits" if users - int(slots) == 1 else f"{users - int(slots)} wait"
    advice = f"of {users} users {waiting} for a slot, and TTFT includes that wait" if few else ""
    requests = format_count(int(slots), "request")
    yield CheckFinding(
        NOTE if few else FINE,
        "slots",
        f"{format_count(int(slots), 'slot')}: it answers {requests} at a time",
        advice,
    )


def _answers(checker: Checker, prompt_tokens: float) -> Iterator[CheckFinding]:
    prompts = Prompts(
        PromptLengthModel(),
        input_tokens=(prompt_tokens, 0),
        output_tokens=(OUTPUT_TOKENS, 0),
        seed=None,
    )
    text = prompts.draw().text
    first = checker.ask(text, OUTPUT_TOKENS)
    if first is None and checker.refused:
        failed, advised = checker.failed, checker.advice
        why, notes = checker.find_form()
        if why:
            yield CheckFinding(PROBLEM, "first answer", failed, advised or why)
            return
        for note in notes:
            yield CheckFinding(NOTE, "request form", note)
        first = checker.ask(text, OUTPUT_TOKENS)
    if first is None:
        yield CheckFinding(
            PROBLEM,
            "first answer",
            checker.failed,
            checker.advice or "a run needs this request to succeed first",
        )
        return
    record = first.record
    yield from _network(record, checker.settings)
    if not PROTOCOLS[checker.settings.endpoint_type].streams:
        counted = (
            "its input tokens are not counted"
            if record.input_tokens is None
            else f"{record.input_tokens} input tokens"
        )
        took = format_duration(record.latency_s or 0.0)
        yield CheckFinding(FINE, "answers", f"in one piece, after {took}; {counted}")
        return
    if record.streamed and not record.chunk_us:
        yield CheckFinding(
            PROBLEM, "first answer", "a stream without content",
            "no Time to First Token. Check whether the model answers this prompt",
        )  # fmt: skip
        return
    if not record.streamed or record.ttft_s is None:
        yield CheckFinding(
            PROBLEM, "streams", "no: the response came in one piece",
            "no Time to First Token, and requests occupy a prefill slot until their end. Check "
            "whether a proxy buffers the stream",
        )  # fmt: skip
        return
    yield CheckFinding(
        FINE,
        "streams",
        f"yes; TTFT {format_duration(record.ttft_s, 2)} for "
        f"{record.input_tokens or f'about {prompt_tokens:.0f}'} tokens",
    )
    yield _usage(record)
    again = checker.ask(text, OUTPUT_TOKENS)
    unknown = checker.failed
    other = checker.ask(prompts.draw().text, OUTPUT_TOKENS)
    yield from _stream([asked for asked in (first, again, other) if asked is not None])
    if again is None:
        yield CheckFinding(NOTE, "prefix cache", f"not known: {unknown}")
    else:
        yield _cache(record, again.record, None if other is None else other.record)
    yield _length(checker)


def _check_endpoint_types(checker: Checker) -> Iterator[CheckFinding]:
    settings = checker.settings
    if not checker.tries_types:
        before = f"{checker.gateway} is in front of the server" if checker.gateway else ""
        yield CheckFinding(
            NOTE, "endpoint types", f"not tried: {before or 'the kind of server is unknown'}",
            "a gateway may take a model out of use for all users when its server refuses a request",
        )  # fmt: skip
        return
    verify = False if settings.insecure else find_trusted_certificates()
    if names := find_spoken_protocols(
        settings, checker.headers, checker.model, checker.until, verify=verify
    ):
        yield CheckFinding(FINE, "endpoint types", f"also {', '.join(names)} (--endpoint-type)")


def _network(record: Record, settings: Settings) -> Iterator[CheckFinding]:
    if record.rtt_us is not None:
        far = record.rtt_us > FAR_RTT_US
        advice = (
            "TTFT includes it: run the load generator closer to the server, or report it with the "
            "results"
            if far
            else ""
        )
        connect = (
            "" if record.connect_s is None else f", {format_duration(record.connect_s)} to connect"
        )
        yield CheckFinding(
            NOTE if far else FINE,
            "round trip",
            f"{format_duration(record.rtt_us / 1e6)}{connect}",
            advice,
        )
    if not settings.host.startswith("https:"):
        yield CheckFinding(FINE, "TLS", "none (http)")
    elif settings.insecure:
        yield CheckFinding(
            NOTE,
            "TLS",
            "not verified (--insecure)",
            "anyone on the network path can read and change everything, including the API key",
        )
    else:
        yield CheckFinding(FINE, "TLS", "the certificate was verified")


def _usage(record: Record) -> CheckFinding:
    if record.tokens_from == "usage":
        return CheckFinding(
            FINE,
            "usage",
            f"yes: {record.input_tokens} tokens in, {record.output_tokens} out, by the server's "
            f"count",
        )
    return CheckFinding(
        NOTE, "usage", "the server counts no tokens",
        "each chunk counts as one token, which is wrong if a chunk holds several; --tokenizer "
        "counts the prompts",
    )  # fmt: skip


def _stream(asked: list[CheckedRequest]) -> Iterator[CheckFinding]:
    came = Buffering()
    for requested in asked:
        came.add(requested.record)
    if came.way:
        cause = {WHOLE: "whole, within one millisecond", DELAYED: "in steps of 40 ms"}.get(
            came.way, "several chunks at a time"
        )
        remark = next(came.remarks()).partition(". ")[2]
        yield CheckFinding(PROBLEM, "buffering", f"answers come {cause}", remark)
    else:
        yield CheckFinding(
            FINE,
            "buffering",
            "none seen"
            if came.answers
            else "unknown: the responses were too short or were read late",
        )
    if came.tokens_a_chunk is not None:
        many = came.tokens_a_chunk > TOKENS_A_CHUNK
        advice = (
            "Inter Token Latency counts tokens and stays right; Inter Chunk Latency counts chunks"
            if many
            else ""
        )
        yield CheckFinding(
            NOTE if many else FINE, "tokens per chunk", f"{came.tokens_a_chunk:.2f}", advice
        )
    early_s = max(
        (requested.early_s for requested in asked if requested.early_s is not None), default=0.0
    )
    yield _describe_early_event(early_s)


def _describe_early_event(early_s: float) -> CheckFinding:
    """``early_s``: how long before the first token an event without content came. 0: none did."""
    if not early_s:
        return CheckFinding(FINE, "early events", "none before the first token")
    found = f"one without content {format_duration(early_s)} before the first token"
    if early_s < MIN_EARLY_S:
        return CheckFinding(FINE, "early events", found)
    advice = "TTFT here ends at the first content; tools that count the first event report a shorter TTFT"
    return CheckFinding(NOTE, "early events", found, advice)


def _cache(first: Record, again: Record, other: Record | None) -> CheckFinding:
    """``again`` has the prompt of ``first``, ``other`` a new one. The first request of all may be slow
    for other reasons, as a proxy and a server start up with it: a new prompt shows that."""
    cached = again.cached_tokens or 0
    new_s = min(record.ttft_s or math.inf for record in (first, other or first))
    again_s = again.ttft_s or new_s
    if not cached and again_s >= MAX_CACHED_RATIO * new_s:
        return CheckFinding(
            FINE, "prefix cache", "no sign of one: the same prompt took as long as a new one"
        )
    if not cached and other is None:
        return CheckFinding(
            NOTE, "prefix cache", "not known: only the first request was slower than its repetition"
        )
    tokens = f"{cached} of {again.input_tokens} tokens cached, " if cached else ""
    times = f"TTFT {format_duration(again_s, 2)}, and {format_duration(new_s, 2)} for a new one"
    return CheckFinding(
        NOTE, "prefix cache", f"{tokens}the same prompt again: {times}",
        "synthetic prompts do not repeat; a dataset that repeats prompts measures the cache",
    )  # fmt: skip


def _length(checker: Checker) -> CheckFinding:
    """Whether the output length can be fixed."""
    plain = checker.ask(LENGTH_PROMPT, LENGTH_TOKENS)
    if plain is None:
        return CheckFinding(NOTE, "ignore_eos", f"not known: {checker.failed}")
    forced = checker.ask(LENGTH_PROMPT, LENGTH_TOKENS, ignore_eos=True)
    if forced is not None and is_length_kept(forced.record):
        return _check_longer_output(checker, forced.record)
    if is_length_kept(plain.record):
        return CheckFinding(
            FINE,
            "ignore_eos",
            f"refused, but not needed: all {LENGTH_TOKENS} tokens arrived without it",
        )
    reason = f" ({checker.failed})" if checker.failed else ""
    return CheckFinding(
        NOTE, "ignore_eos", f"has no effect{reason}: {plain.record.output_tokens} of "
            f"{LENGTH_TOKENS} tokens came",
        "output lengths vary: compare runs by tokens, not by requests",
    )  # fmt: skip


def _check_longer_output(checker: Checker, kept: Record) -> CheckFinding:
    """Whether an output as long as a run's keeps its length too, as some servers cap outputs.
    ``kept`` is a shorter length that works."""
    tokens = round(checker.settings.output_tokens_mean)
    longer = None
    if tokens > LENGTH_TOKENS:
        longer = checker.ask(LENGTH_PROMPT, tokens, ignore_eos=True)
    if longer is None:
        return CheckFinding(
            FINE, "ignore_eos", f"works for {LENGTH_TOKENS} tokens; a run sets it by itself"
        )
    counted = longer.record.tokens_from == kept.tokens_from == "usage"
    tokens_a_piece = 1.0 if counted else LENGTH_TOKENS / (kept.output_tokens or LENGTH_TOKENS)
    came = tokens_a_piece * (longer.record.output_tokens or 0)
    if came >= (1 - MAX_LENGTH_DEVIATION) * tokens:
        return CheckFinding(
            FINE, "ignore_eos", f"works for {tokens} tokens; a run sets it by itself"
        )
    about = "" if counted else "about "
    return CheckFinding(
        NOTE,
        "ignore_eos",
        f"works for {LENGTH_TOKENS} tokens; of {tokens} requested {about}{came:.0f} came",
        "the server seems to cap outputs: request fewer tokens (--output-tokens-mean)",
    )


def is_length_kept(record: Record) -> bool:
    tokens = record.output_tokens
    if record.tokens_from == "chunks" and record.finish_reason == "length":
        tokens = max(tokens or 0, LENGTH_TOKENS)  # a chunk may hold several
    return obeys_length(record.status or 0, tokens, record.finish_reason)


def _sockets(settings: Settings, files: int | None) -> Iterator[CheckFinding]:
    users = settings.users or 1
    try:
        short = explain_shortage(
            users, settings.processes, files, read_local_ports(), count_source_addresses(settings)
        )
    except ValueError as error:
        short = str(error)
    if short:
        yield CheckFinding(PROBLEM, "sockets", short)
    else:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield CheckFinding(FINE, "sockets", f"enough open files ({limit}) and ports for -u {users}")


def format_finding(finding: CheckFinding) -> str:
    """The finding for the console, with the advice below."""
    text = f"{finding.level:8}{finding.what:17}{finding.found}"
    return f"{text}\n{'':25}-> {finding.advice}" if finding.advice else text


# -- the command -----------------------------------------------------------------------------------


def run_check(words: list[str]) -> int:
    """Run the check. Returns 0 if a run can start, 1 with a problem."""
    parser = _parser()
    if refusal := unknown_options(words, parser._option_string_actions):
        return fail(refusal)
    options = parser.parse_args(words)
    if not (options.address or options.host):
        show_local_servers("locust-llm check {host}")
    try:
        target = read_check_target(options)
    except (OSError, ValueError) as error:
        return fail(str(error))
    found = list(show_findings(target, quiet=options.json))
    if options.json:
        print_safely(f"{msgspec.json.encode([finding._asdict() for finding in found]).decode()}\n")
    problems = any(finding.level == PROBLEM for finding in found)
    return ExitStatus.FAILED_REQUESTS if problems else ExitStatus.OK


class CheckTarget(NamedTuple):
    """The server to check, and the headers of every request."""

    settings: Settings
    headers: Mapping[str, str]


def read_check_target(options: argparse.Namespace) -> CheckTarget:
    """Raises OSError and ValueError of one sentence."""
    headers = read_access_options(options)
    if split_replica_urls(options.host or ""):
        raise ValueError(
            "check takes one address at a time; a run checks all of its addresses before the load"
        )
    settings = _settings(options)
    if refusal := next(validate_settings(settings), ""):
        raise ValueError(refusal)
    return CheckTarget(settings, headers)


def show_findings(target: CheckTarget, *, quiet: bool = False) -> Iterator[CheckFinding]:
    """The findings, printed as soon as they are known. ``quiet``: they are not printed."""
    for finding in check_server(target.settings, target.headers, raise_open_files()):
        if not quiet:
            print_safely(f"{format_finding(finding)}\n")
        yield finding


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm check",
        description=(
            "Check a server in ten seconds: API key, model, path, context length, streaming, token "
            "counts, prefix cache and limits."
        ),
        epilog="example: locust-llm check https://llm.example.com --model llama --api-key-file "
        "key.txt",
    )
    add_check_options(
        parser,
        users=1,
        what="users of the planned run, to check open files and ports",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_access_options(parser)
    return parser


def add_check_options(parser: argparse.ArgumentParser, *, users: int, what: str) -> None:
    """The options for the server and its requests. ``what``: the meaning of the users, of which
    ``users`` are the default."""
    s = Settings()
    by_field = {option.field: option for option in declared_options(Settings)}
    add = parser.add_argument
    add_host_option(parser)
    add("--model", help="model to request (default: the server's first)")
    listed = by_field["model_check"]
    switch = add(listed.flag, action=argparse.BooleanOptionalAction, default=True)
    switch.help = listed.help  # argparse of Python 3.11 would add its own default to it
    add("-u", "--users", type=int, default=users, help=f"{what} (default: %(default)s)")
    for option in (by_field["synthetic_input_tokens_mean"], by_field["output_tokens_mean"]):
        mean = getattr(s, option.field)
        text = f"{option.help} (default: {mean:g})"
        add(option.flag, type=float, default=mean, metavar="TOKENS", help=text)
    add(
        "--endpoint-type",
        choices=tuple(PROTOCOLS),
        default="chat",
        help="API of the server (default: %(default)s)",
    )
    add(
        "--endpoint",
        metavar="PATH",
        help="path of the endpoint, below --host (default: by the endpoint type)",
    )
    add(
        "--max-tokens-field",
        default="max_tokens",
        help="request field that limits the output length (default: %(default)s)",
    )


def _settings(options: argparse.Namespace) -> Settings:
    """Raises ValueError."""
    return Settings(
        host=normalise_base_url(options.host), model=options.model, model_check=options.model_check,
        users=options.users,
        insecure=options.insecure, endpoint_type=options.endpoint_type,
        streaming=PROTOCOLS[options.endpoint_type].streams,
        endpoint="/" + (options.endpoint or PROTOCOLS[options.endpoint_type].path).lstrip("/"),
        synthetic_input_tokens_mean=options.synthetic_input_tokens_mean,
        output_tokens_mean=options.output_tokens_mean,
        max_tokens_field=options.max_tokens_field,
    )  # fmt: skip
