"""Reference streams: a few streams with known send times beside the load of this process, read and
decoded like any other.

They use the stream reader and the exchange of this process, but not its gate. They make no record,
no event and no statistic, only the measured accuracy. Their server has its own process:
accuracy/reference_server.py.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import gevent

from locust_llm.accuracy.reference_process import TruthServer
from locust_llm.client.connection import Target
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.gate.gate import Gate
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.timing_accuracy import (
    MeasurementAccuracy,
    ReferenceTimes,
    TimingDifferences,
    parse_reference_times,
)
from locust_llm.settings.selftest_modes import OFF

STREAMS: Final = 2
CHUNKS: Final = 8
GAP_S: Final = 0.1
SPREAD: Final = 0.3
"""The share by which the time between chunks varies, so that they keep no step with the load."""
AFTER_S: Final = 0.25
"""They begin so long after the load. A run that is over by then pays nothing."""
LEAST_S: Final = 5.0
"""A shorter run has no accuracy check."""
STREAM_CPU_S: Final = 0.003
"""The CPU seconds of a stream, here and in the reference server, on a busy machine (measured)."""
SHARE: Final = 0.015
"""The streams use at most this share of the process's CPU, and pause where they would use more. The
start of their server comes on top."""
MOST_READS: Final = CHUNKS + 4
"""A stream has at most so many reads: the head, the chunks and the end."""
FREE: Final = 12
"""So many streams may use any share, as without them there is no accuracy check."""
PAUSE_S: Final = 0.2
LIMIT_S: Final = 10.0
"""The time limit of an answer that takes a second."""
FAILURES: Final = 3
"""After so many failures in a row there are no more streams."""


class ReferenceStreams:
    """The reference streams of one process, for all of its runs."""

    def __init__(self, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._cpu_clock = cpu_clock
        self._reads = 0
        self._lines: list[UserConnection] = []
        self._renew("no run has begun")

    def _renew(self, missing: str) -> None:
        self._missing = missing
        self._began = time.monotonic()
        self._cpu_began_s = self._cpu_clock()
        self._asked = 0
        """The number of streams so far."""
        self._run = TimingDifferences()
        self._stage = TimingDifferences()
        self._greenlets: list[gevent.Greenlet] = []
        self._server: TruthServer | None = None

    @property
    def most_reads(self) -> int:
        """The most reads of the stream reader so far that may be theirs, and not the load's. Nobody
        knows how many of an open stream the reader holds."""
        return self._reads + sum(
            max(MOST_READS, len(line.stream.stamps))
            for line in self._lines
            if line.stream is not None
        )

    def begin(self, wanted: str, run_time_s: float | None) -> None:
        """Begin a run. ``wanted`` is the setting ``selftest``."""
        self._stop()
        if wanted == OFF:
            self._renew("it was disabled (--selftest off)")
        elif run_time_s is not None and run_time_s < LEAST_S:
            self._renew(f"the run is shorter than {LEAST_S:g} s")
        else:
            self._renew("")
            self._greenlets = [gevent.spawn_later(AFTER_S, self._start)]

    def begin_stage(self) -> None:
        """Restart the counts for a stage."""
        self._stage = TimingDifferences()

    def stage(self) -> MeasurementAccuracy:
        """The errors of the stage so far."""
        return (
            MeasurementAccuracy(missing=self._missing)
            if self._missing
            else self._stage.certificate()
        )

    def end(self) -> MeasurementAccuracy:
        """End the run. Returns its errors."""
        lasted_s = time.monotonic() - self._began
        cpu_s = self._stop()
        if not self._missing and lasted_s < LEAST_S:
            self._missing = f"the run was shorter than {LEAST_S:g} s"
        return (
            MeasurementAccuracy(missing=self._missing)
            if self._missing
            else self._run.certificate(cpu_s)
        )

    def _start(self) -> None:
        try:
            self._server = TruthServer(GAP_S, SPREAD)
        except (OSError, NotImplementedError) as error:
            self._missing = f"the reference server could not start: {error}"
            return
        request = make_reference_request(Target("127.0.0.1", self._server.port), CHUNKS)
        self._greenlets += [gevent.spawn(self._streams, request) for _ in range(STREAMS)]

    def _streams(self, request: Request) -> None:
        """Send one stream after the other, in a greenlet."""
        line = UserConnection()
        gate = Gate()
        failures = 0
        self._lines.append(line)
        try:
            while failures < FAILURES:
                while not self._affordable():
                    gevent.sleep(PAUSE_S)
                self._asked += 1
                record = exchange_request(line, gate, request, 0.0)
                stream, line.stream = line.stream, None
                self._reads += record.reads
                if record.outcome == OK and stream is not None:
                    failures = 0
                    self._add(record, parse_reference_times(stream.answer.last))
                else:
                    failures += 1
                    gevent.sleep(0.1)
            self._missing = f"the reference streams failed ({record.outcome}: {record.error})"
        except Exception as error:  # whatever it is, it must not reach the run
            self._missing = f"the reference streams failed ({type(error).__name__}: {error})"
        finally:
            self._lines.remove(line)
            self._reads += 0 if line.stream is None else len(line.stream.stamps)
            line.close()

    def _affordable(self) -> bool:
        """Another stream is within their share of the CPU."""
        return self._asked < FREE or (self._asked + 1) * STREAM_CPU_S <= SHARE * (
            self._cpu_clock() - self._cpu_began_s
        )

    def _add(self, record: Record, truth: ReferenceTimes | None) -> None:
        if truth is not None:
            self._run.add(record, truth)
            self._stage.add(record, truth)

    def _stop(self) -> float | None:
        """Stop the reference server. Returns its CPU seconds."""
        gevent.killall(self._greenlets)
        self._greenlets = []
        server, self._server = self._server, None
        return None if server is None else server.close(gevent.sleep)


def make_reference_request(target: Target, chunks: int) -> Request:
    """A request for so many chunks from the reference server."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "."}]
    body = encode_request_body("chat", "truth", messages, chunks)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Request(
        target=target, data=head.encode() + body, labels={"id": "sentinel"}, timeout_s=LIMIT_S
    )
