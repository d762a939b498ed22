"""Schema checks: answers are checked against their schemas while the event loop goes on."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gevent.subprocess
import msgspec
from gevent.lock import BoundedSemaphore

from locust_llm.workload.answer_schema import (
    ResponseSchema,
    has_jsonschema,
    matches_response_schema,
)

CHILD: Final = (sys.executable, "-m", "locust_llm.workload.answer_check_process")
MAX_WAIT_S: Final = 5.0
"""The longest wait for one answer and the ones before it."""
MAX_START_S: Final = 30.0
"""The longest start of the child on a busy machine."""


class SchemaChecker:
    """The checker of a worker process. Its child runs while there are answers to check."""

    def __init__(self, command: Sequence[str] = CHILD, wait_s: float = MAX_WAIT_S) -> None:
        self.unchecked = 0
        self._command, self._wait_s = command, wait_s
        self._child: Any = None
        self._ready = False
        self._turn = BoundedSemaphore(1)

    def start(self) -> None:
        """Start the child, as an answer to check will come."""
        if self._child is None and has_jsonschema():
            pipe = gevent.subprocess.PIPE
            self._child = gevent.subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=gevent.subprocess.DEVNULL
            )
            self._ready = False

    def check(self, what: ResponseSchema, message: Mapping[str, Any]) -> bool | None:
        """As ``matches_response_schema``. None also where the check takes too long."""
        if not has_jsonschema():
            return matches_response_schema(what, message)
        question = {
            "text": what.text,
            "arguments": what.arguments,
            "must_call": what.must_call,
            "message": message,
        }
        line = msgspec.json.encode(question) + b"\n"
        if not self._turn.acquire(timeout=self._wait_s):
            self.unchecked += 1
            return None
        try:
            verdict = self._ask(line)
        finally:
            self._turn.release()
        if not verdict:
            self.unchecked += 1
            return None
        known: bool | None = msgspec.json.decode(verdict, type=bool | None)
        return known

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.stdin.close()
            child.stdout.close()
            child.wait()

    def _ask(self, line: bytes) -> bytes:
        """The child's answer. Empty: there is none in time."""
        self.start()
        answer = b""
        try:
            if not self._ready:
                self._ready = bool(self._read_line(MAX_START_S))
            if self._ready:
                self._child.stdin.write(line)
                self._child.stdin.flush()
                answer = self._read_line(self._wait_s)
        except OSError:  # it has ended
            pass
        finally:
            if not answer:  # also where the user was ended: the next one would get its answer
                self.close()
        return answer

    def _read_line(self, wait_s: float) -> bytes:
        read: bytes = b""
        with gevent.Timeout(wait_s, False):
            read = self._child.stdout.readline()
        return read
