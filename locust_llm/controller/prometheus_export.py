"""Prometheus export: the counters, histograms and gauges of a run in Prometheus's text format,
version 0.0.4.

Its client library writes the text from families that are made for each scrape, in a registry of
their own. Its instruments would add a ``_created`` series to each counter, and become files where
PROMETHEUS_MULTIPROC_DIR is set. Buckets are vLLM's own, with finer ones between them, so that the
users' view and the server's counts can be compared.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as MetricFamily
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.record import Record
from locust_llm.slo.load_generator_health import LEVELS
from locust_llm.slo.metric_definitions import BY_WORD, METRICS, TIME, Metric
from locust_llm.slo.rules import Rule

from .early_stop import AT_RISK, BROKEN_SO_FAR, OK_SO_FAR, RuleProgress
from .run_progress import PARTS, RATE_S, RunProgress, TTFTParts

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "locust_llm_"

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


GROUP_LABELS: Final = ("phase", "model", "tenant", "name")
MAX_GROUPS: Final = 50
OTHER_GROUPS: Final = "(other)"
RULE_STATES: Final = (OK_SO_FAR, AT_RISK, BROKEN_SO_FAR)
HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.buckets)


def describe_histogram(metric: Metric) -> str:
    of = "requests that succeeded or failed" if metric.waits else "successful requests"
    return f"{metric.label}, of {of}: {metric.means}"


class BucketCounts:
    """How many values were at most as large as each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self._bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, how many values up to it)."""
        return list(zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True))


class GroupTotals:
    """The totals of requests by phase, model, tenant and name. The first MAX_GROUPS groups have
    their own; all later ones are together in OTHER_GROUPS, as names may be as many as requests."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._output_tokens: Counter[tuple[str, ...]] = Counter()
        self._ttft: dict[tuple[str, ...], tuple[int, float]] = {}
        """(count, seconds) by group."""
        self._groups = set[tuple[str, str, str]]()

    def add(self, record: Record) -> None:
        group = record.model, record.tenant, record.name
        if group not in self._groups and len(self._groups) < MAX_GROUPS:
            self._groups.add(group)
        labels = record.phase, *(group if group in self._groups else (OTHER_GROUPS,) * 3)
        self._requests[*labels, record.outcome] += 1
        self._output_tokens[labels] += record.output_tokens or 0
        if record.outcome == OK and record.ttft_s is not None:
            count, seconds = self._ttft.get(labels, (0, 0.0))
            self._ttft[labels] = count + 1, seconds + record.ttft_s

    def families(self) -> Iterator[MetricFamily]:
        of = "of finished requests, by model, tenant and name"
        requests = CounterMetricFamily(
            f"{PREFIX}group_requests", f"Number {of}", labels=(*GROUP_LABELS, "outcome")
        )
        for outcome_labels, count in self._requests.items():
            requests.add_metric(outcome_labels, count)
        yield requests
        tokens = CounterMetricFamily(
            f"{PREFIX}group_output_tokens", f"Output tokens {of}", labels=GROUP_LABELS
        )
        for labels, count in self._output_tokens.items():
            tokens.add_metric(labels, count)
        yield tokens
        ttft = SummaryMetricFamily(
            f"{PREFIX}group_time_to_first_token_seconds",
            "Time to First Token of successful requests, by model, tenant and name",
            labels=GROUP_LABELS,
        )
        for labels, (count, seconds) in self._ttft.items():
            ttft.add_metric(labels, count, seconds)
        yield ttft


class RunTotals:
    """The totals of a run so far, by phase."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._chunks: Counter[str] = Counter()
        self._input_tokens: Counter[str] = Counter()
        self._output_tokens: Counter[str] = Counter()
        self._groups = GroupTotals()
        self._buckets = {
            metric.tag: defaultdict[str, BucketCounts](
                partial(BucketCounts, refine_bounds(metric.buckets))
            )
            for metric in HISTOGRAMS
        }
        """The buckets by the tag of the metric, then by phase."""

    def add(self, record: Record) -> None:
        """Add a finished request."""
        phase = record.phase
        self._requests[phase, record.outcome] += 1
        self._chunks[phase] += len(record.chunk_us)
        self._input_tokens[phase] += record.input_tokens or 0
        self._output_tokens[phase] += record.output_tokens or 0
        self._groups.add(record)
        for metric in HISTOGRAMS:
            if record.outcome == OK or (metric.waits and record.outcome in FAILURES):
                value = getattr(record, metric.column)
                if value is not None:
                    self._buckets[metric.tag][phase].add(value * metric.base)

    def families(self) -> Iterator[MetricFamily]:
        requests = CounterMetricFamily(
            f"{PREFIX}requests",
            "Finished requests, by outcome",
            labels=("phase", "outcome"),
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        for name, counts, text in (
            ("chunks", self._chunks, "Chunks with content, of finished requests"),
            ("input_tokens", self._input_tokens, "Input tokens of finished requests"),
            (
                "output_tokens",
                self._output_tokens,
                "Output tokens of finished requests",
            ),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=("phase",))
            for phase, count in counts.items():
                counter.add_metric((phase,), count)
            yield counter
        for metric in HISTOGRAMS:
            histogram = HistogramMetricFamily(
                PREFIX + metric.prometheus_name, describe_histogram(metric), labels=("phase",)
            )
            for phase, buckets in self._buckets[metric.tag].items():
                histogram.add_metric((phase,), buckets.cumulative(), buckets.sum)
            yield histogram
        yield from self._groups.families()


def build_part_counters(parts: TTFTParts) -> Iterator[MetricFamily]:
    """Divided by the count of ``time_to_first_token_seconds`` they are means."""
    counter = CounterMetricFamily(
        f"{PREFIX}part_seconds",
        "Time of successful requests from due to the first token, by part",
        labels=("phase", "part"),
    )
    for phase, sums in parts.by_phase.items():
        for part, seconds in zip(PARTS, sums, strict=False):
            counter.add_metric((phase, part), seconds)
    yield counter


def build_rule_gauges(
    rules: Iterable[Rule], progress: Mapping[str, RuleProgress]
) -> Iterator[MetricFamily]:
    """The state of each rule that has a value, and the limits of those of one latency."""
    states = ", ".join(f"{number} {state}" for number, state in enumerate(RULE_STATES))
    status = GaugeMetricFamily(f"{PREFIX}slo_status", f"The rule: {states}", labels=("rule",))
    limits = GaugeMetricFamily(
        f"{PREFIX}slo_limit_seconds",
        "Limit of the rule for the whole run",
        labels=("rule", "metric"),
    )
    for rule in rules:
        known = progress.get(str(rule))
        if known is not None and known.state in RULE_STATES:
            status.add_metric((str(rule),), RULE_STATES.index(known.state))
        if BY_WORD[rule.metric].units is TIME and not rule.base and not rule.where:
            limits.add_metric((str(rule), rule.metric), rule.limit)
    yield status
    yield limits


def build_gauges(
    stats: RunProgress,
    *,
    users: int,
    limit: int | None,
    info: Mapping[str, str],
    over: bool = False,
    workers: int | None = None,
) -> Iterator[MetricFamily]:
    """The run at this moment. A run that is ``over`` has no gauges, as its last values would look
    like a run that goes on. ``limit`` is the prefill gate's; ``info`` describes the run."""
    yield InfoMetricFamily(f"{PREFIX}run", "Labels that describe the run; always 1", dict(info))
    if over:
        return
    client = stats.client()
    for name, text, value in (
        ("users", "Users of Locust; 0 after the stop, while the last requests finish", users),
        ("workers", "Processes that send requests", workers),
        ("prefill_gate_limit", "Limit on requests that wait for their first token", limit),
        ("prefill_gate_waiting", "Requests that wait for a prefill slot", stats.waiting),
        ("requests_in_prefill", "Requests that were sent and have no first token yet", stats.used),
        ("requests_decoding", "Requests with a first token, not complete", stats.decoding),
        ("output_tokens_per_second",
            f"Estimate over the last {RATE_S:g} seconds, including open requests",
         stats.tokens_per_s()),
        ("client_level", f"The load generator: "
            f"{', '.join(f'{i} {level}' for i, level in enumerate(LEVELS))}",
         None if client is None else LEVELS.index(client.level)),
    ):  # fmt: skip
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value)


class CollectedMetrics(Collector):
    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[MetricFamily]:
        return self._families


def format_exposition(*families: MetricFamily) -> str:
    """Write the metrics that have samples as text."""
    registry = CollectorRegistry()
    registry.register(CollectedMetrics(family for family in families if family.samples))
    return generate_latest(registry).decode()
