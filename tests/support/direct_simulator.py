"""Direct simulator: the simulated server by direct calls, in virtual time, without sockets."""

import json

from locust_llm.client.chat_answer import join_deltas
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.simulator.http_connection import ClientConnection
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import FixedEngine
from locust_llm.simulator.simulated_faults import LIKE, parse_quirks
from locust_llm.simulator.simulated_server import FrontEnd, SimulatorServer

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


class FakeTransport:
    def __init__(self):
        self.data = bytearray()
        self.closed = False

    def write(self, data):
        self.data += data

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0


class SentRequest:
    """One request over a connection of its own, and what came back."""

    def __init__(self, server, kind, body, quirks=""):
        self.kind = kind
        self.body = body
        self.transport = FakeTransport()
        self.connection = ClientConnection(server)
        self.connection.connection_made(self.transport)
        data = json.dumps(body).encode()
        head = (
            f"POST {PATHS[kind]} HTTP/1.1\r\nHost: x\r\nX-Simulate: {quirks}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self.connection.data_received(head.encode() + data)

    @property
    def row(self):
        return self.connection.answer.row

    def cancel(self):
        """The client hangs up."""
        self.connection.connection_lost(None)

    @property
    def content(self):
        head, _, rest = bytes(self.transport.data).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), rest
        if b"Transfer-Encoding" not in head:
            return rest
        content = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            content.append(rest[:length])
            rest = rest[length + 2 :]
        return b"".join(content)

    @property
    def events(self):
        """The data of each event, or the whole body."""
        content = self.content
        if not self.body.get("stream"):
            return [content]
        lines = (line for line in content.split(b"\n") if line.startswith(b"data: "))
        return [line.removeprefix(b"data: ") for line in lines]

    def parse(self, each=lambda data: None):
        """What the protocol of the client makes of it. ``each`` gets the data of each event."""
        answer = Completion(PROTOCOLS[self.kind], keep_text=True)
        for data in self.events:
            each(data)
            if self.body.get("stream"):
                answer.add((0, "message", data))
            else:
                answer.whole(data)
        return answer

    @property
    def message(self):
        return join_deltas(self.parse().deltas)

    @property
    def text(self):
        return self.message["content"]


class DirectSimulator:
    """With each token a millisecond after the one before, and the first after a second."""

    def __init__(self, quirks="", *, seed=0, names=("small",), max_model_len=8_192):
        self.clock = VirtualClock()
        front = FrontEnd(
            names=names,
            max_model_len=max_model_len,
            seed=seed,
            quirks=parse_quirks(quirks, LIKE["vllm"]),
        )
        self.server = SimulatorServer([FixedEngine(1.0, 0.001, self.clock)], front)

    def send(self, prompt, kind="chat", quirks="", **body):
        """Sends a request, whose answer comes with ``run``. ``quirks`` are its own."""
        asked = {"max_tokens": 8, "stream": True, **body}
        if kind == "chat" and asked["stream"]:
            asked.setdefault("stream_options", {"include_usage": True})
        if kind == "responses":
            asked["max_output_tokens"] = asked.pop("max_tokens")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        field = {"completions": "prompt", "responses": "input"}.get(kind, "messages")
        asked[field] = prompt if kind == "completions" else messages
        return SentRequest(self.server, kind, asked, quirks)

    def run(self, seconds=float("inf")):
        self.clock.run(self.clock.now + seconds)

    def ask(self, prompt, kind="chat", **body):
        """Sends a request alone, and returns it with its answer."""
        sent = self.send(prompt, kind, **body)
        self.run()
        return sent

    def planted(self):
        """The faults of all answers so far, by request."""
        rows = self.server.truth.as_json()["requests"]
        return [row.get("planted", []) for row in rows]
