"""What both evaluators of the rules share, of one request and of columns alike: selection, and
meeting a condition."""

import math

import numpy as np
import pytest

from locust_llm.slo.metric_definitions import BY_WORD
from locust_llm.slo.rules import INPUT, Condition, make_predicates, parse_rule


def test_selectors_take_a_value_or_a_column() -> None:
    rule = parse_rule("ttft{class=Short, turn=later, input=1k..4k, stage=8} p95 < 1s")
    found = dict(make_predicates(rule.where))
    assert list(found) == ["user_class", "turn", INPUT]  # a stage is nothing that a request has
    assert [found["user_class"](name) for name in ("Short", "Long")] == [True, False]
    assert found["user_class"](np.array(["Short", "Long"])).tolist() == [True, False]
    assert [found["turn"](turn) for turn in (0, 1)] == [False, True]
    assert found["turn"](np.array([0, 1])).tolist() == [False, True]
    lengths = [999.0, 1000.0, 3999.0, 4000.0, math.nan]
    assert [found[INPUT](length) for length in lengths] == [False, True, True, False, False]
    assert found[INPUT](np.array(lengths)).tolist() == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("condition", "value", "answered", "met"),
    [
        (Condition("ttft", "<", 100, "ms"), 0.099, True, True),
        (Condition("ttft", "<", 100, "ms"), 0.1, True, False),
        (Condition("ttft", "<", 100, "ms"), math.nan, False, False),
        (Condition("itl", "<=", 20, "ms"), 0.02, True, True),
        (Condition("itl", "<=", 20, "ms"), math.nan, True, True),  # an answer of one token
        (Condition("itl", "<=", 20, "ms"), math.nan, False, False),
        (Condition("output_tokens_per_s_per_user", ">=", 50, "/s"), 49.0, True, False),
    ],
)
def test_a_condition_is_met(condition: Condition, value: float, answered: bool, met: bool) -> None:
    assert bool(condition.met(value, answered)) is met
    assert condition.met(np.array([value, value]), np.array([answered, answered])).tolist() == [
        met,
        met,
    ]


def test_which_values_count_of_a_request_that_failed() -> None:
    of = {
        word: BY_WORD[word].metric
        for word in ("ttft", "gate_wait", "rtt", "output_tokens_per_s_per_user")
    }
    assert [word for word, metric in of.items() if metric is not None and metric.censored] == [
        "ttft", "output_tokens_per_s_per_user",
    ]  # fmt: skip
    assert [word for word, metric in of.items() if metric is not None and metric.waits] == [
        "gate_wait"
    ]
