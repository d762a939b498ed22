"""Prometheus export: the counters, histograms and gauges of a run in Prometheus's text format,
version 0.0.4.

Its client library writes the text from families that are made for each scrape, in a registry of
their own. Its instruments would add a ``_created`` series to each counter, and become files where
PROMETHEUS_MULTIPROC_DIR is set. It is imported only where Prometheus may ask.
"""

from collections.abc import Iterable, Iterator, Mapping
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

from locust_llm.slo.load_generator_health import LEVELS
from locust_llm.slo.metric_definitions import BY_WORD, TIME, Metric
from locust_llm.slo.rules import Rule

from .early_stop import AT_RISK, BROKEN_SO_FAR, OK_SO_FAR, RuleProgress
from .run_progress import PARTS, RATE_S, RunProgress, TTFTParts
from .run_totals import HISTOGRAMS, GroupTotals, RunTotals

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "locust_llm_"

GROUP_LABELS: Final = ("phase", "model", "tenant", "name")
RULE_STATES: Final = (OK_SO_FAR, AT_RISK, BROKEN_SO_FAR)


def describe_histogram(metric: Metric) -> str:
    of = "requests that succeeded or failed" if metric.waits else "successful requests"
    return f"{metric.label}, of {of}: {metric.means}"


def build_total_counters(totals: RunTotals) -> Iterator[MetricFamily]:
    requests = CounterMetricFamily(
        f"{PREFIX}requests",
        "Finished requests, by outcome",
        labels=("phase", "outcome"),
    )
    for labels, count in totals.requests.items():
        requests.add_metric(labels, count)
    yield requests
    for name, counts, text in (
        ("chunks", totals.chunks, "Chunks with content, of finished requests"),
        ("input_tokens", totals.input_tokens, "Input tokens of finished requests"),
        (
            "output_tokens",
            totals.output_tokens,
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
        for phase, buckets in totals.buckets[metric.tag].items():
            bounds = map(floatToGoString, buckets.bounds)
            points = list(zip(bounds, buckets.cumulative(), strict=True))
            histogram.add_metric((phase,), points, buckets.sum)
        yield histogram
    yield from build_group_counters(totals.groups)


def build_group_counters(groups: GroupTotals) -> Iterator[MetricFamily]:
    of = "of finished requests, by model, tenant and name"
    requests = CounterMetricFamily(
        f"{PREFIX}group_requests", f"Number {of}", labels=(*GROUP_LABELS, "outcome")
    )
    for outcome_labels, count in groups.requests.items():
        requests.add_metric(outcome_labels, count)
    yield requests
    tokens = CounterMetricFamily(
        f"{PREFIX}group_output_tokens", f"Output tokens {of}", labels=GROUP_LABELS
    )
    for labels, count in groups.output_tokens.items():
        tokens.add_metric(labels, count)
    yield tokens
    ttft = SummaryMetricFamily(
        f"{PREFIX}group_time_to_first_token_seconds",
        "Time to First Token of successful requests, by model, tenant and name",
        labels=GROUP_LABELS,
    )
    for labels, (count, seconds) in groups.ttft.items():
        ttft.add_metric(labels, count, seconds)
    yield ttft


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
