"""Request body: the JSON of a request, by the protocol that it is for."""

from collections.abc import Collection
from typing import Any

from locust_llm.workload.images_and_audio import encode_in_pieces

from .protocol import Messages
from .protocol_registry import PROTOCOLS


def encode_request_body(
    kind: str, model: str | None, messages: Messages, max_tokens: int | None, /, **how: Any
) -> bytes:
    """The JSON of a request. The arguments are as in ``encode_request_pieces``."""
    return b"".join(encode_request_pieces(kind, model, messages, max_tokens, **how))


def encode_request_pieces(
    kind: str,
    model: str | None,
    messages: Messages,
    max_tokens: int | None,
    /,
    *,
    streaming: bool = True,
    max_tokens_field: str = "max_tokens",
    per_chunk_usage: bool = False,
    without: Collection[str] = (),
    **body: Any,
) -> list[bytes]:
    """The JSON of a request, in pieces that follow on each other.

    ``kind`` is one of PROTOCOLS. ``body`` adds fields and wins. Its tools may be in chat's form;
    None for a field leaves the field out. ``without`` names fields that are left out.
    """
    protocol = PROTOCOLS[kind]
    request = protocol.body(
        model,
        messages,
        max_tokens,
        streaming=streaming,
        max_tokens_field=max_tokens_field,
        per_chunk_usage=per_chunk_usage,
    )
    more = protocol.fields(body)
    own = {*request, *protocol.stream_fields, *protocol.count_fields}
    absent = {name for name, value in more.items() if value is None and name in own}.union(without)
    request |= more
    if absent:
        request = {name: value for name, value in request.items() if name not in absent}
    return encode_in_pieces(request)
