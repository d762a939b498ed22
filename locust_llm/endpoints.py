"""Endpoints: where each kind of them is, and what a request to it says."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

Messages = list[dict[str, Any]]


class Endpoint(NamedTuple):
    """How its answers are read: see ``chat.DECODERS``."""

    path: str
    content: Callable[[Messages], dict[str, Any]]
    """From the messages of a conversation to the fields of a body that carry them."""


def _chat(messages: Messages) -> dict[str, Any]:
    return {"messages": messages}


def _prompt(messages: Messages) -> dict[str, Any]:
    """A plain completion has no roles: what was said, with blank lines between."""
    return {"prompt": "\n\n".join(map(text_of, messages))}


ENDPOINTS: Final = {
    "chat": Endpoint("/v1/chat/completions", _chat),
    "completions": Endpoint("/v1/completions", _prompt),
}


def text_of(message: dict[str, Any]) -> str:
    """What it says, without the parts that are no text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def request_body(
    kind: str,
    model: str | None,
    messages: Messages,
    max_tokens: int | None,
    /,
    *,
    streaming: bool = True,
    max_tokens_field: str = "max_tokens",
    **body: Any,
) -> bytes:
    """The JSON of a request. ``body`` adds to it and wins."""
    request = ENDPOINTS[kind].content(messages)
    if model is not None:
        request["model"] = model
    if max_tokens is not None:
        request[max_tokens_field] = max_tokens
    if streaming:
        request["stream"] = True
        request["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(request | body)
