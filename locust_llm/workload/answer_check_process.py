"""Answer check process: checks answers against their schemas in a process of its own, as a pattern
may take for ever, and a long list minutes.

Its input is a line of JSON for each answer. Its output is an empty line when it is ready, then a
line for each answer. A check that takes too long ends the process. It runs as ``python -m
locust_llm.workload.answer_check_process``.
"""

import resource
import signal
import sys
from typing import Any, Final

import msgspec

from .answer_schema import ResponseSchema, has_jsonschema, matches_response_schema

MAX_CPU_S: Final = 0.5
"""The CPU seconds for one answer. Usual ones take a millisecond."""
MAX_MEMORY_BYTES: Final = 2 << 30


class AnswerQuestion(msgspec.Struct):
    text: dict[str, Any] | bool | None
    arguments: dict[str, Any]
    must_call: bool
    """As in ResponseSchema."""
    message: dict[str, Any]
    """The assistant's message."""


def answer_question(line: bytes) -> bool | None:
    question = msgspec.json.decode(line, type=AnswerQuestion)
    what = ResponseSchema(question.text, question.arguments, question.must_call)
    return matches_response_schema(what, question.message)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # a handler of Python's would wait for the end of what takes too long; the kernel does not
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: its end is that of its input
    has_jsonschema()
    output = sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        fits = answer_question(line)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        output.write(msgspec.json.encode(fits) + b"\n")
        output.flush()


if __name__ == "__main__":
    main()
