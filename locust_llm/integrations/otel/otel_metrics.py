"""OpenTelemetry metrics: the four histograms of the conventions for GenAI clients, of all requests,
whatever is sampled.

github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md: names, units,
attributes and buckets. The gaps of a request are counted together, as the SDK's own ``record()``
takes a hundred times as long for each chunk.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import sub
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

from .telemetry_frames import RunDescription

SECONDS: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
MICROSECONDS: Final = tuple(round(bound * 1e6) for bound in SECONDS)
TOKENS: Final = tuple(float(4**power) for power in range(14))

DURATION: Final = "gen_ai.client.operation.duration"
FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
OUTPUT_CHUNK: Final = "gen_ai.client.operation.time_per_output_chunk"
USAGE: Final = "gen_ai.client.token.usage"
METRICS: Final = {
    DURATION: ("s", SECONDS, "From the send of a request to the end of its response"),
    FIRST_CHUNK: ("s", SECONDS, "From the send of a request to its first chunk"),
    OUTPUT_CHUNK: ("s", SECONDS, "From each chunk to the next"),
    USAGE: ("{token}", TOKENS, "Input and output tokens, as the server counted them"),
}  # fmt: skip
"""For each name: (unit, upper bounds of the buckets, description)."""

Attributes = tuple[tuple[str, str | int], ...]


class OtelHistogram:
    """One metric with one set of attributes. ``bounds`` are upper ends, which belong to their
    bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.least = float("inf")
        self.most = float("-inf")

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self._cover(value, value, value)

    def add_gaps(self, stamps_us: Sequence[int]) -> None:
        """Add the gaps between neighbours of at least two stamps, which never fall, to the buckets
        of ``SECONDS``."""
        gaps = sorted(map(sub, stamps_us[1:], stamps_us))
        below = 0
        for bucket, bound in enumerate(MICROSECONDS):
            up_to = bisect_right(gaps, bound)
            self.counts[bucket] += up_to - below
            below = up_to
        self.counts[-1] += len(gaps) - below
        self._cover((stamps_us[-1] - stamps_us[0]) / 1e6, gaps[0] / 1e6, gaps[-1] / 1e6)

    def _cover(self, total: float, least: float, most: float) -> None:
        self.sum += total
        self.least = min(self.least, least)
        self.most = max(self.most, most)


class OtelMetrics:
    """The metrics of one process in one run."""

    def __init__(self, about: RunDescription, *, delta: bool = False) -> None:
        """``delta``: each export has what came since the one before, not since the begin."""
        self._about, self._began_ns, self._delta = about, about.began_ns, delta
        self._found: dict[tuple[str, Attributes], OtelHistogram] = {}

    def add(self, record: Record) -> None:
        """Add a finished request."""
        of_all = common_attributes(self._about, record)
        since = record.asked_at if record.sent_at is None else record.sent_at
        error = () if record.outcome == OK else (("error.type", record.outcome),)
        self._of(DURATION, of_all + error).add(record.closed_at - since)
        if (chunk_us := record.chunk_us) and record.streamed:
            self._of(FIRST_CHUNK, of_all).add(chunk_us[0] / 1e6)
            if len(chunk_us) > 1:
                self._of(OUTPUT_CHUNK, of_all).add_gaps(chunk_us)
        if record.tokens_from == "usage":
            for kind, tokens in (("input", record.input_tokens), ("output", record.output_tokens)):
                if tokens is not None:
                    self._of(USAGE, (*of_all, ("gen_ai.token.type", kind))).add(tokens)

    def _of(self, name: str, attributes: Attributes) -> OtelHistogram:
        if (histogram := self._found.get((name, attributes))) is None:
            histogram = self._found[name, attributes] = OtelHistogram(METRICS[name][1])
        return histogram

    def collect(self, now_ns: int, resource: Resource, scope: InstrumentationScope) -> MetricsData:
        """All metrics, for an exporter."""
        began_ns, histograms = self._began_ns, self._found
        if self._delta:
            self._began_ns, self._found = now_ns, {}
        metrics = [*_metrics(histograms, began_ns, now_ns, delta=self._delta)]
        return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metrics(
    histograms: dict[tuple[str, Attributes], OtelHistogram],
    began_ns: int,
    now_ns: int,
    *,
    delta: bool,
) -> Iterator[Metric]:
    how = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
    for name, (unit, bounds, what) in METRICS.items():
        points = [
            HistogramDataPoint(
                dict(attributes),
                began_ns,
                now_ns,
                sum(histogram.counts),
                histogram.sum,
                tuple(histogram.counts),
                bounds,
                histogram.least,
                histogram.most,
            )
            for (of, attributes), histogram in histograms.items()
            if of == name
        ]
        if points:
            yield Metric(name, what, unit, HistogramPoints(points, how))


def common_attributes(about: RunDescription, record: Record) -> Attributes:
    """The attributes that spans and metrics share. Each has few values."""
    address, port = about.server(record)
    own = {"phase": record.phase, "arm": record.arm, "tenant": record.tenant}
    return (
        ("gen_ai.operation.name", about.operation),
        ("gen_ai.provider.name", about.provider),
        ("gen_ai.request.model", record.model),
        ("server.address", address),
        ("server.port", port),
        *((f"locust_llm.{name}", value) for name, value in own.items() if value),
    )
