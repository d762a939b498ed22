"""Protocol registry: this package's protocols and a locustfile's."""

import pkgutil
from collections.abc import Collection, Mapping
from typing import Any, Final

from locust_llm.settings.endpoint_types import ENDPOINT_TYPES
from locust_llm.workload.images_and_audio import encode_in_pieces

from .protocol import Messages, Protocol

PROTOCOLS: Final[dict[str, Protocol[Any]]] = {
    name: pkgutil.resolve_name(kind.protocol)() for name, kind in ENDPOINT_TYPES.items()
}
AIPERF_NAMES: Final = {"cohere_rankings": "rerank"}
"""AIPerf's --endpoint-type names that differ from ours. Its other rankings have bodies of their
own."""


def convert_key_headers(kind: str, headers: Mapping[str, str], own: str) -> dict[str, str]:
    """The ``headers`` of requests of the protocol ``own``, with the headers that the protocol
    ``kind`` adds: the key in its place."""
    key = ""
    given = {name.lower() for name in headers}
    for name, value in PROTOCOLS[own].headers("?").items():
        before, asked, _ = value.partition("?")
        if asked and (own_value := headers.get(name, "")).startswith(before):
            key = own_value.removeprefix(before)
    more = PROTOCOLS[kind].headers(key)
    return {name: value for name, value in more.items() if name.lower() not in given} | dict(
        headers
    )


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
