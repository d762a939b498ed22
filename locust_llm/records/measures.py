"""Measures: what one record has of the measures that rules are about."""

import math

from locust_llm.slo.grammar import Condition
from locust_llm.slo.metrics import BY_WORD

from .record import Record


def read_measure(record: Record, word: str) -> float | None:
    """What a request has of a measure, in seconds or tokens a second; None: nothing."""
    metric = BY_WORD[word].metric
    assert metric is not None  # the grammar sees to it
    value: float | None = getattr(record, metric.column)
    if value is None or metric.inverse:
        return 1 / value if value else None
    return value * metric.base


def meets_condition(record: Record, condition: Condition) -> bool:
    """A successful request meets a condition."""
    value = read_measure(record, condition.metric)
    return bool(condition.met(math.nan if value is None else value, record.ttft_s is not None))
