"""Run totals: what is counted of each finished request for Prometheus, by phase and by group.

Buckets are vLLM's own, with finer ones between them, so that the users' view and the server's counts
can be compared.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Final

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.record import Record
from locust_llm.slo.metric_definitions import METRICS

STEP: Final = 1.25
"""A bucket's upper bound is at most so many times its lower one: a percentile within it is off by
25 % at most."""


def refine_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """All of these bounds, with as many between them as STEP requires."""
    refined = [bounds[0]]
    for bound in bounds[1:]:
        parts = max(1, ceil(log(bound / refined[-1]) / log(STEP) - 1e-9))
        ratio = (bound / refined[-1]) ** (1 / parts)
        begin = refined[-1]
        refined += [float(f"{begin * ratio**part:.3g}") for part in range(1, parts)] + [bound]
    return tuple(refined)


MAX_GROUPS: Final = 50
OTHER_GROUPS: Final = "(other)"
HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.buckets)


class BucketCounts:
    """How many values were at most as large as each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self.bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """How many values there are up to each bound."""
        return list(accumulate(self._counts))


class GroupTotals:
    """The totals of requests by phase, model, tenant and name. The first MAX_GROUPS groups have
    their own; all later ones are together in OTHER_GROUPS, as names may be as many as requests."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, ...]] = Counter()
        self.output_tokens: Counter[tuple[str, ...]] = Counter()
        self.ttft: dict[tuple[str, ...], tuple[int, float]] = {}
        """(count, seconds) by group."""
        self._groups = set[tuple[str, str, str]]()

    def add(self, record: Record) -> None:
        group = record.model, record.tenant, record.name
        if group not in self._groups and len(self._groups) < MAX_GROUPS:
            self._groups.add(group)
        labels = record.phase, *(group if group in self._groups else (OTHER_GROUPS,) * 3)
        self.requests[*labels, record.outcome] += 1
        self.output_tokens[labels] += record.output_tokens or 0
        if record.outcome == OK and record.ttft_s is not None:
            count, seconds = self.ttft.get(labels, (0, 0.0))
            self.ttft[labels] = count + 1, seconds + record.ttft_s


class RunTotals:
    """The totals of a run so far, by phase."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.chunks: Counter[str] = Counter()
        self.input_tokens: Counter[str] = Counter()
        self.output_tokens: Counter[str] = Counter()
        self.groups = GroupTotals()
        self.buckets = {
            metric.tag: defaultdict[str, BucketCounts](
                partial(BucketCounts, refine_bounds(metric.buckets))
            )
            for metric in HISTOGRAMS
        }
        """The buckets by the tag of the metric, then by phase."""

    def add(self, record: Record) -> None:
        """Add a finished request."""
        phase = record.phase
        self.requests[phase, record.outcome] += 1
        self.chunks[phase] += len(record.chunk_us)
        self.input_tokens[phase] += record.input_tokens or 0
        self.output_tokens[phase] += record.output_tokens or 0
        self.groups.add(record)
        for metric in HISTOGRAMS:
            if record.outcome == OK or (metric.waits and record.outcome in FAILURES):
                value = getattr(record, metric.column)
                if value is not None:
                    self.buckets[metric.tag][phase].add(value * metric.base)
