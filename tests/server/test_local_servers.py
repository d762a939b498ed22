"""Local servers: what answers at a port, with one query that carries no key."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.tiny_server import TinyServer, tiny_server

from locust_llm.server import local_servers
from locust_llm.server.local_servers import (
    LocalServer,
    describe_local_servers,
    find_local_servers,
    name_host_command,
    show_local_servers,
)

KEY = "sk-of-the-environment"


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as made:
        yield made


def list_models(*names: str, owner: str = "somebody") -> tuple[int, Any]:
    return 200, {"data": [{"id": name, "owned_by": owner} for name in names]}


def test_each_port_gets_one_query_without_a_key(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("LOCUST_LLM_HEADERS", f"Authorization: Bearer {KEY}")
    server.models = list_models("llama", owner="vllm")
    assert find_local_servers([server.server_port]) == [
        LocalServer(server.server_port, "vLLM", ("llama",))
    ]
    (asked,) = server.asked
    assert asked.path == "/v1/models"
    assert KEY not in str(asked)
    assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (list_models("a", "b", owner="sglang"), LocalServer(0, "SGLang", ("a", "b"))),
        (list_models("a", owner="llamacpp"), LocalServer(0, "llama.cpp", ("a",))),
        (
            list_models("a", owner="locust-llm-simulator"),
            LocalServer(0, "locust-llm-simulator", ("a",)),
        ),
        (list_models("a", owner="library"), LocalServer(0, "", ("a",))),
        (list_models("a\x1b[31m"), LocalServer(0, "", ("a",))),
        ((401, {"error": {"message": "no key"}}), LocalServer(0, needs_key=True)),
        ((401, "<html>log in</html>"), None),
        ((200, "<html>welcome</html>"), None),
        ((200, {"data": []}), None),
        ((404, {"error": "no route"}), None),
        ((200, {"data": [{"id": "x" * (1 << 19)}]}), None),
    ],
)
def test_an_answer_shows_the_server(
    server: TinyServer, answer: tuple[int, Any], found: LocalServer | None
) -> None:
    server.models = answer
    expected = [] if found is None else [found._replace(port=server.server_port)]
    assert find_local_servers([server.server_port]) == expected


def test_no_redirect_is_followed(server: TinyServer) -> None:
    with tiny_server() as other:
        server.models = 302, {}
        server.location = f"{other.url}/v1/models"
        assert find_local_servers([server.server_port]) == []
        assert (len(server.asked), len(other.asked)) == (1, 0)


def test_a_silent_port_hides_no_other(server: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "LOOK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = [silent.getsockname()[1], server.server_port]
        assert [one.port for one in find_local_servers(ports)] == [server.server_port]


def test_nobody_is_asked_where_no_person_reads(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_servers, "USUAL_PORTS", {server.server_port: "tiny"})
    show_local_servers("locust-llm check {host}")
    assert (server.asked, capsys.readouterr().err) == ([], "")
    monkeypatch.setattr(local_servers, "is_attended", lambda: True)
    show_local_servers("locust-llm check {host}")
    assert len(server.asked) == 1
    address = f"localhost:{server.server_port}"
    assert capsys.readouterr().err == (
        "On this machine answer:\n"
        f"  {address}  the usual port of tiny  model tiny and 1 more\n"
        "To test it:\n"
        f"  locust-llm check {address}\n"
    )


def test_what_a_person_is_shown() -> None:
    assert list(describe_local_servers([], "x")) == [
        "No LLM server answers at the usual ports of this machine: 8000 (vLLM), 8080 (llama.cpp), "
        "11434 (Ollama), 1234 (LM Studio), 30000 (SGLang), 4000 (LiteLLM)."
    ]
    found = [LocalServer(11434, models=("llama3",)), LocalServer(4000, "LiteLLM", needs_key=True)]
    assert list(describe_local_servers(found, "locust-llm quick {host}")) == [
        "On this machine answer:",
        "  localhost:11434  the usual port of Ollama  model llama3",
        "  localhost:4000  LiteLLM  requires a key",
        "To test one of them:",
        "  locust-llm quick localhost:11434",
        "  locust-llm quick localhost:4000",
    ]


@pytest.mark.parametrize(
    ("started", "command"),
    [
        ("locust-llm run", "locust-llm run --headless --host {host} -u 10 -t 60"),
        ("/usr/bin/locust", "locust-llm run --headless --host {host} -u 10 -t 60"),
        ("locust-llm verify", "locust-llm verify --host {host}"),
    ],
)
def test_the_command_is_the_one_that_was_started(started: str, command: str) -> None:
    assert name_host_command(started) == command
