"""Anthropic's Messages: parses and writes them like vLLM (0.32), as blocks of content, with input
usage first and output usage last."""

from __future__ import annotations

from typing import Any

from . import openai_chat, simulated_tokenizer
from .openai_chat import (
    ARGUMENT,
    AnswerRequest,
    Form,
    UnstreamedAnswer,
    WrittenText,
    encode_json,
    invalid_request_error,
    read_field,
    tool_called,
)
from .simulated_faults import Quirks

_BEGIN = encode_json(f'{{"{ARGUMENT}": "')[1:-1]
_REASONS = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}
_DELTAS = {"text": b'"text_delta","text"', "thinking": b'"thinking_delta","thinking"',
           "tool_use": b'"input_json_delta","partial_json"'}  # fmt: skip


def _parse(asked: dict[str, Any]) -> WrittenText:
    messages = read_field(asked, "messages", list)
    if not messages:
        raise invalid_request_error("body.messages", "Field required")
    if asked.get("max_tokens") is None:
        raise invalid_request_error("body.max_tokens", "Field required")
    parsed: openai_chat.Messages = []
    if asked.get("system"):
        parsed.append(("system", _text(asked["system"], "body.system")))
    for index, message in enumerate(messages):
        loc = f"body.messages.{index}"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise invalid_request_error(loc, "Input should have the role user or assistant")
        parsed += _turns(message["role"], message.get("content"), f"{loc}.content")
    for index, tool in enumerate(read_field(asked, "tools", list) or ()):
        if isinstance(tool, dict) and not isinstance(tool.get("input_schema"), dict):
            raise invalid_request_error(f"body.tools.{index}.input_schema", "Field required")
    read_field(asked, "tool_choice", dict)
    return WrittenText(
        simulated_tokenizer.chat_pieces(parsed),
        "max_tokens",
        tool_called(asked, parsed[-1][0] == "tool"),
        messages=parsed,
    )


def _turns(role: str, content: Any, loc: str) -> openai_chat.Messages:
    """Splits a message. Each answer of a tool is a message of its own, as in the other forms."""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        return [(role, _text(content, loc))]
    results = [block for block in content if block.get("type") == "tool_result"]
    rest = [block for block in content if block.get("type") != "tool_result"]
    if any(not isinstance(block.get("tool_use_id"), str) for block in results):
        raise invalid_request_error(f"{loc}.tool_use_id", "Field required")
    turns = [("tool", _text(block.get("content") or "", loc)) for block in results]
    return [*turns, (role, _text(rest, loc))] if rest or not results else turns


def _text(content: Any, loc: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise invalid_request_error(loc, "Input should be a valid string or list of blocks")
    return "\n".join(filter(None, (_of_block(block, loc) for block in content)))


def _of_block(block: dict[str, Any], loc: str) -> str:
    if block.get("type") != "tool_use":
        return simulated_tokenizer.part_text(block)
    if not isinstance(block.get("input"), dict):
        raise invalid_request_error(f"{loc}.input", "Input should be a valid dictionary")
    return encode_json(block["input"]).decode()


class MessagesEvents:
    """Writes the events of one streamed answer."""

    done = b""

    def __init__(
        self, answer_id: str, model: str, quirks: Quirks, finish_reason: str, asked: AnswerRequest
    ) -> None:
        self.answer_id = answer_id
        self.model = model
        self.quirks = quirks
        self.finish_reason = finish_reason
        self.asked = asked
        self.index = 0
        self.block = ""  # type of that which is under way

    def role(self, used: dict[str, Any] | None = None) -> bytes:
        usage = {"input_tokens": self.asked.prompt_tokens, "output_tokens": 0}
        message = _message(
            self.answer_id, self.model, [], None, {} if self.quirks.usage == "none" else usage
        )
        return _event("message_start", message=message)

    def call(self) -> bytes:
        """Returns no event, as ``text`` writes the call of a tool."""
        return b""

    def text(
        self, text: bytes, used: dict[str, Any] | None = None, *, reasoning: bool, last: bool
    ) -> bytes:
        """Writes a chunk. ``text`` must need no escape in JSON, except CALL_END."""
        kind = "tool_use" if self.asked.tool else "text"
        if reasoning:
            kind = "thinking"
        before = b""
        if self.block != kind:
            before = self._closed() + self._opened(kind)
            text = _BEGIN + text if kind == "tool_use" else text
        return before + self._delta(text) if text else before

    def end(
        self, used: dict[str, Any], with_finish: dict[str, Any] | None, *, include_usage: bool
    ) -> list[bytes]:
        """Writes the end with ``used`` in any case, as this API has no option for it."""
        events = [self._closed()]
        if self.quirks.finish != "none":
            usage = {} if self.quirks.usage == "none" else _usage(used)
            reason = {"stop_reason": _REASONS[self.finish_reason], "stop_sequence": None}
            events.append(_event("message_delta", delta=reason, usage=usage))
        events.append(_event("message_stop"))
        return [event for event in events if event]

    def error(self, message: str) -> bytes:
        return _event("error", error={"type": "api_error", "message": message})

    def rename(self, answer_id: str) -> bool:
        return False  # only the first event has it

    def _opened(self, kind: str) -> bytes:
        self.block = kind
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "tool_use":
            block = {
                "type": kind,
                "id": f"call-{self.answer_id}",
                "name": self.asked.tool,
                "input": {},
            }
        return _event("content_block_start", index=self.index, content_block=block)

    def _closed(self) -> bytes:
        if not self.block:
            return b""
        self.block = ""
        self.index += 1
        return _event("content_block_stop", index=self.index - 1)

    def _delta(self, text: bytes) -> bytes:
        return (
            b"event: content_block_delta\ndata: "
            b'{"type":"content_block_delta","index":%d,"delta":{"type":%b:"%b"}}\n\n'
            % (self.index, _DELTAS[self.block], text)
        )


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json({"type": kind, **fields}))


def _usage(used: dict[str, Any]) -> dict[str, int]:
    """Converts usage. Input tokens exclude cached ones."""
    cached = used["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": used["completion_tokens"],
    }


def _message(
    answer_id: str,
    model: str,
    content: list[dict[str, Any]],
    stop_reason: str | None,
    usage: dict[str, int],
) -> dict[str, Any]:
    return {"id": answer_id, "type": "message", "role": "assistant", "model": model,
        "content": content,
            "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}  # fmt: skip


def _encode_whole_answer(ended: UnstreamedAnswer) -> dict[str, Any]:
    answer_id, model, content, reasoning, finish_reason, used, tool, _, _ = ended
    blocks: list[dict[str, Any]] = (
        [{"type": "thinking", "thinking": reasoning}] if reasoning else []
    )
    if tool:
        blocks.append(
            {
                "type": "tool_use",
                "id": f"call-{answer_id}",
                "name": tool,
                "input": {ARGUMENT: content},
            }
        )
    elif content:
        blocks.append({"type": "text", "text": content})
    return _message(answer_id, model, blocks, _REASONS[finish_reason], _usage(used))


FORM = Form("msg", _parse, MessagesEvents, _encode_whole_answer)
