"""Leaking server: a chat server that obeys the session code of its prompts, and puts the code of
another session into some answers, by plan. It knows which."""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

CODE: Final = re.compile(r"Session code: ((?:[a-z]{4,8} ){5}[a-z]{4,8})\.")
ASK: Final = "Begin your answer with the session code."
WORDS: Final = 12


class Asked(NamedTuple):
    """One request of the load."""

    id: str
    body: dict[str, Any]
    prompt: str
    """All texts of the prompt, one below the other."""
    code: str
    """The code in its prompt. Empty: it has none."""
    leaked: str
    """The code of another session in its answer. Empty: it has none."""


class LeakingServer:
    def __init__(self, leak_every: int = 0, where: str = "content", each_s: float = 0.0) -> None:
        """Each ``leak_every``-th answer leaks (0: none), in its ``content``, ``reasoning`` or
        ``tool`` arguments. ``each_s``: between two events."""
        self.leak_every, self.where, self.each_s = leak_every, where, each_s
        self.asked: list[Asked] = []
        self.url = ""
        self._lock = threading.Lock()

    @property
    def leaks(self) -> dict[str, str]:
        """The leaked code, by the id of the request that got it."""
        return {asked.id: asked.leaked for asked in self.asked if asked.leaked}

    @property
    def codes(self) -> dict[str, str]:
        """The own code, by the id of the request."""
        return {asked.id: asked.code for asked in self.asked}

    def answer(self, request_id: str, body: dict[str, Any]) -> tuple[str, str]:
        """(text, text with a leak that belongs into another part of the answer)."""
        prompt = "\n".join(list_texts(body))
        code = found[0] if (found := CODE.findall(prompt)) else ""
        with self._lock:
            others = [one.code for one in self.asked if one.code not in prompt.lower()]
            counts = bool(request_id) and self.leak_every > 0
            leaks = counts and len(self.asked) % self.leak_every == self.leak_every - 1
            leaked = others[-1] if leaks and others else ""
            if request_id:
                self.asked.append(Asked(request_id, body, prompt, code, leaked))
        begin = f"{code}. " if prompt.endswith(ASK) else ""
        plain = begin + " ".join([f"word{number}" for number in range(WORDS)])
        if not leaked:
            return plain, ""
        if self.where == "content":
            return f"{plain} The code is: {leaked.title()}!", ""
        return plain, f"the other one has {leaked.upper()}"


def list_texts(body: Any) -> Iterator[str]:
    """All texts of a request's prompt, in their order."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, list):
        for part in body:
            yield from list_texts(part)
    elif isinstance(body, dict):
        for field in ("system", "instructions", "messages", "prompt", "input", "content", "text"):
            if field in body:
                yield from list_texts(body[field])


@contextmanager
def leaking(**plan: Any) -> Iterator[LeakingServer]:
    server = LeakingServer(**plan)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            self._send(200 if known else 404, {"object": "list", "data": [{"id": "m"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kind = self.path.removeprefix("/v1/").removesuffix("/completions") or "chat"
            if kind not in ("chat", "completions", "messages", "responses"):
                self._send(404, {"error": {"message": "no such path"}})
                return
            request_id = self.headers["X-Request-Id"] or ""
            text, hidden = server.answer(request_id, body)
            reasoning = hidden if server.where == "reasoning" else ""
            arguments = json.dumps({"note": hidden}) if server.where == "tool" and hidden else ""
            answer_id = f"id-{request_id or time.monotonic_ns()}"
            if not body.get("stream"):
                self._send(200, make_whole(kind, answer_id, text, reasoning, arguments))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for name, event in iterate_events(kind, answer_id, text, reasoning, arguments):
                time.sleep(server.each_s)
                head = f"event: {name}\n" if name else ""
                data = event if isinstance(event, str) else json.dumps(event)
                line = f"{head}data: {data}\n\n".encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

        def _send(self, status: int, content: Mapping[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *args: Any) -> None:
            pass  # a client that left

    listener = Listener(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


# -- the answers of each protocol ------------------------------------------------------------------


def count_usage(kind: str, text: str) -> dict[str, int]:
    tokens = len(text.split())
    if kind in ("messages", "responses"):
        return {"input_tokens": 7, "output_tokens": tokens}
    return {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}


def make_call(arguments: str) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def make_whole(
    kind: str, answer_id: str, text: str, reasoning: str, arguments: str
) -> dict[str, Any]:
    named = {"id": answer_id, "model": "m", "usage": count_usage(kind, text)}
    if kind == "completions":
        return {**named, "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    if kind == "messages":
        content = [{"type": "text", "text": text}]
        return {
            **named,
            "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn",
        }  # fmt: skip
    if kind == "responses":
        part = {"type": "output_text", "text": text}
        output = [{"type": "message", "role": "assistant", "content": [part]}]
        return {**named, "object": "response", "status": "completed", "output": output}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if arguments:
        message["tool_calls"] = [make_call(arguments)]
    return {**named, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def iterate_events(
    kind: str, answer_id: str, text: str, reasoning: str, arguments: str
) -> Iterator[tuple[str, Any]]:
    """(name, data) of each event."""
    words = [f"{word} " for word in text.split()]
    if kind == "messages":
        yield from iterate_messages(answer_id, words, text)
        return
    if kind == "responses":
        yield from iterate_responses(answer_id, words, text)
        return
    named = {"id": answer_id, "model": "m"}
    if kind == "completions":
        for word in words:
            yield "", {**named, "choices": [{"index": 0, "text": word}]}
        yield "", {**named, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    else:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": f"{word} "} for word in reasoning.split()]
        deltas += [{"content": word} for word in words]
        half = len(arguments) // 2
        for part in (arguments[:half], arguments[half:]) if arguments else ():
            deltas.append({"tool_calls": [{"index": 0, **make_call(part)}]})
        for delta in deltas:
            yield "", {**named, "choices": [{"index": 0, "delta": delta}]}
        yield "", {**named, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield "", {**named, "choices": [], "usage": count_usage(kind, text)}
    yield "", "[DONE]"


def iterate_messages(answer_id: str, words: list[str], text: str) -> Iterator[tuple[str, Any]]:
    usage = count_usage("messages", text)
    begin = {"id": answer_id, "model": "m", "type": "message", "role": "assistant", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**begin, "usage": {**usage, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in words
    ]
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    for event in events:
        yield event["type"], event


def iterate_responses(answer_id: str, words: list[str], text: str) -> Iterator[tuple[str, Any]]:
    named = {"id": answer_id, "model": "m", "object": "response"}
    item = {"id": "msg-1", "type": "message", "role": "assistant", "content": []}
    at = {"item_id": "msg-1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**named, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    ]
    events += [{"type": "response.output_text.delta", **at, "delta": word} for word in words]
    whole = make_whole("responses", answer_id, text, "", "")
    events += [
        {"type": "response.output_text.done", **at, "text": text},
        {"type": "response.completed", "response": whole},
    ]
    for number, event in enumerate(events):
        yield event["type"], {**event, "sequence_number": number}
