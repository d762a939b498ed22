"""Embeddings and rerank: bodies, and answers that are one piece without a token of output."""

from typing import Any

import msgspec
import pytest

from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK
from locust_llm.settings.endpoint_types import POOLING

THREE = [{"role": "user", "content": text} for text in ("a", "b", "c")]
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}


def test_each_message_is_an_input() -> None:
    body = msgspec.json.decode(
        encode_request_body("embeddings", "m", THREE, 9, streaming=False, dimensions=8)
    )
    assert body == {"model": "m", "input": ["a", "b", "c"], "dimensions": 8}
    body = msgspec.json.decode(encode_request_body("rerank", "m", THREE, 9))
    assert body == {"model": "m", "query": "a", "documents": ["b", "c"]}


def test_what_a_record_has_of_the_request() -> None:
    assert PROTOCOLS["embeddings"].asked(THREE, 9) == {"inputs": 3}
    assert PROTOCOLS["rerank"].asked(THREE, 9) == {"inputs": 2, "asked_input_tokens": None}
    assert PROTOCOLS["chat"].asked(THREE, 9) == {"asked_output_tokens": 9}


def test_the_settings_know_which_generate_nothing() -> None:
    assert {name for name, protocol in PROTOCOLS.items() if not protocol.streams} == {*POOLING}


USAGE = {"prompt_tokens": 6, "total_tokens": 6}


@pytest.mark.parametrize(("kind", "body", "outcome", "input_tokens", "results"), [
    ("embeddings", {"data": [VECTOR] * 3, "usage": USAGE | {"completion_tokens": 0}}, OK, 6, 3),
    ("embeddings", {"data": [VECTOR | {"embedding": "AACAPg=="}]}, OK, None, 1),
    ("rerank", {"results": [{"index": 1, "relevance_score": 0.5}], "usage": {"total_tokens": 7}},
        OK, 7, None),
    # Cohere
    ("rerank", {"results": [{"index": 1}], "meta": {"tokens": {"input_tokens": 8}}}, OK, 8, None),
    ("embeddings", {"data": [], "usage": USAGE}, "empty", 6, 0),
    ("embeddings", {"choices": []}, "malformed", None, None),
    ("embeddings", {"error": {"message": "too long"}}, "stream_error", None, None),
    ("rerank", {"object": "error", "message": "no"}, "stream_error", None, None),
])  # fmt: skip
def test_a_whole_answer(
    kind: str, body: dict[str, Any], outcome: str, input_tokens: int | None, results: int | None
) -> None:
    answer = Completion(PROTOCOLS[kind])
    answer.whole(msgspec.json.encode(body))
    assert answer.outcome()[0] == outcome
    assert (answer.input_tokens, answer.output_tokens, answer.results) == (
        input_tokens,
        None,
        results,
    )
    assert answer.finish_reason is None


def test_what_is_no_json() -> None:
    answer = Completion(PROTOCOLS["embeddings"])
    answer.whole(b'{"data": [')
    assert answer.outcome()[0] == "malformed"
