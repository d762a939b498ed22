"""Rule measures: the values that one record has of the measures in rules."""

import math

from locust_llm.slo.metric_definitions import BY_WORD
from locust_llm.slo.rules import Condition

from .record import Record


def read_measure(record: Record, word: str) -> float | None:
    """A request's value of a measure, in seconds or tokens a second. None: it has none."""
    metric = BY_WORD[word].metric
    assert metric is not None  # the grammar sees to it
    value: float | None = getattr(record, metric.column)
    if value is None or metric.inverse:
        return 1 / value if value else None
    return value * metric.base


def meets_condition(record: Record, condition: Condition) -> bool:
    """Whether a successful request meets a condition."""
    value = read_measure(record, condition.metric)
    return bool(condition.met(math.nan if value is None else value, record.ttft_s is not None))
