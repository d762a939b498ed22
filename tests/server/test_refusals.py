"""Refusals: the errors of real servers, each with what to do; prompts that no context has room
for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_server import TinyServer, tiny_server

from locust_llm.protocols.error_message import status_message
from locust_llm.server.discovery import Discovery, DiscoveryFailed, discover_server
from locust_llm.server.refusals import (
    ContextLength,
    advise_on_error,
    explain_missing_completion,
    explain_outgrown_context,
    explain_refused_request,
    explain_too_long_dataset,
    explain_too_long_prompts,
    read_context_length,
)
from locust_llm.settings.run_options import Settings

CAPTURES = Path(__file__).parents[1] / "captures"
KEY = {"Authorization": "Bearer sk-0123456789"}
NAMED_SERVER = {"models": (200, {"data": [{"id": "tiny", "owned_by": "vllm"}]})}
"""A server that names itself: what its gateways would suffer from is asked of no other."""
NOT_FOUND = "the server has no /v1/chat/completions: check --endpoint and --endpoint-type"
REFUSED = "the server refused the API key: "
WANTED = "the server requires an API key: "


def captured(name: str) -> tuple[int, str]:
    """(status, message) of an answer of a real server."""
    head, _, body = (
        (CAPTURES / f"{name}.http").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    )
    return int(head.split()[1]), status_message(body.strip())


@pytest.mark.parametrize(
    ("capture", "key", "begins"),
    [
        ("vllm_no_key", False, WANTED),
        ("vllm_no_key", True, REFUSED),
        ("llamacpp_no_key", True, REFUSED),
        (
            "litellm_no_key",
            False,
            "no API key was given, and LiteLLM, for example, then answers like this: ",
        ),
        ("litellm_wrong_key", True, REFUSED),
        ("vllm_too_long", False, "a prompt and its output are too long for the model: "),
        ("llamacpp_too_long", False, "a prompt and its output are too long for the model: "),
        ("vllm_unknown_model", False, "check --model. "),
        ("transformers_400", False, "check --model. "),
        ("vllm_busy", False, "the server is busy"),
        ("litellm_backend_down", True, ""),
        ("transformers_500", True, ""),
    ],
)
def test_the_answers_of_real_servers(capture: str, key: bool, begins: str) -> None:
    found = advise_on_error(*captured(capture), Settings(model="nope"), key=key)
    assert found.startswith(begins)
    assert bool(found) == bool(begins)


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "Not Found"), (404, "File Not Found"), (405, "Method Not Allowed")],
)
def test_a_path_that_is_not_there(status: int, message: str) -> None:
    assert advise_on_error(status, message, Settings(model="tiny"), key=False) == NOT_FOUND


def test_an_error_of_a_model_that_is_there_does_not_doubt_it() -> None:
    """LiteLLM names the model in each of its errors."""
    message = (
        "temperature must be positive. LiteLLM: model group 'tiny' failed with the error above."
    )
    assert advise_on_error(400, message, Settings(model="tin"), key=True) == ""


def test_a_web_page_is_no_api() -> None:
    page = f"<!DOCTYPE html><html><title>nginx</title>{'x' * 500}</html>"
    line = explain_refused_request(404, page, Settings(host="http://h"), key=False)
    assert line.endswith("…; this is a web page, not an API: check --host and its port")
    assert len(line) < 250
    assert explain_missing_completion(page.encode()) == page
    assert explain_missing_completion(b'{"error": {"message": "no"}}') == "no"
    assert [
        explain_missing_completion(body)
        for body in (b"", b"data: {}\n\n", b'{"choices": []}', b"[]", b'{"error": null}')
    ] == [""] * 5


# -- what a run and a check say of it, and that nothing else is asked ------------------------------


def failed(
    headers: dict[str, str] | None = None,
    *,
    path: str = "",
    server: dict[str, Any] | None = None,
    **settings: Any,
) -> str:
    with tiny_server() as made:
        for name, value in {"tokenize": lambda text: len(text.split()), **(server or {})}.items():
            setattr(made, name, value)
        return failed_at(made, headers, path=path, **settings)


def failed_at(
    made: TinyServer, headers: dict[str, str] | None = None, *, path: str = "", **settings: Any
) -> str:
    with pytest.raises(DiscoveryFailed) as failure:
        discover_server(Settings(host=made.url + path, **settings), headers or {})
    return str(failure.value).replace(made.url, "HOST")


def test_a_path_is_tried_where_lengths_are_counted_without_it() -> None:
    """vLLM has /tokenize, so that nothing else would ask for a completion."""
    assert failed(endpoint="/v1/chat/completionz", server=NAMED_SERVER) == (
        "the first request to /v1/chat/completionz failed: HTTP 404, no route "
        "/v1/chat/completionz; the server has no /v1/chat/completionz: check --endpoint and "
        "--endpoint-type. It accepts --endpoint-type chat"
    )
    line = failed(path="/v1/chat/completions")
    assert (
        "the server has no /v1/chat/completions/v1/chat/completions: --host must end at /v1 or "
        "before it" in line
    )
    line = failed(endpoint="/nope", extra_inputs="ignore_eos:true")
    assert "the server has no /nope" in line
    line = failed(endpoint_type="messages", endpoint="/v1/messages", server=NAMED_SERVER)
    assert line.endswith("check --endpoint and --endpoint-type. It accepts --endpoint-type chat")


@pytest.mark.parametrize("version", [{"litellm_version": "1.106.2"}, {}])
def test_no_other_endpoint_type_is_tried_behind_a_gateway(version: dict[str, str]) -> None:
    """LiteLLM puts a model into cooldown for all users when its server answers with 404. A server
    that does not tell what it is may be such a gateway."""
    with tiny_server() as made:
        made.name = "uvicorn"
        made.pages["/health/readiness"] = (200, version)
        line = failed_at(made, endpoint="/v1/chat/completionz")
        posted = {asked.path for asked in made.asked if asked.body}
    assert line.endswith("check --endpoint and --endpoint-type")
    assert posted == {"/v1/chat/completionz"}


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        (
            429,
            "No deployments available for selected model, Try again in 5 seconds. All deployments "
            "for selected model are in cooldown.",
            "the gateway sends this model no requests for a while, as its server failed or refused "
            "some before (cooldown); the server need not be busy: wait 5 s, then try again",
        ),
        (503, "Loading model", "the server is still loading its model: try again later"),
        (
            503,
            "no healthy upstream",
            "the gateway has no working server for this model: try again later",
        ),
        (
            429,
            "Rate limit reached for requests. Please try again in 1.5s.",
            "the rate limit of this API key or account is reached: wait 1.5 s, then try again",
        ),
        (
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            "the account may send no more requests (quota): try again later",
        ),
        (429, "Too Many Requests", "the server is busy: try again later"),
    ],
)
def test_a_cause_that_the_message_names_is_told(status: int, message: str, advice: str) -> None:
    assert advise_on_error(status, message, Settings(), key=True) == advice


def test_a_key_is_wanted_or_refused() -> None:
    unauthorized = {"models": (401, {"error": "Unauthorized"})}
    assert failed(server=unauthorized).startswith(
        "HOST requires an API key (HTTP 401): set OPENAI_API_KEY or use --api-key-file"
    )
    assert failed(KEY, server=unauthorized) == (
        "HOST refuses the API key (HTTP 401: Unauthorized): check that it is the key for this "
        "server (OPENAI_API_KEY, --api-key-file, --header)"
    )
    litellm = {"models": (500, ""), "chat": lambda asked: (500, "Internal Server Error")}
    assert "no API key was given, and LiteLLM" in failed(server=litellm)


def test_a_field_that_the_server_refuses_would_be_refused_each_time() -> None:
    def strict(asked: Any) -> tuple[int, Any]:
        return (
            (422, {"detail": "unknown field frobnicate"})
            if "frobnicate" in asked.body
            else (200, {"choices": []})
        )

    assert "HTTP 422, unknown field frobnicate" in failed(
        server={"chat": strict}, extra_inputs="frobnicate:1"
    )


def test_a_failure_that_does_not_come_again_is_none() -> None:
    with tiny_server() as made:
        made.tokenize = lambda text: len(text.split())
        statuses = iter([500])
        made.chat = lambda asked: (next(statuses, 200), {"choices": [], "usage": {}})
        assert discover_server(Settings(host=made.url, model="tiny"), {}).model == "tiny"
        made.chat = lambda asked: (503, {"error": "busy"})
        assert discover_server(Settings(host=made.url, model="tiny"), {}).length_way == ()


# -- the model -------------------------------------------------------------------------------------

LISTED = {"models": (200, {"data": [{"id": "tiny", "aliases": ["small"]}, {"id": "openai/*"}]})}


def taken(model: str | None, **settings: Any) -> Discovery:
    with tiny_server() as made:
        made.models = LISTED["models"]
        return discover_server(Settings(host=made.url, model=model, probe=False, **settings), {})


@pytest.mark.parametrize("model", ["tiny", "small", "openai/gpt-x"])
def test_aliases_and_wildcards_are_in_the_list(model: str) -> None:
    assert taken(model) == Discovery(model=model, server="tiny")


def test_a_model_that_is_not_listed_is_sent_where_that_was_asked() -> None:
    assert failed(server=LISTED, model="big") == (
        "--model: the server has no model 'big'; it has: tiny, openai/*; to send it anyway, use "
        "--no-model-check"
    )
    found = taken("big", model_check=False)
    assert (found.model, found.notes) == (
        "big",
        (
            "the server has no model 'big'; it has: tiny, openai/*: big was sent unchanged "
            "(--no-model-check)",
        ),
    )
    assert taken(None).notes == ("no --model given: using tiny, the first of tiny, openai/*",)


def test_a_locustfile_that_logs_in_by_itself_can_begin() -> None:
    with tiny_server() as made:
        made.models = (401, {"error": "Unauthorized"})
        found = discover_server(
            Settings(host=made.url, model="tiny", probe=False, model_check=False), {}
        )
    assert found.model == "tiny"
    assert "requires an API key" in found.notes[0]


# -- the context -----------------------------------------------------------------------------------

VLLM = b'{"data":[{"id":"other","max_model_len":7},{"id":"tiny","max_model_len":16384}]}'
LLAMA = b'{"data":[{"id":"tiny","meta":{"n_ctx":8192,"n_ctx_train":16384}}]}'
OLD_LLAMA = b'{"data":[{"id":"tiny","meta":{"n_ctx_train":16384}}]}'


def test_the_context_that_a_server_lists() -> None:
    asked = []

    def props() -> dict[str, Any] | None:
        asked.append(1)
        return {"default_generation_settings": {"n_ctx": 4096}}

    assert read_context_length(VLLM, "tiny", props) == ContextLength(16384, whole=True)
    assert read_context_length(LLAMA, "tiny", props) == ContextLength(8192, whole=False)
    assert asked == []
    assert read_context_length(OLD_LLAMA, "tiny", props) == ContextLength(4096, whole=False)
    assert read_context_length(OLD_LLAMA, "tiny", lambda: None) == ContextLength(16384, whole=False)
    for strange in (
        b"",
        b"[]",
        b'{"data":[{"id":"tiny","max_model_len":true,"meta":[1]}]}',
        VLLM.replace(b"tiny", b"x"),
    ):
        assert read_context_length(strange, "tiny", props) is None


def fits(tokens: int, *, whole: bool = True, **settings: Any) -> list[tuple[bool, str]]:
    return list(explain_too_long_prompts(Settings(**settings), ContextLength(tokens, whole)))


def test_prompts_that_do_not_fit_are_refused() -> None:
    assert fits(16384, synthetic_input_tokens_mean=8000.0) == []
    assert fits(8192, synthetic_input_tokens_mean=8000.0, output_tokens_mean=200.0) == [
        (
            True,
            "prompts of 8000 tokens with outputs of 200 do not fit into the model's context of "
            "8,192 tokens (/v1/models)",
        )
    ]
    assert fits(
        8192, whole=False, synthetic_input_tokens_mean=8000.0, output_tokens_mean=200.0
    ) == [
        (
            False,
            "100% of the outputs reach the end of the model's context of 8,192 tokens and will be "
            "shorter",
        )
    ]
    ((refuses, line),) = fits(8192, sweep="input-tokens=1000,2000,16000")
    assert refuses
    assert line.startswith("--sweep input-tokens=16000: prompts of 16000 tokens")


def test_some_that_do_not_fit_are_a_warning() -> None:
    ((refuses, line),) = fits(1000, seq_dist="100,100:80;2000,100:20")
    assert not refuses
    share = int(line.partition("%")[0])
    assert 15 <= share <= 25  # a fifth, of 1,000 draws
    ((refuses, line),) = fits(1000, synthetic_input_tokens_mean=900.0, output_tokens_mean=80.0)
    assert (refuses, line.partition(".")[0]) == (
        False, "100% of the requests come within 40 tokens of the model's context of 1,000 tokens"
    )  # fmt: skip
    without = {
        "synthetic_input_tokens_mean": 900.0,
        "output_tokens_mean": 80.0,
        "endpoint_type": "completions",
    }
    assert fits(1000, **without) == []  # no template
    ((refuses, line),) = fits(1000, session_turns_mean=3.0)
    assert (refuses, line.partition(",")[0]) == (
        False,
        "sessions of 3 turns grow beyond the model's context of 1",
    )


def test_a_locustfile_may_have_prompts_of_its_own() -> None:
    assert [refuses for refuses, _ in fits(512, locustfile="mine.py")] == [False]
    assert [refuses for refuses, _ in fits(512, locustfile="run.py")] == [True]
    assert [
        refuses for refuses, _ in fits(512, locustfile="mine.py", synthetic_input_tokens_mean=600.0)
    ] == [True]
    assert fits(512, input_file="prompts.jsonl") == []


def test_a_run_is_refused_by_the_list_alone() -> None:
    listed = {"models": (200, {"data": [{"id": "tiny", "max_model_len": 600}]})}
    assert failed(server=listed, probe=False) == (
        "prompts of 550 tokens with outputs of 128 do not fit into the model's context of 600 "
        "tokens (/v1/models)"
    )


def test_a_dataset_is_refused_by_its_mean() -> None:
    found: Any = SimpleNamespace(path="a.jsonl", input_tokens=9000.0)
    line = (
        "a.jsonl: prompts of 9,000 tokens (mean) do not fit into the model's context of 8,192 "
        "tokens (/v1/models)"
    )
    assert [explain_too_long_dataset(found, context) for context in (8192, 9000, None)] == [
        line,
        "",
        "",
    ]
    assert explain_too_long_dataset(SimpleNamespace(path="a", input_tokens=None), 8192) == ""  # type: ignore[arg-type]
    grown = SimpleNamespace(path="a", longest=9000, longest_row=7)
    assert [explain_outgrown_context(grown, context) for context in (9000, None)] == ["", ""]  # type: ignore[arg-type]
    assert explain_outgrown_context(grown, 8999).startswith(
        "a, line 7: a session grows to 9,000 tokens"
    )  # type: ignore[arg-type]
