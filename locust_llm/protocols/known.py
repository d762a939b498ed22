"""The protocols by name, as ``--endpoint-type`` has them: ours, and those that a locustfile adds."""

from typing import Any, Final

import msgspec

from locust_llm.load.media import as_json

from .chat import Chat
from .completions import Completions
from .messages import AnthropicMessages
from .pooling import Embeddings, Rerank
from .protocol import Messages, Protocol
from .responses import Responses

PROTOCOLS: Final[dict[str, Protocol[Any]]] = {
    "chat": Chat(),
    "completions": Completions(),
    "responses": Responses(),
    "messages": AnthropicMessages(),
    "embeddings": Embeddings(),
    "rerank": Rerank(),
}


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
    """The JSON of a request. ``kind``: one of PROTOCOLS. ``body`` adds to it and wins."""
    protocol = PROTOCOLS[kind]
    request = protocol.body(model, messages, max_tokens, streaming=streaming, max_tokens_field=max_tokens_field)
    return msgspec.json.encode(request | body, enc_hook=as_json)
