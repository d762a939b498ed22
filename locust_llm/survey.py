"""The survey: what the server is, asked once before the load; models, name, and how many tokens a word has.

Probes are requests of our own, marked with ``PROBE_HEADER``, listed in run.json and counted nowhere else.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import requests

from .body import LENGTH_PROMPT, LENGTH_TOKENS, WAYS, length_fields, obeyed
from .chat import status_message
from .endpoints import ENDPOINTS, request_body
from .exchange import SIMULATOR
from .failure import secrets_of, without
from .prompts import Lengths, Prompts, fit
from .run import Probe
from .settings import Settings

PROBE_HEADER: Final = "X-Locust-LLM-Probe"
MODELS_TIMEOUT_S: Final = 10.0
FEWEST_PROBE_WORDS: Final = 500
MOST_PROBE_WORDS: Final = 1_500
PROBE_TIMEOUT_S: Final = 120.0
INSECURE: Final = (
    "WARNING: the server's TLS certificate was not verified (--insecure): whoever stands between could read and change "
    "everything, the key too"
)


class SurveyFailed(Exception):
    """Why there can be no run, as one line that says what to do."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt."""

    model: str | None = None
    server: str = ""
    simulated: bool = False
    lengths: Lengths = Lengths()
    length_way: tuple[str, ...] = ()
    """Fields of the body that keep an output at its length, where that needs any: see body.WAYS."""
    probes: tuple[Probe, ...] = ()
    dataset_sessions: int | None = None
    """See Run."""
    notes: tuple[str, ...] = ()


def survey(
    settings: Settings,
    headers: Mapping[str, str],
    *,
    verify: bool | str = True,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Survey:
    """Ask the server. Raises SurveyFailed."""
    try:
        return _survey(settings, headers, verify, clock, sleep)
    except SurveyFailed as error:  # servers like to quote the key that they refuse
        raise SurveyFailed(without(str(error), secrets_of(headers, headers))) from None


def _survey(
    settings: Settings,
    headers: Mapping[str, str],
    verify: bool | str,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
) -> Survey:
    with requests.Session() as session, warnings.catch_warnings():
        session.trust_env = False
        session.headers.update({**headers, PROBE_HEADER: "1"})
        session.verify = verify and not settings.insecure and verify
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")  # we say so ourselves, once
        answer = _models(session, settings, clock, sleep)
        server = answer.headers.get("Server", "")
        model, notes = _choose(settings, answer)
        if settings.insecure and settings.host.startswith("https:"):
            notes.append(INSECURE)
        found = Survey(model=model, server=server, simulated=server.startswith(SIMULATOR), notes=tuple(notes))
        if not settings.probe:
            return found
        found = _measure(session, settings, found)
        return _keep_length(session, settings, found)


def _models(
    session: requests.Session, settings: Settings, clock: Callable[[], float], sleep: Callable[[float], object]
) -> requests.Response:
    """The answer of GET /v1/models, waited for if that was asked."""
    until = clock() + settings.wait_for_model_timeout_s
    while True:
        try:
            answer = session.get(settings.host + "/v1/models", timeout=MODELS_TIMEOUT_S, allow_redirects=False)
            reason = f"HTTP {answer.status_code}" if answer.status_code >= 500 else ""
        except requests.exceptions.SSLError as error:
            raise SurveyFailed(f"TLS with {settings.host} failed: {_root(error)}") from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise SurveyFailed(f"--host {settings.host!r} is no URL: {error}") from error
        except requests.exceptions.RequestException as error:
            reason = _root(error)
        if not reason or (reason.startswith("HTTP") and clock() >= until):
            return answer
        if clock() >= until:
            raise SurveyFailed(
                f"cannot reach {settings.host}: {reason}; is the server up? (--wait-for-model-timeout waits for it)"
            )
        sleep(1.0)


def _choose(settings: Settings, answer: requests.Response) -> tuple[str | None, list[str]]:
    """(model to ask for, notes)."""
    if answer.status_code in (401, 403):
        raise SurveyFailed(
            f"{settings.host} wants a key (HTTP {answer.status_code}): set OPENAI_API_KEY or give --api-key-file"
        )
    try:
        rows = answer.json()["data"] if answer.status_code == 200 else None
        names = [str(row["id"]) for row in rows] if rows is not None else None
    except (ValueError, KeyError, TypeError):
        names = None
    if not names:
        status = answer.status_code
        return settings.model, [
            f"the server has no list of models (HTTP {status} for /v1/models): --model was not checked"
        ]
    if settings.model is None:
        chosen = f"no --model given: {names[0]} taken, the first of {', '.join(names)}"
        return names[0], [chosen] if len(names) > 1 else []
    if settings.model not in names:
        raise SurveyFailed(f"the server has no model {settings.model!r}; it has: {', '.join(names)}")
    return settings.model, []


def _measure(session: requests.Session, settings: Settings, found: Survey) -> Survey:
    """Learn the lengths: what the server says that prompts of known words have in tokens."""
    # seeded apart from the load, so that no probe's prompt comes again and finds itself in a prefix cache
    texts = Prompts(Lengths(), input_tokens=(1, 0), output_tokens=(1, 0), seed=None)
    many = max(FEWEST_PROBE_WORDS, min(MOST_PROBE_WORDS, Lengths().words(settings.synthetic_input_tokens_mean)))
    # one word alone says exactly what the template adds; the text is not everywhere alike, so three samples of it
    sizes = (1, many, many, many)
    probes: list[Probe] = []
    kind, ask = "tokenize", _tokenize
    for words in sizes:
        text = texts.words(words)
        tokens = ask(session, settings, found.model, text)
        if tokens is None and kind == "tokenize":
            kind, ask = "chat", _chat
            tokens = ask(session, settings, found.model, text)
        if tokens is None:
            note = "the server does not say how many tokens a prompt has: lengths of prompts are estimates"
            return msgspec.structs.replace(found, probes=tuple(probes), notes=(*found.notes, note))
        probes.append(Probe(kind=kind, words=words, tokens=tokens))
    try:
        lengths = fit((probe.words, probe.tokens) for probe in probes)
    except ValueError as error:
        return msgspec.structs.replace(found, probes=tuple(probes), notes=(*found.notes, f"lengths: {error}"))
    return msgspec.structs.replace(found, probes=tuple(probes), lengths=lengths)


def _tokenize(session: requests.Session, settings: Settings, model: str | None, text: str) -> int | None:
    """vLLM's and the simulator's /tokenize, which applies the chat template to messages; costs the server no prefill."""
    body = {"model": model, **ENDPOINTS[settings.endpoint_type].content([{"role": "user", "content": text}])}
    try:
        answer = session.post(settings.host + "/tokenize", json=body, timeout=PROBE_TIMEOUT_S, allow_redirects=False)
        count = answer.json()["count"] if answer.status_code == 200 else None
    except (requests.exceptions.RequestException, ValueError, KeyError, TypeError):
        return None
    return count if isinstance(count, int) and count > 0 else None


def _chat(session: requests.Session, settings: Settings, model: str | None, text: str) -> int | None:
    """A chat completion of one token. Raises SurveyFailed if the server refuses it: it would refuse every other one."""
    body = request_body(
        settings.endpoint_type, model, [{"role": "user", "content": text}], 1,
        streaming=False, max_tokens_field=settings.max_tokens_field,
    )  # fmt: skip
    try:
        answer = session.post(
            settings.host + settings.endpoint, data=body, timeout=PROBE_TIMEOUT_S, allow_redirects=False,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
    except requests.exceptions.RequestException as error:
        raise SurveyFailed(f"a first request to {settings.host}{settings.endpoint} failed: {_root(error)}") from error
    if answer.status_code != 200:
        hint = "; is --endpoint right?" if answer.status_code in (404, 405) else ""
        raise SurveyFailed(
            f"a first request to {settings.endpoint} failed: HTTP {answer.status_code}, "
            f"{status_message(answer.content)}{hint} (--no-probe sends none)"
        )
    try:
        tokens: Any = answer.json()["usage"]["prompt_tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _keep_length(session: requests.Session, settings: Settings, found: Survey) -> Survey:
    """Learn which fields keep an output at its length, where answers end by themselves without; none where none is needed,
    or none helps, or the user has chosen."""
    if settings.extra_inputs and any(name in settings.extra_inputs for way in WAYS for name in way):
        return found
    probes = list(found.probes)
    for way in ((), *WAYS):
        body = request_body(
            settings.endpoint_type, found.model, [{"role": "user", "content": LENGTH_PROMPT}], LENGTH_TOKENS,
            streaming=False, max_tokens_field=settings.max_tokens_field, **length_fields(way, LENGTH_TOKENS),
        )  # fmt: skip
        try:
            answer = session.post(
                settings.host + settings.endpoint, data=body, timeout=PROBE_TIMEOUT_S, allow_redirects=False,
                headers={"Content-Type": "application/json"},
            )  # fmt: skip
            content = answer.json()
            tokens, reason = content["usage"]["completion_tokens"], content["choices"][0].get("finish_reason")
        except (requests.exceptions.RequestException, ValueError, KeyError, TypeError, IndexError, AttributeError):
            continue
        tokens = tokens if isinstance(tokens, int) else None
        probes.append(Probe(kind=" ".join(("length", *way)), words=len(LENGTH_PROMPT.split()), tokens=tokens or 0))
        if obeyed(answer.status_code, tokens, reason):
            return msgspec.structs.replace(found, probes=tuple(probes), length_way=way)
    return msgspec.structs.replace(found, probes=tuple(probes))


def _root(error: BaseException) -> str:
    """The innermost reason, without the addresses of objects that requests and urllib3 print."""
    reason: Any = error
    while True:
        inner = getattr(reason, "reason", None) or (reason.args[0] if getattr(reason, "args", None) else None)
        if not isinstance(inner, BaseException):
            break
        reason = inner
    if isinstance(reason, OSError) and reason.strerror:
        return str(reason.strerror)
    return str(reason).rpartition(">: ")[2].rpartition("): ")[2] or type(reason).__name__
