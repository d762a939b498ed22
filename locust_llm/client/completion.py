"""A completion, chat or plain, streamed or whole: its chunks, its counts, how it ended.

A chunk is an event with non-empty content, reasoning, refusal or a tool call. Role-only, empty and
usage-only events, comments and ``[DONE]`` are none. Neither usage nor ``[DONE]`` is ever required: transformers ends
without it, vLLM sends it after an error.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from locust_llm.core.foreign_text import shown
from locust_llm.core.record import OK

from .sse import Event

MAX_MESSAGE_BYTES: Final = 1 << 16
"""A longer body of an error is a page, or no message: its JSON is not looked at, as objects made of it may be large."""
MAX_COUNT: Final = 1 << 53

Count = int | float | None
"""A count as servers write it: proxies that know only one kind of number make 6 into 6.0."""


# gc=False: they hold no cycles, and four objects an event would keep the garbage collector busy
class Details(msgspec.Struct, gc=False):
    reasoning_tokens: Count = None
    cached_tokens: Count = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Delta(msgspec.Struct, gc=False):
    """A ``delta`` of a stream, or the ``message`` of a whole answer."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    """A tool call of the time before ``tool_calls``."""

    @property
    def output(self) -> bool:
        return bool(self.content or self.tool_calls or self.refusal or self.function_call)

    @property
    def thought(self) -> bool:
        return bool(self.reasoning_content or self.reasoning)


class Choice(msgspec.Struct, gc=False):
    """Of a chat completion."""

    index: int | float | str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Text(msgspec.Struct, gc=False):
    """A choice of a plain completion: it has its text itself, in a stream and in a whole answer."""

    index: int | float | str | None = None
    content: Any = msgspec.field(default=None, name="text")
    finish_reason: str | None = None

    @property
    def delta(self) -> "Text":
        return self

    message = delta

    @property
    def output(self) -> bool:
        return bool(self.content)

    @property
    def thought(self) -> bool:
        return False


BROKEN: Final = frozenset({"abort", "error", "timeout", "cancelled"})
"""Reasons of an answer that was broken off: vLLM's engine when it shuts down or pauses (abort), SGLang's abort
requests, TensorRT-LLM's time-outs and cancellations."""


C = TypeVar("C", Choice, Text)


class Message(msgspec.Struct, Generic[C], gc=False):
    """One event of a stream, or a whole answer."""

    choices: list[C] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    """Of an ``object`` that is an ``error``: so vLLM wrote errors until 2025, and LMDeploy does."""


DECODERS: Final[dict[str, Callable[[bytes], Message[Any]]]] = {
    "chat": msgspec.json.Decoder(Message[Choice]).decode,
    "completions": msgspec.json.Decoder(Message[Text]).decode,
}
"""By kind of endpoint."""
DONE: Final = b"[DONE]"
SURROGATE: Final = re.compile("[\ud800-\udfff]")
REASON: Final = re.compile(r"[A-Za-z_ -]{1,32}")
"""What a finish_reason looks like. Another text of the server's may be long, or hold what must not be written down."""
USUAL: Final = BROKEN | {
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "eos_token",
    "stop_sequence",
}
"""Those that need no second look."""


class Completion:
    """Adds up events; plain fields, read by whoever makes the record."""

    def __init__(self, keep_text: bool = False, kind: str = "chat") -> None:
        self._decode = DECODERS[kind]
        self.chunk_reads: list[int] = []
        """For each chunk the number of the read that brought it."""
        self.early_read: int | None = None
        """The read that brought the first event, where that is before the first chunk."""
        self.done_read: int | None = None
        """The read that brought ``[DONE]``."""
        self.followed: set[int] = set()
        """The reads in which an event that is no chunk came behind a chunk."""
        self.first_output: int | None = None
        self.first_chunk_tokens = 1
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.error: str | None = None
        self.malformed: str | None = None
        self.others: set[Any] = set()
        """The index of each choice but the first, 0, that had content or ended."""
        self.finished: set[Any] = set()
        """The choices that have a finish_reason."""
        self.last = b""
        """The data of the last event."""
        self.broken = b""
        """That of the first which was an error or could not be read."""
        self._closing = False
        """Behind a finish_reason came what comes last: the usage, or ``[DONE]``."""
        self._counted = 0
        self.content = False
        """There was anything to read, in a stream or in a whole answer."""
        self.deltas: list[Delta | Text] | None = [] if keep_text else None
        """Of the first choice, as they came; None: they are not kept."""

    def add(self, event: Event) -> None:
        """One event of a stream."""
        read, kind, data = event
        if self._is_chunk(kind, data):
            self.chunk_reads.append(read)
            return
        if self.done_read is None and data.strip() == DONE:
            self.done_read = read
        if not self.chunk_reads:
            self.early_read = read if self.early_read is None else self.early_read
        elif self.chunk_reads[-1] == read:
            self.followed.add(read)

    def _is_chunk(self, kind: str, data: bytes) -> bool:
        """One event."""
        if kind == "error":
            self._error(status_message(data) or "an event named error", data)
            return False
        if not data.startswith(b"{") and data.strip() in (DONE, b""):
            self._closing = self._closing or bool(self.finished and data)
            return False
        self.last = data
        message = self._message(data)
        if message is None:
            return False
        if message.error or message.object == "error":
            self._error(error_text(message.error or message.message or data.decode("utf-8", "replace")), data)
            return False
        chunk = output = False
        for choice in message.choices or ():
            if choice.finish_reason:  # some write "" until there is one
                self._finish(choice)
            delta = choice.delta
            if delta is not None and ((has_output := delta.output) or delta.thought):
                chunk = self.content = True
                output = output or has_output
                if choice.index:
                    self.others.add(choice.index)
                elif self.deltas is not None:
                    self.deltas.append(delta)
        if chunk and not self.chunk_reads and message.usage is not None:
            self.first_chunk_tokens = count(message.usage.completion_tokens) or 1
        if output and self.first_output is None:
            self.first_output = len(self.chunk_reads)
        if message.usage is not None:
            self._closing = self._closing or bool(self.finished)
            self._count(message.usage, final=not message.choices)
        return chunk

    def whole(self, body: bytes) -> None:
        """An answer that came as one JSON body."""
        message = self._message(body)
        if message is None:
            return
        if message.error or message.object == "error":
            self._error(error_text(message.error or message.message or body.decode("utf-8", "replace")), body)
        elif message.choices is None:
            self.malformed = "JSON that is no chat completion: " + error_line(body)
        for choice in message.choices or ():
            if choice.finish_reason:
                self._finish(choice)
            whole = choice.message
            if whole is not None and (whole.output or whole.thought):
                self.content = True
                if choice.index:
                    self.others.add(choice.index)
                elif self.deltas is not None:
                    self.deltas.append(whole)
        if message.usage is not None:
            self._count(message.usage)

    def _message(self, data: bytes) -> Message[Any] | None:
        try:
            try:
                return self._decode(data)
            except ValueError:
                return self._decode(mended(data))
        except (ValueError, RecursionError) as mistake:
            self.malformed = f"{mistake}: {error_line(data)}"
            self.broken = self.broken or data
            return None

    def _error(self, message: str, data: bytes) -> None:
        """The first one counts: what follows it is about the same."""
        self.error = self.error or message
        self.broken = self.broken or data

    def _finish(self, choice: Choice | Text) -> None:
        self.finish_reason = choice.finish_reason if REASON.fullmatch(choice.finish_reason or "") else "(no reason)"
        self.finished.add(choice.index or 0)
        if choice.index:
            self.others.add(choice.index)
        if choice.finish_reason in BROKEN and self.error is None:
            self.error = f"finish_reason {choice.finish_reason}"

    def _count(self, usage: Usage, *, final: bool = False) -> None:
        """The last count that is there wins: continuous counts grow, the final one is right.

        ``final``: it came without choices. llama.cpp sends such a one for each choice, when that choice is finished;
        they add up.
        """
        output = count(usage.completion_tokens)
        if output is not None:
            if final:
                if len(self.finished) > self._counted > 0:
                    output += self.output_tokens or 0
                self._counted = len(self.finished)
            self.output_tokens = output
        self.input_tokens = _latest(usage.prompt_tokens, self.input_tokens)
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = _latest(usage.prompt_tokens_details.cached_tokens, self.cached_tokens)
        if usage.completion_tokens_details is not None:
            self.reasoning_tokens = _latest(usage.completion_tokens_details.reasoning_tokens, self.reasoning_tokens)

    @property
    def text(self) -> list[str] | None:
        """The texts of its chunks; None where they were not kept."""
        return None if self.deltas is None else [d.content for d in self.deltas if isinstance(d.content, str)]

    @property
    def choices(self) -> int:
        return 1 + len(self.others)

    def outcome(self) -> tuple[str, str]:
        """(outcome, message) of a response with status 2xx whose bytes all came."""
        if self.error is not None:
            return "stream_error", self.error
        if self.malformed is not None:
            return "malformed", self.malformed
        if not self.finished:
            return "truncated", "the answer ended without a finish_reason"
        if not self._closing and (unfinished := len({0, *self.others} - self.finished)):
            # LiteLLM passes on one finish_reason for all choices, with the usage behind it
            return "truncated", f"{unfinished} of {self.choices} choices ended without a finish_reason"
        return (OK, "") if self.content else self._without_content()

    def _without_content(self) -> tuple[str, str]:
        """A model may end at once: then its end is all that was counted, if that was."""
        tokens, reason = self.output_tokens, self.finish_reason
        if tokens is None:
            return "empty", f"no content, and no count of tokens (finish_reason {reason})"
        if reason != "content_filter" and tokens <= self.choices:
            return OK, f"no content: the model ended at once (finish_reason {reason})"
        hidden = f", {self.reasoning_tokens} of them hidden reasoning" if self.reasoning_tokens else ""
        return "empty", f"no content, though {tokens} tokens were counted{hidden} (finish_reason {reason})"


def count(value: Count) -> int | None:
    """A number of tokens, if it can be one."""
    return int(value) if value is not None and 0 <= value < MAX_COUNT else None


def _latest(value: Count, before: int | None) -> int | None:
    now = count(value)
    return before if now is None else now


def mended(data: bytes) -> bytes:
    """JSON that msgspec refuses for its text alone: bytes that are no UTF-8, half of a pair of surrogates (a character
    that was split over two chunks). Raises ValueError and RecursionError."""
    text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False)
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text).encode()


def error_text(error: Any) -> str:
    """The message in an error, which servers write as an object, a string or whatever else."""
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return shown(error if isinstance(error, str) else str(error))


def error_line(body: bytes) -> str:
    """``body`` as one line of at most 4 kB, without the control characters that would reach a terminal."""
    return shown(body)


def status_message(body: bytes) -> str:
    """The message of an error response: that of its JSON, whatever its shape, else its text."""
    if len(body) > MAX_MESSAGE_BYTES:
        return error_line(body)
    try:
        try:
            content = msgspec.json.decode(body)
        except ValueError:
            content = msgspec.json.decode(mended(body))
    except (ValueError, RecursionError):
        return error_line(body)
    if isinstance(content, dict):
        return error_text(content.get("error") or content.get("detail") or content.get("message") or content)
    return error_text(content)
