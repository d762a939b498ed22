"""Servers that refuse a field of a request: the first request finds the form that they take, or the
option that works."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from support.tiny_server import Asked, TinyServer, tiny_server

from locust_llm.check_command import NOTE, PROBLEM, check_server
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.server.discovery import Discovery, DiscoveryFailed, discover_server
from locust_llm.server.refusals import advise_on_error
from locust_llm.server.refused_request_fields import RequestForm, learn_from_refusal
from locust_llm.settings.run_options import Settings

Refusal = Callable[[dict[str, Any]], Any]
"""From the body of a request to the error, or to nothing where it is taken."""

NO_OPTIONS: Final = RequestForm(without=("stream_options",))
OTHER_LENGTH: Final = RequestForm(max_tokens_field="max_completion_tokens")
OPTIONS_REFUSED: Final = {
    "Mistral": {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
        "msg": "Extra inputs"}]},
    "Azure": {"error": {"message": "Unrecognized request argument supplied: stream_options",
        "type": "invalid"}},
    "Azure AI Foundry": {"error": "extra_forbidden: include_usage"},
    "a proxy": {"error": {"message": "Extra inputs are not permitted: body -> stream_options -> "
        "include_usage"}},
    "a text": "Unknown field stream_options",
    "no reason": {"error": {"message": "Bad request"}},
}  # fmt: skip
LENGTH_REFUSED: Final = {
    "OpenAI": {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with "
        "this model. "
                         "Use 'max_completion_tokens' instead.", "param": "max_tokens",
                         "code": "unsupported_parameter"}},
    "a text": "unexpected field max_tokens",
    "no reason": {"error": {"message": "Invalid input"}},
}  # fmt: skip


def takes(server: TinyServer, refusal: Refusal, status: int = 400) -> None:
    """What ``refusal`` has no error for is answered, streams with usage if it is asked for."""

    def answer(asked: Asked) -> tuple[int, Any]:
        body = asked.body
        if error := refusal(body):
            return status, error
        usage = {
            "prompt_tokens": 20 + len(body["messages"][0]["content"].split()),
            "completion_tokens": 48,
        }
        if not body.get("stream"):
            return 200, {
                "choices": [{"message": {"content": "yes"}, "finish_reason": "length"}],
                "usage": usage,
            }
        counts = [{"choices": [], "usage": usage}] if body.get("stream_options") else []
        return 200, [
            {"choices": [{"delta": {"content": "yes"}, "finish_reason": "length"}]},
            *counts,
        ]

    server.chat = answer


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def ask(server: TinyServer, **settings: Any) -> Discovery:
    return discover_server(Settings(host=server.url, model="tiny", **settings), {})


# -- before the load -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("who", OPTIONS_REFUSED)
def test_stream_options_are_left_out_where_they_are_refused(
    server: TinyServer, who: str, status: int
) -> None:
    takes(server, lambda body: OPTIONS_REFUSED[who] if "stream_options" in body else None, status)
    found = ask(server)
    assert found.form == NO_OPTIONS
    (note,) = (note for note in found.notes if "refuses" in note)
    assert note.endswith(
        "requests leave it out, and if a response has no usage, each chunk counts as one token"
    )
    assert found.lengths.measured  # by answers in one piece, which have their usage


@pytest.mark.parametrize("who", LENGTH_REFUSED)
@pytest.mark.parametrize("streaming", [True, False])
def test_the_other_length_field_is_taken(server: TinyServer, who: str, streaming: bool) -> None:
    takes(server, lambda body: LENGTH_REFUSED[who] if "max_tokens" in body else None)
    found = ask(server, streaming=streaming)
    assert found.form == OTHER_LENGTH
    (note,) = (note for note in found.notes if "refuses" in note)
    assert note.endswith(
        "requests use max_completion_tokens instead, as with --max-tokens-field "
        "max_completion_tokens"
    )
    assert "max_tokens" not in server.asked[-1].body


def test_a_server_that_refuses_both(server: TinyServer) -> None:
    def refusal(body: dict[str, Any]) -> Any:
        named = [name for name in ("max_tokens", "stream_options") if name in body]
        return {"detail": f"unknown: {named[0]}"} if named else None

    takes(server, refusal)
    assert ask(server).form == RequestForm(("stream_options",), "max_completion_tokens")


def test_a_server_that_fails_for_a_field_that_it_names(server: TinyServer) -> None:
    takes(
        server,
        lambda body: (
            "unexpected keyword argument 'stream_options'" if "stream_options" in body else None
        ),
        500,
    )
    assert ask(server).form == NO_OPTIONS


def test_an_error_inside_of_the_stream_is_a_refusal_too(server: TinyServer) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        if "stream_options" in asked.body:
            return 200, [{"error": {"message": "stream_options is not supported"}}]
        return 200, [{"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}]

    server.chat = answer
    assert ask(server).form == NO_OPTIONS


def test_a_server_that_refuses_a_limit_of_one_token_is_asked_for_more(server: TinyServer) -> None:
    few = {
        "error": {
            "message": "Invalid 'max_tokens': integer below minimum value. Expected a value >= 16"
        }
    }
    takes(server, lambda body: few if body["max_tokens"] < 16 else None)
    found = ask(server)
    assert (found.form, found.lengths.measured) == (RequestForm(), True)


def test_a_server_that_streams_only_is_asked_for_streams(server: TinyServer) -> None:
    only = {
        "error": {
            "message": "This model only support stream mode, please enable the stream parameter."
        }
    }
    takes(server, lambda body: None if body.get("stream") else only)
    found = ask(server)
    assert (found.form, found.lengths.measured) == (RequestForm(), True)
    assert found.lengths.tokens_a_word == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("streaming", "line"),
    [
        (True, "the server answers with no stream (HTTP 400: no): give --no-streaming"),
        (False, "the server answers with streams only (HTTP 400: no): give --streaming"),
    ],
)
def test_what_would_change_the_measurement_is_for_the_user(
    server: TinyServer, streaming: bool, line: str
) -> None:
    takes(server, lambda body: "no" if body.get("stream", False) == streaming else None)
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, streaming=streaming)
    assert str(failed.value) == line


def test_what_the_user_has_asked_for_is_not_left_out(server: TinyServer) -> None:
    takes(server, lambda body: "no stream_options" if "stream_options" in body else None)
    with pytest.raises(
        DiscoveryFailed, match="which --per-chunk-usage needs: leave out --per-chunk-usage"
    ):
        ask(server, per_chunk_usage=True)


def test_a_field_of_the_users_that_is_refused_is_named(server: TinyServer) -> None:
    takes(
        server, lambda body: "Unsupported value: 'temperature'" if "temperature" in body else None
    )
    with pytest.raises(
        DiscoveryFailed, match="the server refuses temperature: change --extra-inputs"
    ):
        ask(server, extra_inputs="temperature:0")


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_server_that_refuses_everything_is_refused_with_its_own_message(
    server: TinyServer, status: int
) -> None:
    server.chat = lambda asked: (status, {"error": {"message": "the weights are gone"}})
    with pytest.raises(DiscoveryFailed, match=r"the weights are gone|busy|requires an API key"):
        ask(server)
    assert len(server.asked) < 14


def test_check_finds_the_form_too(server: TinyServer) -> None:
    takes(server, lambda body: LENGTH_REFUSED["OpenAI"] if "max_tokens" in body else None)
    settings = Settings(host=server.url, model="tiny")
    found = {finding.what: finding for finding in check_server(settings, {}, files=None)}
    assert found["request form"].level == NOTE
    assert "--max-tokens-field max_completion_tokens" in found["request form"].found
    assert "streams" in found
    assert not [finding for finding in found.values() if finding.level == PROBLEM]


LIMITS: Final = {
    "OpenAI": "max_tokens is too large: {asked}. This model supports at most 4096 completion "
        "tokens, whereas "
    "you provided {asked}.",
    "vLLM": "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum "
        "context length is "
    "4096 tokens and your request has 12 input tokens ({asked} > 4096 - 12). "
        "(parameter=max_tokens, value={asked})",
    "older vLLM": "This model's maximum context length is 4096 tokens. However, you requested "
        "{asked} tokens (12 in "
    "the messages, {asked} in the completion). Please reduce the length of the messages or "
        "completion.",
    "SGLang": "Requested token count exceeds the model's maximum context length of 4096 tokens. "
        "You requested "
    "a total of {asked} tokens: 12 tokens from the input messages and {asked} tokens for the "
        "completion.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 12 "
        "`inputs` "
    "tokens and {asked} `max_new_tokens`",
    "Groq": "`max_tokens` must be less than or equal to `4096`",
    "DeepSeek": "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
    "Anthropic": "max_tokens: {asked} > 4096, which is the maximum allowed number of output tokens",
    "no reason": "Bad request",
}  # fmt: skip
"""As these servers write them to more than 4,096 tokens."""


def takes_4096(server: TinyServer, who: str, status: int = 400) -> None:
    def refusal(body: dict[str, Any]) -> Any:
        asked = body.get("max_tokens", 0)
        return {"error": {"message": LIMITS[who].format(asked=asked)}} if asked > 4096 else None

    takes(server, refusal, status)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("who", LIMITS)
def test_answers_that_are_too_long_are_refused_before_the_load(
    server: TinyServer, who: str, streaming: bool
) -> None:
    takes_4096(server, who, 422 if who == "TGI" else 400)
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, output_tokens_mean=5000, streaming=streaming)
    message = LIMITS[who].format(asked=5000).rstrip(".")
    assert str(failed.value) == (
        f"the server refuses outputs of 5,000 tokens ({message}): lower --output-tokens-mean (5000)"
    )
    assert [asked.body["max_tokens"] for asked in server.asked[1:]] == [16, 5000]


def test_answers_as_long_as_the_server_allows_are_not(server: TinyServer) -> None:
    takes_4096(server, "OpenAI")
    assert not [note for note in ask(server, output_tokens_mean=4096).notes if "refuses" in note]


@pytest.mark.parametrize(("settings", "change"), [
    ({"output_tokens_mean": 5000, "output_tokens_stddev": 50},
     "lower --output-tokens-mean (5000) or --output-tokens-stddev"),
    ({"seq_dist": "100,5000:100"}, "reduce the output lengths of --seq-dist"),
])  # fmt: skip
def test_the_option_to_change_is_named(
    server: TinyServer, settings: dict[str, Any], change: str
) -> None:
    takes_4096(server, "no reason")
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, **settings)
    assert str(failed.value).endswith(f"(Bad request): {change}")


@pytest.mark.parametrize("settings", [
    {"seq_dist": "100,100:90;100,5000:10"}, {"output_tokens_mean": 5000, "locustfile": "own.py"},
    {"output_tokens_mean": 5000, "input_file": "prompts.jsonl"},
])  # fmt: skip
def test_where_only_some_are_too_long_or_it_is_not_known_the_run_begins_with_a_warning(
    server: TinyServer, settings: dict[str, Any]
) -> None:
    takes_4096(server, "Groq")
    (note,) = [note for note in ask(server, **settings).notes if "refuses" in note]
    assert note.startswith(
        "WARNING: the server refuses outputs of 5,000 tokens (`max_tokens` must be less than or "
        "equal to"
    )
    assert note.endswith("; such requests will fail")


@pytest.mark.parametrize("who", [who for who in LIMITS if who != "no reason"])
def test_a_refusal_during_the_load_names_the_option_too(who: str) -> None:
    settings = Settings(output_tokens_mean=5000)
    assert "--output-tokens-mean (5000)" in advise_on_error(
        400, LIMITS[who].format(asked=5000), settings, key=False
    )


# -- during the load -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "form"),
    [
        (
            400,
            "HTTP 400: Unsupported parameter: 'max_tokens' is not supported with this model",
            OTHER_LENGTH,
        ),
        (422, "HTTP 422: stream_options: Extra inputs are not permitted", NO_OPTIONS),
        (400, "HTTP 400: max_tokens is too large: 9000, at most 4096", RequestForm()),
        (400, "HTTP 400: this model's maximum context length is 4096 tokens", RequestForm()),
        (500, "HTTP 500: unexpected keyword argument 'stream_options'", RequestForm()),
        (None, "no answer", RequestForm()),
    ],
)
def test_the_message_alone_must_name_the_field(
    status: int | None, message: str, form: RequestForm
) -> None:
    assert learn_from_refusal(RequestForm(), Settings(), status, message) == form
    assert learn_from_refusal(form, Settings(), status, message) == form


def test_forms_add_up() -> None:
    form = learn_from_refusal(NO_OPTIONS, Settings(), 400, "unknown field max_tokens")
    assert form == RequestForm(("stream_options",), "max_completion_tokens")


@pytest.mark.parametrize("streaming", [True, False])
def test_null_leaves_a_field_of_the_protocol_out(streaming: bool) -> None:
    fields = {"stream_options": None, "temperature": None, **NO_OPTIONS.fields(Settings())}
    body = msgspec.json.decode(
        encode_request_body("chat", "m", [], 4, streaming=streaming, **fields)
    )
    assert body == {"messages": [], "model": "m", "max_tokens": 4, "temperature": None} | (
        {"stream": True} if streaming else {}
    )


LOCUSTFILE: Final = """
from locust import task
from locust_llm import LLMUser
class Chat(LLMUser):
    @task
    def ask(self): self.chat("hello", max_tokens=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ("--no-probe",), ("--no-probe", "-f", "own.py"), ("--no-probe", "--processes", "2"), (),
])  # fmt: skip
def test_every_request_of_a_run_is_answered(
    server: TinyServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Without a first request the load finds out: what was refused is sent again, and is no
    failure."""
    takes(server, lambda body: OPTIONS_REFUSED["a proxy"] if "stream_options" in body else None)
    (tmp_path / "own.py").write_text(LOCUSTFILE)
    run = subprocess.run(
        [sys.executable, "-m", "locust_llm", "run", "--headless", "--host", server.url, "--model",
            "tiny", "-u", "2",
         "--request-count", "6", "--selftest", "off", "--report-dir", "r", *words],
        cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "refuses stream_options" in run.stdout + run.stderr
    records = [
        json.loads(line)["record"] for line in (tmp_path / "r" / "profile_export.jsonl").open()
    ]
    outcomes = [record.get("outcome", "ok") for record in records]
    assert outcomes.count("ok") == 6
    notes = json.loads((tmp_path / "r" / "run.json").read_text())["run"]["notes"]
    (note,) = [note for note in notes if "refuses" in note]
    assert note.startswith("the server refuses stream_options (")
    assert note.endswith("each chunk counts as one token")
