"""Exporting process: it reads the records of one sending process and passes their spans, metrics
and logs to the exporters of OpenTelemetry's SDK.

It ends when its standard input does, and then prints what became of everything, as a line of JSON.
It imports neither Locust nor gevent, so its threads are real. It has a lower priority than the load
generator.
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from threading import Event, Lock, Thread
from typing import Any, BinaryIO, Final

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import is_sampled
from locust_llm.records.telemetry_counts import TelemetryCounts

from . import telemetry_frames
from .exporters import Export, make_exporter
from .otel_metrics import OtelMetrics
from .request_spans import build_failure_log, build_request_spans

LAST_S: Final = 5.0
"""The seconds at the end for exports that are under way."""
NICE: Final = 5
MISTAKE: Final = 200
"""The characters of a fault."""


class SdkErrorHandler(logging.Handler):
    """Keeps the first complaint of the SDK and prints none, as an unreachable collector would fill
    the console."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()[:MISTAKE]


class ExportQueue:
    """The batches of one signal. A thread sends them every ``every_s``, or as soon as ``batch``
    wait. Items beyond ``most`` are dropped."""

    def __init__(self, export: Export, *, most: int, batch: int, every_s: float) -> None:
        self.taken = self.refused = self.dropped = 0
        self._export, self._most, self._batch, self._every_s = export, most, batch, every_s
        self._waiting = deque[Any]()
        self._full = Event()
        self._over = False
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, item: Any) -> None:
        if len(self._waiting) >= self._most:
            self.dropped += 1
            return
        self._waiting.append(item)
        if len(self._waiting) >= self._batch:
            self._full.set()

    def _run(self) -> None:
        while not self._over:
            self._full.wait(self._every_s)
            self._full.clear()
            while self._waiting:
                batch = [
                    self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))
                ]
                if self._export(batch):
                    self.taken += len(batch)
                else:
                    self.refused += len(batch)

    def close(self) -> None:
        """Accept nothing more."""
        self._over = True
        self._full.set()

    def join(self, until: float) -> None:
        """Wait until ``until`` (monotonic s). What has not left by then is dropped."""
        self._thread.join(max(0.0, until - time.monotonic()))


class TelemetryExporter:
    """All exports of one process in one run."""

    def __init__(self, about: telemetry_frames.RunDescription, environ: Mapping[str, str]) -> None:
        self._about = about
        self._resource = Resource.create(about.resource)
        self._scope = InstrumentationScope("locust-llm", about.version)
        self._mistakes = SdkErrorHandler()
        logging.getLogger("opentelemetry").addHandler(self._mistakes)
        self._requests = self._sampled = self._failures = self._metrics_lost = 0
        self._spans = _queue(make_exporter("traces", environ), "OTEL_BSP", environ, _flat)
        self._logs = _queue(make_exporter("logs", environ), "OTEL_BLRP", environ)
        self._to = make_exporter("metrics", environ)
        preference = environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").lower()
        self._delta = preference in ("delta", "lowmemory")
        self._metrics = OtelMetrics(about, delta=self._delta)
        self._lock = Lock()
        self._over = Event()
        """The lock of the metrics, which one thread adds to and another one sends."""
        every_s = _number(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
        self._clock = Thread(target=self._send_metrics, args=(every_s,), daemon=True)
        self._clock.start()

    def add(self, record: Record) -> None:
        self._requests += 1
        if self._to is not None:
            with self._lock:
                self._metrics.add(record)
        sampled = is_sampled(record.id, self._about.share)
        if sampled and self._spans is not None:
            self._sampled += 1
            self._spans.add(build_request_spans(self._about, record, self._resource, self._scope))
        if record.failed and self._logs is not None:
            self._failures += 1
            self._logs.add(
                build_failure_log(self._about, record, self._resource, self._scope, sampled=sampled)
            )

    def _send_metrics(self, every_s: float) -> None:
        """Send at this interval, and at the end: the last export has the whole run."""
        while self._to is not None:
            over = self._over.wait(every_s)
            with self._lock:
                metrics = self._metrics.collect(time.time_ns(), self._resource, self._scope)
            taken = guard_export(self._to)(metrics)
            self._metrics_lost = int(not taken or (self._delta and self._metrics_lost))
            if over:
                return

    def end(self, last_s: float = LAST_S) -> TelemetryCounts:
        """Send what is left. Returns the counts of everything."""
        until = time.monotonic() + last_s
        queues = [queue for queue in (self._spans, self._logs) if queue is not None]
        for queue in queues:
            queue.close()
        self._over.set()
        for queue in queues:
            queue.join(until)
        self._clock.join(max(0.0, until - time.monotonic()))
        spans, logs = self._spans, self._logs
        taken, refused = (0, 0) if spans is None else (spans.taken, spans.refused)
        logged = 0 if logs is None else logs.taken
        return TelemetryCounts(
            requests=self._requests,
            sampled=self._sampled,
            spans=taken,
            refused=refused,
            dropped=self._sampled - taken - refused,
            logs=logged,
            logs_lost=self._failures - logged,
            metrics_lost=int(self._metrics_lost or self._clock.is_alive()),
            mistake=self._mistakes.first,
        )


def _queue(
    to: Export | None,
    prefix: str,
    environ: Mapping[str, str],
    form: Callable[[Any], Any] = lambda batch: batch,
) -> ExportQueue | None:
    """Make the queue that the variables with ``prefix`` describe. None: this signal is not sent."""
    if to is None:
        return None
    export = guard_export(to)
    most = _number(environ, f"{prefix}_MAX_QUEUE_SIZE", 2_048)
    return ExportQueue(
        lambda batch: export(form(batch)),
        most=most,
        batch=min(most, _number(environ, f"{prefix}_MAX_EXPORT_BATCH_SIZE", 512)),
        every_s=_number(environ, f"{prefix}_SCHEDULE_DELAY", 5_000) / 1000,
    )


def _flat(batch: list[tuple[Any, ...]]) -> list[Any]:
    return list(chain.from_iterable(batch))


def guard_export(export: Export) -> Export:
    """Whatever an exporter raises, the calling thread goes on."""

    def tried(batch: Any) -> bool:
        try:
            return export(batch)
        except Exception as error:
            logging.getLogger("opentelemetry").error(f"{type(error).__name__}: {error}")
            return False

    return tried


def _number(environ: Mapping[str, str], name: str, usual: int) -> int:
    """``usual`` where the variable is no number above 0, as in the SDK."""
    try:
        return int(environ[name]) if int(environ[name]) > 0 else usual
    except (KeyError, ValueError):
        return usual


def main(source: BinaryIO) -> TelemetryCounts:
    logging.getLogger("opentelemetry").propagate = False
    about, records = telemetry_frames.read_record_frames(source)
    sending = TelemetryExporter(about, os.environ)
    for record in records:
        sending.add(record)
    return sending.end()


if __name__ == "__main__":
    os.nice(NICE)
    sys.stdout.buffer.write(msgspec.json.encode(main(sys.stdin.buffer)) + b"\n")
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread may still wait for its collector
