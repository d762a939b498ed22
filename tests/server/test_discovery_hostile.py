"""The survey and the meter of servers that mean no good: one line or a note, in bounded time and
memory."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.hostile_server import ENDLESS, WRONG, Hostile, answer, hostile
from support.loop_watch import OwnTime

from locust_llm.records.server_metrics_history import diagnose_server, summarise_engine_samples
from locust_llm.records.server_metrics_parser import EngineSample, read_engine_samples
from locust_llm.server import discovery as module
from locust_llm.server import preflight_requests, tokenizer_calibration
from locust_llm.server import server_metrics_poller as meter_module
from locust_llm.server.discovery import Discovery, DiscoveryFailed, discover_server
from locust_llm.server.http_get import FetchedResponse
from locust_llm.server.identity import count_template_head_tokens
from locust_llm.server.preflight_requests import ProbeRequests
from locust_llm.server.refusals import read_context_length
from locust_llm.server.server_metrics_poller import MetricsPoller
from locust_llm.settings.run_options import Settings
from locust_llm.text.hide_secrets import Secrets

FEW = ("a body, a byte at a time", "a body without end", "no HTTP", "nothing")
MODES = [name if name in FEW else pytest.param(name, marks=pytest.mark.full) for name in ENDLESS]
KEY = "sk-of-the-run-0123456789abcdef"
SECRETS = Secrets([KEY])
CHOICES = b'"choices":[{"message":{"content":"a"},"finish_reason":"length"}]'
CHAT = b'{"usage":{"prompt_tokens":7,"completion_tokens":48},' + CHOICES + b"}"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MODELS_TIMEOUT_S", 0.3)
    monkeypatch.setattr(preflight_requests, "PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(tokenizer_calibration, "TOKENIZE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(meter_module, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(meter_module, "EVERY_S", 0.01)


@pytest.fixture
def server() -> Iterator[Hostile]:
    """One that does as it should, for now."""
    with hostile() as made:
        made.whole("/v1/models", b'{"data":[{"id":"tiny"}]}')
        made.whole("/tokenize", b'{"count":7}')
        made.whole("/v1/chat/completions", CHAT)
        yield made


def ask(server: Hostile, **more: Any) -> tuple[Discovery | None, str]:
    """(what was found, or the line that says why not)."""
    watch = OwnTime()
    try:
        found, said = (
            discover_server(Settings(host=server.url, **more), {"Authorization": f"Bearer {KEY}"}),
            "",
        )
    except DiscoveryFailed as error:
        found, said = None, str(error)
    assert watch.seconds < 4
    for text in (
        said,
        *((found.server, found.model or "", *found.notes) if found is not None else ()),
    ):
        assert text.isprintable()
        assert len(text) <= module.LINE_BYTES
        assert KEY[:20] not in text
    return found, said


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/v1/chat/completions"])
def test_what_never_ends_is_one_line_or_a_note(server: Hostile, path: str, name: str) -> None:
    pieces, _ = ENDLESS[name]
    server.paths[path] = lambda asked: pieces()
    if path == "/v1/chat/completions":
        del server.paths["/tokenize"]
    found, said = ask(server)
    if path == "/tokenize":
        assert found is not None
        assert any(note.startswith("/tokenize was not used: ") for note in found.notes)
        assert [probe.kind for probe in found.probes[:4]] == ["chat"] * 4
    else:
        begins = (
            ("cannot reach", f"{server.url}/v1/models did not give a readable response")
            if "models" in path
            else ("the first request to",)
        )
        assert said.startswith(begins)
    assert server.sent_bytes < 40 << 20


def test_the_console_has_a_line_about_what_is_waited_for(
    server: Hostile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A first completion may take two minutes; whoever sees nothing takes that for a hang."""
    del server.paths["/tokenize"]
    monkeypatch.setattr(module, "WAITING_AFTER_S", 0.1)
    caplog.set_level("INFO")
    ask(server)
    gevent.sleep(0.2)
    assert "/v1/chat/completions" not in caplog.text
    pieces, _ = ENDLESS["a body, a byte at a time"]
    server.paths["/v1/chat/completions"] = lambda asked: pieces()
    ask(server)
    assert f"Waiting for {server.url}/v1/chat/completions, at most 0.3 s" in caplog.text


def test_so_it_has_of_a_server_that_is_not_up_yet(caplog: pytest.LogCaptureFixture) -> None:
    now = iter(range(100))
    caplog.set_level("INFO")
    with pytest.raises(DiscoveryFailed):
        discover_server(
            Settings(host="http://127.0.0.1:1", wait_for_model_timeout_s=5.0), {},
            clock=lambda: float(next(now)),
            sleep=lambda seconds: None,
        )  # fmt: skip
    assert caplog.text.count("Waiting for http://127.0.0.1:1, for at most 5 s: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_is_of_no_type_that_it_should_have_is_not_taken(server: Hostile, name: str) -> None:
    body = WRONG[name]
    server.whole("/v1/models", body)
    found, said = ask(server, probe=False)
    model = {"many": "m", "names without end": "n"}.get(name)
    refused = "no listed model has a usable name" if name == "half a pair" else ""
    assert (said.partition(" (")[0], found and found.model) == (refused, model)
    server.whole("/v1/models", b'{"data":[{"id":"tiny"}]}')
    server.whole("/tokenize", body)
    found, _ = ask(server)
    assert found is not None
    assert [probe.kind for probe in found.probes[:4]] == ["chat"] * 4
    server.whole("/v1/chat/completions", body)
    found, said = ask(server)
    if name == "no JSON":
        assert said.endswith("this is a web page, not an API: check --host and its port")
        return
    assert found is not None
    assert not found.lengths.measured
    assert all(probe.tokens >= 0 for probe in found.probes)


@pytest.mark.parametrize("status", [100, 204, 304, 400, 503, 999])
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/v1/chat/completions"])
def test_statuses_of_every_kind(server: Hostile, path: str, status: int) -> None:
    server.paths["/tokenize"] = lambda asked: [answer("{}", 404)]
    server.whole(path, f'{{"error": "\x1b[31mno {KEY}\u202e"}}', status=status)
    ask(server)


NAMES = {
    "escape sequences": "\x1b[31mm",
    "lines": "m\nn",
    "marks of direction": "m\u202en",
    "the key": f"m-{KEY}",
    "what was half a pair": "m\N{REPLACEMENT CHARACTER}",
    "most of the key": KEY[:20],
    "no end": "m" * 100_000,
    "nothing": "",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_model_whose_name_cannot_be_shown_is_not_taken(server: Hostile, name: str) -> None:
    server.whole("/v1/models", msgspec.json.encode({"data": [{"id": name}, {"id": "good"}]}))
    found, _ = ask(server, probe=False)
    assert found is not None
    assert found.model == "good"
    assert found.notes[0].startswith("no --model given: using good, the first of ")
    server.whole("/v1/models", msgspec.json.encode({"data": [{"id": name}]}))
    _, said = ask(server, probe=False)
    assert said.startswith("no listed model has a usable name")


def test_a_model_that_was_asked_for_must_be_one_that_can_be_shown(server: Hostile) -> None:
    _, said = ask(server, probe=False, model="a\x1b[31m")
    assert said.startswith("--model 'a\\x1b[31m' is not a valid name")


def test_the_name_of_a_server_is_shown_without_the_key_and_cut(server: Hostile) -> None:
    server.whole("/v1/models", b"{}", Server=f"nginx {KEY} \x9b31m" + "x" * 10_000)
    found, _ = ask(server, probe=False)
    assert found is not None
    assert found.server.startswith("nginx *** xxx")
    assert len(found.server) == 200


KEYS = st.sampled_from(
    [
        "data",
        "id",
        "max_model_len",
        "meta",
        "n_ctx",
        "count",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "choices",
        "finish_reason",
    ]
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(KEY)
)
BODIES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner), max_leaves=12
)


@examples(100)
@given(
    BODIES.map(json.dumps).map(str.encode) | st.binary(max_size=99),
    st.sampled_from([200, 404]),
    st.none() | st.just("m"),
)
def test_no_answer_raises_anything_but_the_line(
    body: bytes, status: int, model: str | None
) -> None:
    answered, settings = (
        FetchedResponse(status, "", body),
        Settings(host="http://server", model=model),
    )
    ask: Any = lambda *words, **more: answered  # noqa: E731
    with suppress(DiscoveryFailed):
        chosen, _ = module._choose(settings, answered, SECRETS)
        assert chosen is None or KEY not in chosen
    with suppress(DiscoveryFailed):
        counted = tokenizer_calibration._counter(ask, settings, "m")("text")
        probes = ProbeRequests(ask, settings, "m", key=False)
        for tokens in (counted, module._count_by_chat(probes, "text")):
            assert tokens is None or (type(tokens) is int and 0 < tokens < 1 << 53)
        found = tokenizer_calibration.calibrate_tokenizer(
            ask, settings, "m", None, lambda text: None
        )
        assert found.lengths.tokens_a_word > 0
    head = count_template_head_tokens(ask, settings, "m")
    assert head is None or head > 0  # the same answer twice
    with suppress(DiscoveryFailed):
        found = module._keep_length(
            ProbeRequests(ask, settings, "m", key=False), Discovery(model="m")
        )
        assert all(type(probe.tokens) is int and probe.tokens >= 0 for probe in found.probes)
    context = read_context_length(body, "m", lambda: None)
    assert context is None or (type(context.tokens) is int and 0 < context.tokens < 1 << 53)


# -- the meter -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MODES)
def test_a_page_of_figures_without_end_holds_nobody(
    server: Hostile, tmp_path: Path, name: str
) -> None:
    pieces, outcomes = ENDLESS[name]
    server.paths["/metrics"] = server.paths["/prometheus/metrics"] = lambda asked: pieces()
    notes: list[str] = []
    meter = MetricsPoller(server.url, {}, tmp_path, add_note=notes.append)
    meter.start()
    turns, until = 0, time.monotonic() + 0.7
    while time.monotonic() < until:
        gevent.sleep(0.005)
        turns += 1
    meter.close()
    assert (meter.history.by_name, turns > 9) == ({}, True)
    assert all(
        note.startswith("WARNING: the server's /metrics are no longer read: ") for note in notes
    )
    assert len(notes) == (outcomes == "too_large") or "|" in outcomes
    assert server.sent_bytes < 40 << 20


def test_a_page_that_grows_too_large_is_noted_once_and_asked_for_no_more(
    server: Hostile, tmp_path: Path
) -> None:
    page = b"vllm:num_requests_running 2\n"
    pages = iter([page, page, page + b"# " + b"x" * (5 << 20)])
    server.paths["/metrics"] = lambda asked: [answer(next(pages))]
    notes: list[str] = []
    meter = MetricsPoller(server.url, {}, tmp_path, add_note=notes.append)
    meter.start()
    with gevent.Timeout(10):
        while not notes:
            gevent.sleep(0.01)
    gevent.sleep(0.1)
    meter.close()
    samples = meter.history.by_name["server"]
    assert [sample.running for sample in samples] == [2.0, 2.0, None]
    assert samples[-1].failure == "too_large: the response has more than 4 MB"
    assert notes == [
        "WARNING: the server's /metrics are no longer read: the response has more than 4 MB"
    ]
    assert len(server.asked) == 3


@pytest.mark.serial
@pytest.mark.parametrize("line", [
    "vllm:num_requests_running{", "vllm:num_requests_running{a=\"", "vllm:" + "a" * 1_000,
    "vllm:a 1 ", "sglang:" * 9,
    "vllm:num_preemptions_total ", "\x1b[31m", "# HELP vllm:a " + "x" * 100,
], ids=range(8))  # fmt: skip
def test_four_megabytes_of_a_line_are_read_in_a_moment(line: str) -> None:
    for page in (line * ((4 << 20) // len(line)), (line + "\n") * ((4 << 20) // len(line))):
        watch = OwnTime()
        read_engine_samples([page], 0.0)
        assert watch.seconds < 1


NUMBER = st.sampled_from(
    [
        "1",
        "0",
        "-1",
        "1e308",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "1_0",
        "0x1",
        "",
        "9" * 400,
        "1e15",
        "\u0661",
    ]
)
NAME = st.sampled_from(["num_requests_running", "kv_cache_usage_perc", "num_preemptions_total",
    "prefix_cache_queries_total",
                        "prefix_cache_hits_total",
                        "time_to_first_token_seconds_sum", "request_queue_time_seconds_count", "x"])  # fmt: skip
LABELS = st.sampled_from(
    ["", '{a="b"}', '{a="\x1b[31m"}', "{", '{a="}"}', "{" + "x" * 100 + "}", " "]
)
LINES = st.builds("vllm:{}{} {}\n".format, NAME, LABELS, NUMBER) | st.text(max_size=20)


TEXTS = ("at", "engine", "source", "gpu", "failure")


@examples(200)
@given(st.lists(st.lists(LINES, max_size=8).map("".join), max_size=4))
def test_no_page_of_figures_raises_and_what_is_said_of_it_is_short(pages: list[str]) -> None:
    samples = [
        sample for at, page in enumerate(pages) for sample in read_engine_samples([page], float(at))
    ]
    for sample in samples:
        values = [
            getattr(sample, name) for name in EngineSample.__struct_fields__ if name not in TEXTS
        ]
        assert all(value is None or 0 <= value < 1e17 for value in values)
    for sentence in diagnose_server(summarise_engine_samples(samples, [(0.0, 10.0)]), 3):
        assert sentence.isprintable()
        assert len(sentence) < 500
