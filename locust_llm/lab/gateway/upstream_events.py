"""Upstream events: how each API writes the events of a stream, and an answer in one piece. Standard
library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from .upstream_script import STAMP_DIGITS, UpstreamScript

STAMP: Final = b"@" * STAMP_DIGITS
"""The place of a moment that is not known yet."""
PLACE: Final = STAMP.decode()
PROMPT_TOKENS: Final = 11
MODEL: Final = "gwbench"
OTHER_MODEL: Final = "another-model"
FAILURE: Final = "the engine of the timed upstream died"
DONE: Final = b"data: [DONE]\n\n"
CREATED: Final = 1_700_000_000
TOOL: Final = "note"
BEGIN_ARGUMENTS: Final = '{"words": "'
END_ARGUMENTS: Final = '"}'
REASONS: Final = {
    "messages": {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    },
}
"""The words of an API for the reasons of chat completions, where they differ."""


class UpstreamAnswerOptions(NamedTuple):
    """What a request says of the answer that it wants."""

    kind: str
    """chat, completions, responses, messages or embeddings."""
    stream: bool = False
    include_usage: bool = False
    model: str = MODEL
    inputs: int = 1
    """The number of texts to embed."""
    base64: bool = False
    """Vectors come as base64."""
    chunked: bool = True
    """HTTP/1.1: a stream may come in HTTP chunks."""
    gzip: bool = False
    """The request accepts gzip."""
    keep_alive: bool = True


def encode_compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class StreamWriter:
    """Writes the events of one streamed answer. Subclasses know the API."""

    done = DONE

    def __init__(
        self, script: UpstreamScript, asked: UpstreamAnswerOptions, moments: Sequence[int]
    ) -> None:
        """``moments`` grows: the moment of each word that was written so far."""
        self.script = script
        self.asked = asked
        self.id = script.id
        self.model = OTHER_MODEL if script.fault == "wrong_model" else asked.model
        self.extra = {"vendor_field": {"kept": True}} if "extra_fields" in script.features else {}
        self.channel = ""
        """The channel of the words under way. Empty: none is open."""
        self.moments = moments
        self._number = 0
        self._ids = "event_ids" in script.features

    def begin(self) -> bytes:
        return b""

    def word(self, text: str, channel: str) -> bytes:
        """The event of one word. It opens the channel first."""
        before = b""
        if channel != self.channel:
            before = self.close() + self.open(channel)
            self.channel = channel
            text = BEGIN_ARGUMENTS + text if channel == "tool" else text
        return before + self.delta(text, channel)

    def open(self, channel: str) -> bytes:
        return b""

    def delta(self, text: str, channel: str) -> bytes:
        raise NotImplementedError

    def close(self) -> bytes:
        """Closes the channel that is open."""
        return b""

    def finish(self, reason: str, tokens: int) -> bytes:
        """The end without ``done``."""
        raise NotImplementedError

    def error(self) -> bytes:
        return self.event({"error": {"message": FAILURE, "type": "server_error", "code": 500}})

    def event(self, value: dict[str, Any], kind: str = "") -> bytes:
        """An SSE event."""
        self._number += 1
        lines = [b"id: %d" % self._number] if self._ids else []
        lines += [b"event: " + kind.encode()] if kind else []
        lines.append(b"data: " + json.dumps({**value, **self.extra}, ensure_ascii=False).encode())
        return b"\n".join((*lines, b"", b""))

    @property
    def wants_usage(self) -> bool:
        if self.script.fault == "missing_usage":
            return False
        return self.asked.include_usage or "usage" in self.script.features


def count_usage(tokens: int, reasoning: int = 0) -> dict[str, Any]:
    """Usage in the words of chat completions."""
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _count_reasoning(script: UpstreamScript) -> int:
    return script.channels.count("reasoning")


class ChatWriter(StreamWriter):
    """Chat completions."""

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def open(self, channel: str) -> bytes:
        return self._chunk({"tool_calls": [_chat_call(self.id, "")]}) if channel == "tool" else b""

    def delta(self, text: str, channel: str) -> bytes:
        if channel == "tool":
            return self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        return self._chunk({"content" if channel == "content" else "reasoning_content": text})

    def close(self) -> bytes:
        return self.delta(END_ARGUMENTS, "tool") if self.channel == "tool" else b""

    def finish(self, reason: str, tokens: int) -> bytes:
        end = self._chunk({}, reason)
        if self.wants_usage:
            usage = count_usage(tokens, _count_reasoning(self.script))
            end += self.event({**self._top(), "choices": [], "usage": usage})
        return end

    def _top(self) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": self.model,
            "system_fingerprint": "fp_gwbench",
        }

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.event({**self._top(), "choices": [choice]})


def _chat_call(answer_id: str, arguments: str) -> dict[str, Any]:
    return {
        "index": 0,
        "id": f"call_{answer_id}",
        "type": "function",
        "function": {"name": TOOL, "arguments": arguments},
    }


class CompletionsWriter(StreamWriter):
    """Completions of the older API. They have one channel."""

    def delta(self, text: str, channel: str) -> bytes:
        return self._chunk(text)

    def word(self, text: str, channel: str) -> bytes:
        return self._chunk(text)

    def finish(self, reason: str, tokens: int) -> bytes:
        end = self._chunk("", "stop" if reason == "tool_calls" else reason)
        if self.wants_usage:
            end += self.event({**self._top(), "choices": [], "usage": count_usage(tokens)})
        return end

    def _top(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.id}",
            "object": "text_completion",
            "created": CREATED,
            "model": self.model,
        }

    def _chunk(self, text: str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return self.event({**self._top(), "choices": [choice]})


class ResponsesWriter(StreamWriter):
    """Responses: typed events with sequence numbers, one output item for each channel."""

    done = b""
    DELTAS: Final = {
        "content": "output_text",
        "reasoning": "reasoning_text",
        "tool": "function_call_arguments",
    }

    def __init__(
        self, script: UpstreamScript, asked: UpstreamAnswerOptions, moments: Sequence[int]
    ) -> None:
        super().__init__(script, asked, moments)
        self._sequence = 0
        self._index = -1
        self._item = dict[str, Any]()
        self._output = list[dict[str, Any]]()
        self._text = list[str]()
        self._word = 0
        """The number of the next word."""
        self._first_word = 0
        """The number of the first word of the open item."""

    def begin(self) -> bytes:
        response = self._response("in_progress", None)
        return b"".join(
            self._typed(f"response.{name}", response=response)
            for name in ("created", "in_progress")
        )

    def open(self, channel: str) -> bytes:
        self._index += 1
        self._text = []
        self._first_word = self._word
        item = _responses_item(self.id, self._index, channel, "", "in_progress")
        self._item = item
        opened = self._typed("response.output_item.added", output_index=self._index, item=item)
        if channel == "tool":
            return opened
        return opened + self._typed(
            "response.content_part.added", **self._place, content_index=0, part=_part(channel, "")
        )

    def delta(self, text: str, channel: str) -> bytes:
        self._text.append(text)
        self._word += text.count(PLACE)
        within = {} if channel == "tool" else {"content_index": 0}
        return self._typed(
            f"response.{self.DELTAS[channel]}.delta", **self._place, **within, delta=text
        )

    def close(self) -> bytes:
        channel = self.channel
        if not channel:
            return b""
        last = self.delta(END_ARGUMENTS, channel) if channel == "tool" else b""
        text = fill_moments("".join(self._text), self.moments[self._first_word :])
        item = _responses_item(self.id, self._index, channel, text, "completed")
        self._output.append(item)
        if channel == "tool":
            ended = self._typed(
                "response.function_call_arguments.done", **self._place, arguments=text
            )
        else:
            ended = self._typed(
                f"response.{self.DELTAS[channel]}.done", **self._place, content_index=0, text=text
            )
            ended += self._typed(
                "response.content_part.done", **self._place, content_index=0,
                part=_part(channel, text),
            )  # fmt: skip
        self.channel = ""
        return (
            last
            + ended
            + self._typed("response.output_item.done", output_index=self._index, item=item)
        )

    def finish(self, reason: str, tokens: int) -> bytes:
        closed = self.close()
        status, _ = _responses_status(reason)
        usage = (
            None if self.script.fault == "missing_usage" else _responses_usage(self.script, tokens)
        )
        response = self._response(reason, usage)
        return closed + self._typed(f"response.{status}", response=response)

    def error(self) -> bytes:
        return self._typed("error", code="server_error", message=FAILURE, param=None)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": self._index}

    def _response(self, reason: str, usage: dict[str, Any] | None) -> dict[str, Any]:
        return _responses_object(self.id, self.model, reason, list(self._output), usage)

    def _typed(self, kind: str, **values: Any) -> bytes:
        sequence = self._sequence
        self._sequence += 1
        return self.event({"type": kind, "sequence_number": sequence, **values}, kind)


def fill_moments(text: str, moments: Sequence[int]) -> str:
    """``text`` with the moments of its first words. Those that are not written yet keep their
    places."""
    parts = text.split(PLACE)
    filled = [f"{moment:0{STAMP_DIGITS}d}" for moment in moments[: len(parts) - 1]]
    filled += [PLACE] * (len(parts) - 1 - len(filled))
    return "".join(map("".join, zip(parts, [*filled, ""], strict=True)))


def _responses_status(reason: str) -> tuple[str, dict[str, str] | None]:
    """(status, why it is incomplete)."""
    if reason in ("length", "content_filter"):
        why = {"length": "max_output_tokens", "content_filter": "content_filter"}[reason]
        return "incomplete", {"reason": why}
    return {"abort": "failed", "in_progress": "in_progress"}.get(reason, "completed"), None


def _responses_usage(script: UpstreamScript, tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": _count_reasoning(script)},
        "total_tokens": PROMPT_TOKENS + tokens,
    }


def _responses_object(
    answer_id: str,
    model: str,
    reason: str,
    output: list[dict[str, Any]],
    usage: dict[str, Any] | None,
) -> dict[str, Any]:
    status, why = _responses_status(reason)
    error = {"code": "server_error", "message": FAILURE} if status == "failed" else None
    return {
        "id": f"resp_{answer_id}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": error,
        "incomplete_details": why,
        "instructions": None,
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
        "metadata": {},
    }


def _part(channel: str, text: str) -> dict[str, Any]:
    if channel == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _responses_item(
    answer_id: str, index: int, channel: str, text: str, status: str
) -> dict[str, Any]:
    item: dict[str, Any] = {"id": f"item_{index}_{answer_id}", "status": status}
    parts = [_part(channel, text)] if text else []
    if channel == "tool":
        call = {"call_id": f"call_{answer_id}", "name": TOOL, "arguments": text}
        return {**item, "type": "function_call", **call}
    if channel == "reasoning":
        return {**item, "type": "reasoning", "summary": [], "content": parts}
    return {**item, "type": "message", "role": "assistant", "content": parts}


class MessagesWriter(StreamWriter):
    """Anthropic's Messages: one block of content for each channel."""

    done = b""
    BLOCKS: Final[dict[str, dict[str, Any]]] = {
        "content": {"type": "text", "text": ""},
        "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    }
    DELTAS: Final = {
        "content": ("text_delta", "text"),
        "reasoning": ("thinking_delta", "thinking"),
        "tool": ("input_json_delta", "partial_json"),
    }

    def __init__(
        self, script: UpstreamScript, asked: UpstreamAnswerOptions, moments: Sequence[int]
    ) -> None:
        super().__init__(script, asked, moments)
        self._index = -1

    def begin(self) -> bytes:
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 1}
        message = _messages_object(self.id, self.model, [], None, usage)
        return self._typed("message_start", message=message) + self._typed("ping")

    def open(self, channel: str) -> bytes:
        self._index += 1
        block = self.BLOCKS.get(channel) or _messages_call(self.id, {})
        return self._typed("content_block_start", index=self._index, content_block=block)

    def delta(self, text: str, channel: str) -> bytes:
        kind, field = self.DELTAS[channel]
        return self._typed(
            "content_block_delta", index=self._index, delta={"type": kind, field: text}
        )

    def close(self) -> bytes:
        channel = self.channel
        if not channel:
            return b""
        last = self.delta(END_ARGUMENTS, channel) if channel == "tool" else b""
        if channel == "reasoning":
            signature = {"type": "signature_delta", "signature": "gwbench"}
            last = self._typed("content_block_delta", index=self._index, delta=signature)
        self.channel = ""
        return last + self._typed("content_block_stop", index=self._index)

    def finish(self, reason: str, tokens: int) -> bytes:
        if reason == "abort":
            return self.close() + self.error()
        delta = {"stop_reason": REASONS["messages"][reason], "stop_sequence": None}
        usage = {} if self.script.fault == "missing_usage" else {"usage": {"output_tokens": tokens}}
        ended = self._typed("message_delta", delta=delta, **usage)
        return self.close() + ended + self._typed("message_stop")

    def error(self) -> bytes:
        return self._typed("error", error={"type": "api_error", "message": FAILURE})

    def _typed(self, kind: str, **values: Any) -> bytes:
        return self.event({"type": kind, **values}, kind)


def _messages_call(answer_id: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{answer_id}", "name": TOOL, "input": arguments}


def _messages_object(
    answer_id: str,
    model: str,
    content: list[dict[str, Any]],
    stop_reason: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


WRITERS: Final[dict[str, type[StreamWriter]]] = {
    "chat": ChatWriter,
    "completions": CompletionsWriter,
    "responses": ResponsesWriter,
    "messages": MessagesWriter,
}


# -- answers in one piece ------------------------------------------------------------------------


class OnePieceAnswer(NamedTuple):
    """What an answer in one piece says."""

    script: UpstreamScript
    model: str
    reason: str
    """Why it ended, in the words of chat completions."""
    counted: int
    """The output tokens that usage reports."""
    texts: dict[str, str]
    """The text of each channel."""


def _whole_chat(answer: OnePieceAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.texts["content"] or None}
    if not answer.texts["tool"]:
        message["content"] = answer.texts["content"]
    if answer.texts["reasoning"]:
        message["reasoning_content"] = answer.texts["reasoning"]
    if answer.texts["tool"]:
        call = _chat_call(answer.script.id, answer.texts["tool"])
        del call["index"]
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.reason}
    return {
        "id": f"chatcmpl-{answer.script.id}",
        "object": "chat.completion",
        "created": CREATED,
        "model": answer.model,
        "system_fingerprint": "fp_gwbench",
        "choices": [choice],
        "usage": count_usage(answer.counted, _count_reasoning(answer.script)),
    }


def _whole_completions(answer: OnePieceAnswer) -> dict[str, Any]:
    text = answer.texts["reasoning"] + answer.texts["tool"] + answer.texts["content"]
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": answer.reason}
    return {
        "id": f"cmpl-{answer.script.id}",
        "object": "text_completion",
        "created": CREATED,
        "model": answer.model,
        "choices": [choice],
        "usage": count_usage(answer.counted),
    }


def _whole_responses(answer: OnePieceAnswer) -> dict[str, Any]:
    output = list[dict[str, Any]]()
    for channel, text in answer.texts.items():
        if text:
            output.append(
                _responses_item(answer.script.id, len(output), channel, text, "completed")
            )
    usage = _responses_usage(answer.script, answer.counted)
    return _responses_object(answer.script.id, answer.model, answer.reason, output, usage)


def _whole_messages(answer: OnePieceAnswer) -> dict[str, Any]:
    content = list[dict[str, Any]]()
    if answer.texts["reasoning"]:
        thinking = {"thinking": answer.texts["reasoning"], "signature": "gwbench"}
        content.append({"type": "thinking", **thinking})
    if answer.texts["tool"]:
        content.append(_messages_call(answer.script.id, json.loads(answer.texts["tool"])))
    if answer.texts["content"]:
        content.append({"type": "text", "text": answer.texts["content"]})
    reason = REASONS["messages"].get(answer.reason)
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": answer.counted}
    return _messages_object(answer.script.id, answer.model, content, reason, usage)


WHOLE: Final[dict[str, Callable[[OnePieceAnswer], dict[str, Any]]]] = {
    "chat": _whole_chat,
    "completions": _whole_completions,
    "responses": _whole_responses,
    "messages": _whole_messages,
}
