"""The receiver of spans: what it takes and refuses, and that nothing of it reaches the run but
lines of spans.jsonl."""

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from support.exports import as_json, as_protobuf, span

from locust_llm.files.buffered_file import BufferedFile
from locust_llm.records.spans import otlp_protobuf
from locust_llm.records.spans.join_spans import SortedSpans
from locust_llm.records.spans.span_times import FILE, read_spans
from locust_llm.records.spans.trace_ids import make_trace_id
from locust_llm.server.spans import otlp_http
from locust_llm.server.spans.span_receiver import SpanReceiver, parse_receiver_address
from locust_llm.server.spans.span_receiver_process import SpanExportServer

RUN = "4bf92f3577b34da6"
CUT = (BrokenPipeError, ConnectionResetError)
PROTOBUF, JSON = (
    {"Content-Type": otlp_http.PROTOBUF},
    {"Content-Type": "application/json; charset=utf-8"},
)


def of(request_id: str) -> dict[str, Any]:
    return span(make_trace_id(RUN, request_id), queue=0.25)


@pytest.fixture
def told() -> list[SortedSpans]:
    return []


@pytest.fixture
def server(told: list[SortedSpans]) -> Iterator[SpanExportServer]:
    """In a thread of this process; a request may take 0.3 s."""
    made = SpanExportServer(socket.create_server(("127.0.0.1", 0)), RUN, told.append, request_s=0.3)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def post(
    server: SpanExportServer, body: bytes, headers: dict[str, str], path: str = "/v1/traces"
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_it_takes(server: SpanExportServer, told: list[SortedSpans]) -> None:
    assert post(server, as_json(of("a")), JSON) == (200, b"{}")
    assert post(server, as_protobuf(of("a")), PROTOBUF) == (200, b"")
    assert post(
        server, gzip.compress(as_protobuf(of("a"))), PROTOBUF | {"Content-Encoding": "gzip"}
    ) == (200, b"")
    assert [one.times[0][1].queue_us for one in told] == [250_000] * 3
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    for number in range(2):  # on one connection, many spans in lines that are not too long
        connection.request(
            "POST", "/v1/traces", as_json(*(of(f"{number}-{i}") for i in range(1_500))), JSON
        )
        assert connection.getresponse().read() == b"{}"
    assert [len(one.times) for one in told[3:]] == [1_000, 500] * 2
    assert sum(one.counts.get("received", 0) for one in told) == 3_003


def test_what_it_refuses(server: SpanExportServer, told: list[SortedSpans]) -> None:
    bomb = gzip.compress(bytes(otlp_http.MAX_BYTES + 1))
    cases = [
        (b"{", JSON, 400, "not OTLP spans"),
        (b"\xff\xff", PROTOBUF, 400, "not OTLP spans"),
        (b"", {"Content-Type": "text/html"}, 415, "Content-Type"),
        (b"{}", JSON | {"Content-Encoding": "br"}, 415, "Content-Encoding"),
        (b"no gzip", JSON | {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
        (bomb, JSON | {"Content-Encoding": "gzip"}, 413, "unpacked"),
        (gzip.compress(b"{}")[:-9], JSON | {"Content-Encoding": "gzip"}, 400, "incomplete"),
        (b"", JSON | {"Content-Length": str(otlp_http.MAX_BYTES + 1)}, 413, "MB"),
        (b"", JSON | {"Content-Length": "9" * 5_000}, 413, "MB"),
        (b"", JSON | {"Content-Length": "-1"}, 400, "not a number"),
    ]
    for body, headers, status, why in cases:
        assert (answered := post(server, body, headers))[0] == status
        assert why in (
            json.loads(answered[1])["message"]
            if headers is not PROTOBUF
            else answered[1][3:].decode()
        )
        assert told[-1].counts == {"malformed" if status == 400 else "refused": 1}
        assert why in told[-1].mistake
    assert post(server, b"{}", JSON, "/v1/metrics")[0] == 404
    assert len(told) == len(cases)
    with socket.create_connection(server.server_address[:2]) as client:
        client.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert post(server, as_json(of("a")), JSON)[0] == 200


def test_a_slow_client_is_cut_and_many_are_turned_away(
    server: SpanExportServer, told: list[SortedSpans]
) -> None:
    """One that sends its headers, and one that sends its body, a byte at a time."""
    head = b"POST /v1/traces HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n"
    for slow in (head, head + b"\r\n"):
        with socket.create_connection(server.server_address[:2]) as client, pytest.raises(CUT):  # noqa: PT012
            client.sendall(slow)
            for _ in range(2_000):
                client.sendall(b"a")
                time.sleep(0.01)
    until(lambda: sum(one.mistake == "an export took too long to arrive" for one in told) >= 2)
    idle = [socket.create_connection(server.server_address[:2]) for _ in range(40)]
    until(lambda: any("connections" in one.mistake for one in told))
    for one in idle:
        one.close()
    until(lambda: server._open == 0)
    assert post(server, as_json(of("a")), JSON)[0] == 200


def test_a_process_of_its_own_from_the_first_connection_to_the_last_line(tmp_path: Path) -> None:
    """Spans before and after their record, and one of a request that failed; the port is free at
    the end."""
    receiver = SpanReceiver("127.0.0.1:0", RUN)
    port = receiver.port
    with pytest.raises(
        ValueError, match=f"cannot listen on 127.0.0.1:{port}: .*in use.*another port"
    ):
        SpanReceiver(f"127.0.0.1:{port}", RUN)

    def send(*request_ids: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/traces", as_protobuf(*map(of, request_ids)), PROTOBUF)
        assert connection.getresponse().status == 200

    early = threading.Thread(target=send, args=("a", "b"))
    early.start()  # before there is a process: it waits in the kernel
    receiver.start(gevent.spawn, tmp_path, BufferedFile)
    for one, ok in (("a", True), ("b", False), ("c", True), ("d", True)):
        receiver.request(one, ok=ok)
    until(lambda: gevent.sleep(0.01) or receiver.counts.received == 2)
    early.join()
    late = gevent.spawn_later(0.2, lambda: gevent.get_hub().threadpool.apply(send, ("c", "d", "x")))
    assert [*receiver.finish(time.monotonic)] == []
    late.join()
    assert {*read_spans(tmp_path).times} == set("abcd")
    counts = receiver.counts
    assert (counts.requests, counts.joined, counts.joined_others, counts.late) == (3, 3, 1, 2)
    socket.create_server(("127.0.0.1", port)).close()


def test_what_breaks_or_never_comes_is_said(tmp_path: Path) -> None:
    receiver = SpanReceiver("127.0.0.1:0", RUN)
    receiver.start(gevent.spawn, tmp_path, BufferedFile)
    receiver.request("a", ok=True)
    receiver.take(b'{"times": [[1, {"sour')  # its process was killed while it wrote
    assert receiver._process is not None
    receiver._process.kill()
    notes = [*receiver.finish(time.monotonic)]
    assert notes[0] == "WARNING: the receiver of spans ended before the run (exit status -9)"
    assert notes[1].startswith(
        "WARNING: no request has a span (none arrived): the server needs --otlp-traces-endpoint "
    )
    assert not (tmp_path / FILE).exists()
    hurried = SpanReceiver("127.0.0.1:0", RUN)
    hurried.start(gevent.spawn, tmp_path / "gone", BufferedFile)
    hurried.request("a", ok=True)
    hurried.request("b", ok=True)
    hurried.take(msgspec.json.encode(SortedSpans(counts={"received": 3, "other_traces": 3})))
    hurried.hurry()
    assert "(3 spans arrived, but none has the times of a request)" in next(
        hurried.finish(lambda: 0.0)
    )


def test_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [parse_receiver_address(one) for one in ("localhost", "0.0.0.0:1", "[::1]:4317")] == [
        ("localhost", 4318), ("0.0.0.0", 1), ("::1", 4317),
    ]  # fmt: skip
    for wrong in ("", ":4318", "http://a:1", "a:b", "a:99999", "a@b:1", "a:1/v1"):
        with pytest.raises(ValueError, match="--otlp-receiver"):
            parse_receiver_address(wrong)
    monkeypatch.setattr(otlp_protobuf, "is_protobuf_available", lambda: False)
    with pytest.raises(ValueError, match=r"--otlp-receiver: .* pip install 'locust-llm\[otlp\]'"):
        SpanReceiver("127.0.0.1:0", RUN)
    with pytest.raises(otlp_http.ExportRefused, match=r"415.*pip install"):
        otlp_http.parse_content_type(otlp_http.PROTOBUF)
    assert otlp_http.parse_content_type("Application/JSON") == otlp_http.JSON
