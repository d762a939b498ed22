"""What a replay sends and finds: the texts of every protocol, session codes of others, and the faults
that the run's own checks find, in the package and in the script."""

import ast
import json
import socketserver
import sys
import threading
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.captured_answers import CAPTURES, parse_capture
from support.checked_answers import PLANTED_CASES, TOKENS, received_answer
from support.direct_simulator import PATHS, DirectSimulator

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.received_answer import AnswerRequested, EventReader
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.client.proxy_choice import find_proxy, resolve_proxy
from locust_llm.lab.reproduce import replay_program, replayed_integrity
from locust_llm.lab.reproduce.replay_program import (
    HttpProxy,
    ReplayedAnswer,
    ReplayedRequest,
    Server,
    find_environment_proxy,
    find_leak,
    freshen,
    join_event_texts,
    join_words,
    make_headers,
)
from locust_llm.lab.reproduce.reproduction_script import write_script


def make_reproduction(**fields: Any) -> dict[str, Any]:
    return {
        "title": 'A "title" \\ with all.',
        "host": "http://localhost:1",
        "path": "/v1/chat/completions",
        "headers": {"Authorization": "Bearer {key}"},
        "fresh": False,
        "fault": "foreign_marker",
        "requests": [{"at_s": 0.0, "body": {"messages": [{"content": 'it\'s a \\ "quote"\n'}]}}],
        **fields,
    }


def load_script(fault: str) -> types.ModuleType:
    """The script of such a fault, as Python reads it."""
    module = types.ModuleType(f"reproduce_{fault}")
    sys.modules[module.__name__] = module  # as dataclasses need it
    text = write_script(make_reproduction(fault=fault))
    exec(compile(text, "reproduce.py", "exec"), module.__dict__)
    return module


SCRIPT = load_script("wrong_usage")


def answer_of(sent: Any) -> ReplayedAnswer:
    answer = ReplayedAnswer()
    answer.status = 200
    answer.is_stream = bool(sent.body.get("stream"))
    answer.data = sent.content
    return answer


def request_of(body: dict[str, Any]) -> ReplayedRequest:
    return ReplayedRequest({"at_s": 0.0, "body": body})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", [*PATHS])
def test_the_text_of_an_answer_in_every_protocol(kind: str, stream: bool) -> None:
    sent = DirectSimulator().ask("Write about rivers.", kind, stream=stream, temperature=0)
    text = sent.parse().deltas
    expected = "".join(delta.content for delta in text if isinstance(delta.content, str))
    assert expected
    assert join_event_texts(answer_of(sent).list_events()).strip() == expected.strip()


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.http")), ids=lambda path: path.stem)
def test_the_texts_of_real_servers_are_those_of_the_client(path: Path) -> None:
    parsed = parse_capture(path)
    if parsed is None:
        return
    completion, reader = parsed
    received = received_answer(completion, reader)
    answer = ReplayedAnswer()
    answer.data = path.read_bytes().partition(b"\r\n\r\n")[2]
    answer.is_stream = not answer.data.lstrip().startswith(b"{")
    found = replayed_integrity.read_received(answer.list_events())
    assert found.text.split() == received.text.split()
    # several choices of llama.cpp and cached prompts of Messages are not added up: no check needs it
    if received.choices == 1 and "messages" not in path.name:
        assert found.completion_tokens == received.completion_tokens
        assert found.prompt_tokens == received.prompt_tokens
    assert "".join(found.tool_arguments) == "".join(received.tool_arguments)


@pytest.mark.parametrize("case", PLANTED_CASES, ids=lambda case: f"{case.quirk} {case.setting}")
def test_a_replay_finds_what_the_run_finds(case: Any) -> None:
    """In the package and in the script. A leak has a test of its own."""
    if case.name in ("foreign_marker", "duplicate_id"):
        return
    simulator = DirectSimulator(f"{case.quirk}=0.5", seed=1)
    setting = dict(case.setting)
    kind = setting.pop("kind", "chat")
    in_run, in_package, in_script = [], [], []
    models = ModelNames()
    find = replayed_integrity.make_fault_finder(case.name)
    find_in_script = SCRIPT.make_fault_finder(case.name)
    for number in range(40):
        body = {"max_tokens": TOKENS, "model": "small", **setting}
        sent = simulator.ask(f"Write about {number} rivers.", kind, **body)
        reader = EventReader()
        received = received_answer(sent.parse(reader.add), reader)
        asked = AnswerRequested(model="small", max_tokens=TOKENS)
        in_run.append(case.name in find_answer_faults(received, asked, models))
        own = request_of(sent.body)
        in_package.append(bool(find(own, answer_of(sent), [own])))
        in_script.append(bool(find_in_script(own, answer_of(sent), [own])))
    assert in_package == in_run
    assert in_script == in_run
    assert any(in_run) == bool(case.share)


def make_prompt(words: str, code: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{words} Session code: {code}."}]}


def write_answer(text: str, **delta: str) -> ReplayedAnswer:
    """A stream that brings the text word by word."""
    answer = ReplayedAnswer()
    answer.is_stream = True
    answer.status = 200
    for word in text.split(" "):
        event = {"choices": [{"index": 0, "delta": {"content": f"{word} ", **delta}}]}
        answer.data += b"data: " + json.dumps(event).encode() + b"\n\n"
    answer.data += b"data: [DONE]\n\n"
    return answer


def test_a_leak_is_the_code_of_another_request() -> None:
    key = MarkerKey(b"a key of sixteen")
    mine, other, third = key.make(), key.make(), key.make()
    own = request_of(make_prompt("Mine.", mine.text))
    requests = [own, request_of(make_prompt("Other.", other.text))]
    assert find_leak(own, write_answer(f"Sure: {other.text.upper()}!"), requests).endswith(
        other.text
    )
    assert find_leak(own, write_answer(f"**{other.text.replace(' ', '**, ')}**"), requests)
    assert find_leak(own, write_answer(f"{mine.text}. Rivers"), requests) == ""
    assert find_leak(own, write_answer("Rivers flow"), requests) == ""
    # nobody of this try has it, or the request has it too
    assert find_leak(own, write_answer(third.text), requests) == ""
    quoting = request_of(make_prompt(f"Repeat {other.text}.", mine.text))
    assert find_leak(quoting, write_answer(other.text), requests) == ""


def test_the_search_for_codes_is_as_exact_as_that_of_the_run() -> None:
    key = MarkerKey(b"a key of sixteen")
    markers = [key.make() for _ in range(50)]
    requests = [request_of(make_prompt("x", marker.text)) for marker in markers]
    for number, marker in enumerate(markers):
        other = markers[number - 1]
        cut = " ".join(marker.text.split()[:5])
        for text in (f"a {marker.text} b", f"{cut} {other.text}", cut, f"{marker.text}s"):
            foreign = [found for found in key.find(text) if found != other.number]
            found = find_leak(requests[number - 1], write_answer(text), requests)
            assert bool(found) == bool(foreign), text


def test_words_of_json_are_joined_over_its_escapes() -> None:
    assert join_words('{"a": "one\\ntwo \\u00e9 THREE"}') == " a one two three "


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ({"messages": [{"content": "a"}, {"content": "b"}]}, {"messages": [{"content": "x a"}, {"content": "b"}]}),
        ({"messages": [{"content": [{"text": "a"}]}]}, {"messages": [{"content": [{"text": "x a"}]}]}),
        ({"prompt": "a", "n": 1}, {"prompt": "x a", "n": 1}),
        ({"prompt": [1, 2]}, {"prompt": [1, 2]}),
        ({"input": "a"}, {"input": "x a"}),
        ({"instructions": "i", "input": "a"}, {"instructions": "x i", "input": "a"}),
        ({"system": "s", "messages": [{"content": "a"}]}, {"system": "x s", "messages": [{"content": "a"}]}),
        ({"model": "m"}, {"model": "m"}),
    ],
)  # fmt: skip
def test_a_new_word_begins_each_prompt(body: dict[str, Any], changed: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert freshen(body, "x") == changed
    assert json.dumps(body) == before


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    template = {"Authorization": "Bearer {key}", "anthropic-version": "1"}
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert make_headers(template, ["X-A: b"]) == {"anthropic-version": "1", "X-A": "b"}
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert make_headers(template, [])["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("host", "path", "asked"),
    [
        ("localhost:1", "/v1/chat/completions", "/v1/chat/completions"),
        ("http://a:b@localhost:1/v1/", "/v1/responses", "/v1/responses"),
        (
            "http://localhost:1/team?api-version=2",
            "/v1/messages",
            "/team/v1/messages?api-version=2",
        ),
        ("http://localhost:1?a=1", "/v1/completions?b=2", "/v1/completions?b=2&a=1"),
        ("http://localhost:1?b=3&a=1&%62=4", "/v1/completions?b=2", "/v1/completions?b=2&a=1"),
    ],
)
def test_path_and_query_of_the_address_stay(host: str, path: str, asked: str) -> None:
    server = Server(host, path, {})
    assert (server.netloc, server.path, server.tls) == ("localhost:1", asked, None)


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy that answers in the server's place."""

    heads: ClassVar[list[list[bytes]]] = []

    def handle(self) -> None:
        for answer in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"):
            self.heads.append(list(iter(self.rfile.readline, b"\r\n")))
            self.wfile.write(answer)


@pytest.mark.parametrize(
    ("host", "tunnel"),
    [
        ("server.test", b"server.test:80"),
        ("server.test:8000", b"server.test:8000"),
        ("[2001:db8::1]", b"[2001:db8::1]:80"),
        ("[2001:db8::1]:8000", b"[2001:db8::1]:8000"),
    ],
)
def test_requests_go_through_the_proxy(host: str, tunnel: bytes) -> None:
    """The tunnel leads to the server, and only the proxy gets its login."""
    Tunnel.heads.clear()
    with socketserver.TCPServer(("127.0.0.1", 0), Tunnel) as proxy:
        threading.Thread(target=proxy.handle_request, daemon=True).start()
        hop = HttpProxy("127.0.0.1", proxy.server_address[1], "a:b")
        server = Server(f"{host}/team", "/v1/responses", {}, proxy=hop)
        connection = server.connect(5)
        connection.request("GET", "/team/v1/responses", headers=server.headers)
        assert connection.getresponse().status == 204
        connection.close()
    (connect, *of_proxy), (asked, *of_server) = Tunnel.heads
    assert connect.startswith(b"CONNECT " + tunnel + b" HTTP/1.")
    assert b"Proxy-Authorization: Basic YTpi\r\n" in of_proxy
    assert asked == b"GET /team/v1/responses HTTP/1.1\r\n"
    assert f"Host: {host}\r\n".encode() in of_server
    assert not [line for line in of_server if b"Basic" in line]


@pytest.mark.parametrize(
    ("variables", "address", "found"),
    [
        ({}, "http://far.test:1", None),
        ({"http_proxy": "http://p.test:3128"}, "far.test:1", HttpProxy("p.test", 3128)),
        ({"http_proxy": "http://p.test:3128"}, "https://far.test", None),
        ({"https_proxy": "http://p.test"}, "https://far.test", HttpProxy("p.test", 80)),
        ({"all_proxy": "p.test:2"}, "http://far.test", HttpProxy("p.test", 2)),
        ({"http_proxy": "http://a:b%40@p.test:2"}, "far.test", HttpProxy("p.test", 2, "a:b@")),
        ({"http_proxy": "http://p.test", "no_proxy": "far.test"}, "http://far.test:1", None),
        (
            {"http_proxy": "http://p.test", "no_proxy": "a.test, 10.0.0.0/8"},
            "http://10.9.8.7:1",
            None,
        ),
        (
            {"http_proxy": "http://p.test", "no_proxy": "10.0.0.0/8"},
            "http://11.9.8.7:1",
            HttpProxy("p.test", 80),
        ),
        ({"http_proxy": "http://p.test"}, "http://[2001:db8::1]:1", HttpProxy("p.test", 80)),
        ({"http_proxy": "http://p.test"}, "http://127.0.0.1:1", None),
        ({"http_proxy": "http://p.test"}, "localhost:1", None),
    ],
)
def test_a_proxy_is_chosen_as_in_a_run(
    variables: dict[str, str], address: str, found: HttpProxy | None, monkeypatch: Any
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_environment_proxy(address) == found
    find_proxy.cache_clear()
    own = resolve_proxy(address if "://" in address else f"http://{address}")
    assert (own and (own.host, own.port, own.login)) == found
    find_proxy.cache_clear()


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "https://proxy:443", "http://"])
def test_a_proxy_that_the_run_refuses_ends_the_script(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(SystemExit, match="only http://HOST is supported"):
        find_environment_proxy("http://server:8000")


@pytest.mark.parametrize("fault", ["foreign_marker", "lost_delta"])
def test_the_script_imports_the_standard_library_alone(fault: str) -> None:
    text = write_script(make_reproduction(fault=fault))
    tree = ast.parse(text, feature_version=(3, 10))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            imported.add((node.module or "").partition(".")[0])
    assert imported - {"__future__"} <= sys.stdlib_module_names
    module = load_script(fault)
    assert module.REPRODUCTION["requests"] == make_reproduction()["requests"]
    assert (fault == "lost_delta") == hasattr(module, "find_answer_faults")


def test_the_program_has_the_text_of_the_files() -> None:
    text = write_script(make_reproduction())
    assert "class Try:" in text
    assert Path(replay_program.__file__).read_text("utf-8").count("def ") == text.count("def ")
