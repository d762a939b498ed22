"""Embeddings protocol (OpenAI, "Embeddings") and rerank (Jina's and Cohere's form, as vLLM has it):
texts in, vectors or scores out.

Nothing is generated: an answer is one body, without output tokens. Each message is an input. For
rerank the first message is the query, and the others are its documents.
"""

from typing import Any, ClassVar

import msgspec

from .answer_parser import Completion, Count, parse_token_count
from .error_forms import ErrorFields
from .error_message import error_line
from .protocol import Messages, Protocol, text_of


class PoolingUsage(msgspec.Struct, gc=False):
    prompt_tokens: Count = None
    total_tokens: Count = None
    """Some servers count rerank with this field alone."""


class BilledUnits(msgspec.Struct, gc=False):
    input_tokens: Count = None


class CohereMeta(msgspec.Struct, gc=False):
    """Cohere's place for counts."""

    tokens: BilledUnits | None = None


class PoolingResult(msgspec.Struct, gc=False):
    """A vector or a score, whose values are not read."""

    index: Any = None


class PoolingResponse(ErrorFields, gc=False):
    """A whole answer: ``data`` for embeddings, ``results`` for rerank."""

    data: list[PoolingResult] | None = None
    results: list[PoolingResult] | None = None
    usage: PoolingUsage | None = None
    meta: CohereMeta | None = None


class PoolingProtocol(Protocol[PoolingResponse]):
    """What embeddings and rerank share."""

    streams = False
    stream_fields: ClassVar[dict[str, Any]] = {}
    length_fields = ()
    decode = staticmethod(msgspec.json.Decoder(PoolingResponse).decode)

    def event(self, answer: Completion, message: PoolingResponse, data: bytes) -> bool:
        """A server that streams the answer all the same sends no chunk."""
        return False

    def whole(self, answer: Completion, body: bytes) -> None:
        message = answer.read(self.decode, body)
        if message is None:
            return
        if not answer.failed(message, body):
            if (results := message.results if message.data is None else message.data) is None:
                if answer.look_for_error(body) or answer.complaint is not None:
                    return
                answer.malformed = "JSON without vectors or scores: " + error_line(body)
            else:
                fewer = message.data is None and results  # of rerank with ``top_n``
                answer.add_results(None if fewer else len(results))
        if (usage := message.usage) is not None:
            answer.count(
                input_=usage.prompt_tokens
                if parse_token_count(usage.prompt_tokens)
                else usage.total_tokens
            )
        elif message.meta is not None and message.meta.tokens is not None:
            answer.count(input_=message.meta.tokens.input_tokens)

    def asked(self, messages: Messages, output_tokens: int) -> dict[str, int | None]:
        return {"inputs": len(messages)}

    def tokenized(self, messages: Messages) -> dict[str, Any]:
        return {"prompt": "\n\n".join(map(text_of, messages))}


class EmbeddingsProtocol(PoolingProtocol):
    path = "/v1/embeddings"

    def prompt(self, messages: Messages) -> dict[str, Any]:
        return {"input": [text_of(message) for message in messages]}


class RerankProtocol(PoolingProtocol):
    path = "/v1/rerank"
    provider = "cohere"
    least_texts = 2

    def prompt(self, messages: Messages) -> dict[str, Any]:
        query, *documents = map(text_of, messages)
        return {"query": query, "documents": documents}

    def asked(self, messages: Messages, output_tokens: int) -> dict[str, int | None]:
        """No number of tokens is requested: the server decides how often it counts the query."""
        return {"inputs": len(messages) - 1, "asked_input_tokens": None}
