"""Simulated: runs a simulator in a process of its own, over real sockets, and parses its bytes."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from locust_llm.simulator.openai_chat import NAME

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]  # 12 tokens


class Simulator:
    def __init__(self, process, ready):
        self.process, self.ready = process, ready
        self.port = int(
            re.search(r"listening on https?://127\.0\.0\.1:(\d+) \(model llama", ready)[1]
        )

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.connect()
        return connection

    def call(self, method, path, body=None, connection=None, **headers):
        """Returns status and parsed body."""
        own = connection or self.connect()
        own.request(
            method, path, body if isinstance(body, bytes | None) else json.dumps(body), headers
        )
        answer = own.getresponse()
        content = json.loads(answer.read())
        assert answer.headers["Server"] == NAME
        if not connection:
            own.close()
        return answer.status, content

    def chat(self, connection=None, headers=None, **body):
        return self.call("POST", CHAT, {"messages": HELLO, **body}, connection, **(headers or {}))

    def stream(self, quirks="", **body):
        """Returns the events' data, and whether the stream ended correctly by HTTP."""
        asked = {"messages": HELLO, "stream": True, **body}
        content = received(
            self.raw(
                post(
                    json.dumps(asked).encode(),
                    b"Connection: close\r\nX-Simulate: %b\r\n" % quirks.encode(),
                )
            )
        )
        head, _, rest = content.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        return unchunked(rest)

    def text(self, path):
        """Returns status and raw body."""
        own = self.connect()
        own.request("GET", path)
        answer = own.getresponse()
        body = answer.read().decode()
        own.close()
        return answer.status, body

    def truth(self):
        return self.call("GET", "/truth")[1]

    def row(self, row_id):
        return next(row for row in self.truth()["requests"] if row["id"] == row_id)

    def until(self, condition):
        """Polls /truth until the condition holds."""
        deadline = time.monotonic() + 5
        while not condition(told := self.truth()):
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
        return told

    def raw(self, data):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.sendall(data)
        return connection


@contextmanager
def started(*flags):
    command = [sys.executable, "-m", "locust_llm.simulator", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Simulator(process, process.stdout.readline())
        finally:  # else a test that fails would wait for it forever
            process.terminate()
        assert process.wait(5) == 0


def post(body, headers=b""):
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        CHAT.encode(),
        headers,
        len(body),
        body,
    )


def received(connection):
    """Returns all bytes until the other side closes."""
    with connection:
        data = b""
        while more := connection.recv(65536):
            data += more
        return data


def events(response_body):
    """Returns the data of each event, and fails on other bytes."""
    *found, tail = response_body.split(b"\n\n")
    assert tail == b""
    assert all(event.startswith(b"data: ") for event in found)
    return [event.removeprefix(b"data: ") for event in found]


def unchunked(body):
    """Returns the content of HTTP's chunks, and whether the last one came."""
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return content, body == b"\r\n"
        content = content + body[:length]
        body = body[length + 2 :]
    return content, False
