"""How many chunks an answer may have, by what was asked for."""

from typing import Any

import pytest

from locust_llm.client.request_bytes import chunk_limit
from locust_llm.protocols.protocol_registry import PROTOCOLS


@pytest.mark.parametrize(
    ("tokens", "body", "most"),
    [
        (128, {}, 5120),
        (0, {}, 4096),
        (128, {"n": 3}, 15_360),
        (128, {"n": None}, 5120),
        (128, {"max_tokens": 1}, 4104),
        (128, {"max_completion_tokens": 1, "max_tokens": 2}, 4104),
        (128, {"max_tokens": None}, None),  # as many as the model likes
        (None, {}, None),
        (128, {"n": "two"}, None),  # the server will say what it thinks of that
    ],
)
def test_eight_times_and_a_few_thousand_more(
    tokens: int | None, body: dict[str, Any], most: int | None
) -> None:
    assert chunk_limit(tokens, body, PROTOCOLS["chat"].length_fields) == most


def test_a_length_in_the_field_of_the_protocol() -> None:
    for kind, field in (("responses", "max_output_tokens"), ("messages", "max_tokens")):
        assert chunk_limit(128, {field: 1}, PROTOCOLS[kind].length_fields) == 4104
    assert chunk_limit(128, {"max_tokens": 1}, PROTOCOLS["responses"].length_fields) == 5120
