"""Discovery: the server's models, its name and the tokens of a word, queried once before the load.

Probes are our own requests. They are marked with ``PROBE_HEADER``, listed in run.json and counted
nowhere else. A value of an answer is used only if it has the right type. Its texts pass
``sanitise_text`` first. Only the model's name is used as it came, and that function leaves it
unchanged.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from typing import Any, Final

import gevent
import msgspec

from locust_llm.client.request_exchange import SIMULATOR, UserConnection
from locust_llm.protocols.error_message import status_message
from locust_llm.protocols.protocol_registry import PROTOCOLS, convert_key_headers
from locust_llm.records.machine import Commit
from locust_llm.records.run_facts import CalibrationRequest, ResponseTime
from locust_llm.server.http_get import FetchedResponse, FetchFailed, decode_response, fetch
from locust_llm.server.length_control import (
    LENGTH_PROMPT,
    LENGTH_TOKENS,
    WAYS,
    make_length_fields,
    obeys_length,
)
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import join_server_url
from locust_llm.text.hide_secrets import Secrets, collect_secrets
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.workload.answer_schema import MISSING, find_response_schema, has_jsonschema
from locust_llm.workload.model_and_tenant_mix import format_canonical_mix
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import draw_sample_numbers

from .identity import TIMEOUT_S, answers_itself, identify_server, is_simulator, name_gateway
from .idle_response_time import measure_response_time
from .preflight_requests import FIRST_TOKENS, QUESTION, ProbeRequests, decode_completion
from .refusals import (
    BUSY,
    explain_forgotten_responses,
    explain_permanent_failure,
    explain_refused_request,
    explain_too_long_answers,
    explain_too_long_prompts,
    find_answered_protocols,
    has_key,
    is_fit_to_show,
    list_answer_lengths,
    list_some_names,
    read_context_length,
)
from .refused_request_fields import RequestForm
from .tokenizer_calibration import calibrate_tokenizer

logger = logging.getLogger("locust_llm")

MODELS_TIMEOUT_S: Final = 10.0
"""The time-out of a query that computes nothing."""
WAITING_AFTER_S: Final = 3.0
"""After so long a wait for an answer the console has a line about it."""
LINE_BYTES: Final = 2_000
INSECURE: Final = (
    "WARNING: the server's TLS certificate was not verified (--insecure): anyone on the network "
    "path could read and change everything, including the API key"
)
Ask = Callable[..., FetchedResponse]
"""Sends method, path, body (``data``) and ``timeout_s``; returns the response. Raises
FetchFailed."""


class _Model(msgspec.Struct):
    id: str
    aliases: Any = None
    """llama.cpp's list of other names."""


class _Models(msgspec.Struct):
    data: list[_Model]


WAIT_ADVICE: Final = " (to wait for it, use --wait-for-model-timeout)"
"""The end of a run's refusal. Commands without that option leave it out."""


class DiscoveryFailed(Exception):
    """No run is possible. The text is one line with the reason and what to do."""


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the server."""

    model: str | None = None
    """The model that the probes name; the first of a mix."""
    mix: str = ""
    server: str = ""
    """The server's name and version. Where neither is known, it is its Server header."""
    server_flags: dict[str, str] = {}
    proxy: str = ""
    gateway: str = ""
    """See Run."""
    simulated: bool = False
    lengths: PromptLengthModel = PromptLengthModel()
    form: RequestForm = RequestForm()
    """The form of its requests, where this server refuses their fields."""
    length_way: tuple[str, ...] = ()
    """The body's fields that keep an output at its length, where that needs any: see
    length_control.WAYS."""
    probes: tuple[CalibrationRequest, ...] = ()
    response_time: ResponseTime | None = None
    """The response time of a typical request before the load. None: it was not measured."""
    context: int | None = None
    """The tokens for which the model has room. None: the server does not list it."""
    dataset_sessions: int | None = None
    """See Run."""
    notes: tuple[str, ...] = ()
    commit: Commit | None = None
    candidate: "Discovery | None" = None
    """What is known of the other arm, where there are two that differ."""

    @property
    def models(self) -> str:
        """The model that the run names: a mix with its weights, else the model."""
        return self.mix or self.model or ""


def find_spoken_protocols(
    settings: Settings,
    headers: Mapping[str, str],
    model: str | None,
    until: float,
    *,
    verify: bool | str = True,
) -> list[str]:
    """The protocols that the server answers beside the settings' own, as ``--endpoint-type`` names
    them. Each is asked for one token. ``until``: the end in monotonic s."""
    line = UserConnection()
    ask = partial(_ask, settings, headers, line, verify and not settings.insecure and verify)
    try:
        return find_answered_protocols(ask, settings, model, until)
    finally:
        line.close()


def find_request_form(
    settings: Settings,
    headers: Mapping[str, str],
    model: str | None,
    until: float,
    *,
    tries_types: bool = False,
    verify: bool | str = True,
) -> tuple[RequestForm, str, list[str]]:
    """(the form of requests that this server accepts, why it accepts none, notes). ``until``: the
    end in monotonic s. ``tries_types``: see ProbeRequests."""
    secrets = collect_secrets(headers, headers)
    line = UserConnection()
    ask = partial(_ask, settings, headers, line, verify and not settings.insecure and verify)
    left_s = max(0.1, until - time.monotonic())
    probes = ProbeRequests(
        ask, settings, model, key=has_key(headers), tries_types=tries_types, timeout_s=left_s
    )
    try:
        why = probes.find_form()
    except FetchFailed as error:
        why = probes.unanswered(error)
    finally:
        line.close()
    notes = [sanitise_text(note, secrets, most=LINE_BYTES) for note in probes.notes]
    return probes.form, sanitise_text(why, secrets, most=LINE_BYTES), notes


def discover_server(
    settings: Settings,
    headers: Mapping[str, str],
    *,
    verify: bool | str = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    times_response: bool = False,
) -> Discovery:
    """Query the server. ``times_response``: also measure the response time of a request of the
    load. Raises DiscoveryFailed."""
    secrets = collect_secrets(headers, headers)
    line = UserConnection()
    ask = partial(_ask, settings, headers, line, verify and not settings.insecure and verify)
    try:
        discovery = _survey(settings, ask, secrets, clock, sleep, key=has_key(headers))
        if times_response and settings.probe:
            probes = ProbeRequests(ask, settings, discovery.model, key=has_key(headers))
            probes.form = discovery.form
            measured = measure_response_time(probes, discovery.lengths, discovery.length_way, clock)
            discovery = msgspec.structs.replace(discovery, response_time=measured)
        return discovery
    except DiscoveryFailed as error:  # servers like to quote the key that they refuse
        raise DiscoveryFailed(sanitise_text(str(error), secrets, most=LINE_BYTES)) from None
    finally:
        line.close()  # before any fork


def _ask(
    settings: Settings, headers: Mapping[str, str], line: UserConnection, verify: bool | str,
    method: str, path: str,
    data: bytes = b"", *, timeout_s: float, kind: str = "", begun: bool = False,
) -> FetchedResponse:  # fmt: skip
    """``kind`` is the protocol of the request, whose headers go along. ``begun``: see fetch."""
    waiting = gevent.spawn_later(
        WAITING_AFTER_S, logger.info,
        f"Waiting for {join_server_url(settings.host, path)}, at most {timeout_s:g} s; the load "
            f"has not started",
    )  # fmt: skip
    try:
        sent = convert_key_headers(kind, headers, settings.endpoint_type) if kind else headers
        url = join_server_url(settings.host, path)
        return fetch(
            method, url, sent, data, line=line, verify=verify, timeout_s=timeout_s, begun=begun
        )
    finally:
        waiting.kill(block=False)


def _survey(
    settings: Settings, ask: Ask, secrets: Secrets, clock: Callable[[], float],
    sleep: Callable[[float], object], *,
    key: bool,
) -> Discovery:  # fmt: skip
    answer = _models(ask, settings, clock, sleep)
    header = sanitise_text(answer.server, secrets, most=NAME_BYTES)
    model, notes = _choose(settings, answer, secrets, key=key)
    if find_response_schema(collect_extra_inputs(settings)) is not None and not has_jsonschema():
        notes.append(f"responses are not checked against their schema, because {MISSING}")
    if settings.insecure and settings.host.startswith("https:"):
        notes.append(INSECURE)
    props = cache(partial(_props, ask))
    contexts = [
        read_context_length(answer.body, name, props) for name in (settings.models or (model,))
    ]
    context = min(filter(None, contexts), default=None)
    for refuses, sentence in (
        explain_too_long_prompts(settings, context) if context is not None else ()
    ):
        if refuses:
            raise DiscoveryFailed(sentence)
        notes.append(sentence)
    simulated = is_simulator(header, answer.body)
    server, flags = _identity(ask, header, answer, secrets, simulated=simulated)
    gateway = name_gateway(header, answer.via, server)
    discovery = Discovery(
        model=model, mix=format_canonical_mix(settings.model_mix) if settings.model_mix else "",
        server=server, server_flags=flags,
        gateway=sanitise_text(gateway, secrets, most=NAME_BYTES),
        simulated=simulated, notes=tuple(notes),
        context=None if context is None else context.tokens,
    )  # fmt: skip
    if settings.probe:
        tries_types = answers_itself(server, gateway)
        probes = ProbeRequests(ask, settings, model, key=key, tries_types=tries_types)
        if settings.generates:
            discovery = _find_form(probes, discovery)
            discovery = _find_longest(probes, discovery)
        discovery = _measure(probes, discovery)
        discovery = _keep_length(probes, discovery) if settings.generates else discovery
        if settings.responses_state == "server" and (
            why := explain_forgotten_responses(ask, settings, model)
        ):
            raise DiscoveryFailed(f"--responses-state server: {why}")
    return msgspec.structs.replace(
        discovery,
        notes=tuple(sanitise_text(note, secrets, most=LINE_BYTES) for note in discovery.notes),
    )


def _identity(
    ask: Ask, header: str, models: FetchedResponse, secrets: Secrets, *, simulated: bool
) -> tuple[str, dict[str, str]]:
    """(name and version, flags) of the server."""

    def get(path: str) -> bytes | None:
        answer = ask("GET", path, timeout_s=TIMEOUT_S)
        return answer.body if answer.status == 200 else None

    if simulated:
        return (header if header.startswith(SIMULATOR) else SIMULATOR), {}
    if (identity := identify_server(get, header, models.body)) is None:
        return header, {}
    flags = {name: sanitise_text(value, secrets, most=NAME_BYTES) for name, value in identity.flags}
    return sanitise_text(identity.name, secrets, most=NAME_BYTES), flags


def _props(ask: Ask) -> dict[str, Any] | None:
    """The properties of llama.cpp's server. None: there are none."""
    try:
        answer = ask("GET", "/props", timeout_s=MODELS_TIMEOUT_S)
    except FetchFailed:
        return None
    return decode_response(answer.body, dict[str, Any]) if answer.status == 200 else None


def _models(
    ask: Ask, settings: Settings, clock: Callable[[], float], sleep: Callable[[float], object]
) -> FetchedResponse:
    """The answer of GET /v1/models. It is waited for if the settings ask for that."""
    until = clock() + settings.wait_for_model_timeout_s
    waited = ""
    while True:
        try:
            answer = ask("GET", "/v1/models", timeout_s=MODELS_TIMEOUT_S)
            reason = f"HTTP {answer.status}" if answer.status >= 500 else ""
        except FetchFailed as error:
            if why := explain_permanent_failure(settings, error, over=clock() >= until):
                raise DiscoveryFailed(why) from error
            reason = str(error)
        if not reason or (reason.startswith("HTTP") and clock() >= until):
            return answer
        if clock() >= until:
            raise DiscoveryFailed(
                f"cannot reach {settings.host}: {reason}. Is the server running?{WAIT_ADVICE}"
            )
        if not waited:
            waited = (
                f"Waiting for {settings.host}, for at most "
                f"{settings.wait_for_model_timeout_s:g} s: {reason}"
            )
            logger.info(sanitise_text(waited, most=LINE_BYTES))
        sleep(1.0)


def _choose(
    settings: Settings, answer: FetchedResponse, secrets: Secrets, *, key: bool = False
) -> tuple[str | None, list[str]]:
    """(model for the probes, the first of a mix; notes). ``key``: one was sent."""
    asked = settings.models
    flag = "--model-mix" if settings.model_mix else "--model"
    first = asked[0] if asked else None
    if answer.status in (401, 403):
        why = explain_refused_request(answer.status, status_message(answer.body), settings, key=key)
        if settings.model_check:
            raise DiscoveryFailed(why)
        return first, [f"the list of models is not available: {why}"]
    for name in asked:
        if sanitise_text(name, most=NAME_BYTES) != name:
            raise DiscoveryFailed(
                f"{flag} {name!r} is not a valid name: it contains control characters or is too "
                "long"
            )
    models = decode_response(answer.body, _Models) if answer.status == 200 else None
    names = [model.id for model in models.data] if models is not None else []
    if not names:
        status = answer.status
        todo = f"{flag} was not checked" if asked else "use --model NAME to set the model"
        return first, [
            f"the server does not list its models (HTTP {status} for /v1/models): {todo}"
        ]
    if first is None:
        showable = [name for name in names if is_fit_to_show(name, secrets)]
        if not showable:
            raise DiscoveryFailed(
                "no listed model has a usable name (each contains control characters or a secret, "
                f"ends in *, or is longer than {NAME_BYTES} bytes): use --model"
            )
        chosen = (
            f"no --model given: using {showable[0]}, the first of {list_some_names(names, secrets)}"
        )
        return showable[0], [chosen] if len(names) > 1 else []
    known = [] if models is None else models.data

    def is_known(name: str) -> bool:
        return any(_goes_by(name, model) for model in known)

    missing = [name for name in asked if not is_known(name)]
    if not missing:
        return first, []
    listed = (
        f"the server has no model {' and no '.join(map(repr, missing))}; it has: "
        f"{list_some_names(names, secrets)}"
    )
    if settings.model_check:
        raise DiscoveryFailed(f"{flag}: {listed}; to send it anyway, use --no-model-check")
    given = "was sent unchanged" if len(missing) == 1 else "were sent unchanged"
    return first, [f"{listed}: {', '.join(missing)} {given} (--no-model-check)"]


def _goes_by(name: str, model: _Model) -> bool:
    """A gateway lists ``openai/*`` where it accepts any name that begins so."""
    aliases = model.aliases if isinstance(model.aliases, list) else []
    return (
        name == model.id
        or name in aliases
        or (model.id.endswith("*") and name.startswith(model.id[:-1]))
    )


def _measure(probes: ProbeRequests, discovery: Discovery) -> Discovery:
    """Measure the lengths of prompts in tokens, as the server counts them."""
    count_by_chat = partial(_count_by_chat, probes)
    if not probes.settings.generates:  # else the first request has shown that it answers
        count_by_chat(*draw_sample_numbers(1))
    counted = calibrate_tokenizer(
        probes.ask, probes.settings, discovery.model, discovery.context, count_by_chat
    )
    return msgspec.structs.replace(
        discovery,
        probes=counted.probes,
        lengths=counted.lengths,
        notes=(*discovery.notes, *counted.notes),
    )


def _count_by_chat(probes: ProbeRequests, text: str) -> int | None:
    """The prompt's tokens, by a chat completion of one token. Raises DiscoveryFailed if the server
    refuses it, as it would refuse every other."""
    least = PROTOCOLS[probes.settings.endpoint_type].least_texts
    try:
        answer = probes.send([{"role": "user", "content": text}] * least)
    except FetchFailed as error:
        raise DiscoveryFailed(probes.unanswered(error)) from error
    if why := probes.refusal(answer):
        raise DiscoveryFailed(why)
    return (decode_completion(probes.settings, answer).input_tokens or 0) // least or None


def _find_form(probes: ProbeRequests, discovery: Discovery) -> Discovery:
    """Send the first request in the load's form. Fields that the server refuses are left out or
    renamed. Raises DiscoveryFailed."""
    try:
        why = probes.find_form()
    except FetchFailed as error:
        raise DiscoveryFailed(probes.unanswered(error)) from error
    if why:
        raise DiscoveryFailed(why)
    return msgspec.structs.replace(
        discovery, form=probes.form, notes=(*discovery.notes, *probes.notes)
    )


def _find_longest(probes: ProbeRequests, discovery: Discovery) -> Discovery:
    """Ask for as many tokens as the longest answer of the load, where the server does not list its
    maximum. It would refuse each such request of the load.

    Raises DiscoveryFailed where it refuses most of them.
    """
    if discovery.context is not None:
        return discovery
    settings = probes.settings
    sizes = sorted(list_answer_lengths(settings))
    longest = sizes[-1]
    median = sizes[len(sizes) // 2]
    if longest <= FIRST_TOKENS or not (message := probes.refuses_length(longest)):
        return discovery
    why = message if median == longest else probes.refuses_length(median)
    if why and not (settings.input_file or settings.has_own_code):
        raise DiscoveryFailed(explain_too_long_answers(settings, median, why))
    note = (
        f"WARNING: {explain_too_long_answers(settings, longest, message)}; such requests will fail"
    )
    return msgspec.structs.replace(discovery, notes=(*discovery.notes, note))


def _keep_length(probes: ProbeRequests, discovery: Discovery) -> Discovery:
    """Find out which fields keep an output at its length. It finds none where none helps, or the
    user has chosen.

    One answer that went on to the end shows nothing about the next. Then the first field is sent,
    too, where the server accepts it. Raises DiscoveryFailed if the server refuses what a run would
    send.
    """
    asked = list(discovery.probes)
    extra = collect_extra_inputs(probes.settings)
    settings = probes.settings
    chosen = any(name in extra for name in chain.from_iterable(WAYS))
    for way in (ways := [(), *(() if chosen else WAYS)]):
        tokens = None if chosen else LENGTH_TOKENS
        fields = extra | make_length_fields(way, LENGTH_TOKENS)
        try:
            answer = probes.send(QUESTION, tokens, **fields)
            # one failure shows nothing: what if it fails again?
            if not way and answer.status >= 500:
                answer = probes.send(QUESTION, tokens, **fields)
        except FetchFailed as error:  # the next one would take as long
            note = (
                f"the run could not check whether the server keeps outputs at their length: {error}"
            )
            return msgspec.structs.replace(
                discovery, probes=tuple(asked), notes=(*discovery.notes, note)
            )
        if not way and answer.status not in BUSY and (why := probes.refusal(answer)):
            raise DiscoveryFailed(why)
        made = (completion := decode_completion(settings, answer)).output_tokens
        if chosen or not completion.finished or (made is None and completion.input_tokens is None):
            continue
        asked.append(
            CalibrationRequest(
                kind=" ".join(("length", *way)), words=len(LENGTH_PROMPT.split()), tokens=made or 0
            )
        )
        if obeys_length(answer.status, made, completion.finish_reason):
            if way:
                return msgspec.structs.replace(discovery, probes=tuple(asked), length_way=way)
            del ways[2:]
    return msgspec.structs.replace(discovery, probes=tuple(asked))
