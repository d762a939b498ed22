"""The truth server as a process: what it streams, what it keeps of it, and that it never outlives
those it is for."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from locust_llm.accuracy.reference_process import TruthServer

BODY = b'{"stream":true,"max_tokens":%d}'


@pytest.fixture
def server() -> Iterator[TruthServer]:
    server = TruthServer(0.01)
    yield server
    server.close()


def asked(connection: socket.socket, tokens: int) -> bytes:
    """The whole answer."""
    body = BODY % tokens
    connection.sendall(
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    answer = b""
    while not answer.endswith(b"\r\n0\r\n\r\n"):
        data = connection.recv(65536)
        assert data, answer
        answer += data
    return answer


def truth(answer: bytes) -> tuple[int, list[tuple[int, int]]]:
    found = re.search(rb'"truth":(\{.*?\]\]\})', answer)
    assert found is not None
    said = msgspec.json.decode(found[1])
    return said["arrived"], said["sends"]


def test_a_stream_and_the_truth_about_it(server: TruthServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        for _ in range(2):  # the connection is kept
            before = time.monotonic_ns()
            answer = asked(connection, 5)
            arrived, sends = truth(answer)
            assert answer.count(b'"content":" word"') == len(sends) == 5
            moments = [
                before,
                arrived,
                *(moment for send in sends for moment in send),
                time.monotonic_ns(),
            ]
            assert moments[2:] == sorted(moments[2:])
            # the kernel's clock is read beside ours
            assert before - 1_000_000 < arrived < sends[0][0]
            assert sends[-1][0] - sends[0][0] > 0.03e9  # four gaps of 10 ms


def test_over_tls(certificate: Path) -> None:
    server = TruthServer(0.005, certificate=certificate)
    context = ssl.create_default_context(cafile=str(certificate))
    try:
        with (
            socket.create_connection(("127.0.0.1", server.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            assert len(truth(asked(connection, 3))[1]) == 3
    finally:
        server.close()


@pytest.mark.parametrize(
    "bytes_",
    [b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\x00" * (2 << 20)],
    ids=["get", "empty", "endless"],
)
def test_what_it_does_not_understand_it_hangs_up_on(server: TruthServer, bytes_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        try:
            connection.sendall(bytes_)
            assert connection.recv(100) == b""
        except ConnectionError:
            pass
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:  # and goes on
        assert len(truth(asked(connection, 1))[1]) == 1


def test_it_gets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = TruthServer(0.01)
    try:
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            asked(connection, 1)
        assert b"sk-secret" not in Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        server.close()


def test_it_ends_when_it_is_let_go_of() -> None:
    server = TruthServer(0.01)
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        asked(connection, 1)
    cpu_s = server.close()
    assert cpu_s is not None
    assert 0 < cpu_s < 5
    assert not Path(f"/proc/{server.pid}").exists()


def test_it_ends_when_its_parent_is_killed() -> None:
    code = (
        "import time\nfrom locust_llm.accuracy.reference_process import TruthServer\n"
        "print(TruthServer(0.01).pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        until = time.monotonic() + 10
        while running(pid):
            assert time.monotonic() < until
            time.sleep(0.01)


def running(pid: int) -> bool:
    """A zombie does not run: who should reap it may not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_starts_where_the_standard_streams_are_closed() -> None:
    code = (
        "import os\nfor fd in (0, 1): os.close(fd)\n"
        "import socket, time\nfrom locust_llm.accuracy.reference_process import TruthServer\n"
        "server = TruthServer(0.01)\nc = socket.create_connection(('127.0.0.1', server.port), 10)\n"
        "c.sendall(b'POST / HTTP/1.1\\r\\nContent-Length: 16\\r\\n\\r\\n{\"max_tokens\":1}')\n"
        "assert b'200 OK' in c.recv(1000)\nassert server.close() is not None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        timeout=30,
        check=False,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
