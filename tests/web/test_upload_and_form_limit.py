"""Bodies: what is too long is refused in one line, before it fills the memory, and never holds the
loop."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import gevent
import pytest
from gevent import socket
from gevent.pywsgi import WSGIServer
from support.loop_watch import HELD_S, loop_watched
from support.web_pages import Page

from locust_llm.web import upload_and_form_limit
from locust_llm.web.upload_and_form_limit import MAX_FORM_BYTES, limit_bodies

REFUSED: Final = "413: the body of a request here may have at most 256 kB\n"


@pytest.fixture
def got() -> list[Any]:
    """The bodies that reach the application."""
    return []


@pytest.fixture
def port(got: list[Any]) -> Iterator[int]:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        size = 0
        while block := environ["wsgi.input"].read(1 << 16):
            size += len(block)
        got.append((environ["PATH_INFO"], size, environ.get("CONTENT_LENGTH")))
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = WSGIServer(
        ("127.0.0.1", 0), limit_bodies(app, lambda path: path == "/up", 1 << 20), log=None
    )
    server.start()
    yield server.server_port
    server.stop()


def asked(port: int, head: str, pieces: Iterable[bytes], path: str = "/") -> str:
    """The answer, to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as line:
        line.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        try:
            for piece in pieces:
                line.sendall(piece)
            line.shutdown(1)
        except OSError:
            pass  # it has been refused
        answer = b""
        while block := line.recv(1 << 16):
            answer += block
    return answer.decode()


def chunks(size: int, count: int, extension: bytes = b"") -> Iterator[bytes]:
    for _ in range(count):
        yield b"%x%s\r\n%s\r\n" % (size, extension, b"x" * size)
    yield b"0\r\n\r\n"


def test_a_body_within_the_limit_comes_whole_also_in_chunks(port: int, got: list[Any]) -> None:
    assert asked(port, f"Content-Length: {MAX_FORM_BYTES}", [b"x" * MAX_FORM_BYTES]).endswith("ok")
    assert asked(port, "Transfer-Encoding: chunked", chunks(1000, 200)).endswith("ok")
    assert asked(port, "X: y", []).endswith("ok")
    assert asked(port, "Transfer-Encoding: chunked", chunks(1 << 16, 16), "/up").endswith("ok")
    assert got == [
        ("/", 262144, "262144"),
        ("/", 200000, "200000"),
        ("/", 0, None),
        ("/up", 1 << 20, None),
    ]


@pytest.mark.parametrize(
    ("head", "pieces", "path", "line"),
    [
        (f"Content-Length: {MAX_FORM_BYTES + 1}", [b"x" * (MAX_FORM_BYTES + 1)], "/", REFUSED),
        ("Content-Length: 99999999999999", [b"x" * 9], "/", REFUSED),
        ("Transfer-Encoding: chunked", [*chunks(1 << 16, 5)], "/", REFUSED),
        ("Transfer-Encoding: chunked", [*chunks(1, MAX_FORM_BYTES + 1)], "/", REFUSED),
        (f"Content-Length: {(1 << 20) + 1}", [b"x" * 9], "/up", REFUSED.replace("256 kB", "1 MB")),
        ("Content-Length: 100", [b"x" * 9], "/", "400: the body of the request is incomplete\n"),
    ],
)
def test_a_longer_one_is_refused_in_a_line(
    head: str, pieces: list[bytes], path: str, line: str, port: int, got: list[Any]
) -> None:
    answer = asked(port, head, pieces, path)
    assert (answer.startswith(f"HTTP/1.1 {line[:3]} "), answer.endswith(f"\r\n\r\n{line}")) == (
        True,
        True,
    ), answer
    assert "Connection: close" in answer
    assert got == []


@pytest.mark.parametrize("path", ["/", "/up"])
@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: +99999999",
        "Content-Length: 99_999_999",
        "Content-Length: 9,99999999",
        "Content-Length: ٩٩٩٩٩٩٩٩",
        "Content-Length: 9" + 300 * "9",
        "Transfer-Encoding: gzip, chunked\r\nContent-Length: 99999999",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 9",
    ],
)
def test_a_length_that_only_some_programs_understand_is_none(
    head: str, path: str, port: int, got: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gevent's server takes what Python's ``int`` does, and reads so far."""
    monkeypatch.setattr(upload_and_form_limit, "LINGER_S", 0.1)
    answer = asked(port, head, [b"x" * 9])
    assert answer.startswith("HTTP/1.1 400 ")
    assert got == []


def test_a_long_body_fills_no_memory_and_its_sender_sees_the_answer(port: int) -> None:
    tracemalloc.start()
    answer = asked(port, f"Content-Length: {100 << 20}", (b"x" * (1 << 16) for _ in range(1600)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.endswith(REFUSED)
    assert peak < 3 << 20


@pytest.mark.parametrize(
    "pieces",
    [[*chunks(1, 200_000)], [*chunks(1, 2000, b";" + b"e" * 8000)], [b"x" * (64 << 20)]],
    ids=["bytes", "extensions", "long"],
)
def test_no_body_holds_the_loop(pieces: list[bytes], port: int) -> None:
    """What arrives is there at once: the client is a thread of its own."""
    head = "Transfer-Encoding: chunked" if len(pieces) > 1 else f"Content-Length: {len(pieces[0])}"

    def native() -> None:
        import socket as plain  # not patched: gevent is not monkey-patched here

        with plain.create_connection(("127.0.0.1", port)) as line:
            line.sendall(f"POST / HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
            try:
                line.sendall(b"".join(pieces))
                line.recv(1 << 16)
            except OSError:
                pass

    with loop_watched() as held:
        gevent.get_hub().threadpool.spawn(native).get()
    assert max(held) < HELD_S  # 200,000 chunks of a byte would hold gevent's server for seconds


def test_no_number_of_requests_in_a_row_holds_the_loop(port: int) -> None:
    with loop_watched() as held, socket.create_connection(("127.0.0.1", port), timeout=120) as line:
        sender = gevent.spawn(line.sendall, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000)
        answers = 0
        while answers < 5_000:
            answers += line.recv(1 << 16).count(b"HTTP/1.1 200 OK")
        sender.join()
    assert max(held) < HELD_S


def test_the_rest_is_read_for_a_limited_time_only(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_and_form_limit, "LINGER_S", 0.2)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * (1 << 16)
            gevent.sleep(0.01)

    with gevent.Timeout(10):
        asked(port, "Content-Length: 99999999999999", endless())


# -- the pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/swarm", "/user", "/stop", "/stats/reset", "/llm/gate", "/llm/live", "/", "/none"]
)
def test_no_page_takes_a_longer_body(path: str, pages: Callable[..., Page]) -> None:
    answer = pages().client.post(path, data=b"x" * (MAX_FORM_BYTES + 1))
    assert (answer.status_code, answer.text) == (413, REFUSED)


def test_what_no_page_answers_has_a_limit_too(pages: Callable[..., Page]) -> None:
    """Else gevent's server would read it to its end."""
    answer = pages().client.post(
        "/swarm", data=b"x" * (MAX_FORM_BYTES + 1), headers={"Host": "elsewhere.example"}
    )
    assert answer.status_code == 413


def test_an_upload_has_a_limit_of_its_own(
    pages: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    for base in ("", "/deep"):
        page = pages(*(["--web-base-path", base] if base else []))
        upload = page.client.post(
            f"{base}/llm/datasets?name=x.jsonl",
            data=b'{"prompt": "Hello"}\n' * (MAX_FORM_BYTES // 10),
        )
        assert upload.get_json()["done"]
        too_long = page.client.post(
            f"{base}/llm/datasets", environ_overrides={"CONTENT_LENGTH": str((100 << 20) + 1)}
        )
        assert (too_long.status_code, too_long.text.count("\n")) == (413, 1)
    monkeypatch.setattr("locust_llm.web.dataset_choices.MAX_UPLOAD_BYTES", 1000)
    streamed = pages().client.post("/llm/datasets?name=x.jsonl", data=b"x" * 1001)
    assert streamed.status_code == 413
