"""Messages protocol (Anthropic, "Messages"): blocks of content, each with its deltas. The input is
counted first, the output last."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from locust_llm.workload.images_and_audio import EncodedMedium

from .answer_parser import Completion, Count, parse_token_count, read_finish_reason
from .error_forms import is_error
from .error_message import error_line
from .first_token import Index
from .protocol import (
    NO_PARAMETERS,
    Messages,
    Protocol,
    read_response_schema,
    read_tool_choice_name,
    read_tool_function,
    text_of,
)

VERSION: Final = "2023-06-01"
"""The version of the API, in the header ``anthropic-version``. There is no later one."""
REASONS: Final = {
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Each stop_reason in the words of chat completions. Others stay as they are."""
CHOICES: Final = {"required": "any"}
"""Tool choices whose words differ."""
EVENTS: Final = frozenset({
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop",
    "ping",
})  # fmt: skip
PROMPT: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Counts that add up to the prompt."""


class MessagesUsage(msgspec.Struct, gc=False):
    """``input_tokens`` are neither read from the cache nor written to it. The three counts add up
    to the prompt."""

    input_tokens: Count = None
    output_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None


class ContentBlock(msgspec.Struct, gc=False):
    """A content block, at its begin or whole; or a delta of a block or of the message."""

    type: str | None = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    stop_reason: Any = None


class MessagesResponse(msgspec.Struct, gc=False):
    """A whole answer. The first event of a stream has it too, still empty."""

    type: str | None = None
    content: list[ContentBlock] | None = None
    stop_reason: Any = None
    usage: MessagesUsage | None = None
    error: Any = None


class MessagesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""
    index: Index = None
    delta: ContentBlock | None = None
    content_block: ContentBlock | None = None
    message: MessagesResponse | None = None
    usage: MessagesUsage | None = None
    error: Any = None


class MessagesProtocol(Protocol[MessagesEvent]):
    path = "/v1/messages"
    operation, provider = "chat", "anthropic"
    takes = ("image",)
    decode: Callable[[bytes], MessagesEvent] = staticmethod(
        msgspec.json.Decoder(MessagesEvent).decode
    )
    decode_whole: Callable[[bytes], MessagesResponse] = staticmethod(
        msgspec.json.Decoder(MessagesResponse).decode
    )

    def prompt(self, messages: Messages) -> dict[str, Any]:
        """System messages become a field of their own. Results of tools become messages of the
        user."""
        systems = [
            text_of(message)
            for message in messages
            if message.get("role") in ("system", "developer")
        ]
        turns: Messages = []
        for message in messages:
            if message.get("role") in ("system", "developer"):
                continue
            turn = _turn(message)
            both = turn["content"], turns[-1]["content"] if turns else None
            if (
                message.get("role") == "tool"
                and turns
                and turns[-1]["role"] == "user"
                and isinstance(both[1], list)
            ):
                both[1].extend(both[0])
            else:
                turns.append(turn)
        return (
            {"system": "\n\n".join(systems), "messages": turns} if systems else {"messages": turns}
        )

    def fields(self, asked: dict[str, Any]) -> dict[str, Any]:
        body = dict(asked)
        choice = asked.get("tool_choice")
        if isinstance(tools := asked.get("tools"), list):
            body["tools"] = [_tool(tool) for tool in tools]
        if isinstance(choice, str):
            body["tool_choice"] = {"type": CHOICES.get(choice, choice)}
        elif name := read_tool_choice_name(choice):
            body["tool_choice"] = {"type": "tool", "name": name}
        if "parallel_tool_calls" in body and not body.pop("parallel_tool_calls") and tools:
            body["tool_choice"] = {
                **(body.get("tool_choice") or {"type": "auto"}),
                "disable_parallel_tool_use": True,
            }
        if (form := read_response_schema(asked.get("response_format"))) is not None:
            del body["response_format"]
            schema = {"type": "json_schema", "schema": form.get("schema")}
            body["output_config"] = {**(asked.get("output_config") or {}), "format": schema}
        return body

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def event(self, answer: Completion, message: MessagesEvent, data: bytes) -> bool:
        kind, delta = message.type, message.delta
        if kind == "content_block_delta" and delta is not None:
            return _block_delta(answer, message.index, delta)
        if kind == "content_block_start" and message.content_block is not None:
            return _block_start(answer, message.index, message.content_block)
        if kind == "error" or (message.error and is_error(message.error)):
            answer.fail(message.error, data)
        elif kind == "message_start" and message.message is not None:
            _count(answer, message.message.usage)
            return _blocks(answer, message.message.content)
        elif kind == "message_delta":
            _count(answer, message.usage)
            if delta is not None and (reason := read_finish_reason(delta.stop_reason)):
                answer.finish(REASONS.get(reason, reason))
        elif kind == "message_stop":
            answer.end()
        elif kind == "message":
            return self._all(answer, data)
        elif kind not in EVENTS:
            answer.look_for_error(data)
        return False

    def _all(self, answer: Completion, data: bytes) -> bool:
        """Read the whole answer as one event."""
        before = answer.content
        self.whole(answer, data)
        return answer.content and not before

    def whole(self, answer: Completion, body: bytes) -> None:
        message = answer.read(self.decode_whole, body)
        if message is None:
            return
        if message.type == "error" or (message.error and is_error(message.error)):
            answer.fail(message.error, body)
        elif (
            message.content is None and not answer.look_for_error(body) and answer.complaint is None
        ):
            answer.malformed = "JSON that is not a message: " + error_line(body)
        if not answer.content:
            _blocks(answer, message.content)
        if reason := read_finish_reason(message.stop_reason):
            answer.finish(REASONS.get(reason, reason))
        _count(answer, message.usage)


def _block_delta(answer: Completion, index: Index, delta: ContentBlock) -> bool:
    if not answer.content and (delta.text or delta.thinking or delta.partial_json):
        _forget_early_count(answer)
    if delta.text:
        return answer.add_text(delta.text)
    if delta.thinking:
        return answer.add_reasoning(delta.thinking)
    return bool(delta.partial_json) and answer.add_tool_call(index, arguments=delta.partial_json)


def _block_start(answer: Completion, index: Index, block: ContentBlock) -> bool:
    answer.encrypted = answer.encrypted or block.type == "thinking"  # its text may be left out
    answer.redacted = answer.redacted or block.type == "redacted_thinking"
    if (block.type or "").endswith("tool_use"):
        _forget_early_count(answer)
        return answer.add_tool_call(
            index, id_=block.id, name=block.name, arguments=_written(block.input)
        )
    if block.text or block.thinking:
        _forget_early_count(answer)
    return answer.add_text(block.text) or answer.add_reasoning(block.thinking)


def _blocks(answer: Completion, blocks: list[ContentBlock] | None) -> bool:
    """Read whole blocks. Returns whether they hold anything."""
    for index, block in enumerate(blocks or ()):
        answer.redacted = answer.redacted or block.type == "redacted_thinking"
        if block.type == "tool_use":
            arguments = _written(block.input) or "{}"
            answer.add_tool_call(index, id_=block.id, name=block.name, arguments=arguments)
        answer.add_reasoning(block.thinking)
        answer.add_text(block.text)
    return bool(blocks) and answer.content


def _forget_early_count(answer: Completion) -> None:
    """Forget a count from before any output: it is no count of the answer."""
    if not answer.content:
        answer.counts.output = None


def _written(input_: Any) -> str:
    """Arguments that came as an object, as text. An empty object gives nothing, as its deltas may
    follow."""
    return msgspec.json.encode(input_).decode() if input_ else ""


def _count(answer: Completion, usage: MessagesUsage | None) -> None:
    if usage is None:
        return
    parts = answer.input_parts
    for name in PROMPT:  # each may be missing, or zero, where the others are repeated
        if tokens := parse_token_count(getattr(usage, name)):
            parts[name] = tokens
    input_: Count = sum(parts.values()) if parts else usage.input_tokens
    answer.count(input_=input_, output=usage.output_tokens, cached=usage.cache_read_input_tokens)


# -- the input -------------------------------------------------------------------------------------


def _tool(tool: Any) -> Any:
    function = read_tool_function(tool)
    if function is None:
        return tool
    renamed = {
        "input_schema" if name == "parameters" else name: value for name, value in function.items()
    }
    return {"input_schema": NO_PARAMETERS, **renamed}


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    """One message of a chat. Reasoning is left out, as it needs a signature of the server's."""
    role = message.get("role")
    content = message.get("content")
    if role == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message.get("tool_call_id"),
            "content": text_of(message),
        }
        return {"role": "user", "content": [result]}
    if not (calls := message.get("tool_calls")):
        return {
            "role": role,
            "content": [_block(part) for part in content]
            if isinstance(content, list)
            else content or "",
        }
    blocks: list[dict[str, Any]] = (
        [{"type": "text", "text": text}] if (text := text_of(message)) else []
    )
    for call in calls:
        function = call.get("function") or {}
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function.get("name"),
                       "input": _arguments(function.get("arguments"))})  # fmt: skip
    return {"role": role, "content": blocks}


def _arguments(text: Any) -> Any:
    """The arguments as an object, as Messages has them. A model's invalid arguments go as a text in
    an object."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def _block(part: Any) -> Any:
    """A block of a message's content where its kind is known. Others stay as they are."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, EncodedMedium):
        source = {"type": "base64", "media_type": url.facts.media_type, "data": url.base64}
        return {"type": "image", "source": source}
    url = str(url)
    if url.startswith("data:") and ";base64," in url:
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}
