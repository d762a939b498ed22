"""What a chat completion says, streamed or whole: its chunks, its counts, how it ended.

Which events are chunks follows DESIGN's rule: non-empty content, reasoning, refusal or a tool call. Role-only, empty and
usage-only events, comments and ``[DONE]`` are none. Neither usage nor ``[DONE]`` is ever required: transformers ends
without it, vLLM sends it after an error.
"""

from typing import Any, Final

import msgspec

from .record import OK
from .sse import Event

MESSAGE_BYTES: Final = 4096


class Details(msgspec.Struct):
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Delta(msgspec.Struct):
    """A ``delta`` of a stream, or the ``message`` of a whole answer."""

    content: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def output(self) -> bool:
        return bool(self.content or self.tool_calls or self.refusal)

    @property
    def thought(self) -> bool:
        return bool(self.reasoning_content or self.reasoning)


class Choice(msgspec.Struct):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Message(msgspec.Struct):
    """One event of a stream, or a whole answer."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(Message).decode


class Answer:
    """Adds up events; plain fields, read by whoever makes the record."""

    def __init__(self, keep_text: bool = False) -> None:
        self.chunk_reads: list[int] = []
        """For each chunk the number of the read that brought it."""
        self.first_output: int | None = None
        self.first_chunk_tokens = 1
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.error: str | None = None
        self.malformed: str | None = None
        self.finished = False
        self.content = False
        """There was anything to read, in a stream or in a whole answer."""
        self.text: list[str] | None = [] if keep_text else None

    def add(self, event: Event) -> None:
        """One event of a stream."""
        read, kind, data = event
        if data == b"[DONE]":
            return
        message = self._message(data)
        if message is None:
            return
        if message.error is not None or kind == "error":
            self.error = error_line(data) if message.error is None else error_text(message.error)
            return
        for choice in message.choices or ():
            delta = choice.delta
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self.finished = True
            if delta is None:
                continue
            if delta.output or delta.thought:
                if not self.chunk_reads and message.usage is not None:
                    self.first_chunk_tokens = message.usage.completion_tokens or 1
                if self.first_output is None and delta.output:
                    self.first_output = len(self.chunk_reads)
                self.chunk_reads.append(read)
                self._keep(delta)
        if message.usage is not None:
            self._count(message.usage)

    def whole(self, body: bytes) -> None:
        """An answer that came as one JSON body."""
        message = self._message(body)
        if message is None:
            return
        if message.error is not None:
            self.error = error_text(message.error)
        elif message.choices is None:
            self.malformed = "JSON that is no chat completion: " + error_line(body)
        for choice in message.choices or ():
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
                self.finished = True
            if choice.message is not None:
                self._keep(choice.message)
        if message.usage is not None:
            self._count(message.usage)

    def _message(self, data: bytes) -> Message | None:
        try:
            return _decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as mistake:
            self.malformed = f"{mistake}: {error_line(data)}"
            return None

    def _keep(self, delta: Delta) -> None:
        self.content = self.content or delta.output or delta.thought
        if self.text is not None and isinstance(delta.content, str):
            self.text.append(delta.content)

    def _count(self, usage: Usage) -> None:
        """The last count that is there wins: continuous counts grow, the final one is right."""
        if usage.prompt_tokens is not None:
            self.input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens_details is not None:
            self.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens

    def outcome(self) -> tuple[str, str]:
        """(outcome, message) of a response with status 2xx whose bytes all came."""
        if self.error is not None:
            return "stream_error", self.error
        if self.malformed is not None:
            return "malformed", self.malformed
        if not self.finished:
            return "truncated", "the answer ended without a finish_reason"
        if not self.content and self.output_tokens is None:
            return "empty", f"no content (finish_reason {self.finish_reason})"
        return OK, ""


def error_text(error: Any) -> str:
    """The message in an error, which servers write as an object, a string or whatever else."""
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return error_line(str(error).encode())


def error_line(body: bytes) -> str:
    """``body`` as one line of at most 4 kB."""
    return " ".join(body[:MESSAGE_BYTES].decode("utf-8", "replace").split())


def status_message(body: bytes) -> str:
    """What an error response says: the message of its JSON, whatever its shape, else its text."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return error_line(body)
    if isinstance(content, dict):
        return error_text(content.get("error") or content.get("detail") or content.get("message") or content)
    return error_text(content)


def chat_body(
    model: str | None,
    messages: list[dict[str, Any]],
    max_tokens: int | None,
    *,
    streaming: bool = True,
    max_tokens_field: str = "max_tokens",
    **body: Any,
) -> bytes:
    """The JSON of a request. ``body`` adds to it and wins."""
    request: dict[str, Any] = {"messages": messages}
    if model is not None:
        request["model"] = model
    if max_tokens is not None:
        request[max_tokens_field] = max_tokens
    if streaming:
        request["stream"] = True
        request["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(request | body)
