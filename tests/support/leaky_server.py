"""A chat server in Python with a real leak: each request keeps so many bytes for good.

    python tests/support/leaky_server.py PORT LEAK_BYTES

It prints a line when it listens. Its metrics page has the memory of its process.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

TOKENS: Final = 8
GAP_S: Final = 0.002
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
STARTED: Final = time.time()


class LeakyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    leak_bytes = 0
    kept: Final[list[bytes]] = []

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics":
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self._answer(
                f"process_resident_memory_bytes {pages * PAGE_BYTES}\n"
                f"process_open_fds {len(os.listdir('/proc/self/fd'))}\n"
                f"process_start_time_seconds {STARTED}\n"
            )
        elif self.path == "/v1/models":
            self._answer(json.dumps({"object": "list", "data": [{"id": "leaky"}]}))
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not self.path.endswith("/chat/completions"):
            self.send_error(404)
            return
        self.kept.append(os.urandom(16) * (self.leak_bytes // 16))
        if not body.get("stream"):
            self._answer(
                json.dumps(_event({"content": "word"}, "message") | {"usage": _usage(body)})
            )
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(TOKENS):
            self._write_event(_event({"content": "word "}))
            time.sleep(GAP_S)
        self._write_event(_event({}, finish="stop") | {"usage": _usage(body)})
        self._write_chunk(b"data: [DONE]\n\n")
        self._write_chunk(b"")

    def _write_event(self, event: dict[str, Any]) -> None:
        self._write_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _event(
    content: dict[str, str], kind: str = "delta", finish: str | None = None
) -> dict[str, Any]:
    choice = {"index": 0, kind: {"role": "assistant", **content}, "finish_reason": finish}
    if kind == "message":
        choice["finish_reason"] = "stop"
    return {"id": "x", "model": "leaky", "created": 1, "choices": [choice]}


def _usage(body: dict[str, Any]) -> dict[str, int]:
    words = len(json.dumps(body.get("messages", "")).split())
    return {"prompt_tokens": words, "completion_tokens": TOKENS, "total_tokens": words + TOKENS}


def main() -> None:
    port, LeakyHandler.leak_bytes = int(sys.argv[1]), int(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", port), LeakyHandler)
    print(f"leaky server at {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
