"""Responses: parses and writes them like vLLM (0.32), as typed events. Events before the first
token come at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Final

from locust_llm.simulator.openai_chat import read_content

from . import simulated_tokenizer
from .openai_chat import (
    ARGUMENT,
    NAME,
    AnswerRequest,
    Form,
    Messages,
    RefusedError,
    UnstreamedAnswer,
    WrittenText,
    encode_json,
    format_tool_arguments,
    invalid_request_error,
    read_field,
    tool_called,
)
from .simulated_faults import Quirks

MAX_CONVERSATIONS: Final = 2_000
# conversations by the id of their last answer
_CONVERSATIONS: Final[OrderedDict[str, Messages]] = OrderedDict()
_BEGIN = encode_json(f'{{"{ARGUMENT}": "')[1:-1]


def _parse(asked: dict[str, Any]) -> WrittenText:
    items = asked.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise invalid_request_error("body.input", "Field required")
    instructions = read_field(asked, "instructions", str)
    previous = _look_up_conversation(read_field(asked, "previous_response_id", str))
    for index, item in enumerate(items):
        role, text = _parse_item(item, f"body.input.{index}")
        # as in the other forms
        if previous and previous[-1][0] == "assistant" and item.get("type") == "function_call":
            text = "\n".join(filter(None, (previous.pop()[1], text)))
        previous.append((role, text))
    system: Messages = [("system", instructions)] if instructions else []

    def keep(answer_id: str, text: str) -> None:
        _CONVERSATIONS[answer_id] = [*previous, ("assistant", text)]
        if len(_CONVERSATIONS) > MAX_CONVERSATIONS:
            _CONVERSATIONS.popitem(last=False)

    tool = tool_called(asked, previous[-1][0] == "tool")
    stored = None if asked.get("store") is False else keep
    messages = [*system, *previous]
    pieces = simulated_tokenizer.chat_pieces(messages)
    return WrittenText(pieces, "max_output_tokens", tool, stored, messages)


def _look_up_conversation(answer_id: str | None) -> Messages:
    """Returns the conversation up to this answer, without its system messages, which vLLM drops."""
    if answer_id is None:
        return []
    if answer_id not in _CONVERSATIONS:
        message = f"Response with id '{answer_id}' not found."
        raise RefusedError(404, message, kind="invalid_request_error", param="response_id")
    return [message for message in _CONVERSATIONS[answer_id] if message[0] != "system"]


def _parse_item(item: Any, loc: str) -> tuple[str, str]:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind in ("function_call", "function_call_output") and not isinstance(
        item.get("call_id"), str
    ):
        raise invalid_request_error(f"{loc}.call_id", "Field required")
    if kind == "function_call":
        return "assistant", format_tool_arguments(item.get("arguments"))
    if kind == "function_call_output":
        return "tool", str(item.get("output", ""))
    if kind != "message" or not isinstance(item.get("role"), str):
        raise invalid_request_error(
            loc, "Input should be a message with a role, a function_call or a function_call_output"
        )
    return item["role"], read_content(item, loc)


class ResponsesEvents:
    """Writes the events of one streamed answer. Reasoning is an item of its own before the answer,
    and so is the call of a tool."""

    done = b""

    def __init__(
        self, answer_id: str, model: str, quirks: Quirks, finish_reason: str, asked: AnswerRequest
    ) -> None:
        self.answer_id = answer_id
        self.model = model
        self.quirks = quirks
        self.finish_reason = finish_reason
        self.tool = asked.tool
        self.number = self.index = 0
        self.item: dict[str, Any] | None = None  # that is under way

    def role(self, used: dict[str, Any] | None = None) -> bytes:
        response = _response(self.answer_id, self.model, "in_progress", [], None)
        return b"".join(
            self._event(f"response.{kind}", response=response)
            for kind in ("created", "in_progress")
        )

    def call(self) -> bytes:
        """Returns no event, as ``text`` writes the call of a tool."""
        return b""

    def text(
        self, text: bytes, used: dict[str, Any] | None = None, *, reasoning: bool, last: bool
    ) -> bytes:
        """Writes a chunk. ``text`` must need no escape in JSON, except CALL_END."""
        kind = "function_call" if self.tool else "message"
        if reasoning:
            kind = "reasoning"
        before = b""
        if self.item is None or self.item["type"] != kind:
            before = self._closed() + self._opened(kind)
            text = _BEGIN + text if kind == "function_call" else text
        delta = {"reasoning": "reasoning_text", "function_call": "function_call_arguments"}.get(
            kind, "output_text"
        )
        return before + self._delta(f"response.{delta}.delta", text) if text else before

    def end(
        self, used: dict[str, Any], with_finish: dict[str, Any] | None, *, include_usage: bool
    ) -> list[bytes]:
        """Writes the end with ``used`` in any case, as this API has no option for it."""
        events = [self._closed()]
        if self.quirks.finish != "none":
            status = "incomplete" if self.finish_reason == "length" else "completed"
            output = [{"type": "function_call", "name": self.tool}] if self.tool else []
            usage = None if self.quirks.usage == "none" else used
            response = _response(self.answer_id, self.model, status, output, usage)
            # so vLLM names it whatever the status
            events.append(self._event("response.completed", response=response))
        return [event for event in events if event]

    def error(self, message: str) -> bytes:
        return self._event("error", code="server_error", message=message, param=None)

    def rename(self, answer_id: str) -> bool:
        self.answer_id = answer_id
        return True

    def _opened(self, kind: str) -> bytes:
        item: dict[str, Any] = {"id": f"item-{self.index}", "type": kind, "status": "in_progress"}
        if kind == "function_call":
            item |= {"call_id": f"call-{self.answer_id}", "name": self.tool, "arguments": ""}
        self.item = item
        events = self._event("response.output_item.added", item=item, output_index=self.index)
        if kind == "function_call":
            return events
        part = {"type": "output_text" if kind == "message" else "reasoning_text", "text": ""}
        return events + self._event(
            "response.content_part.added", part=part, output_index=self.index
        )

    def _closed(self) -> bytes:
        if self.item is None:
            return b""
        item = self.item | {"status": "completed"}
        self.item = None
        self.index += 1
        return self._event("response.output_item.done", item=item, output_index=self.index - 1)

    def _delta(self, kind: str, text: bytes) -> bytes:
        self.number += 1
        return (b'event: %b\ndata: '
            b'{"type":"%b","sequence_number":%d,"output_index":%d,"delta":"%b"}\n\n') % (
            kind.encode(), kind.encode(), self.number, self.index, text,
        )  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.number += 1
        data = encode_json({"type": kind, "sequence_number": self.number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _response(
    answer_id: str,
    model: str,
    status: str,
    output: list[dict[str, Any]],
    used: dict[str, Any] | None,
) -> dict[str, Any]:
    why = {"reason": "max_output_tokens"} if status == "incomplete" else None
    usage = used and {
        "input_tokens": used["prompt_tokens"],
        "input_tokens_details": used["prompt_tokens_details"],
        "output_tokens": used["completion_tokens"],
        "total_tokens": used["total_tokens"],
    }
    return {"id": answer_id, "object": "response", "created_at": int(time.time()), "model": model,
        "status": status,
            "error": None, "incomplete_details": why, "output": output, "usage": usage,
            "user": NAME}  # fmt: skip


def _encode_whole_answer(ended: UnstreamedAnswer) -> dict[str, Any]:
    answer_id, model, content, reasoning, finish_reason, used, tool, arguments, _ = ended
    output: list[dict[str, Any]] = []
    if reasoning:
        output.append(
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": reasoning}],
            }
        )
    if tool:
        call = {
            "call_id": f"call-{answer_id}",
            "name": tool,
            "arguments": arguments,
        }
        output.append({"type": "function_call", "status": "completed", **call})
    elif content:
        part = {"type": "output_text", "text": content, "annotations": []}
        output.append(
            {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        )
    return _response(
        answer_id, model, "incomplete" if finish_reason == "length" else "completed", output, used
    )


FORM = Form("resp", _parse, ResponsesEvents, _encode_whole_answer)
