"""The table of published rules: what it takes, and how many samples certify a percentile."""

from math import comb
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.slo.published_rules import PublishedRules, least_samples, parse_published_rules


def at_most_one(count: int, beyond: float) -> float:
    """The chance that none or one of so many lies beyond, by the terms of the binomial
    distribution."""
    return sum(comb(count, k) * beyond**k * (1 - beyond) ** (count - k) for k in (0, 1))


@pytest.mark.parametrize(("percentile", "samples"), [(90, 64), (95, 130), (99, 662), (99.9, 6636)])
def test_a_percentile_is_certain_from_as_many_samples_on_as_mlperf_says(
    percentile: float, samples: int
) -> None:
    beyond = 1 - percentile / 100
    assert at_most_one(samples, beyond) <= 0.01 < at_most_one(samples - 1, beyond)
    assert least_samples(percentile) == samples


def test_none_beyond_the_limit_takes_fewer() -> None:
    """0.99^459 = 0.0099 and 0.9^44 = 0.0097: LoadGen's own references."""
    assert (least_samples(99, over=0), least_samples(90, over=0)) == (459, 44)


def test_seconds_hold_from_so_many_users_on() -> None:
    rules = parse_published_rules({"rules": "x", "seconds": [[1, 600], [33, 1200]]})
    assert [rules.least_seconds(users) for users in (1, 32, 33, 4096)] == [600, 600, 1200, 1200]
    assert PublishedRules(rules="x").least_seconds(4) is None
    assert parse_published_rules({"rules": "x", "seconds": [[8, 60]]}).least_seconds(7) is None


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({}, "rules: object missing required field `rules`"),
        ({"rules": "x", "second": 1}, "second: object contains unknown field `second`"),
        ({"rules": "x", "loop": "round"}, "loop: expected `str` matching regex"),
        ({"rules": "x", "seconds": [[1, "x"]]}, "seconds: expected `float`, got `str`"),
        (
            {"rules": "x", "seconds": [[33, 1200], [1, 600]]},
            "seconds: the numbers of users must rise",
        ),
        ({"rules": "x", "requests-per-user": 0}, "requests-per-user: expected `float` > 0"),
        ({"rules": "x", "requests-per-user": float("nan")}, "requests-per-user: "),
        ({"rules": "x", "percentiles": [100]}, "percentiles: expected `float` < 100"),
        ({"rules": "x", "points": [32, 7]}, "points: least and most, in this order"),
        ({"rules": "x", "streaming": "yes"}, "streaming: expected `bool`, got `str`"),
    ],
)
def test_what_is_no_rule_is_named(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r".") as found:
        parse_published_rules(table)
    assert str(found.value).startswith(why)


KEYS = [field.encode_name for field in msgspec.structs.fields(PublishedRules)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)
"""What TOML can hold."""


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), VALUES, max_size=4))
def test_any_table_is_read_or_refused_in_one_line(table: dict[str, Any]) -> None:
    try:
        found = parse_published_rules({"rules": "x", **table})
    except ValueError as error:
        why = str(error)
    else:
        # as workers and run.json get it
        assert parse_published_rules(msgspec.to_builtins(found)) == found
        return
    assert len(why.splitlines()) == 1
