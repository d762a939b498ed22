"""Check: what it says of servers of every kind, each answer with its advice."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from support.records import answered
from support.tiny_server import Asked, TinyServer, tiny_server

from locust_llm.check_command import (
    FINE,
    NOTE,
    PROBLEM,
    CheckFinding,
    _cache,
    _describe_early_event,
    check_server,
    format_finding,
    is_length_kept,
    run_check,
)
from locust_llm.demo_command import start_simulator
from locust_llm.settings.run_options import Settings

KEY = "sk-0123456789abcdef"
SCHEMA = Path(__file__).parents[1] / "docs" / "schemas" / "check-output.schema.json"


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as made:
        made.chat = answers()
        yield made


def answers(
    *,
    tokens: int = 32,
    wait_s: float = 0.0,
    usage: bool = True,
    cached: int = 0,
    obeys: bool = True,
    streams: bool = True,
    most: int = 4096,
) -> Callable[[Asked], tuple[int, Any]]:
    """A chat server; without ``ignore_eos`` its answers end after seven tokens where 48 are asked,
    and always after ``most``. A chunk is two tokens."""

    def answer(asked: Asked) -> tuple[int, Any]:
        time.sleep(wait_s)
        asked_for = asked.body["max_tokens"]
        count = (
            tokens
            if asked_for == 32
            else asked_for
            if obeys and asked.body.get("ignore_eos")
            else 7
        )
        count = min(count, most)
        counts = {
            "prompt_tokens": 800,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        finish = "length" if count in (asked_for, most) else "stop"
        if not streams:
            return 200, {
                "choices": [{"message": {"content": "a"}, "finish_reason": finish}],
                "usage": counts,
            }
        chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"content": "a "}}]}] * (count // 2)
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        return 200, [*chunks, end, *([{"choices": [], "usage": counts}] if usage else [])]

    return answer


def found(
    server: TinyServer, headers: dict[str, str] | None = None, **settings: Any
) -> dict[str, CheckFinding]:
    return {
        one.what: one
        for one in check_server(Settings(host=server.url, **settings), headers or {}, 20_000)
    }


def test_nobody_is_there() -> None:
    with tiny_server(started=False) as nobody:
        (only,) = check_server(Settings(host=nobody.url), {}, 20_000)
    assert (only.level, only.what) == (PROBLEM, "reachable")
    assert "refused" in only.found


def test_a_server_that_streams(server: TinyServer) -> None:
    said = found(server)
    assert said["reachable"] == CheckFinding(FINE, "reachable", f"{server.url} (tiny)")
    assert said["model"].found == "tiny"
    assert said["models"] == CheckFinding(
        NOTE, "models", "no --model given: using tiny, the first of tiny, other"
    )
    assert said["streams"].level == FINE
    assert said["usage"].found == "yes: 800 tokens in, 32 out, by the server's count"
    assert (said["tokens per chunk"].level, said["tokens per chunk"].found) == (NOTE, "2.00")
    assert said["ignore_eos"].level == FINE
    assert said["ignore_eos"].found == "works for 128 tokens; a run sets it by itself"
    assert said["sockets"].level == FINE
    assert said["TLS"].found == "none (http)"
    assert "round trip" in said
    assert not any(one.level == PROBLEM for one in said.values())


def test_a_server_that_does_not(server: TinyServer) -> None:
    server.chat = answers(streams=False)
    said = found(server)
    assert (said["streams"].level, "prefill slot" in said["streams"].advice) == (PROBLEM, True)
    assert "prefix cache" not in said


def test_a_stream_without_content_is_no_buffered_one(server: TinyServer) -> None:
    server.chat = answers(tokens=0)
    said = found(server)
    assert "streams" not in said
    assert (said["first answer"].level, said["first answer"].found) == (
        PROBLEM,
        "a stream without content",
    )
    assert "proxy" not in said["first answer"].advice


def test_a_proxy_that_buffers(server: TinyServer) -> None:
    server.chat = answers(wait_s=0.15)
    said = found(server)
    assert (said["buffering"].level, said["buffering"].found) == (
        PROBLEM,
        "answers come whole, within one millisecond",
    )
    assert "proxy_buffering" in said["buffering"].advice


def test_a_server_that_counts_nothing(server: TinyServer) -> None:
    server.chat = answers(usage=False)
    said = found(server)
    assert said["usage"].level == NOTE
    assert "tokens per chunk" not in said


@pytest.mark.parametrize(
    ("usage", "came"),
    [
        (True, "60"),
        # 24 chunks came for 48 tokens, 30 for 128
        (False, "about 60"),
    ],
)
def test_a_server_that_caps_outputs(server: TinyServer, usage: bool, came: str) -> None:
    server.chat = answers(usage=usage, most=60)
    finding = found(server)["ignore_eos"]
    assert finding.level == NOTE
    assert finding.found == f"works for 48 tokens; of 128 requested {came} came"
    assert "--output-tokens-mean" in finding.advice


def test_a_prefix_cache(server: TinyServer) -> None:
    server.chat = answers(cached=784)
    said = found(server)
    assert said["prefix cache"].level == NOTE
    assert said["prefix cache"].found.startswith("784 of 800 tokens cached")


@pytest.mark.parametrize(
    ("first_ms", "again_ms", "new_ms", "level", "words"),
    [
        (338, 65, 340, NOTE, "the same prompt again: TTFT 65 ms, and 338 ms for a new one"),
        (2000, 50, 60, FINE, "no sign of one: the same prompt took as long as a new one"),
        (2000, 50, None, NOTE, "not known: only the first request was slower than its repetition"),
        (50, 50, None, FINE, "no sign of one: the same prompt took as long as a new one"),
    ],
)
def test_a_slow_first_answer_is_no_prefix_cache(
    first_ms: float, again_ms: float, new_ms: float | None, level: str, words: str
) -> None:
    """A proxy that starts up is slow once, for whatever prompt: a new one is as fast as the same."""
    new = None if new_ms is None else answered(new_ms)
    finding = _cache(answered(first_ms), answered(again_ms), new)
    assert (finding.level, finding.found) == (level, words)


def test_outputs_that_end_when_they_like(server: TinyServer) -> None:
    server.chat = answers(obeys=False)
    said = found(server)
    assert (said["ignore_eos"].level, said["ignore_eos"].found) == (
        NOTE,
        "has no effect: 7 of 48 tokens came",
    )


def test_a_first_request_that_is_refused_is_the_end_and_shows_no_key(server: TinyServer) -> None:
    server.chat = lambda asked: (
        401,
        {"error": {"message": f"unknown key {asked.headers['authorization']}"}},
    )
    said = found(server, {"Authorization": f"Bearer {KEY}"})
    assert said["first answer"].level == PROBLEM
    assert said["first answer"].found == "http_status: HTTP 401: unknown key Bearer ***"
    assert said["first answer"].advice.startswith("the server refused the API key: ")
    assert "streams" not in said


def test_what_a_run_would_be_refused_for_is_a_problem(server: TinyServer) -> None:
    """By the same questions."""
    said = found(server, endpoint="/v1/chat/completionz")
    assert (said["first answer"].level, said["first answer"].advice) == (
        PROBLEM, "the server has no /v1/chat/completionz: check --endpoint and --endpoint-type",
    )  # fmt: skip
    server.models = (200, {"data": [{"id": "tiny", "max_model_len": 4096}]})
    assert found(server)["context"].found == "4,096 tokens"
    refused = found(server, synthetic_input_tokens_mean=8000.0)
    assert list(refused) == ["refused"]
    assert (refused["refused"].level, "do not fit into" in refused["refused"].found) == (
        PROBLEM,
        True,
    )
    server.chat = lambda asked: (200, "<html>welcome</html>")
    assert found(server)["first answer"].advice.startswith("this is a web page, not an API")


def test_a_server_that_is_too_slow_for_all_questions_is_asked_no_longer(server: TinyServer) -> None:
    server.chat = answers(wait_s=0.5)
    said = {
        one.what: one for one in check_server(Settings(host=server.url), {}, 20_000, seconds=0.95)
    }
    assert len(server.asked) < 6  # of a dozen
    assert said["streams"].level == FINE
    assert said["prefix cache"].found.startswith("not known: ")


def test_too_many_users_for_this_machine(server: TinyServer) -> None:
    (short,) = [
        one
        for one in check_server(Settings(host=server.url, users=500), {}, 256)
        if one.what == "sockets"
    ]
    assert short.level == PROBLEM
    assert "ulimit -Hn" in short.found


@pytest.mark.parametrize("owner", ["vllm", "openai"])
def test_other_endpoint_types_are_tried_at_a_known_inference_server_only(
    server: TinyServer, owner: str
) -> None:
    """A gateway would put the model into cooldown for all users, when its server has no such type."""
    server.models = (200, {"data": [{"id": "tiny", "owned_by": owner}]})
    server.pages["/v1/completions"] = (200, {"choices": [{"text": "yes"}]})
    server.pages["/health/readiness"] = (200, {"litellm_version": "1.106.2"})
    server.name = "uvicorn"
    finding = found(server)["endpoint types"]
    posted = {asked.path for asked in server.asked if asked.body}
    others = {"/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"}
    if owner == "vllm":
        assert finding == CheckFinding(FINE, "endpoint types", "also completions (--endpoint-type)")
        assert posted >= others
    else:
        assert (finding.level, finding.found) == (
            NOTE,
            "not tried: LiteLLM 1.106.2 is in front of the server",
        )
        assert not posted & others


def test_every_request_is_marked_as_a_probe(server: TinyServer) -> None:
    found(server, {"X-Tenant": "a"})
    for asked in server.asked:
        assert (asked.headers["x-locust-llm-probe"], asked.headers["x-tenant"]) == ("1", "a")
    assert 4 <= len([path for path in server.paths() if path == "/v1/chat/completions"]) <= 6


@pytest.mark.parametrize(
    ("props", "slots", "users", "level", "words"),
    [
        (
            {"build_info": "b8681", "total_slots": 4},
            [],
            1,
            FINE,
            "4 slots: it answers 4 requests at a time",
        ),
        ({"build_info": "b8681"}, [{"id": 0}], 1, FINE, "1 slot: it answers 1 request at a time"),
        (
            {"build_info": "b8681", "total_slots": 4},
            [],
            10,
            NOTE,
            "4 slots: it answers 4 requests at a time",
        ),
    ],
)
def test_the_slots_of_llama_cpp(
    props: dict[str, Any], slots: list[Any], users: int, level: str, words: str, server: TinyServer
) -> None:
    server.name = "llama.cpp"
    server.pages = {"/props": (200, props), "/slots": (200, json.dumps(slots))}
    said = found(server, users=users)["slots"]
    assert (said.level, said.found) == (level, words)
    assert said.advice == (
        "of 10 users 6 wait for a slot, and TTFT includes that wait" if users == 10 else ""
    )


def test_a_server_without_slots_has_no_line_about_them(server: TinyServer) -> None:
    assert "slots" not in found(server)


def test_the_address_stands_alone_or_behind_host(
    server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = server.url.removeprefix("http://")
    for words in (
        [plain],
        ["--host", plain],
        [f"--host={plain}"],
        ["-H", plain],
        [f"-H{plain}"],
        [plain, "-H", server.url],
    ):
        assert run_check(words) == 0
        assert f"reachable        {server.url}" in capsys.readouterr().out
    for words, why in (
        ([], "the server's address is missing, such as localhost:8000"),
        ([plain, "--host", "localhost:1"], "two addresses are given: use one"),
    ):
        assert run_check(words) == 5
        assert capsys.readouterr().err == f"locust-llm: error: {why}\n"


def test_the_command_and_its_exit_status(
    server: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check([server.url.removeprefix("http://"), "-u", "20"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:2] == ["ok", "reachable"]
    assert run_check([server.url, "-u", "20", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    jsonschema.validate(findings, json.loads(SCHEMA.read_text("utf-8")))
    assert findings[0]["what"] == "reachable"
    assert [finding["what"] for finding in findings] == [
        line[8:25].strip() for line in out.splitlines() if line[:1] != " "
    ]
    server.chat = answers(streams=False)
    assert run_check([server.url]) == 1
    assert "PROBLEM streams" in capsys.readouterr().out
    assert run_check(["--host", server.url, "--api-key", KEY]) == 5
    assert capsys.readouterr().err == (
        "locust-llm: error: unknown option --api-key: use --api-key-file, or OPENAI_API_KEY in the "
        "environment\n"
    )
    assert run_check(["http://user:password@localhost"]) == 5
    assert "must not hold a user and a password" in capsys.readouterr().err
    assert run_check(["localhost:1", "--api-key-command", "false"]) == 5
    assert "--api-key-command ended with status 1" in capsys.readouterr().err


def test_advice_stands_below() -> None:
    assert format_finding(CheckFinding(FINE, "usage", "yes")) == "ok      usage            yes"
    assert (
        format_finding(CheckFinding(NOTE, "usage", "no", "so what")).splitlines()[1].strip()
        == "-> so what"
    )


@pytest.mark.parametrize(
    ("early_s", "level", "found"),
    [
        (0.0, FINE, "none before the first token"),
        (0.004, FINE, "one without content 4 ms before the first token"),
        (0.02, NOTE, "one without content 20 ms before the first token"),
    ],
)
def test_an_early_event_is_named_also_where_it_is_no_trouble(
    early_s: float, level: str, found: str
) -> None:
    finding = _describe_early_event(early_s)
    assert (finding.level, finding.found) == (level, found)
    assert bool(finding.advice) == (level == NOTE)


@pytest.mark.slow
def test_a_role_that_comes_long_before_the_first_token() -> None:
    with start_simulator("--like", "transformers", "--ttft-ms", "120", "--itl-ms", "2") as url:
        said = {one.what: one for one in check_server(Settings(host=url), {}, 20_000)}
    assert said["early events"].level == NOTE
    assert "before the first token" in said["early events"].found
    assert said["simulated"].level == NOTE


def test_a_server_without_a_list_of_models(server: TinyServer) -> None:
    server.models = (404, {})
    model = found(server)["models"]
    assert (model.level, model.found) == (
        NOTE,
        "the server does not list its models (HTTP 404 for /v1/models): use --model NAME to set "
        "the model",
    )


def test_chunks_of_several_tokens_are_no_short_output() -> None:
    """Thirteen chunks without usage, ended by the limit: all tokens asked for came."""
    chunks = answered(*range(10, 23), tokens_from="chunks", finish_reason="length")
    assert is_length_kept(chunks)
    assert not is_length_kept(replace(chunks, finish_reason="stop"))
    assert not is_length_kept(replace(chunks, tokens_from="usage"))
