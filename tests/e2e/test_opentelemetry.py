"""Runs with --otel as a collector sees them: spans, histograms and log records of just the requests
that were sent."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from support.runs import records

from locust_llm.demo_command import start_simulator
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.records.spans.trace_ids import make_request_part
from locust_llm.records.telemetry_counts import TelemetryCounts

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from support.collector import Collector, over_grpc, over_http, plain

pytestmark = pytest.mark.slow
INTERNAL, CLIENT, ERROR = 1, 3, 2
"""Of OTLP: kinds of spans, and a status."""


def load(
    folder: Path, to: str, collector: Collector, protocol: str, *words: str, **variables: str
) -> str:
    """A run with --otel; what it said."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("OTEL_")
    } | variables
    command = [
        sys.executable, "-m", "locust_llm", "run", "--headless", "--host", to, "--no-probe",
        "--report-dir", str(folder),
        "--otel", *words,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False,
        env=environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol},
    )  # fmt: skip
    return done.stdout + done.stderr


@contextmanager
def failing_server(collector: Collector) -> Iterator[str]:
    """It ends a fifth of its answers in the middle, and sends spans of its own to the same
    collector."""
    with start_simulator(
        "--faults",
        "cut=5",
        "--fault-rate",
        "0.2",
        "--otlp-traces-endpoint",
        f"{collector.url}/v1/traces",
    ) as url:
        yield url


def counts_of(folder: Path) -> TelemetryCounts:
    counts = read_run(folder).telemetry
    assert counts is not None
    return counts


@pytest.mark.parametrize(("protocol", "share"), [("grpc", 1.0), ("http/protobuf", 0.5)])
def test_a_collector_has_the_run(tmp_path: Path, protocol: str, share: float) -> None:
    """Alone, and as two workers with a sample of the spans: each figure beside the records."""
    more = [] if share == 1 else ["--processes", "2", "--otel-sample", str(share)]
    with (
        over_http() as of_server,
        over_grpc() if protocol == "grpc" else nullcontext(of_server) as collector,
        failing_server(of_server) as url,
    ):
        said = load(
            tmp_path, url, collector, protocol, "-u", "6", "--request-count", "60",
            "--prefill-concurrency", "2",
            "--output-tokens-mean", "12", *more,
        )  # fmt: skip
    found = {one.id: one for one in records(tmp_path)}
    sampled = {one for one in found if int(make_request_part(one), 16) < share * 2**64}
    spans = {
        plain(s.attributes)["locust_llm.request_id"]: s
        for _, s in collector.spans
        if s.kind == CLIENT
    }
    failed = {one.id for one in found.values() if one.failed}
    assert len(found) == 60, said
    assert failed
    assert sampled == set(spans)
    assert len(collector.spans) == 2 * len(spans)  # each has one of its wait at the gate
    assert (len(sampled) == 60) == (share == 1)
    for request_id, span in spans.items():
        check_span(span, found[request_id], [other for _, other in collector.spans])
    check_metrics(collector, list(found.values()))
    assert {plain(line.attributes)["locust_llm.request_id"] for _, line in collector.logs} == failed
    # those of the server lie below ours, and of what is not sampled there is none
    answered = {bytes.fromhex(make_request_part(one)) for one in sampled - failed}
    assert {span.parent_span_id for span in of_server.of_server} == answered
    workers = {resource["service.instance.id"] for resource, _ in collector.spans}
    assert len(workers) == 1 if share == 1 else workers == {one.worker for one in found.values()}
    counts = counts_of(tmp_path)
    assert (counts.requests, counts.sampled, counts.spans) == (60, len(sampled), len(sampled))
    assert (counts.logs, counts.remark) == (len(failed), "")


def check_span(span: Any, record: Record, others: list[Any]) -> None:
    has = plain(span.attributes)
    assert span.name == f"chat {record.model}"
    assert span.trace_id.hex()[16:] == span.span_id.hex() == make_request_part(record.id)
    assert (has["gen_ai.operation.name"], has["gen_ai.provider.name"]) == ("chat", "openai")
    counted = record.tokens_from == "usage"
    assert has.get("gen_ai.usage.output_tokens") == (record.output_tokens if counted else None)
    assert has.get("gen_ai.response.finish_reasons") == (
        [record.finish_reason] if record.finish_reason else None
    )
    assert has["locust_llm.chunks"] == len(record.chunk_us)
    error = None if record.outcome == OK else record.outcome
    assert (has.get("error.type"), span.status.code == ERROR) == (error, bool(error))
    sent, *first = span.events
    assert [sent.name, *(event.name for event in first)] == [
        "sent",
        *["first_token"] * bool(record.chunk_us),
    ]
    assert [event.time_unix_nano - sent.time_unix_nano for event in first] == [
        us * 1000 for us in record.chunk_us[:1]
    ]
    assert record.sent_at is not None
    assert record.gate_wait_s is not None
    took_ns = span.end_time_unix_nano - span.start_time_unix_nano
    assert took_ns == pytest.approx((record.closed_at - record.asked_at) * 1e9, abs=2_000)
    (gate,) = [other for other in others if other.parent_span_id == span.span_id]
    assert (gate.name, gate.kind, gate.trace_id) == ("prefill gate", INTERNAL, span.trace_id)
    assert gate.start_time_unix_nano == span.start_time_unix_nano
    waited_ns = gate.end_time_unix_nano - gate.start_time_unix_nano
    assert waited_ns == pytest.approx(record.gate_wait_s * 1e9, abs=2_000)


def check_metrics(collector: Collector, found: list[Record]) -> None:
    """Of all requests, whatever is sampled."""
    metric = "gen_ai.client.operation."
    with_chunks = [one.chunk_us for one in found if one.chunk_us]
    gaps = sorted((b - a) / 1e6 for us in with_chunks for a, b in pairwise(us))
    assert collector.count(f"{metric}duration") == len(found)
    for outcome in {one.outcome for one in found} - {OK}:
        assert collector.count(f"{metric}duration", "error.type", outcome) == sum(
            one.outcome == outcome for one in found
        )
    assert collector.count(f"{metric}time_to_first_chunk") == len(with_chunks)
    assert (
        collector.count(f"{metric}time_per_output_chunk")
        == sum(len(us) - 1 for us in with_chunks)
        == len(gaps)
    )
    of_gaps = [
        point
        for (name, *_), point in collector.points.items()
        if name == f"{metric}time_per_output_chunk"
    ]
    assert sum(point.sum for point in of_gaps) == pytest.approx(sum(gaps))
    bounds = of_gaps[0].explicit_bounds
    below = [sum(gap <= bound for gap in gaps) for bound in bounds]
    assert [
        sum(sum(point.bucket_counts[: n + 1]) for point in of_gaps) for n in range(len(bounds))
    ] == below
    counted = [one for one in found if one.tokens_from == "usage"]
    for kind in ("input", "output"):
        assert collector.count("gen_ai.client.token.usage", "gen_ai.token.type", kind) == len(
            counted
        )


def test_a_collector_that_does_not_answer_holds_up_no_request(tmp_path: Path) -> None:
    """By gRPC, Locust's default, whose calls would block the event loop for 10 s each; and the run
    says what is missing."""
    with over_grpc() as collector, start_simulator() as url:
        collector.silent.set()
        Timer(12, collector.answer).start()  # else Locust's own exporters wait on at the end
        said = load(
            tmp_path, url, collector, "grpc", "-u", "2", "-t", "5", "--output-tokens-mean", "4",
            OTEL_BLRP_SCHEDULE_DELAY="200", OTEL_BSP_MAX_QUEUE_SIZE="10",
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="10",
        )  # fmt: skip
    asked = sorted(one.asked_at for one in records(tmp_path))
    assert max(b - a for a, b in pairwise(asked)) < 4, said
    counts = counts_of(tmp_path)
    assert (
        counts.requests
        == counts.sampled
        == counts.spans + counts.dropped + counts.refused
        == len(asked)
    )
    assert counts.dropped
    # the console has it too, but gRPC writes into the same output, and into the middle of a line
    summary = " ".join((tmp_path / "summary.md").read_text().split())
    missing = f"OpenTelemetry data of this run is incomplete: {counts.dropped} spans dropped"
    assert missing in summary
    assert counts.remark.startswith(f"WARNING: {missing}")
