"""Endpoint types: a table from the value of ``--endpoint-type`` to the protocol that writes and
reads it.

Settings know the names alone; protocols/protocol_registry.py imports the classes.
"""

from typing import Final, NamedTuple


class EndpointType(NamedTuple):
    """An API of a server."""

    protocol: str
    """The module and the name of its class."""
    generates: bool = True
    """False: answers are vectors or scores, in one piece."""


ENDPOINT_TYPES: Final = {
    "chat": EndpointType("locust_llm.protocols.chat_protocol:ChatProtocol"),
    "completions": EndpointType("locust_llm.protocols.completions_protocol:CompletionsProtocol"),
    "responses": EndpointType("locust_llm.protocols.responses_protocol:ResponsesProtocol"),
    "messages": EndpointType("locust_llm.protocols.messages_protocol:MessagesProtocol"),
    "embeddings": EndpointType(
        "locust_llm.protocols.embeddings_protocol:EmbeddingsProtocol", False
    ),
    "rerank": EndpointType("locust_llm.protocols.embeddings_protocol:RerankProtocol", False),
}
POOLING: Final = tuple(name for name, kind in ENDPOINT_TYPES.items() if not kind.generates)
