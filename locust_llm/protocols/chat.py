"""Chat completions (OpenAI, "Chat completions"), and what plain completions share with them: choices, usage, errors."""

import re
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from .answer import Completion, Count, Delta, Failure, Index, Text, count, error_line
from .protocol import Messages, Protocol


# gc=False: they hold no cycles, and four objects an event would keep the garbage collector busy
class Details(msgspec.Struct, gc=False):
    reasoning_tokens: Count = None
    cached_tokens: Count = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Choice(msgspec.Struct, gc=False):
    """Of a chat completion."""

    index: Index = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


C = TypeVar("C", Choice, Text)
TEXT: Final = re.compile(rb'"(?:content|text)"\s*:\s*"([ !#-\[\]-~]+)"')
"""Of a chunk: plain ASCII, without escapes."""


class Message(Failure, Generic[C], gc=False):
    """One event of a stream, or a whole answer."""

    choices: list[C] | None = None
    usage: Usage | None = None
    timings: msgspec.Raw = msgspec.Raw()
    """Of llama.cpp: core.server_times reads them, when the answer is over."""
    metrics: msgspec.Raw = msgspec.Raw()
    """Of vLLM, as the timings."""


class Choices(Protocol[Message[Any]]):
    """What answers in choices."""

    length_fields = ("max_tokens", "max_completion_tokens")
    stream_fields: ClassVar[dict[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
    count_fields: ClassVar[dict[str, Any]] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    def event(self, answer: Completion, message: Message[Any], data: bytes) -> bool:
        if message.error or message.object == "error":
            answer.fail(message.error or message.message, data)
            return False
        chunk = output = False
        for choice in message.choices or ():
            if choice.finish_reason:  # some write "" until there is one
                answer.finish(choice.finish_reason, choice.index)
            delta = choice.delta
            if delta is not None and ((has_output := delta.output) or delta.thought):
                chunk = answer.content = True
                output = output or has_output
                if choice.index:
                    answer.others.add(choice.index)
                elif answer.deltas is not None:
                    answer.deltas.append(delta)
        if output and answer.first_output is None:
            answer.first_output = len(answer.chunk_reads)
        if (usage := message.usage) is not None:
            if chunk and (so_far := count(usage.completion_tokens)) is not None:
                answer.counted_by.append(so_far)
                answer.first_chunk_tokens = answer.first_chunk_tokens if answer.chunk_reads else so_far or 1
            answer.closing = answer.closing or bool(answer.finished)
            _count(answer, usage, final=not message.choices)
        if message.timings:
            answer.timings = message.timings
        if message.metrics:
            answer.metrics = message.metrics
        return chunk

    def form(self, data: bytes) -> tuple[bytes, bytes]:
        text = TEXT.search(data)
        if text is None or TEXT.search(data, text.end()):
            return b"", b""
        try:
            message = self.decode(data)
        except (ValueError, RecursionError):
            return b"", b""
        (choice,) = message.choices if message.choices and len(message.choices) == 1 else (None,)
        more = message.error or message.object == "error" or message.usage is not None
        more = more or message.timings or message.metrics
        if (
            more
            or choice is None
            or choice.index
            or choice.finish_reason
            or not (choice.delta and choice.delta.text_alone)
        ):
            return b"", b""
        return data[: text.start(1)], data[text.end(1) :]

    def whole(self, answer: Completion, body: bytes) -> None:
        message = answer.read(self.decode, body)
        if message is None:
            return
        if not answer.failed(message, body) and message.choices is None:
            answer.malformed = "JSON that is no chat completion: " + error_line(body)
        for choice in message.choices or ():
            if choice.finish_reason:
                answer.finish(choice.finish_reason, choice.index)
            whole = choice.message
            if whole is not None and (whole.output or whole.thought):
                answer.content = True
                if choice.index:
                    answer.others.add(choice.index)
                elif answer.deltas is not None:
                    answer.deltas.append(whole)
        if message.usage is not None:
            _count(answer, message.usage)
        answer.timings, answer.metrics = message.timings, message.metrics


class Chat(Choices):
    path = "/v1/chat/completions"
    operation = "chat"
    takes = ("image", "audio")
    decode = staticmethod(msgspec.json.Decoder(Message[Choice]).decode)

    def prompt(self, messages: Messages) -> dict[str, Any]:
        return {"messages": messages}


def _count(answer: Completion, usage: Usage, *, final: bool = False) -> None:
    """Continuous counts grow, the final one is right. ``final``: it came without choices. llama.cpp sends such a one for
    each choice, when that choice is finished; they add up."""
    output = count(usage.completion_tokens)
    if output is not None and final:
        if len(answer.finished) > answer.counted > 0:
            output += answer.output_tokens or 0
        answer.counted = len(answer.finished)
    of_prompt, of_answer = usage.prompt_tokens_details, usage.completion_tokens_details
    answer.count(
        input_=usage.prompt_tokens,
        output=output,
        reasoning=None if of_answer is None else of_answer.reasoning_tokens,
        cached=None if of_prompt is None else of_prompt.cached_tokens,
    )
