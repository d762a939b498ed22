"""Chat protocol (OpenAI, "Chat completions"), and what plain completions share with them: choices,
usage, errors."""

import re
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from .answer_parser import Completion, parse_token_count, read_finish_reason
from .error_forms import ErrorFields, is_error
from .error_message import error_line
from .first_token import Delta, Index, TextChoice
from .protocol import Messages, Protocol
from .token_counts import ChatUsage


class ChatChoice(msgspec.Struct, gc=False):  # gc=False: see token_counts.py
    """One choice of a chat completion."""

    index: Index = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Any = None
    usage: ChatUsage | None = None
    """Moonshot sends it here, in the last event."""
    error: Any = None
    """OpenRouter sends it here."""

    @property
    def plain(self) -> bool:
        """The choice adds a text, and nothing else."""
        text = self.delta is not None and self.delta.text_alone
        return text and self.message is None and self.usage is None and self.error is None


class GroqPart(msgspec.Struct, gc=False):
    """What Groq adds in its own field, ``x_groq``."""

    usage: ChatUsage | None = None
    error: Any = None


C = TypeVar("C", ChatChoice, TextChoice)
TEXT: Final = re.compile(rb'"(?:content|text)"\s*:\s*"([ !#-\[\]-~]+)"')
"""The text of a chunk in plain ASCII, without escapes."""


class CompletionChunk(ErrorFields, Generic[C], gc=False):
    """One event of a stream, or a whole answer."""

    choices: list[C] | None = None
    usage: ChatUsage | None = None
    timings: msgspec.Raw = msgspec.Raw()
    """llama.cpp's timings. records.server_times reads them when the answer is over."""
    metrics: msgspec.Raw = msgspec.Raw()
    """vLLM's metrics, read as the timings are."""
    x_groq: GroqPart | None = None

    @property
    def plain(self) -> bool:
        """The chunk has nothing beside its choices."""
        more = (
            self.error
            or self.object == "error"
            or self.usage is not None
            or self.timings
            or self.metrics
        )
        return not more and self.x_groq is None and self.base_resp is None

    @property
    def unharmed(self) -> bool:
        """The chunk has nothing beside its choices that may be an error."""
        return (
            not self.error
            and self.object != "error"
            and self.base_resp is None
            and self.x_groq is None
        )

    @property
    def counts(self) -> ChatUsage | None:
        """The counts of its usage, wherever that stands."""
        if self.usage is not None:
            return self.usage
        if self.x_groq is not None and self.x_groq.usage is not None:
            return self.x_groq.usage
        for choice in self.choices or ():
            if choice.usage is not None:
                return choice.usage
        return None


class ChoicesProtocol(Protocol[CompletionChunk[Any]]):
    """A protocol whose answers have choices."""

    length_fields = ("max_tokens", "max_completion_tokens")
    stream_fields: ClassVar[dict[str, Any]] = {
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    count_fields: ClassVar[dict[str, Any]] = {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}
    }

    def event(self, answer: Completion, message: CompletionChunk[Any], data: bytes) -> bool:
        choices, usage = message.choices, message.usage
        if (not choices or not message.unharmed) and self._failed(answer, message, data):
            return False
        chunk = output = False
        begun = answer.content
        for choice in choices or ():
            index = choice.index = (
                parse_token_count(choice.index) if choice.index.__class__ is str else choice.index
            )
            if choice.error is not None and is_error(choice.error):
                answer.fail(choice.error, data)
                return False
            if choice.finish_reason and (reason := read_finish_reason(choice.finish_reason)):
                answer.finish(reason, index)
            delta = choice.delta
            if (
                delta is not None
                and delta.content
                and delta.content.__class__ is str
                and delta.alone
            ):
                has_output, has_thought = True, False  # nearly all of them, so it is to be fast
            else:
                delta, has_output, has_thought = _read_choice(answer, choice, begun)
            if has_output or has_thought:
                chunk = answer.content = True
                output = output or has_output
                if index:
                    answer.others.add(index)
                elif not answer.led:
                    answer.lead()
                if answer.deltas is not None and delta is not None and not (index and answer.led):
                    answer.deltas.append(delta)
                if index and answer.other_deltas is not None and delta is not None:
                    answer.other_deltas[index].append(delta)
        if output and answer.first_output is None:
            answer.first_output = len(answer.chunk_reads)
        if usage is not None or (usage := message.counts) is not None:
            _take_usage(answer, usage, chunk=chunk, final=not choices)
        if message.timings:
            answer.timings = message.timings
        if message.metrics:
            answer.metrics = message.metrics
        return chunk

    def _failed(self, answer: Completion, message: CompletionChunk[Any], data: bytes) -> bool:
        """Whether the event is an error, or has one beside its choices."""
        if answer.failed(message, data):
            return True
        if message.x_groq is not None and is_error(message.x_groq.error):
            answer.fail(message.x_groq.error, data)
            return True
        return not message.choices and message.usage is None and answer.look_for_error(data)

    def form(self, data: bytes) -> tuple[bytes, bytes]:
        text = TEXT.search(data)
        if text is None or TEXT.search(data, text.end()):
            return b"", b""
        try:
            message = self.decode(data)
        except (ValueError, RecursionError):
            return b"", b""
        (choice,) = message.choices if message.choices and len(message.choices) == 1 else (None,)
        if (
            not message.plain
            or choice is None
            or choice.index
            or choice.finish_reason
            or not choice.plain
        ):
            return b"", b""
        return data[: text.start(1)], data[text.end(1) :]

    def whole(self, answer: Completion, body: bytes) -> None:
        message = answer.read(self.decode, body)
        if message is None:
            return
        if (
            not self._failed(answer, message, body)
            and message.choices is None
            and answer.complaint is None
        ):
            answer.malformed = "JSON that is not a chat completion: " + error_line(body)
        for choice in message.choices or ():
            if choice.error is not None and is_error(choice.error):
                answer.fail(choice.error, body)
            if isinstance(choice.index, str):
                choice.index = parse_token_count(choice.index)
            if choice.finish_reason and (reason := read_finish_reason(choice.finish_reason)):
                answer.finish(reason, choice.index)
            whole = choice.message
            if whole is not None and any(_brought(answer, whole, choice)):
                answer.content = True
                if choice.index:
                    answer.others.add(choice.index)
                    if answer.other_deltas is not None:
                        answer.other_deltas[choice.index].append(whole)
                elif answer.deltas is not None:
                    answer.deltas.append(whole)
        if (usage := message.counts) is not None:
            _count(answer, usage)
        answer.timings, answer.metrics = message.timings, message.metrics


class ChatProtocol(ChoicesProtocol):
    path = "/v1/chat/completions"
    operation = "chat"
    takes = ("image", "audio")
    decode = staticmethod(msgspec.json.Decoder(CompletionChunk[ChatChoice]).decode)

    def prompt(self, messages: Messages) -> dict[str, Any]:
        return {"messages": messages}


def _take_usage(answer: Completion, usage: ChatUsage, *, chunk: bool, final: bool) -> None:
    """Count by the usage of an event. ``chunk``: the event is a chunk too, so its usage counts the
    tokens so far."""
    if chunk and (so_far := parse_token_count(usage.output)):
        answer.counted_by.append(so_far)
        if not answer.chunk_reads:
            answer.first_chunk_tokens = so_far
    answer.closing = answer.closing or bool(answer.finished)
    _count(answer, usage, final=final)


def _count(answer: Completion, usage: ChatUsage, *, final: bool = False) -> None:
    """Take a count. Continuous counts grow, and the final one is right.

    ``final``: it came without choices. llama.cpp sends such a count for each finished choice, and
    they add up.
    """
    output = usage.output
    if final and (tokens := parse_token_count(output)):
        if len(answer.finished) > answer.counted > 0:
            output = tokens + (answer.counts.output or 0)
        answer.counted = len(answer.finished)
    answer.count(
        input_=usage.prompt,
        output=output,
        reasoning=usage.reasoning,
        cached=usage.cached,
        total=usage.total_tokens,
    )


def _begun(answer: Completion, choice: Any, begun: bool) -> bool:
    """Whether a choice has had content before. ``begun``: one of the answer's choices had."""
    return choice.index in answer.others if choice.index else begun


def _read_choice(answer: Completion, choice: Any, begun: bool) -> tuple[Any, bool, bool]:
    """(what a choice adds, whether it has output, whether it has reasoning). ``begun``: the answer
    had content before."""
    delta = choice.delta
    if delta is not None:
        has_output, has_thought = _brought(answer, delta, choice)
        if has_output or has_thought:
            return delta, has_output, has_thought
    if choice.message is None or _begun(answer, choice, begun):
        return delta, False, False
    # the whole answer, as one event
    return choice.message, *_brought(answer, choice.message, choice)


def _brought(answer: Completion, delta: Any, choice: Any) -> tuple[bool, bool]:
    """(whether a delta or a whole message has output, whether it has reasoning)."""
    output, thought = delta.brought
    if delta.has_calls:
        output = answer.adds_call(delta, choice.index) or output
    if delta.details:
        answer.add_details(delta.details)
    elif thought:
        answer.thought = True
    return output, thought
