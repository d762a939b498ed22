"""Sizes in bytes, as people and programs write them."""

import pytest

from locust_llm.text.numbers import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("123456\n", 123456),
        ("1.5 GiB", 1.5 * 2**30),
        ("1.2GiB / 16GiB", 1.2 * 2**30),
        ("120MB", 120e6),
        ("4k", 4000),
        ("1.5e+08", 150e6),
    ],
)
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == pytest.approx(size)


@pytest.mark.parametrize("text", ["", "none", "12 apples", "-5", "1.2.3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)
