"""Telemetry: measures the cost of --otel: CPU of the load generator and of the exporting process
per request, and of the SDK's own histogram per chunk (make bench-telemetry)."""

import os
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Final

import gevent
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.collector import over_http

from locust_llm.integrations.otel.otel_metrics import SECONDS, OtelMetrics, common_attributes
from locust_llm.integrations.otel.telemetry_frames import RunDescription
from locust_llm.integrations.otel.telemetry_sender import ExporterPipe
from locust_llm.records.record import Record

ABOUT: Final = RunDescription(
    trace="4bf92f3577b34da6", operation="chat", provider="openai", host="http://127.0.0.1:8000"
)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def a_record(number: int, chunks: int, random: Random) -> Record:
    stamps = tuple(accumulate(random.randrange(5_000, 60_000) for _ in range(chunks)))
    return Record(
        id=f"local-1-{number}", model="llama", name="/v1/chat/completions", clock_offset_s=1.8e9,
        due_at=1.0, asked_at=1.0,
        admitted_at=1.5, limit=4, sent_at=1.5, closed_at=1.6 + stamps[-1] / 1e6, chunk_us=stamps,
        finish_reason="stop",
        input_tokens=550, output_tokens=chunks, tokens_from="usage", status=200,
    )  # fmt: skip


def paced(records: list[Record], rate: int, put: Callable[[Record], object]) -> float:
    """Returns CPU seconds of this thread, including the writes to the pipe."""
    before = time.thread_time()
    began = time.monotonic()
    for number, record in enumerate(records):
        if number % 20 == 0:
            gevent.sleep(max(0.0, began + number / rate - time.monotonic()))
        put(record)
    gevent.sleep(1)
    return time.thread_time() - before


def measure(rate: int, chunks: int, seconds: float, url: str) -> str:
    """Measures the process as in a run, at so many requests per second."""
    os.environ |= {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
    }
    random = Random(1)
    records = [a_record(number, chunks, random) for number in range(int(rate * seconds))]
    idle = paced(records, rate, lambda record: None)
    before = time.thread_time()
    pipe = ExporterPipe(ABOUT)
    start = time.thread_time() - before
    gevent.sleep(2)
    theirs = cpu_s(pipe._pid)
    own = paced(records, rate, pipe.put) - idle
    theirs = cpu_s(pipe._pid) - theirs
    counts = pipe.end()
    each = 1e6 / len(records)
    return (
        f"{rate:,} requests a second of {chunks:,} chunks: {own * each:.1f} us of the load "
        f"generator for each, "
        f"{theirs * each:.0f} us of the exporting process ({theirs / seconds:.1%} of a core); "
        f"{counts.spans:,} of "
        f"{len(records):,} spans taken; its start {start * 1e3:.1f} ms {counts.remark}"
    )


def histograms() -> str:
    """Measures the histogram per chunk."""
    record = a_record(1, 1_000, Random(1))
    provider = MeterProvider(metric_readers=[InMemoryMetricReader()])
    histogram = provider.get_meter("x").create_histogram(
        "x", explicit_bucket_boundaries_advisory=SECONDS
    )
    attributes = dict(common_attributes(ABOUT, record))
    before = time.process_time()
    for first, second in pairwise(record.chunk_us):
        histogram.record((second - first) / 1e6, attributes)
    between = time.process_time()
    ours = OtelMetrics(ABOUT)
    for _ in range(100):
        ours.add(record)
    after = time.process_time()
    return (
        f"a chunk into a histogram: {(between - before) * 1e3:.1f} us by the SDK, "
        f"{(after - between) * 10:.2f} us here"
    )


if __name__ == "__main__":
    print(histograms(), flush=True)
    with over_http() as collector:
        for rate, chunks in ((50, 60), (200, 60), (50, 1_000), (500, 60)):
            print(measure(rate, chunks, 6, collector.url), flush=True)
