"""Parsed options: what cannot be is refused in one line with status 5 before any load, and no
secret is written."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from support.command_line import parse
from support.tiny_server import TinyServer, tiny_server

from locust_llm import plugin
from locust_llm.access.headers_and_api_key import read_request_headers
from locust_llm.exit_status import ExitStatus
from locust_llm.locust_adapter import command_line_parser as options
from locust_llm.locust_adapter.command_line_parser import (
    build_settings,
    check_options,
    keep_locusts_defaults,
)
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused

KEY: Final = "sk-0123456789"
SECRET: Final = "s3cret"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["/somewhere/locust"])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def asked(*words: str) -> Settings:
    return check_options(parse(*words))


# -- what is refused, before anything is asked of anybody ------------------------------------------

REFUSED: Final = [
    (
        ["--otlp-receiver", "--no-traceparent"],
        "--otlp-receiver needs the traceparent header to join spans to requests: leave out "
        "--no-traceparent",
    ),
    (
        ["--prefill-concurrency", "three"],
        "--prefill-concurrency must be a whole number, got 'three'",
    ),
    (["--prefill-concurrency", "2.5"], "--prefill-concurrency must be a whole number, got '2.5'"),
    (["--output-tokens-mean", "many"], "--output-tokens-mean must be a number, got 'many'"),
    (["--output-tokens-mean", "nan"], "--output-tokens-mean must be a number, got 'nan'"),
    (["--request-timeout", "inf"], "--request-timeout must be a number, got 'inf'"),
    (["--request-count", "1e3"], "--request-count must be a whole number, got '1e3'"),
    (
        ["--percentiles", "50,p90"],
        "--percentiles must be numbers separated by commas, such as 50,90,95,99, got '50,p90'",
    ),
    (
        ["--endpoint", f"/v1/chat/completions?api-key={SECRET}"],
        "--endpoint must not hold a key (api-key), as reports show it: use --header, or "
        "--api-key-file",
    ),
    *(
        (
            ["--host", f"https://x/y?a=1&{name}={SECRET}"],
            f"--host must not hold a key ({name}), as reports show it: use --header, or "
            f"--api-key-file",
        )
        for name in ("pass", "pwd", "code", "sig")
    ),
    (
        ["--host", f"https://x/y?subscription-key={SECRET}"],
        "--host must not hold a key (subscription-key), as reports show it: use --header, or "
        "--api-key-file",
    ),
    (
        ["--endpoint-type", "embeddings", "--slo", "ttft p95 < 500ms"],
        "SLO 'ttft p95 < 500ms': embeddings generates no tokens and has no ttft: use "
        "request_latency",
    ),
    (
        ["--endpoint-type", "embeddings", "--slo", "output_tokens_per_s > 5"],
        "SLO 'output_tokens_per_s > 5/s': embeddings generates no tokens and has no "
        "output_tokens_per_s: use input_tokens_per_s",
    ),
    (
        ["--endpoint-type", "rerank", "--goodput", "time_to_first_token:300"],
        "--goodput: rerank generates no tokens and has no ttft: use request_latency",
    ),
    (
        ["--endpoint-type", "rerank", "--output-tokens-mean", "9"],
        "--endpoint-type rerank generates no tokens: leave out --output-tokens-mean",
    ),
    (
        ["--endpoint-type", "rerank", "--tools", "tools.json"],
        "--endpoint-type rerank generates no tokens: leave out --tools",
    ),
    (
        ["--endpoint-type", "messages", "--per-chunk-usage"],
        "--per-chunk-usage works with chat and completions only: messages has no such count",
    ),
    (
        ["--no-streaming", "--per-chunk-usage"],
        "--per-chunk-usage needs --streaming: a response without streaming has no chunks",
    ),
    (
        ["--endpoint-type", "embeddings", "--session-turns-mean", "2"],
        "--endpoint-type embeddings has no conversation: leave out --session-turns-mean",
    ),
    (
        ["--endpoint-type", "embeddings", "--prefill-concurrency-ramp-duration", "9"],
        "--prefill-concurrency-ramp-duration has nothing to ramp: add --prefill-concurrency",
    ),
    (
        ["--batch-size-text", "8"],
        "--batch-size-text works with --endpoint-type embeddings or rerank only: chat has one "
        "prompt per request",
    ),
    (["--max-retries", "-1"], "--max-retries must be at least 0, got -1"),
    (
        ["--endpoint-type", "rankings"],
        "--endpoint-type must be one of chat, completions, responses, messages, embeddings, "
        "rerank, got 'rankings'",
    ),
    (
        ["--endpoint-type", "responses", "--max-tokens-field", "max_completion_tokens"],
        "--max-tokens-field max_completion_tokens: --endpoint-type responses has no such field, "
        "but max_output_tokens",
    ),
    (
        ["--max-tokens-field", "n"],
        "--max-tokens-field must be one of max_tokens, max_completion_tokens, got 'n'",
    ),
    (["--header", f"X-Key={SECRET}"], "--header must be NAME: VALUE, got one without a colon"),
    (
        ["--header", f": {SECRET}"],
        "--header must be NAME: VALUE, and '' is not a valid name of a header",
    ),
    (
        ["--header", f"X Key: {SECRET}"],
        "--header must be NAME: VALUE, and 'X Key' is not a valid name of a header",
    ),
    (
        ["--header", f"X-Key: {SECRET}\u20ac"],
        "--header X-Key: its value has characters that a header must not contain",
    ),
    (
        ["--header", f"X-Key: {SECRET}\r\nX: y"],
        "--header X-Key: its value has characters that a header must not contain",
    ),
    (["--host", "http://[::1"], "--host 'http://[::1' is not a valid URL: Invalid IPv6 URL"),
    (["-u", "2", "--prefill-concurrency", "0"], "--prefill-concurrency must be at least 1, got 0"),
    (
        ["-u", "2", "--prefill-concurrency", "3"],
        "--prefill-concurrency 3 is above the 2 users (-u): at most 2 requests can run at the "
        "same time",
    ),
    (
        ["--prefill-concurrency", "3"],
        "--prefill-concurrency 3 is above the 1 users (-u): at most 1 requests can run at the "
        "same time",
    ),
    (
        ["-u", "3", "--prefill-concurrency", "3", "--no-streaming"],
        "--prefill-concurrency needs --streaming: without a stream there is no time to first token",
    ),
    (
        ["--prefill-concurrency-ramp-duration", "0"],
        "--prefill-concurrency-ramp-duration must be above 0 seconds, got 0",
    ),
    (
        ["--synthetic-input-tokens-mean", "0"],
        "--synthetic-input-tokens-mean must be at least 1, got 0",
    ),
    *(
        (
            ["--arrival-pattern", "poisson", *load],
            "--arrival-pattern poisson needs --request-rate. Without a rate, each user sends its "
            "next request after its last response",
        )
        for load in (
            ["-u", "4"],
            ["-u", "4", "--user-centric-rate", "2"],
            ["--sweep", "concurrency=1,2"],
        )
    ),
]


def refusal(capsys: pytest.CaptureFixture[str], ask: Callable[[], object]) -> str:
    """The one line that says no; if the parser itself does, on stderr and with status 5."""
    with pytest.raises((RunRefused, SystemExit)) as refused:
        ask()
    out, err = capsys.readouterr()
    if isinstance(refused.value, RunRefused):
        assert (out, err) == ("", "")
        return str(refused.value)
    assert (refused.value.code, out, err.count("\n")) == (ExitStatus.REFUSED, "", 1)
    assert err.startswith("locust-llm: error: ")
    return err.removeprefix("locust-llm: error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("words", "line"), REFUSED, ids=[" ".join(words)[:40] for words, _ in REFUSED]
)
def test_what_cannot_be_is_refused_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, lambda: asked(*words)) == line
    assert SECRET not in line


def test_as_many_processes_as_there_are_cpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert asked("-u", "100", "--processes", "-1").processes == 64


def test_embeddings_have_no_stream_and_the_gate_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (
        "--endpoint-type",
        "embeddings",
        "-u",
        "4",
        "--prefill-concurrency",
        "2",
        "--batch-size-text",
        "8",
    )
    found = asked(*words)
    assert (found.streaming, found.endpoint, found.texts, found.generates) == (
        False,
        "/v1/embeddings",
        8,
        False,
    )
    assert asked("--endpoint-type", "rerank", "--batch-size-text", "8").texts == 9  # with the query
    monkeypatch.setattr("sys.argv", ["locust", "--streaming"])
    with pytest.raises(RunRefused, match="embeddings does not stream: leave out --streaming"):
        asked(*words)


# -- what is understood ----------------------------------------------------------------------------


def settings(**different: Any) -> Settings:
    """Those of ``parse()``, but for these."""
    same = {"host": "http://localhost:1", "users": 1, "locustfile": "chat.py", "command": "locust"}
    varied = {"synthetic_input_tokens": 55.0, "output_tokens": 12.8}
    spread = {
        f"{name}_stddev": stddev
        for name, stddev in varied.items()
        if f"{name}_mean" not in different
    }
    return Settings(**{**same, **spread, **different})


def test_the_command_of_the_seed_page() -> None:
    words = """--model Qwen/Qwen2.5-7B-Instruct --endpoint-type chat --streaming --host localhost:8000 -u 50
        --prefill-concurrency 5 --prefill-concurrency-ramp-duration 30
        --synthetic-input-tokens-mean 32000 --output-tokens-mean 200 -t 120s"""
    assert asked(*words.split()) == settings(
        host="http://localhost:8000",
        model="Qwen/Qwen2.5-7B-Instruct",
        users=50,
        prefill_concurrency=5,
        prefill_concurrency_ramp_duration=30.0,
        synthetic_input_tokens_mean=32000.0,
        output_tokens_mean=200.0,
        run_time_s=120,
    )


def test_a_name_of_aiperf_is_taken() -> None:
    assert asked("--endpoint-type", "cohere_rankings").endpoint_type == "rerank"


def test_defaults_and_a_grace_period_of_30_seconds() -> None:
    assert asked() == settings()
    assert settings().stop_timeout_s == 30
    assert parse().stop_timeout == 30  # Locust's own would cut what runs, without a record


def test_an_empty_value_is_not_set() -> None:
    """As of a variable of the environment that is not set, or a field of the web form."""
    flags = (
        "request-timeout",
        "output-tokens-mean",
        "model",
        "endpoint",
        "prefill-concurrency",
        "report-dir",
    )
    assert asked(*[f"--{flag}=" for flag in flags]) == settings()


def test_texts_of_the_web_form_are_numbers() -> None:
    options = parse("-u", "9", headless=False)
    options.prefill_concurrency, options.output_tokens_mean, options.percentiles = "5", "64.5", ""
    options.streaming, options.random_seed, options.probe = "true", " ", "false"
    assert build_settings(options) == settings(
        users=9, prefill_concurrency=5, output_tokens_mean=64.5, probe=False
    )
    options.prefill_concurrency = "abc"
    with pytest.raises(ValueError, match="abc"):
        build_settings(options)


@pytest.mark.parametrize("endpoint", ["v2/chat", "/v2/chat"])
def test_an_endpoint_is_a_path(endpoint: str) -> None:
    assert asked("--endpoint", endpoint).endpoint == "/v2/chat"


def test_without_our_command_line_there_are_defaults() -> None:
    assert build_settings(None) == build_settings(Namespace()) == Settings()
    assert read_request_headers(None) == {}


def test_flags_have_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUST_LLM_PREFILL_CONCURRENCY", "3")
    monkeypatch.setenv("LOCUST_LLM_OUTPUT_TOKENS_MEAN", "77")
    words = ("-u", "4", "--output-tokens-mean", "78")
    assert asked(*words) == settings(users=4, prefill_concurrency=3, output_tokens_mean=78.0)


# -- secrets ---------------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_request_headers(parse()) == {}
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert read_request_headers(parse()) == {"Authorization": "Bearer from-environment"}
    (tmp_path / "key").write_text("from-file\n")
    assert read_request_headers(parse("--api-key-file", "key")) == {
        "Authorization": "Bearer from-file"
    }
    messages = parse("--api-key-file", "key", "--endpoint-type", "messages")
    assert read_request_headers(messages) == {
        "anthropic-version": "2023-06-01",
        "x-api-key": "from-file",
    }
    # the same of a worker that has not got its options yet
    assert list_secret_names(messages) == ("Authorization",)
    words = ["--header", "X-Team:a: b", "--header", "Authorization: Basic abc"]
    assert read_request_headers(parse(*words)) == {"X-Team": "a: b", "Authorization": "Basic abc"}


def test_headers_of_the_environment_are_sent_and_their_names_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCUST_LLM_HEADERS", f"X-Key: {SECRET}\n\n  X-Team: a\n")
    assert read_request_headers(parse("--header", "X-Team: b")) == {"X-Key": SECRET, "X-Team": "b"}
    assert asked("--header", "X-Other: c").header_names == ("X-Key", "X-Team", "X-Other")
    assert SECRET not in str(asked())


def test_session_headers_by_name_and_several_hosts() -> None:
    names = ("aiperf", "mlperf", "dynamo", "X-My-Session")
    found = [
        asked("--host", "a:1,b:2/v1", "--session-header", name).session_header for name in names
    ]
    assert found == ["X-Session-Affinity", "X-Session-ID", "X-Dynamo-Session-ID", "X-My-Session"]
    s = asked("--host", "a:1,b:2/v1")
    assert (s.host, s.hosts) == ("http://a:1", ("http://a:1", "http://b:2"))


def test_the_path_of_an_endpoint_is_that_of_its_kind() -> None:
    assert asked("--endpoint-type", "completions").endpoint == "/v1/completions"
    assert asked("--endpoint-type", "completions", "--endpoint", "v2/text").endpoint == "/v2/text"
    assert asked("--endpoint-type", "messages").endpoint == "/v1/messages"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--header", f"X-Key: {SECRET}"], "locust --header '***'"),
        ([f"--header=X-Key: {SECRET}"], "locust '--header=***'"),
        # argparse takes what is plain enough
        ([f"--heade=X-Key: {SECRET}"], "locust '--heade=***'"),
        (
            ["--header", "X-Team: a", "--header", f"X-Key:{SECRET}"],
            "locust --header '***' --header '***'",
        ),
    ],
)
def test_settings_hold_the_names_of_headers_and_not_what_they_say(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(sys, "argv", ["/somewhere/locust", *words])
    names = ("X-Team", "X-Key") if "X-Team: a" in words else ("X-Key",)
    assert asked(*words) == settings(header_names=names, command=command)


# -- asked of the machine and of the server --------------------------------------------------------


def refused_before_load(
    capsys: pytest.CaptureFixture[str], *words: str, headless: bool = True
) -> str:
    return refusal(capsys, lambda: plugin.before_load(parse(*words, headless=headless)))


def test_a_key_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        refused_before_load(capsys, "--api-key-file", "none")
        == "--api-key-file none: No such file or directory"
    )
    assert refused_before_load(capsys, "--api-key-file", "none", headless=False).endswith(
        "No such file or directory"
    )
    assert refused_before_load(capsys, "--api-key-file", str(tmp_path)).endswith(": Is a directory")


@pytest.mark.parametrize("content", [f"{KEY}\nsecond line".encode(), b"\0" + KEY.encode()])
def test_a_key_that_no_header_can_carry(
    content: bytes,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "the API key (--api-key-file or OPENAI_API_KEY) is not one line of text"
    (tmp_path / "key").write_bytes(content)
    assert refused_before_load(capsys, "--api-key-file", "key") == line
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nsecond line")
    assert refused_before_load(capsys) == line


def test_a_run_needs_a_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "--host is missing: add the server's address, such as --host localhost:8000"

    class WithoutHost:
        """In the place of Locust's users and ours: those of other tests have a host."""

    monkeypatch.setattr(plugin, "LLMUser", WithoutHost)
    monkeypatch.setattr(plugin, "User", WithoutHost)
    assert refused_before_load(capsys, "--host", "") == expected
    plugin.before_load(parse("--host", "", headless=False))  # it may come from the web form


def test_a_report_folder_below_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused_before_load(capsys, "--report-dir", "file/run") == (
        "the report folder cannot be written: file/run: Not a directory (use --report-dir to "
        "choose another folder)"
    )


def test_spans_that_could_not_come(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused_before_load(capsys, "--otlp-receiver", "203.0.113.1:4318")
    assert said == (
        "--otlp-receiver cannot listen on 203.0.113.1:4318: Cannot assign requested address; use "
        "an address of this machine"
    )


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], server: TinyServer) -> None:
    line = refused_before_load(capsys, "--host", server.url, "--model", "mine")
    assert line == (
        "--model: the server has no model 'mine'; it has: tiny, other; to send it anyway, use "
        "--no-model-check"
    )
    assert server.paths() == ["/v1/models"]


def test_who_only_looks_is_asked_for_nothing() -> None:
    for flag in ("--list", "--show-task-ratio", "--worker"):
        plugin.before_load(parse("--host", "", flag))
    assert list(Path(".").iterdir()) == []


def test_a_load_shape_says_how_many_users_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no prefill limit is above their number before the run."""
    words = ("--headless", "--host", "localhost:1", "--prefill-concurrency", "3")
    with pytest.raises(RunRefused, match="above the 1 users"):
        check_options(parse(*words))
    shape = type("Shape", (), {})
    type("Steps", (shape,), {})
    kept = shape.__subclasses__()
    monkeypatch.setattr(options, "LoadTestShape", shape)
    assert check_options(parse(*words)).users is None
    assert kept == shape.__subclasses__()


def test_users_are_there_at_once_and_start_over_a_response_time_unless_a_rate_is_given(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, slowly = (
        parse("--host", server.url, "-u", "30", *words) for words in ([], ["-r", "2"])
    )
    plugin.before_load(at_once)
    plugin.before_load(slowly)
    assert (at_once.spawn_rate, slowly.spawn_rate) == (30, 2)
    assert (build_settings(at_once).spawn_rate, build_settings(slowly).spawn_rate) == (None, 2)
    monkeypatch.setenv("LOCUST_SPAWN_RATE", "3")
    assert build_settings(parse("-u", "30")).spawn_rate == 3
    assert not Path("reports").exists() or list(Path("reports").iterdir()) == []


# -- rules -----------------------------------------------------------------------------------------


def test_pages_of_metrics_come_from_the_flag_and_the_environment_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCUST_LLM_METRICS_URL", "gpu:9400\n\nhttps://one/\n")
    assert asked(
        "--metrics-url", "gpu:9400", "--metrics-url", "http://two:80/prometheus/metrics?x=1"
    ).metrics_url == (
        "http://gpu:9400/metrics",
        "https://one/metrics",
        "http://two:80/prometheus/metrics?x=1",
    )


@pytest.mark.parametrize(
    ("ci", "words", "expected"),
    [
        ("", (), "close"),
        ("false", (), "close"),
        ("0", (), "close"),
        ("true", (), "fail"),
        ("1", (), "fail"),
        ("drone", (), "fail"),
        ("", ("--slo-file", "rules"), "fail"),
        ("true", ("--inconclusive", "close"), "close"),
        ("true", ("--inconclusive", "warn"), "warn"),
        ("", ("--slo-file", "rules", "--inconclusive", "pass"), "pass"),
        ("", ("--inconclusive", "fail"), "fail"),
    ],
)
def test_a_pipeline_fails_where_a_rule_is_inconclusive(
    ci: str, words: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    (tmp_path / "rules").write_text("ttft p50 < 1s")
    assert asked("--slo", "ttft p95 < 1s", *words).inconclusive == expected


def test_rules_come_from_the_flag_the_environment_and_a_file_and_a_comment_begins_outside_of_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUST_LLM_SLO", "ttft p50 < 2s # at noon\n\n")
    lines = (
        "# ours",
        "itl p50 < 1s",
        'ttft{name="a # ""b"" #"} p50 < 1s # "c"',
        '  #"',
        "error_rate < 1%#",
    )
    (tmp_path / "rules").write_text("\n".join(lines))
    assert asked("--slo", 'ttft{class="#"} p50 < 1s', "--slo-file", "rules").slo == (
        'ttft{class="#"} p50 < 1s',
        "ttft p50 < 2s",
        "itl p50 < 1s",
        'ttft{name="a # ""b"" #"} p50 < 1s',
        "error_rate < 1%",
    )


def test_locusts_own_options_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from locust import argument_parser

    made = []
    monkeypatch.setattr(
        argument_parser, "default_args_dict", lambda: made.append(1) or {"users": 1}
    )
    keep_locusts_defaults()
    keep_locusts_defaults()  # of another import
    assert ["users" in argument_parser.default_args_dict() for _ in range(3)] == [True] * 3
    assert made == [1]


def test_fields_of_every_request(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text('[{"name": "f"}]')
    both = Settings(tools=str(file), extra_inputs="temperature:0.5")
    assert collect_extra_inputs(both) == {"temperature": 0.5, "tools": [{"name": "f"}]}
    for wrong, why in (
        (
            replace(both, extra_inputs="tools:[]"),
            "--tools and tools in --extra-inputs exclude each other",
        ),
        (
            Settings(extra_inputs='guided_json:{"type":3}'),
            "--extra-inputs guided_json: is not a valid schema",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            collect_extra_inputs(wrong)


def test_a_flag_that_may_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked("-u", "1").otlp_receiver is None
    assert asked("-u", "1", "--otlp-receiver").otlp_receiver == "127.0.0.1:4318"
    assert asked("--otlp-receiver", "0.0.0.0:1", "-u", "1").otlp_receiver == "0.0.0.0:1"
    monkeypatch.setenv("LOCUST_LLM_OTLP_RECEIVER", "[::]:4318")
    assert asked("-u", "1").otlp_receiver == "[::]:4318"


# -- lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "prompts", "outputs"),
    [
        ((), (550, 55), (128, 12.8)),
        (("--output-tokens-mean", "128"), (550, 55), (128, 0)),
        (("--synthetic-input-tokens-mean", "550"), (550, 0), (128, 12.8)),
        (("--output-tokens-stddev", "0"), (550, 55), (128, 0)),
        (("--output-tokens-stddev", "5"), (550, 55), (128, 5)),
        (("--output-tokens-mean", "200", "--output-tokens-stddev", "5"), (550, 55), (200, 5)),
        (("--seq-dist", "100,10:100"), (550, 0), (128, 0)),
        (("--sweep", "input-tokens=100,200"), (550, 0), (128, 12.8)),
        (("--endpoint-type", "embeddings"), (550, 55), (128, 0)),
    ],
)
def test_lengths_that_nobody_asked_for_vary_by_a_tenth(
    words: tuple[str, ...], prompts: tuple[float, float], outputs: tuple[float, float]
) -> None:
    s = build_settings(parse("--host", "h", *words))
    assert (s.synthetic_input_tokens_mean, s.synthetic_input_tokens_stddev) == prompts
    assert (s.output_tokens_mean, s.output_tokens_stddev) == pytest.approx(outputs)


def test_a_length_of_the_environment_and_of_a_scenario_is_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = tmp_path / "short.toml"
    scenario.write_text("output-tokens-mean = 128\n")
    s = build_settings(parse("--host", "h", "--scenario", str(scenario)))
    assert (s.synthetic_input_tokens_stddev, s.output_tokens_stddev) == (0, 0)
    monkeypatch.setenv("LOCUST_LLM_OUTPUT_TOKENS_MEAN", "128")
    assert build_settings(parse("--host", "h")).output_tokens_stddev == 0
