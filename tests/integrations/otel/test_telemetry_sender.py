"""What is sent by OpenTelemetry: which spans, what the histograms hold, what is dropped and what is
said of it."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import io
import threading
import time
from argparse import Namespace
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered

from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import is_sampled, make_request_key, make_traceparent
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.settings.run_options import Settings

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode

from locust_llm.integrations.otel import exporters, telemetry_frames
from locust_llm.integrations.otel.exporters import find_exporter_mistake
from locust_llm.integrations.otel.exporting_process import ExportQueue, TelemetryExporter
from locust_llm.integrations.otel.otel_metrics import (
    DURATION,
    FIRST_CHUNK,
    OUTPUT_CHUNK,
    SECONDS,
    USAGE,
    OtelMetrics,
)
from locust_llm.integrations.otel.request_spans import build_failure_log, build_request_spans
from locust_llm.integrations.otel.telemetry_sender import validate_otel

RUN = "4bf92f3577b34da6"
ABOUT = telemetry_frames.RunDescription(
    trace=RUN, operation="chat", provider="openai", host="https://llm.example.com", began_ns=7
)
SCOPE = InstrumentationScope("locust-llm", "1")


def record(**fields: Any) -> Record:
    return answered(**{"tokens_from": "", **fields})


def points(metrics: OtelMetrics) -> dict[str, list[Any]]:
    """By metric."""
    data = metrics.collect(99, Resource({}), SCOPE)
    (scope,) = data.resource_metrics[0].scope_metrics
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


@given(st.lists(st.integers(0, 200_000_000), max_size=50).map(sorted))
def test_each_chunk_after_the_first_is_in_the_histogram_once(stamps: list[int]) -> None:
    """Beside a slow twin. Bounds belong to the bucket below."""
    metrics = OtelMetrics(ABOUT)
    metrics.add(record(chunk_us=tuple(stamps)))
    found = points(metrics)
    assert sum(point.count for point in found.get(FIRST_CHUNK, [])) == bool(stamps)
    gaps = [b - a for a, b in pairwise(stamps)]
    if not gaps:
        assert OUTPUT_CHUNK not in found
        return
    (point,) = found[OUTPUT_CHUNK]
    assert point.count == sum(point.bucket_counts) == len(stamps) - 1
    below = [sum(gap <= round(bound * 1e6) for gap in gaps) for bound in SECONDS]
    assert [sum(point.bucket_counts[: n + 1]) for n in range(len(SECONDS))] == below
    assert (point.min, point.max) == (min(gaps) / 1e6, max(gaps) / 1e6)
    assert point.sum == pytest.approx(sum(gaps) / 1e6)


def test_what_the_histograms_are_of() -> None:
    metrics = OtelMetrics(ABOUT, delta=True)
    metrics.add(
        record(
            sent_at=10.0, closed_at=10.64, input_tokens=64, output_tokens=65, tokens_from="usage"
        )
    )
    metrics.add(
        record(
            sent_at=10.0, closed_at=12.0, outcome="truncated", output_tokens=3, tokens_from="chunks"
        )
    )
    metrics.add(
        record(
            asked_at=9.0, sent_at=None, closed_at=9.5, outcome="refused", phase="warmup", arm="base"
        )
    )
    found = points(metrics)
    durations = {
        (p.attributes.get("error.type"), p.attributes["locust_llm.phase"]): p
        for p in found[DURATION]
    }
    assert {key: p.sum for key, p in durations.items()} == {
        (None, "profiling"): pytest.approx(0.64), ("truncated", "profiling"): 2.0,
        ("refused", "warmup"): 0.5,
    }  # fmt: skip
    assert durations["refused", "warmup"].attributes["locust_llm.arm"] == "base"
    assert durations[None, "profiling"].attributes["server.port"] == 443
    # counts that the server did not make are none
    assert {p.attributes["gen_ai.token.type"]: (p.count, p.sum) for p in found[USAGE]} == {
        "input": (1, 64), "output": (1, 65),
    }  # fmt: skip
    (of_64,) = [p for p in found[USAGE] if p.sum == 64]
    assert of_64.bucket_counts[3] == 1  # 16 < 64 <= 64
    assert points(metrics) == {}  # each export has its own


@given(st.text(min_size=1, max_size=20), st.floats(0, 1))
def test_a_share_is_the_one_that_opentelemetry_takes(request_id: str, share: float) -> None:
    header = make_traceparent(RUN, request_id, share)
    trace_id = int(header.split("-")[1], 16)
    theirs = TraceIdRatioBased(share).should_sample(None, trace_id, "").decision.is_sampled()
    # theirs rounds the bound to a whole number
    assert is_sampled(request_id, share) == header.endswith("-01")
    assert (
        is_sampled(request_id, share) == theirs
        or abs(make_request_key(request_id) - share * 2**64) <= 2048
    )


def test_spans_and_failures() -> None:
    failed = record(
        id="a-1-2", outcome="http_status", status=500, error="Internal Server Error", limit=None,
        model="m",
        clock_offset_s=1000.0, asked_at=1.0, sent_at=1.25, closed_at=2.0, chunk_us=(),
    )  # fmt: skip
    (span,) = build_request_spans(ABOUT, failed, Resource({}), SCOPE)  # no gate, no span of it
    key = make_request_key("a-1-2")
    assert (span.name, span.kind) == ("chat m", SpanKind.CLIENT)
    assert (span.context.trace_id, span.context.span_id) == ((int(RUN, 16) << 64) + key, key)
    assert (span.start_time, span.end_time) == (1_001_000_000_000, 1_002_000_000_000)
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "Internal Server Error",
    )
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == (
        "http_status",
        500,
    )
    assert [(event.name, event.timestamp) for event in span.events] == [("sent", 1_001_250_000_000)]
    line = build_failure_log(ABOUT, failed, Resource({}), SCOPE, sampled=False).log_record
    assert (line.body, line.span_id, line.trace_flags) == (
        "http_status: Internal Server Error",
        key,
        0,
    )


def test_what_a_collector_does_not_take_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    held, calls = threading.Event(), list[int]()

    def export(batch: list[Any]) -> bool:
        calls.append(len(batch))
        held.wait(20)
        return len(calls) > 1

    queue = ExportQueue(export, most=4, batch=2, every_s=60)
    for number in range(2):
        queue.add(number)
    while not calls:
        time.sleep(0.001)
    for number in range(7):  # one batch is under way: four wait, three find no place
        queue.add(number)
    held.set()
    queue.close()
    queue.join(time.monotonic() + 20)
    assert (queue.refused, queue.taken, queue.dropped, calls) == (2, 4, 3, [2, 2, 2])

    def broken(batch: Any) -> bool:
        raise RuntimeError("no way")

    monkeypatch.setattr(
        "locust_llm.integrations.otel.exporting_process.make_exporter", lambda *how: broken
    )
    sending = TelemetryExporter(ABOUT, {})
    sending.add(record(outcome="reset"))
    counts = sending.end()
    assert (
        counts.requests,
        counts.sampled,
        counts.refused,
        counts.logs_lost,
        counts.metrics_lost,
    ) == (1, 1, 1, 1, 1)
    assert counts.mistake == "RuntimeError: no way"
    assert counts.remark == (
        "WARNING: OpenTelemetry data of this run is incomplete: 1 span not taken, 1 log record "
        "not taken, 1 process without its last metrics; the collector received the spans of 0 of "
        "1 requests; the first mistake: RuntimeError: no way"
    )
    both = counts + TelemetryCounts(requests=2, sampled=2, spans=2, mistake="later")
    assert (both.requests, both.spans, both.mistake) == (3, 2, "RuntimeError: no way")
    assert TelemetryCounts(requests=2, sampled=1, spans=1).remark == ""


def test_frames_end_where_their_writer_was_killed() -> None:
    written = b"".join(
        map(
            telemetry_frames.add_frame_length,
            (msgspec.msgpack.encode(ABOUT), *[telemetry_frames.encode_record(record())] * 2),
        )
    )
    about, found = telemetry_frames.read_record_frames(io.BytesIO(written[:-1]))
    assert about == ABOUT
    assert list(found) == [record()]
    with pytest.raises(ValueError, match="Input data was truncated"):
        telemetry_frames.read_record_frames(io.BytesIO())


def test_to_which_server() -> None:
    about = msgspec.structs.replace(ABOUT, hosts=("http://a:1", "http://b"), candidate="http://c:3")
    assert about.server(record(backend="http://a:1")) == ("a", 1)
    assert about.server(record(backend="http://b")) == ("b", 80)
    assert about.server(record(backend="pod-7")) == ("llm.example.com", 443)
    assert about.server(record(arm="candidate")) == ("c", 3)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, ""),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "OTEL_TRACES_EXPORTER takes otlp, console or none, got 'zipkin'",
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "takes grpc or http/protobuf, got 'http/json'",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "x", "OTEL_LOGS_EXPORTER": "none,console"}, ""),
    ],
)
def test_what_the_variables_ask_for(
    variables: Mapping[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        (why in find_exporter_mistake(variables)) if why else find_exporter_mistake(variables) == ""
    )
    monkeypatch.setattr(exporters, "find_spec", lambda name: None)
    missing = find_exporter_mistake(variables)
    assert bool(missing) == (variables.get("OTEL_SDK_DISABLED") is None)
    if not why and missing:
        assert missing == "--otel needs opentelemetry-sdk: pip install 'locust-llm[otel]'"


def test_a_share_needs_something_to_share() -> None:
    refused = ["--otel-sample needs --otel"]
    assert [*validate_otel(Settings(otel_sample=0.5), Namespace(otel=False))] == refused
    assert [*validate_otel(Settings(otel_sample=0.5), Namespace(otel=True))] == []
    assert Settings(otel_sample=0.5).traced_share == 0.5
    # its report wants all
    assert Settings(otel_sample=0.5, otlp_receiver="127.0.0.1:4318").traced_share == 1
