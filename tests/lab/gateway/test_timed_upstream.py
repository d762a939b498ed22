"""The timed upstream as a process: what it streams over the wire, and what its log has of it."""

import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from locust_llm.lab.gateway.timed_upstream import HttpError, RequestHead, take_body
from locust_llm.lab.gateway.upstream_log import (
    CLIENT_GONE,
    COMPLETE,
    FAULT,
    UpstreamLog,
    UpstreamRequest,
    encode_log_line,
    mask_secrets,
    name_log_file,
    read_upstream_log,
)
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript, write_prompt


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[UpstreamReplicas]:
    with UpstreamReplicas(tmp_path) as replicas:
        yield replicas


def body_of(script: UpstreamScript, *, stream: bool = True) -> bytes:
    messages = [{"role": "user", "content": write_prompt(script)}]
    return json.dumps({"model": "gwbench", "stream": stream, "messages": messages}).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def post(connection: socket.socket, body: bytes, headers: str = "", version: str = "1.1") -> None:
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: a\r\n{headers}"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def read_to(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        more = connection.recv(65_536)
        assert more, data
        data += more
    return data


def rows_of(upstream: UpstreamReplicas) -> Sequence[UpstreamRequest]:
    """The log, when the processes have ended."""
    upstream.close()
    return read_upstream_log(upstream.folder)


def test_two_streams_on_one_connection(upstream: UpstreamReplicas) -> None:
    with connect(upstream[0].port) as connection:
        for name in ("a", "b"):
            before = time.monotonic_ns()
            post(connection, body_of(UpstreamScript(id=name, ttft_ms=5, gap_ms=5, tokens=3)))
            answer = read_to(connection, b"\r\n0\r\n\r\n")
            after = time.monotonic_ns()
            moments = [int(digits) for digits in re.findall(rb"[rw]\d*\.?(\d{18})", answer)]
            assert len(moments) == 4
            assert [before, *moments, after] == sorted([before, *moments, after])
            assert moments[-1] - moments[0] >= 15e6
    first, second = rows_of(upstream)
    assert (first.id, first.end, first.words) == ("a", COMPLETE, 3)
    assert (second.id, second.connection) == ("b", first.connection)
    assert (second.received_ns, second.last_sent_ns) == (moments[0], moments[3])


def test_http_1_0_gets_no_chunks_and_the_end_of_the_connection(upstream: UpstreamReplicas) -> None:
    with connect(upstream[0].port) as connection:
        post(connection, body_of(UpstreamScript(id="a", tokens=2)), version="1.0")
        answer = b""
        while more := connection.recv(65_536):
            answer += more
    assert answer.endswith(b"data: [DONE]\n\n")
    assert b"chunked" not in answer


def test_a_request_in_pieces_and_in_chunks(upstream: UpstreamReplicas) -> None:
    body = body_of(UpstreamScript(id="a", ttft_ms=0, tokens=1), stream=False)
    with connect(upstream[0].port) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for place in range(0, len(wire), 60):
            connection.sendall(wire[place : place + 60])
            time.sleep(0.001)
        answer = read_to(connection, b"}")
    assert b'"total_tokens":12' in answer
    assert [row.id for row in rows_of(upstream)] == ["a"]


def test_the_end_of_a_client_is_seen(upstream: UpstreamReplicas) -> None:
    with connect(upstream[0].port) as connection:
        post(connection, body_of(UpstreamScript(id="a", ttft_ms=1, gap_ms=5000, tokens=9)))
        read_to(connection, b"\n\n\r\n")
        gone = time.monotonic_ns()
    with connect(upstream[0].port) as connection:
        post(connection, body_of(UpstreamScript(id="b", fault="stall_unanswered")))
        time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.1)
    first, second = rows_of(upstream)
    assert (first.end, first.words) == (CLIENT_GONE, 1)
    assert 0 <= first.gone_ns - gone < 1e9
    assert (second.end, second.fault, second.words) == (CLIENT_GONE, "stall_unanswered", 0)


def test_a_fault_at_the_first_arrival_alone(upstream: UpstreamReplicas) -> None:
    script = UpstreamScript(id="a", tokens=2, fault="http_500", fault_arrivals=1)
    statuses = []
    for _ in range(2):
        with connect(upstream[0].port) as connection:
            post(connection, body_of(script, stream=False))
            statuses.append(connection.recv(65_536)[9:12])
    assert statuses == [b"500", b"200"]
    rows = rows_of(upstream)
    assert [(row.status, row.fault, row.end) for row in rows] == [
        (500, "http_500", FAULT),
        (200, "", COMPLETE),
    ]


def test_replicas_count_the_arrivals_of_an_id_together(tmp_path: Path) -> None:
    script = UpstreamScript(id="a", tokens=2, fault="http_500", fault_arrivals=2)
    with UpstreamReplicas(tmp_path, 2) as replicas:
        statuses = []
        for number in (0, 1, 1, 0):
            with connect(replicas[number].port) as connection:
                post(connection, body_of(script, stream=False))
                statuses.append(connection.recv(65_536)[9:12])
    assert statuses == [b"500", b"500", b"200", b"200"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "upstream-0.jsonl",
        "upstream-1.jsonl",
    ]


def test_a_log_that_grows_is_read_on(tmp_path: Path) -> None:
    log = UpstreamLog(tmp_path)
    assert log.read() == []
    late, early = (
        encode_log_line(UpstreamRequest(id=name, received_ns=at_ns))
        for name, at_ns in (("late", 5), ("early", 2))
    )
    first, second = (tmp_path / name_log_file(number) for number in (0, 1))
    first.write_text(late + late[:9])
    assert [row.id for row in log.read()] == ["late"]
    with first.open("a") as file:
        file.write(late[9:])
    second.write_text(early)
    assert [row.id for row in log.read()] == ["early", "late", "late"]
    first.write_text("")  # nothing is read twice
    assert len(log.read()) == 3


def test_what_is_not_asked_by_a_script(upstream: UpstreamReplicas) -> None:
    with connect(upstream[0].port) as connection:
        for path, expected in (
            ("/v1/models", b'"id":"gwbench"'),
            ("/health", b'"ok"'),
        ):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert expected in connection.recv(65_536)
        post(connection, b'{"messages":[{"role":"user","content":"hello"}]}')
        assert b'"completion_tokens":3' in read_to(connection, b"}")
        connection.sendall(b"NONSENSE\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 400 ")
    assert [row.id for row in rows_of(upstream)] == [""]


def test_secrets_are_hashed_in_the_log(upstream: UpstreamReplicas) -> None:
    headers = (
        "Authorization: Bearer sk-private\r\nX-Api-Key: gwbench-canary-key\r\nX-Other: seen\r\n"
    )
    with connect(upstream[0].port) as connection:
        post(connection, body_of(UpstreamScript(id="a", tokens=1)), headers)
        read_to(connection, b"0\r\n\r\n")
    (row,) = rows_of(upstream)
    kept = dict(row.headers)
    assert kept["Authorization"].startswith("sha256:")
    assert (kept["X-Api-Key"], kept["X-Other"]) == ("gwbench-canary-key", "seen")
    assert "sk-private" not in (upstream.folder / "upstream-0.jsonl").read_text()
    assert mask_secrets([("cookie", "a=b")])[0][1].startswith("sha256:")


def test_replicas_have_ports_logs_and_deaths_of_their_own(tmp_path: Path) -> None:
    with UpstreamReplicas(tmp_path, 2) as replicas:
        for number, replica in enumerate((replicas[0], replicas[1])):
            with connect(replica.port) as connection:
                post(connection, body_of(UpstreamScript(id="same", tokens=1)))
                answer = read_to(connection, b"0\r\n\r\n")
            assert b"x-upstream-replica: %d\r\n" % number in answer
            assert re.search(rb"r\d{18}\.%d " % number, answer)
        with connect(replicas[1].port) as connection:
            post(connection, body_of(UpstreamScript(id="cut", ttft_ms=1, gap_ms=60_000)))
            read_to(connection, b"\n\n\r\n")
            time.sleep(0.5)  # the log's lines of the earlier requests
            replicas.kill(1)
            assert connection.recv(65_536) == b""
        replicas.restart(1)
        with connect(replicas[1].port) as connection:
            post(connection, body_of(UpstreamScript(id="again", tokens=1)))
            read_to(connection, b"0\r\n\r\n")
    rows = read_upstream_log(tmp_path)
    assert [(row.id, row.replica) for row in rows] == [("same", 0), ("same", 1), ("again", 1)]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}.*in use.*--upstream"):
            UpstreamReplicas(tmp_path, 1, port)


def test_it_ends_with_the_process_that_it_is_for(tmp_path: Path) -> None:
    replicas = UpstreamReplicas(tmp_path)
    pid = replicas[0].pid
    os.kill(pid, 0)
    replicas.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def test_bodies_of_requests() -> None:
    def head(lines: str, version: str = "1.1") -> RequestHead:
        return RequestHead(f"POST /x HTTP/{version}\r\n{lines}".encode())

    assert take_body(head("Content-Length: 3"), b"abcd") == (b"abc", 3)
    assert take_body(head("Content-Length: 3"), b"ab") is None
    chunked = head("Transfer-Encoding: chunked")
    assert take_body(chunked, b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nA: b\r\n\r\nrest") == (b"abc", 28)
    assert take_body(chunked, b"2\r\nab\r\n0\r\n") is None
    for broken in (b"zz\r\n", b"\r\n\r\n"):
        with pytest.raises(HttpError):
            take_body(chunked, broken)
    for broken_head in ("Content-Length: -1", "Content-Length: 1e3", "no colon"):
        with pytest.raises(HttpError):
            head(broken_head)
    assert (head("").keep_alive, head("Connection: close").keep_alive) == (True, False)
    assert (head("", "1.0").keep_alive, head("Connection: keep-alive", "1.0").keep_alive) == (
        False,
        True,
    )
