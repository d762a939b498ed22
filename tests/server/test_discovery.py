"""Discovery: which model, which server, how long prompts are; and a clear line when there can be no
run."""

import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import pytest
from support.tiny_server import MODELS, TinyServer, tiny_server

from locust_llm.records.run_facts import CalibrationRequest
from locust_llm.server import discovery as module
from locust_llm.server.discovery import Discovery, DiscoveryFailed, discover_server
from locust_llm.server.http_get import PROBE_HEADER
from locust_llm.settings.run_options import Settings
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

CHAT = "/v1/chat/completions"
NO_LIST_AND_NO_NAME = (
    "the server does not list its models (HTTP {} for /v1/models): use --model NAME to set the "
    "model"
)
NO_LIST = "the server does not list its models (HTTP {} for /v1/models): --model was not checked"


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


def ask(server: TinyServer, headers: dict[str, str] | None = None, **settings: Any) -> Discovery:
    return discover_server(Settings(host=server.url, **{"probe": False, **settings}), headers or {})


def of_prompts(found: Discovery) -> tuple[CalibrationRequest, ...]:
    """Those probes that are about the length of prompts."""
    return tuple(probe for probe in found.probes if not probe.kind.startswith("length"))


# -- the model -------------------------------------------------------------------------------------


def test_without_a_model_the_first_is_taken_and_said(server: TinyServer) -> None:
    found = ask(server)
    assert (found.model, found.notes) == (
        "tiny",
        ("no --model given: using tiny, the first of tiny, other",),
    )
    server.models = (200, {"data": [{"id": "only"}]})
    assert ask(server) == Discovery(model="only", server="tiny")


def test_a_model_that_is_there_is_taken_without_a_word(server: TinyServer) -> None:
    assert ask(server, model="other") == Discovery(model="other", server="tiny")


def test_a_model_that_is_not_there_is_refused_with_those_that_are(server: TinyServer) -> None:
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, model="Other")
    line = (
        "--model: the server has no model 'Other'; it has: tiny, other; to send it anyway, use "
        "--no-model-check"
    )
    assert str(failed.value) == line


def test_of_a_mix_the_first_is_asked_and_all_must_be_there(server: TinyServer) -> None:
    found = ask(server, model_mix="other=2, tiny=1")
    assert (found.model, found.models, found.notes) == ("other", "other=2,tiny=1", ())
    missing = "the server has no model 'a:1' and no 'org/b'; it has: tiny, other"
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, model_mix="a:1=1,tiny=1,org/b=1")
    assert str(failed.value) == f"--model-mix: {missing}; to send it anyway, use --no-model-check"
    found = ask(server, model_mix="a:1=1,tiny=1,org/b=1", model_check=False)
    assert found.notes == (f"{missing}: a:1, org/b were sent unchanged (--no-model-check)",)
    server.models = (
        200,
        {"data": [{"id": "long", "max_model_len": 9_000}, {"id": "short", "max_model_len": 4_000}]},
    )
    assert ask(server, model_mix="long=1,short=1").context == 4_000  # the shortest


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_says_how_to_give_one(server: TinyServer, status: int) -> None:
    server.models = (status, {"error": {}})
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server)
    expected = (
        f"{server.url} requires an API key (HTTP {status}): set OPENAI_API_KEY or use "
        "--api-key-file ("
    )
    assert str(failed.value).startswith(expected)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {}}),
        (500, ""),
        (307, ""),
        (200, "<html>"),
        (200, []),
        (200, {"data": []}),
        (200, {"data": ["a"]}),
        (404, MODELS),
    ],
)
@pytest.mark.parametrize("model", ["mine", None])
def test_a_server_without_that_list_is_accepted_with_a_note(
    server: TinyServer, status: int, body: object, model: str | None
) -> None:
    server.models = (status, body)
    note = NO_LIST if model else NO_LIST_AND_NO_NAME
    assert ask(server, model=model) == Discovery(
        model=model, server="tiny", notes=(note.format(status),)
    )


def test_the_simulator_is_known_by_its_name(server: TinyServer) -> None:
    server.name = "locust-llm-simulator/1"
    found = ask(server, model="tiny")
    assert (found.server, found.simulated) == ("locust-llm-simulator/1", True)


def test_the_simulator_is_known_behind_a_proxy_that_replaces_its_name(server: TinyServer) -> None:
    """The owner of the models comes through."""
    server.name = "nginx/1.24.0"
    card = {"id": "tiny", "owned_by": "locust-llm-simulator"}
    server.models = (200, {"object": "list", "data": [card]})
    found = ask(server, model="tiny")
    assert (found.server, found.simulated) == ("locust-llm-simulator", True)
    assert found.gateway == "nginx/1.24.0"


def test_every_request_carries_the_headers_and_the_mark_of_a_probe(server: TinyServer) -> None:
    ask(server, {"Authorization": "Bearer key", "X-Team": "a"}, probe=True)
    assert server.paths() == ["/v1/models", CHAT, CHAT, *["/tokenize"] * 2, *[CHAT] * (3 + 8 + 4)]
    for asked in server.asked:
        assert asked.headers[PROBE_HEADER.lower()] == "1"
        assert (asked.headers["authorization"], asked.headers["x-team"]) == ("Bearer key", "a")


def test_headers_follow_no_redirect(server: TinyServer) -> None:
    """It may lead to somebody else's server, and the headers may hold a key."""
    with tiny_server() as other:
        server.models, server.location = (307, {}), other.url + "/v1/models"
        assert ask(server, {"X-Key": "secret"}, model="mine").notes == (NO_LIST.format(307),)
        assert other.asked == []


def test_no_proxy_of_the_environment_stands_between(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load goes straight to the host, so the survey does too."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert ask(server, model="tiny").model == "tiny"


# -- reaching it -----------------------------------------------------------------------------------


class Time:
    """A clock that only sleep moves; ``then`` happens in the sleep of that number."""

    def __init__(self, at: int = 0, then: Callable[[], None] = lambda: None) -> None:
        self.now, self.sleeps, self._at, self._then = 50.0, 0, at, then

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        if self.sleeps == self._at:
            self._then()


def wait_for(server: TinyServer, time: Time, seconds: float) -> Discovery:
    settings = Settings(
        host=server.url, model="tiny", probe=False, wait_for_model_timeout_s=seconds
    )
    return discover_server(settings, {}, clock=time.clock, sleep=time.sleep)


def test_it_waits_for_a_server_that_is_not_up_yet() -> None:
    with tiny_server(started=False) as server:
        time = Time(3, server.start)
        assert wait_for(server, time, 60).model == "tiny"
        assert time.sleeps == 3


def test_it_waits_for_a_model_that_is_still_loaded(server: TinyServer) -> None:
    server.models = (503, {"error": {"message": "loading"}})
    time = Time(2, lambda: setattr(server, "models", (200, {"data": [{"id": "tiny"}]})))
    assert wait_for(server, time, 60) == Discovery(model="tiny", server="tiny")
    assert time.sleeps == 2


def test_it_gives_up_when_the_time_is_over() -> None:
    with tiny_server(started=False) as server:
        time = Time()
        with pytest.raises(DiscoveryFailed) as failed:
            wait_for(server, time, 4.5)
        assert time.sleeps == 5
        with pytest.raises(DiscoveryFailed):
            wait_for(server, time, 0)
        assert time.sleeps == 5
        line = str(failed.value)
        assert line.startswith(f"cannot reach {server.url}: ")
        assert line.endswith(
            "Connection refused. Is the server running? (to wait for it, use "
            "--wait-for-model-timeout)"
        )


def test_a_tls_server_that_is_none(server: TinyServer) -> None:
    with pytest.raises(
        DiscoveryFailed,
        match=r"^TLS with https://127.0.0.1:\d+ failed: the server speaks plain HTTP: use http://",
    ) as failed:
        discover_server(Settings(host=server.url.replace("http:", "https:")), {})
    assert "object at 0x" not in str(failed.value)


def test_a_certificate_that_nobody_trusts_is_refused_unless_that_was_given_up(
    certificate: Path,
) -> None:
    with tiny_server(started=False) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.start()
        server.socket = context.wrap_socket(server.socket, server_side=True)
        host = server.url.replace("http:", "https:")
        with pytest.raises(
            DiscoveryFailed, match=r"^TLS with .* failed: .*certificate verify failed"
        ):
            discover_server(Settings(host=host, probe=False), {})
        assert (
            discover_server(Settings(host=host, probe=False), {}, verify=str(certificate)).notes[1:]
            == ()
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trusting = discover_server(
                Settings(host=host, probe=False, insecure=True), {}, verify=str(certificate)
            )
        assert trusting.notes[-1].startswith(
            "WARNING: the server's TLS certificate was not verified"
        )
    with tiny_server() as plain:
        assert not any("TLS" in note for note in ask(plain, insecure=True).notes)


def test_a_key_that_the_server_quotes_is_not_shown(server: TinyServer) -> None:
    key = "sk-abcdef0123456789"
    server.chat = lambda asked: (
        401,
        {"error": {"message": f"unknown: {asked.headers['authorization']}"}},
    )
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, {"Authorization": f"Bearer {key}"}, probe=True)
    assert key not in str(failed.value)
    assert "unknown: Bearer ***" in str(failed.value)
    assert failed.value.__suppress_context__  # nor is the error that it stands for


@pytest.mark.parametrize(
    "host", ["ftp://localhost", "http://localhost:99999", "http://", "http://a b"]
)
def test_what_is_no_url(host: str) -> None:
    with pytest.raises(DiscoveryFailed, match=f"^--host '{host}' is not a valid URL: "):
        discover_server(Settings(host=host), {})


# -- lengths ---------------------------------------------------------------------------------------


def words_and_a_half(text: str) -> int:
    """Two words are three tokens, and the template adds 20."""
    return 20 + round(1.5 * len(text.split()))


def test_lengths_from_tokenize_cost_no_prefill(server: TinyServer) -> None:
    server.tokenize = words_and_a_half
    found = ask(server, probe=True, model="tiny")
    outputs = ["/v1/chat/completions"] * 4  # what keeps outputs at their length: nothing does here
    # one number, a plain text, which it does not take; eight numbers and eight stretches of the
    # corpus
    assert server.paths() == ["/v1/models", CHAT, CHAT, *["/tokenize"] * (2 + 16), *outputs]
    assert server.asked[1].body["model"] == "tiny"
    assert of_prompts(found) == (
        *[CalibrationRequest(kind="tokenize", words=1, tokens=22)] * 8,
        *[CalibrationRequest(kind="tokenize", words=1_000, tokens=1_520)] * 8,
    )
    assert found.lengths.measured
    assert found.lengths.tokens_a_word == pytest.approx(1_498 / 999)
    assert found.lengths.template_tokens == pytest.approx(22 - 1_498 / 999)


def test_lengths_from_the_usage_of_a_chat_of_one_token(server: TinyServer) -> None:
    server.count = words_and_a_half
    found = ask(server, probe=True, max_tokens_field="max_completion_tokens")
    assert server.paths() == ["/v1/models", CHAT, CHAT, *["/tokenize"] * 2, *[CHAT] * (3 + 8 + 4)]
    assert [probe.kind for probe in of_prompts(found)] == ["chat"] * 11
    body = server.asked[5].body
    assert (body["max_completion_tokens"], body.get("stream", False)) == (1, False)
    assert found.lengths.tokens_a_word == pytest.approx(1.5, rel=0.001)


def test_probes_of_a_plain_completion_have_prompts_and_no_messages(server: TinyServer) -> None:
    def complete(asked: Any) -> tuple[int, Any]:
        choice = {"text": "x", "finish_reason": "length"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 48}}

    server.chat = complete
    # at the usual path, where the tiny server answers
    ask(server, probe=True, endpoint_type="completions")
    bodies = [asked.body for asked in server.asked if asked.path != "/v1/models"]
    assert len(bodies) > 1
    assert all("messages" not in body and isinstance(body["prompt"], str) for body in bodies)


def test_a_server_that_counts_nothing_leaves_an_estimate(server: TinyServer) -> None:
    server.count = None
    found = ask(server, probe=True, model="tiny")
    assert (found.lengths, of_prompts(found)) == (PromptLengthModel(), ())
    assert found.notes == (
        "WARNING: the server does not report the tokens of a prompt: prompt lengths are estimates",
    )


def test_counts_that_make_no_sense_leave_an_estimate(server: TinyServer) -> None:
    server.count = lambda text: 7
    found = ask(server, probe=True, model="tiny")
    assert (found.lengths, len(of_prompts(found))) == (PromptLengthModel(), 11)
    assert found.notes[0].startswith(
        "WARNING: prompt lengths could not be measured: the server counted 7 tokens for prompts "
        "of 1 and 7 for prompts of 1,000 words; use --tokenizer FOLDER for exact prompts"
    )


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, "to start without this request, use --no-probe"),
        (404, "the server has no /v1/chat/completions: check --endpoint and --endpoint-type"),
    ],
)
def test_a_server_that_refuses_the_first_request_would_refuse_all(
    server: TinyServer, status: int, hint: str
) -> None:
    server.chat_status = status
    with pytest.raises(DiscoveryFailed) as failed:
        ask(server, probe=True)
    assert str(failed.value) == (
        f"the first request to /v1/chat/completions failed: HTTP {status}, no room for this "
        f"prompt; {hint}"
    )


def test_without_probes_only_the_models_are_asked_for(server: TinyServer) -> None:
    assert ask(server, probe=False).lengths == PromptLengthModel()
    assert server.paths() == ["/v1/models"]


def test_probes_have_the_tools_of_the_run(server: TinyServer, tmp_path: Path) -> None:
    """A server that takes no tools refuses them before the load."""
    (tmp_path / "tools.json").write_text('[{"name": "f"}]')
    ask(server, probe=True, tools=str(tmp_path / "tools.json"))
    assert [asked.body.get("tools") for asked in server.asked][-1] == [{"name": "f"}]


def test_without_the_package_a_run_notes_that_nothing_is_held_against_a_schema(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_jsonschema", lambda: False)
    wants = {"extra_inputs": '{"response_format": {"type": "json_object"}}'}
    (note,) = ask(server, model="tiny", **wants).notes
    assert note.endswith("the package jsonschema is missing: pip install 'locust-llm[schema]'")
    assert not ask(server, model="tiny").notes


TOKENIZERS: dict[str, Callable[[str], int]] = {
    "bytes": lambda text: 20 + len(text),
    "four letters": lambda text: 40 + len(text) // 4,
    "pieces of words": lambda text: 9 + sum(-(-len(word) // 6) for word in text.split()),
    "capitals and digits cost": lambda text: (
        30 + len(text) // 5 + sum(not char.islower() for char in text) // 3
    ),
}


@pytest.mark.parametrize("tokens", [100.0, 550.0, 2_000.0, 16_000.0])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_prompts_have_the_asked_mean_on_any_tokenizer(
    server: TinyServer, tokenizer: str, tokens: float
) -> None:
    server.count = count = TOKENIZERS[tokenizer]
    found = ask(server, probe=True, synthetic_input_tokens_mean=tokens)
    prompts = Prompts(
        found.lengths, input_tokens=(tokens, tokens / 10), output_tokens=(1, 0), seed=3
    )
    delivered = [count(prompts.draw().text) for _ in range(200 if tokens < 1000 else 50)]
    assert mean(delivered) == pytest.approx(tokens, rel=0.05)


def test_what_was_learnt_survives_the_way_to_a_worker(server: TinyServer) -> None:
    server.tokenize = words_and_a_half
    found = ask(server, probe=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Discovery) == found


# -- outputs of the asked length -------------------------------------------------------------------


class Talker:
    """Answers end by themselves after 3 tokens unless these fields are there; fields it does not
    know it refuses, or not."""

    def __init__(self, keeps: set[str], knows: set[str], polite: bool) -> None:
        self.keeps, self.knows, self.polite = keeps, knows, polite

    def __call__(self, request: Any) -> tuple[int, Any]:
        strange = {"ignore_eos", "min_tokens"} & set(request.body) - self.knows
        if strange and self.polite:
            return 400, {"error": {"message": f"unknown field {strange}"}}
        asked = request.body["max_tokens"]
        whole = not self.keeps - set(request.body)
        usage = {"prompt_tokens": 20, "completion_tokens": asked if whole else min(asked, 3)}
        reason = "length" if whole or asked <= 3 else "stop"
        message = {"role": "assistant", "content": "x"}
        return 200, {
            "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        }


@pytest.mark.parametrize(
    ("talker", "way"),
    [
        (Talker(set(), set(), True), ()),
        # this answer was long by itself; the next may not be
        (Talker(set(), {"ignore_eos"}, True), ("ignore_eos",)),
        (Talker({"ignore_eos"}, {"ignore_eos", "min_tokens"}, True), ("ignore_eos",)),
        (Talker({"min_tokens"}, {"min_tokens"}, True), ("min_tokens",)),
        (
            Talker({"ignore_eos", "min_tokens"}, {"ignore_eos", "min_tokens"}, False),
            ("ignore_eos", "min_tokens"),
        ),
        (Talker({"magic"}, set(), True), ()),
        (Talker({"magic"}, set(), False), ()),
    ],
)
def test_what_keeps_an_output_at_its_length(
    server: TinyServer, talker: Talker, way: tuple[str, ...]
) -> None:
    server.chat = talker
    assert ask(server, probe=True).length_way == way
    if talker.polite and "ignore_eos" not in talker.knows:
        # as each request of the load would
        with pytest.raises(DiscoveryFailed, match="HTTP 400, unknown field"):
            ask(server, probe=True, extra_inputs="ignore_eos:false")
    else:
        assert ask(server, probe=True, extra_inputs="ignore_eos:false").length_way == ()


def test_embeddings_are_asked_once_and_have_no_length_to_keep(server: TinyServer) -> None:
    def embed(asked: Any) -> tuple[int, Any]:
        return 200, {
            "data": [{"embedding": [0.5]}],
            "usage": {"prompt_tokens": len(asked.body["input"][0].split())},
        }

    server.chat = embed
    found = ask(server, probe=True, endpoint_type="embeddings", streaming=False)
    bodies = [asked.body for asked in server.asked if asked.path == "/v1/chat/completions"]
    assert all(set(body) == {"model", "input"} for body in bodies)
    assert (found.length_way, {probe.kind for probe in found.probes}) == ((), {"chat"})
    server.chat = lambda asked: (404, {"detail": "Not Found"})
    with pytest.raises(
        DiscoveryFailed, match=r"the server has no .*: check --endpoint and --endpoint-type"
    ):
        ask(server, probe=True, endpoint_type="embeddings", streaming=False)
