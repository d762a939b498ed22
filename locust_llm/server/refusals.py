"""Refusals: what a server will refuse, found before the load: a key, a path, a model, prompts
beyond its context."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from locust_llm.client.proxy_choice import resolve_proxy
from locust_llm.protocols.answer_parser import Completion, parse_token_count
from locust_llm.protocols.error_forms import is_error
from locust_llm.protocols.error_message import error_line, error_text, status_message
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.server.http_get import FetchedResponse, FetchFailed, decode_response
from locust_llm.server.length_control import LENGTH_PROMPT
from locust_llm.settings.extra_inputs import parse_extra_inputs
from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.settings.server_address import join_server_url
from locust_llm.settings.sweep_option import INPUT
from locust_llm.text.format import truncate_text
from locust_llm.text.hide_secrets import Secrets, is_secret
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.workload.dataset_summary import DatasetSummary
from locust_llm.workload.images_and_audio import AUDIO, IMAGE
from locust_llm.workload.length_distributions import (
    combine_lengths,
    normal_length,
    parse_length,
    parse_length_mix,
)

PAGE: Final = re.compile(r"<(!doctype )?html", re.IGNORECASE)
TOO_LONG: Final = re.compile(
    r"context (length|size|window)|max_model_len|maximum input length", re.IGNORECASE
)
ANSWER_TOO_LONG: Final = re.compile(
    r"(max_\w*tokens|maxOutputTokens|(output|completion) tokens)\W.*"
    r"(too (large|high|long|many)|at most|exceed|greater|maximum|less than|must be <|range|>)",
    re.IGNORECASE | re.DOTALL,
)
NO_MODEL: Final = re.compile(
    r"\bmodel\b.*(not (exist|found)|unknown|invalid)|(unknown|invalid|no such) model", re.IGNORECASE
)
PROBE_TIMEOUT_S: Final = 120.0
OTHERS_TIMEOUT_S: Final = 10.0
"""The time-out of a one-token request to another endpoint."""
DRAWS: Final = 1_000
"""So many lengths are drawn for the share of too long requests."""
WHOLE_PERCENT: Final = 0.01
"""A smaller share is written with a decimal."""
BUSY: Final = (429, 503)
BUSY_CAUSES: Final[Mapping[str, str]] = {
    r"cool-?down|no deployments available": (
        "the gateway sends this model no requests for a while, as its server failed or refused "
        "some before (cooldown); the server need not be busy"
    ),
    r"no healthy|no available (worker|server|backend)|upstream connect error": (
        "the gateway has no working server for this model"
    ),
    r"loading model|model is loading": "the server is still loading its model",
    r"quota|billing|credit": "the account may send no more requests (quota)",
    r"rate.?limit": "the rate limit of this API key or account is reached",
}
"""What a message of BUSY names as its cause, by the words in it. Other messages name none."""
TRY_AGAIN_IN: Final = re.compile(r"(?:again|retry) (?:in|after) (\d+(?:\.\d+)?) ?s", re.IGNORECASE)
PAGE_CHARS: Final = 80
"""The characters of a web page in a line."""
LOGIN: Final = "if each user logs in, use --no-model-check --no-probe"
MEAN_INPUT: Final = Settings().synthetic_input_tokens_mean


# -- errors ----------------------------------------------------------------------------------------


def has_key(headers: Mapping[str, str]) -> bool:
    """One of the headers of a request may be a key."""
    return any(map(is_secret, headers))


def advise_on_error(status: int | None, message: str, settings: Settings, *, key: bool) -> str:
    """What to do about an error of the server; empty where nobody knows. ``key``: one was sent.

    LiteLLM 1.106 without a database answers a missing key with HTTP 500, and a wrong one with 400,
    "No connected db".
    """
    if PAGE.search(message):
        return "this is a web page, not an API: check --host and its port"
    if status in (401, 403) or "No connected db" in message:
        if key:
            return (
                "the server refused the API key: check that it is the key for this server "
                "(OPENAI_API_KEY, --api-key-file, --header)"
            )
        return f"the server requires an API key: set OPENAI_API_KEY or use --api-key-file ({LOGIN})"
    if status in (400, 422) and (
        named := [
            name for name in _extras(settings) if re.search(rf"\b{re.escape(name)}\b", message)
        ]
    ):
        return f"the server refuses {' and '.join(named)}: change --extra-inputs"
    if status in (400, 413, 422) and TOO_LONG.search(message):
        if settings.scenario:
            return (
                f"a prompt and its output in scenario {settings.scenario} are too long for the "
                f"model{_shorter(settings)}"
            )
        return (
            "a prompt and its output are too long for the model: reduce "
            f"--synthetic-input-tokens-mean ({settings.synthetic_input_tokens_mean:g}) or "
            f"--output-tokens-mean ({settings.output_tokens_mean:g})"
        )
    if status in (400, 413, 422) and ANSWER_TOO_LONG.search(message):
        return f"the outputs are too long for the server: {_shorter_answers(settings)}"
    if status in (400, 404, 422) and (
        NO_MODEL.search(message) or any(_quotes(message, name) for name in settings.models)
    ):
        flag = "--model-mix" if settings.model_mix else "--model"
        return f"check {flag}. --no-model-check allows models that the server does not list"
    if status in (400, 404) and settings.responses_state == "server" and NO_ANSWER.search(message):
        return f"the server no longer has the response that this turn continues: {KEEPS}"
    if status in (404, 405):
        if before := urlsplit(settings.host).path:
            return (
                f"the server has no {before}{settings.endpoint}: --host must end at /v1 or before "
                f"it, so check {before}"
            )
        return f"the server has no {settings.endpoint}: check --endpoint and --endpoint-type"
    if status in BUSY:
        return _advise_on_busy(message)
    if status == 500 and not key and message in ("", "Internal Server Error"):
        return (
            "no API key was given, and LiteLLM, for example, then answers like this: set "
            "OPENAI_API_KEY or use --api-key-file"
        )
    return ""


def _advise_on_busy(message: str) -> str:
    """The cause that the message names, and how long to wait."""
    cause = next(
        (text for words, text in BUSY_CAUSES.items() if re.search(words, message, re.I)), ""
    )
    again = TRY_AGAIN_IN.search(message)
    wait = "try again later" if again is None else f"wait {again[1]} s, then try again"
    return f"{cause or 'the server is busy'}: {wait}"


def _extras(settings: Settings) -> list[str]:
    """The names of the fields that the user adds to each request."""
    try:
        return list(parse_extra_inputs(settings.extra_inputs)) if settings.extra_inputs else []
    except ValueError:  # refused elsewhere
        return []


def explain_refused_request(status: int, message: str, settings: Settings, *, key: bool) -> str:
    """Why there is no run after such a response to a first request."""
    advice = advise_on_error(status, message, settings, key=key)
    if status in (401, 403):
        what = (
            f"refuses the API key (HTTP {status}: {message})"
            if key
            else f"requires an API key (HTTP {status})"
        )
        return f"{settings.host} {what}: {advice.partition(': ')[2]}"
    quoted = f", {strip_web_page(message).rstrip('.')}" if message else ""
    return (
        f"the first request to {settings.endpoint} failed: HTTP {status}{quoted}; "
        f"{advice or 'to start without this request, use --no-probe'}"
    )


def explain_permanent_failure(settings: Settings, error: FetchFailed, *, over: bool) -> str:
    """Why the server's models cannot be read, where waiting does not help, or the wait is ``over``.
    Empty: it may help."""
    if error.outcome == "tls":
        proxy = resolve_proxy(settings.host)
        why = ""
        if "CERTIFICATE_REQUIRED" in str(error):
            why = "; the server requires a client certificate: use --client-cert and --client-key"
        elif proxy is not None and "CERTIFICATE_VERIFY_FAILED" in str(error):
            why = (
                f"; the proxy {proxy.name} may have replaced the certificate with its own: see "
                "--ca-cert"
            )
        return f"TLS with {settings.host} failed: {error}{why}"
    if error.outcome == "no_url":
        return f"--host {settings.host!r} is not a valid URL: {error}"
    if error.outcome in ("too_large", "malformed"):
        return (
            f"{join_server_url(settings.host, '/v1/models')} did not give a readable response: "
            f"{error}. Check --host"
        )
    return f"{settings.host} was not reached: {error}" if error.outcome == "proxy" and over else ""


def strip_web_page(message: str) -> str:
    """Cut a web page off after its first words."""
    page = PAGE.search(message)
    return message if page is None else truncate_text(message, page.start() + PAGE_CHARS)


def explain_missing_completion(body: bytes) -> str:
    """What came with HTTP 200 in place of an answer. Empty: it may be an answer."""
    line = error_line(body)
    if PAGE.match(line):
        return line
    content = decode_response(body, dict[str, Any]) or {}
    return (
        error_text(content["error"])
        if is_error(content.get("error")) and not content.get("choices")
        else ""
    )


def _quotes(message: str, model: str) -> bool:
    return re.search(rf"['\"`=]{re.escape(model)}(['\"`.]|$)", message) is not None


# -- pictures and sounds ---------------------------------------------------------------------------


def explain_refused_media(endpoint_type: str, kind: str) -> str:
    """Why no medium of this kind can be sent. Empty: it can."""
    if kind in PROTOCOLS[endpoint_type].takes:
        return ""
    media = {IMAGE: "images", AUDIO: "audio"}[kind]
    takes = [name for name, protocol in PROTOCOLS.items() if kind in protocol.takes]
    return f"--endpoint-type {endpoint_type} takes no {media}: use {' or '.join(takes)}"


# -- names of models -------------------------------------------------------------------------------

MAX_NAMED: Final = 20
"""The most names in a list."""


def is_fit_to_show(name: str, secrets: Secrets) -> bool:
    """Whether a name can be shown as it is, and is a whole name instead of the begin of many."""
    broken = "\N{REPLACEMENT CHARACTER}" in name  # it stands for what no request could hold
    return (
        bool(name)
        and not broken
        and not name.endswith("*")
        and sanitise_text(name, secrets, most=NAME_BYTES) == name
    )


def list_some_names(names: Sequence[str], secrets: Secrets) -> str:
    """The first of these names, as a message shows them."""
    shown = ", ".join(sanitise_text(name, secrets, most=NAME_BYTES) for name in names[:MAX_NAMED])
    return f"{shown} and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else shown


# -- the context of the model ----------------------------------------------------------------------


TEMPLATE_TOKENS: Final = 40
"""Allowance for the chat template, which only the server knows: roles, marks, sometimes its own
system prompt."""


class ContextLength(NamedTuple):
    """How many tokens a request may have."""

    tokens: int
    whole: bool
    """Prompt and answer together must fit, or the request is refused (vLLM). Else only the prompt
    must fit, and the answer ends early (llama.cpp)."""


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


def read_context_length(
    models: bytes, model: str | None, props: Callable[[], Mapping[str, Any] | None]
) -> ContextLength | None:
    """The context of this model in the body of /v1/models. None: it is not there.

    ``props`` queries llama.cpp's properties, as its older versions list only the training context.
    """
    listed = decode_response(models, _Models)
    entry = (
        next((listed_model for listed_model in listed.data if listed_model.get("id") == model), {})
        if listed is not None
        else {}
    )
    if tokens := _tokens(entry.get("max_model_len")):
        return ContextLength(tokens, whole=True)
    if not isinstance(meta := entry.get("meta"), dict):
        return None
    tokens = _tokens(meta.get("n_ctx"))
    if tokens is None:
        each = (props() or {}).get("default_generation_settings")
        tokens = _tokens(each.get("n_ctx")) if isinstance(each, dict) else None
    tokens = tokens or _tokens(meta.get("n_ctx_train"))
    return None if tokens is None else ContextLength(tokens, whole=False)


def _tokens(value: Any) -> int | None:
    return (
        parse_token_count(value) or None
        if isinstance(value, int | float) and not isinstance(value, bool)
        else None
    )


def explain_too_long_prompts(
    settings: Settings, context: ContextLength
) -> Iterator[tuple[bool, str]]:
    """(whether the run is impossible, a sentence) on synthetic prompts and answers that do not fit.
    The prompts are the first ones of their sessions."""
    if settings.input_file:
        return
    if settings.sweeps(INPUT) and (stages := settings.staged) is not None:
        largest = max(stages.values)
        for refuses, sentence in explain_too_long_prompts(
            make_stage_settings(settings, INPUT, largest), context
        ):
            yield refuses, f"--sweep {INPUT}={largest:g}: {sentence}"
        return
    prompts, answers = zip(*_drawn(settings), strict=True)
    template = (
        TEMPLATE_TOKENS if settings.generates and settings.endpoint_type != "completions" else 0
    )
    outputs = answers if context.whole else [0] * DRAWS
    fail = _share(
        prompt + output > context.tokens for prompt, output in zip(prompts, outputs, strict=True)
    )
    end = _share(
        prompt + output > context.tokens for prompt, output in zip(prompts, answers, strict=True)
    )
    full = context.tokens - template
    tight = _share(prompt + output > full for prompt, output in zip(prompts, outputs, strict=True))
    limit = f"the model's context of {context.tokens:,} tokens"
    if fail > 0.5:
        what = (
            f"prompts of {_mean(prompts)} tokens"
            + f" with outputs of {_mean(answers)}" * context.whole
        )
        own = settings.has_own_code and not (
            settings.seq_dist or settings.synthetic_input_tokens_mean != MEAN_INPUT
        )
        yield (
            not own,
            f"{_of_scenario(settings)}{what} do not fit into {limit} (/v1/models){_shorter(settings)}",
        )
    elif fail:
        which = "first requests of a session" if settings.user_context_prompt_length else "requests"
        yield (
            False,
            f"{_of_scenario(settings)}{_format_share(fail)} of the {which} are longer than {limit} and will "
            "fail",
        )
    elif tight:
        yield (
            False,
            (
                f"{_format_share(tight)} of the requests come within {TEMPLATE_TOKENS} tokens of {limit}. The "
                "chat template adds tokens that are not counted here, often 10 to 40, so these "
                "requests may fail"
            ),
        )
    elif end:
        yield (
            False,
            f"{_format_share(end)} of the outputs reach the end of {limit} and will be shorter",
        )
    elif (turns := settings.session_turns_mean) > 1 and _grown(settings, turns) > context.tokens:
        yield (
            False,
            f"sessions of {turns:g} turns grow beyond {limit}, and their last turns will fail",
        )


def explain_too_long_dataset(dataset: DatasetSummary, context: int | None) -> str:
    """Why its prompts are refused, if most of them must be. Empty: they are not."""
    if context is None or dataset.input_tokens is None or dataset.input_tokens <= context:
        return ""
    tokens = f"{dataset.input_tokens:,.0f} tokens (mean)"
    return (
        f"{dataset.path}: prompts of {tokens} do not fit into the model's context of "
        f"{context:,} tokens (/v1/models)"
    )


def explain_outgrown_context(dataset: DatasetSummary, context: int | None) -> str:
    """Which of its sessions do not fit to their ends. Empty: none is known."""
    if context is None or dataset.longest is None or dataset.longest <= context:
        return ""
    return (
        f"{dataset.path}, line {dataset.longest_row}: a session grows to {dataset.longest:,} "
        f"tokens with its output, beyond the model's context of {context:,} tokens (/v1/models): "
        "such turns will fail"
    )


def list_lengths(settings: Settings) -> list[tuple[int, int]]:
    """The tokens of first prompts and of answers in the load, as far as the settings have them."""
    return [*_drawn(settings)]


def list_answer_lengths(settings: Settings) -> list[int]:
    """The output tokens of the load's requests, as far as the settings have them."""
    return [answer for _, answer in _drawn(settings)]


def explain_too_long_answers(settings: Settings, tokens: int, message: str) -> str:
    """The sentence for a server that refuses answers of so many tokens."""
    return (
        f"the server refuses outputs of {tokens:,} tokens ({message.rstrip('.')}): "
        f"{_shorter_answers(settings)}"
    )


def _shorter_answers(settings: Settings) -> str:
    """What to change for shorter answers."""
    if settings.seq_dist:
        return "reduce the output lengths of --seq-dist"
    if settings.scenario:
        return f"use a lower --output-tokens-mean together with --scenario {settings.scenario}"
    spread = " or --output-tokens-stddev" * bool(settings.output_tokens_stddev)
    return f"lower --output-tokens-mean ({settings.output_tokens_mean:g}){spread}"


def _of_scenario(settings: Settings) -> str:
    return f"--scenario {settings.scenario}: " if settings.scenario else ""


def _shorter(settings: Settings) -> str:
    """How to make a scenario fit."""
    if not settings.scenario:
        return ""
    lengths = ("shared_system_prompt_length", "user_context_prompt_length", "seq_dist")
    given = [f"--{name.replace('_', '-')}" for name in lengths if getattr(settings, name)]
    return f": also use a shorter {' or '.join(given or ['--synthetic-input-tokens-mean'])}"


def _grown(settings: Settings, turns: float) -> float:
    """The tokens of a session at its end: prompts (without the first one's own begin) and
    answers."""
    first, later = [*_drawn(settings)], [*_drawn(settings, first=False)]
    prompts = sum(prompt for prompt, _ in first) + (turns - 1) * sum(prompt for prompt, _ in later)
    return (prompts + turns * sum(answer for _, answer in first)) / DRAWS


def _drawn(settings: Settings, first: bool = True) -> Iterator[tuple[int, int]]:
    """(prompt tokens, answer tokens) as the load would have them. ``first``: of the first requests
    of sessions."""
    sizes = parse_length_mix(settings.seq_dist) if settings.seq_dist else combine_lengths(
        normal_length(settings.synthetic_input_tokens_mean, settings.synthetic_input_tokens_stddev),
        normal_length(settings.output_tokens_mean, settings.output_tokens_stddev),
    )  # fmt: skip
    before = (settings.shared_system_prompt_length or 0) + (settings.prefix_prompt_length or 0)
    random = Random(0)
    context = (
        parse_length(settings.user_context_prompt_length)
        if settings.user_context_prompt_length
        else lambda random: 0
    )
    for prompt, output in (sizes(random) for _ in range(DRAWS)):
        yield (
            prompt + (before + context(random) if first else 0),
            output if settings.generates else 0,
        )


def _share(which: Iterator[bool]) -> float:
    return sum(which) / DRAWS


def _format_share(share: float) -> str:
    """Without decimals, but one draw of a thousand is not 0%."""
    return f"{share:.{0 if share >= WHOLE_PERCENT else 1}%}"


def _mean(lengths: Sequence[int]) -> str:
    return f"{sum(lengths) / len(lengths):.0f}"


# -- Responses that the server keeps ---------------------------------------------------------------

NO_ANSWER: Final = re.compile(r"response\b.*not found|previous[ _]response", re.IGNORECASE)
"""The answer that a request would go on from is missing."""
KEEPS: Final = (
    "vLLM keeps responses if VLLM_ENABLE_RESPONSES_API_STORE=1; --responses-state client needs no "
    "state"
)


def explain_forgotten_responses(
    ask: Callable[..., FetchedResponse], settings: Settings, model: str | None
) -> str:
    """Why no turn can go on from this server's answer by its id. Empty: it can.

    Both turns have the same text, so the second prompt with the first before it is longer. ``ask``:
    see Ask.
    """
    own, before = PROTOCOLS[settings.endpoint_type], 0
    more: dict[str, Any] = {}
    for _ in range(2):
        texts = [{"role": "user", "content": LENGTH_PROMPT}]
        body = encode_request_body(
            settings.endpoint_type, model, texts, own.least_tokens, streaming=False, **more
        )
        try:
            answer = ask("POST", settings.endpoint, body, timeout_s=PROBE_TIMEOUT_S)
        except FetchFailed as error:
            return f"a turn got no response: {error}"
        if answer.status != 200:
            return (
                f"a turn was answered with HTTP {answer.status}, "
                f"{status_message(answer.body).rstrip('.')}; {KEEPS}"
            )
        completion = Completion(own)
        completion.whole(answer.body)
        if completion.response_id is None and not more:
            return f"its responses have no id; {KEEPS}"
        if 0 < (completion.input_tokens or 0) <= before:
            return (
                f"the server ignores previous_response_id: both turns had {before} input "
                f"tokens; {KEEPS}"
            )
        more = {"previous_response_id": completion.response_id}
        before = completion.input_tokens or 0
    return ""


# -- other protocols -------------------------------------------------------------------------------


def find_answered_protocols(
    ask: Callable[..., FetchedResponse],
    settings: Settings,
    model: str | None,
    until: float = math.inf,
) -> list[str]:
    """The other protocols that the server answers at their usual paths. Each is asked for a token
    or a few. ``ask``: see Ask."""
    answered = []
    for name, protocol in PROTOCOLS.items():
        asked_already = name == settings.endpoint_type and settings.endpoint == protocol.path
        if asked_already or (left_s := until - time.monotonic()) <= 0.1:
            continue
        texts = [{"role": "user", "content": LENGTH_PROMPT}] * protocol.least_texts
        body = encode_request_body(name, model, texts, protocol.least_tokens, streaming=False)
        try:
            answer = ask(
                "POST", protocol.path, body, timeout_s=min(left_s, OTHERS_TIMEOUT_S), kind=name
            )
        except FetchFailed:
            continue
        if answer.status == 200 and not explain_missing_completion(answer.body):
            answered.append(name)
    return answered
