"""Tiny server: runs an OpenAI-compatible server in this process. Its answers are attributes, and
its requests are a list."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

MODELS = {"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]}


class Asked(NamedTuple):
    path: str
    headers: dict[str, str]
    """The names are in lower case."""
    body: dict[str, Any]


class TinyServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    started = False
    name = "tiny"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers, bind_and_activate=False)
        self.server_bind()  # from here on the port is ours, and refuses
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[Asked] = []
        self.models: tuple[int, Any] = (200, MODELS)
        self.tokenize: Callable[[str], int] | None = None
        """Counts the tokens of a prompt with its chat template. None: there is no such route."""
        self.tokenize_plain: Callable[[dict[str, Any]], Any] | None = None
        """Counts the tokens of a text alone. None: the route does not accept texts."""
        self.count: Callable[[str], int] | None = lambda text: 7
        """Returns ``usage.prompt_tokens`` of a chat completion. None: no usage."""
        self.chat: Callable[[Asked], tuple[int, Any]] | None = None
        """Answers chat completions. None: the default answer."""
        self.chat_status = 200
        self.pages: dict[str, tuple[int, Any]] = {}
        """Further pages are keyed by path."""
        self.location = ""
        """Every answer redirects to this address, if there is one."""

    def start(self) -> None:
        self.started = True
        self.server_activate()
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def answer(self, asked: Asked) -> tuple[int, Any]:
        if asked.path == "/v1/models":
            return self.models
        if asked.path in self.pages:
            return self.pages[asked.path]
        text = asked.body["messages"][0]["content"] if "messages" in asked.body else ""
        if (
            asked.path == "/tokenize"
            and "messages" not in asked.body
            and self.tokenize_plain is not None
        ):
            return 200, self.tokenize_plain(asked.body)
        if asked.path == "/tokenize" and "messages" in asked.body and self.tokenize is not None:
            return 200, {"count": self.tokenize(text)}
        if asked.path == "/v1/chat/completions" and self.chat is not None:
            return self.chat(asked)
        if asked.path == "/v1/chat/completions":
            if self.chat_status != 200:
                return self.chat_status, {"error": {"message": "no room for this prompt"}}
            usage = (
                {"prompt_tokens": self.count(text), "completion_tokens": 1}
                if self.count is not None
                else None
            )
            if not asked.body.get("stream"):
                return 200, {
                    "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
                    "usage": usage,
                }
            choice = {"delta": {"content": "yes"}, "finish_reason": "stop"}
            return 200, [{"choices": [choice]}, {"choices": [], "usage": usage}]
        return 404, {"error": {"message": f"no route {asked.path}"}}


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # an answer is one write: the second of two would wait 40 ms for the acknowledgement of the
    # first
    wbufsize = -1
    server: TinyServer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        asked = Asked(
            self.path, {name.lower(): value for name, value in self.headers.items()}, body
        )
        self.server.asked.append(asked)
        status, answer = self.server.answer(asked)
        if isinstance(answer, list):  # a stream, in one piece
            kind = "text/event-stream"
            data = "".join(f"data: {json.dumps(event)}\n\n" for event in answer)
            data += "data: [DONE]\n\n"
        else:
            kind = "application/json"
            data = answer if isinstance(answer, str) else json.dumps(answer)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(data.encode())

    def version_string(self) -> str:
        return self.server.name

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def tiny_server(*, started: bool = True) -> Iterator[TinyServer]:
    server = TinyServer()
    try:
        if started:
            server.start()
        yield server
    finally:
        if server.started:
            server.shutdown()
        server.server_close()
