"""How many chunks an answer may have, by what was asked for."""

from typing import Any

import pytest

from locust_llm.client.bounds import chunk_limit


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
def test_eight_times_and_a_few_thousand_more(tokens: int | None, body: dict[str, Any], most: int | None) -> None:
    assert chunk_limit(tokens, body) == most
