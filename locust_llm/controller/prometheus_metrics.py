"""The counters, histograms and gauges of a run for Prometheus, in its text format, version 0.0.4.

Its client library writes the text, from families made for each scrape, in a registry of their own.
Its instruments would add a ``_created`` series to each counter, and become files where
PROMETHEUS_MULTIPROC_DIR is set. Buckets are those of vLLM's own metrics, and finer ones between
them: what users saw and what the server counts itself can be compared.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from math import ceil, log
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from locust_llm.records.record import FAILURES, OK, Record
from locust_llm.slo.client_verdict import LEVELS

from .live_stats import PARTS, RATE_S, LiveStats, TTFTParts

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "locust_llm_"

STEP: Final = 1.25
"""A bucket's upper bound is at most so many times its lower one: a percentile within it is off by
25 % at most."""


def refine_bounds(least: float, bounds: tuple[float, ...]) -> tuple[float, ...]:
    """With all of these bounds, and as many between and before them as it takes for STEP."""
    found = [least]
    for bound in bounds:
        parts = max(1, ceil(log(bound / found[-1]) / log(STEP) - 1e-9))
        ratio = (bound / found[-1]) ** (1 / parts)
        begin = found[-1]
        found += [float(f"{begin * ratio**part:.3g}") for part in range(1, parts)] + [bound]
    return tuple(found)


SECONDS: Final = refine_bounds(0.01, (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0,
    7680.0,
))  # fmt: skip
TTFT: Final = refine_bounds(0.0005, (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
))  # fmt: skip
ITL: Final = refine_bounds(0.0005, (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
))  # fmt: skip
HISTOGRAMS: Final = (
    ("time_to_first_token_seconds", "ttft_s", TTFT,
        "First chunk with content after the send, of successful requests"),
    ("inter_token_latency_seconds", "itl_s", ITL,
     "(Request latency - TTFT) / tokens after the first chunk: one number a request, of successful "
         "requests"),
    ("request_latency_seconds", "latency_s", SECONDS,
        "Last chunk after the send, of successful requests"),
    ("prefill_gate_wait_seconds", "gate_wait_s", TTFT,
        "Wait at the prefill gate, of requests that succeeded or failed"),
)  # fmt: skip


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


class RunTotals:
    """What a run amounts to so far, by phase."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._chunks: Counter[str] = Counter()
        self._input_tokens: Counter[str] = Counter()
        self._output_tokens: Counter[str] = Counter()
        self._buckets = {
            name: defaultdict[str, BucketCounts](partial(BucketCounts, bounds))
            for name, _, bounds, _ in HISTOGRAMS
        }
        """By name, then by phase."""

    def add(self, record: Record) -> None:
        """A request is over."""
        phase = record.phase
        self._requests[phase, record.outcome] += 1
        self._chunks[phase] += len(record.chunk_us)
        self._input_tokens[phase] += record.input_tokens or 0
        self._output_tokens[phase] += record.output_tokens or 0
        for name, what, _, _ in HISTOGRAMS:
            if record.outcome == OK or (what == "gate_wait_s" and record.outcome in FAILURES):
                value = getattr(record, what)
                if value is not None:
                    self._buckets[name][phase].add(value)

    def families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            f"{PREFIX}requests",
            "Requests that are over, by what became of them",
            labels=("phase", "outcome"),
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        for name, counts, text in (
            ("chunks", self._chunks, "Events with content in them, of requests that are over"),
            ("input_tokens", self._input_tokens, "Tokens of the prompts of requests that are over"),
            (
                "output_tokens",
                self._output_tokens,
                "Tokens of the answers of requests that are over",
            ),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=("phase",))
            for phase, count in counts.items():
                counter.add_metric((phase,), count)
            yield counter
        for name, _, _, text in HISTOGRAMS:
            histogram = HistogramMetricFamily(PREFIX + name, text, labels=("phase",))
            for phase, buckets in self._buckets[name].items():
                histogram.add_metric((phase,), buckets.cumulative(), buckets.sum)
            yield histogram


def build_part_counters(parts: TTFTParts) -> Iterator[Metric]:
    """Over the count of ``time_to_first_token_seconds`` they are means."""
    counter = CounterMetricFamily(
        f"{PREFIX}part_seconds",
        "Time of successful requests from due to the first token, by part",
        labels=("phase", "part"),
    )
    for phase, sums in parts.by_phase.items():
        for part, seconds in zip(PARTS, sums, strict=False):
            counter.add_metric((phase, part), seconds)
    yield counter


def build_gauges(
    stats: LiveStats, *, users: int, limit: int | None, info: Mapping[str, str], over: bool = False
) -> Iterator[Metric]:
    """The run at this moment; one that is ``over`` has none, and its last values would look like a
    run that goes on. ``limit``: of the prefill gate; ``info``: what run it is."""
    yield InfoMetricFamily(f"{PREFIX}run", "What this run is; always 1", dict(info))
    if over:
        return
    client = stats.client()
    for name, text, value in (
        ("users", "Users of Locust; 0 after the stop, while the last requests go on", users),
        ("prefill_gate_limit", "Limit on requests that wait for their first token", limit),
        ("prefill_gate_waiting", "Requests that wait at the prefill gate", stats.waiting),
        ("requests_in_prefill", "Requests that were sent and have no token yet", stats.used),
        ("requests_decoding", "Requests with a first token, not complete", stats.decoding),
        ("output_tokens_per_second", f"Estimate over the last {RATE_S:g} seconds, with answers "
            f"that are still on",
         stats.tokens_per_s()),
        ("client_level", f"The load generator: "
            f"{', '.join(f'{i} {level}' for i, level in enumerate(LEVELS))}",
         None if client is None else LEVELS.index(client.level)),
    ):  # fmt: skip
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value)


class CollectedMetrics(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def format_exposition(*families: Metric) -> str:
    """As text, those that have samples."""
    registry = CollectorRegistry()
    registry.register(CollectedMetrics(family for family in families if family.samples))
    return generate_latest(registry).decode()
