"""Span receiver: its end in the run starts its process, joins incoming spans to the requests, and
writes spans.jsonl.

It is in the master, or the only process. Its cost there is a line of JSON for each export, whatever
comes in.
"""

import errno
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import gevent
import msgspec
from gevent.event import Event
from gevent.subprocess import PIPE, Popen, TimeoutExpired

from locust_llm.records.spans import otlp_protobuf
from locust_llm.records.spans.join_spans import SortedSpans, SpanJoin, SpanLine
from locust_llm.records.spans.span_counts import SpanCounts
from locust_llm.records.spans.span_times import FILE
from locust_llm.text.format import format_count

logger = logging.getLogger("locust_llm")

SERVER: Final = "locust_llm.server.spans.span_receiver_process"
PORT: Final = 4318
"""The port of OTLP over HTTP."""
DEFAULT: Final = f"127.0.0.1:{PORT}"
NEEDED: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
"""The environment variables that it gets. The rest may hold a key."""
BACKLOG: Final = 128
WAIT_S: Final = 8.0
"""The wait for missing spans after the end. Exporters send every 5 s, perhaps through a
collector."""
NONE_S: Final = 6.0
"""The wait where no span of the run has come at all."""
LAST_S: Final = 3.0
"""The process has so long to hand over its spans and to end."""
LOOK_S: Final = 0.1


class LineFile(Protocol):
    """The methods of its file."""

    def write(self, line: bytes) -> None: ...
    def flush(self) -> bool: ...
    def close(self) -> None: ...


class SpanReceiver:
    """The receiver of one run's spans."""

    def __init__(self, address: str, run: str) -> None:
        """It listens from now on: connections wait in the kernel until ``start``. ``address`` is
        ADDR:PORT, ``run`` is ``Run.trace``. Raises ValueError of one sentence."""
        if not otlp_protobuf.is_protobuf_available():
            raise ValueError(f"--otlp-receiver: {otlp_protobuf.MISSING}")
        self.address, self._run = address, run
        self._listener = _listener(address)
        self._join = SpanJoin()
        self._make: Callable[[], LineFile] | None = None
        self._file: LineFile | None = None
        self._process: Popen[bytes] | None = None
        self._reader: gevent.Greenlet | None = None
        self._hurried = Event()
        self._failure = ""

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(
        self,
        spawn: Callable[..., gevent.Greenlet],
        folder: Path,
        make: Callable[[Path], "LineFile"],
    ) -> None:
        """``folder`` is the run's. ``make`` makes its spans.jsonl before the first line. Raises
        OSError."""
        self._make = partial(make, folder / FILE)
        listener = self._listener.fileno()
        self._process = Popen(
            [sys.executable, "-m", SERVER, str(listener), self._run],
            stdin=PIPE, stdout=PIPE, pass_fds=(listener,), start_new_session=True,
            env={name: os.environ[name] for name in NEEDED if name in os.environ},
        )  # fmt: skip
        self._listener.close()
        self._reader = spawn(self._read, self._process)

    def _read(self, process: Any) -> None:
        """Take the lines of its process in a greenlet, to their end."""
        for line in process.stdout:
            self.take(line)
            gevent.sleep(0)

    def take(self, line: bytes) -> None:
        """Take one line of its process."""
        try:
            span_times = _decode(line)
        except ValueError:  # it was killed while it wrote
            return
        for joined in self._join.spans(span_times):
            self._keep(joined)
        if self._file is not None:
            self._file.flush()

    def request(self, request_id: str, *, ok: bool) -> None:
        """A request is over, and has a record. ``ok``: the server has a span of it."""
        if (joined := self._join.request(request_id, ok=ok)) is not None:
            self._keep(joined)

    def _keep(self, joined: SpanLine) -> None:
        if self._file is None and self._make is not None:
            make, self._make = self._make, None
            try:
                self._file = make()
            except OSError as error:
                self._failure = (
                    f"WARNING: spans.jsonl could not be written: {error.strerror or error}"
                )
        if self._file is not None:
            self._file.write(msgspec.json.encode(joined))

    @property
    def counts(self) -> SpanCounts:
        return self._join.counts

    def hurry(self) -> None:
        """Wait for no more spans."""
        self._hurried.set()

    def finish(self, monotonic: Callable[[], float]) -> Iterator[str]:
        """All records are here: wait for the missing spans, then end the process. Yields the
        notes."""
        if self._process is None or self._reader is None:
            return
        self._join.late = True
        ended = monotonic()
        if self._join.missing and not self._reader.ready():
            wait = (
                f"Waiting up to {self._wait_s:g} s for the spans of "
                f"{format_count(self._join.missing, 'request')}"
            )
            logger.info(f"{wait}{'' if self.counts.joined else ': none has arrived so far'}")
        while (
            self._join.missing and monotonic() < ended + self._wait_s and not self._reader.ready()
        ):
            if self._hurried.wait(LOOK_S):
                break
        if self._reader.ready():
            status = self._process.poll()
            self._failure = (
                f"WARNING: the receiver of spans ended before the run (exit status {status})"
            )
        self.close()
        yield from filter(None, (self._failure, describe_span_counts(self.counts, self.address)))

    @property
    def _wait_s(self) -> float:
        return WAIT_S if self.counts.joined else NONE_S

    def close(self) -> None:
        """End the process, with the spans that it has."""
        self._listener.close()
        process, self._process = self._process, None
        if process is None:
            return
        process.stdin.close()
        try:
            process.wait(timeout=LAST_S)
        except TimeoutExpired:
            process.kill()
        if self._reader is not None:
            self._reader.join(LAST_S)
            self._reader.kill()
        process.stdout.close()
        if self._file is not None:
            self._file.close()


_decode: Final = msgspec.json.Decoder(SortedSpans).decode


def parse_receiver_address(address: str) -> tuple[str, int]:
    """(address, port); the default port is 4318. Raises ValueError."""
    parts = urlsplit(f"//{address}")
    if parts.path or parts.query or parts.fragment or "@" in address or not parts.hostname:
        raise ValueError(f"--otlp-receiver takes ADDR:PORT, such as {DEFAULT}, got {address!r}")
    try:
        return parts.hostname, PORT if parts.port is None else parts.port
    except ValueError:
        raise ValueError(f"--otlp-receiver {address}: the port is not valid") from None


def try_span_receiver(address: str) -> None:
    """Raises ValueError of one sentence, as a run would that began now."""
    if not otlp_protobuf.is_protobuf_available():
        raise ValueError(f"--otlp-receiver: {otlp_protobuf.MISSING}")
    _listener(address).close()


def _listener(address: str) -> socket.socket:
    host, port = parse_receiver_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ValueError(f"--otlp-receiver cannot listen on {address}: {_why(error)}") from None


def _why(error: OSError) -> str:
    """The reason and what to do."""
    what = (
        error.strerror
        if isinstance(error, socket.gaierror) or not error.errno
        else os.strerror(error.errno)
    )
    match error.errno:
        case errno.EADDRINUSE:
            then = (
                "; stop the program that listens there (perhaps a collector), or choose another "
                "port here and in the server's "
            )
            then += "--otlp-traces-endpoint"
        case errno.EACCES:
            then = "; ports below 1024 need root"
        case _:
            then = "; use an address of this machine"
    return f"{what or error}{then}"


def describe_span_counts(counts: SpanCounts, address: str) -> str:
    """What the report must mention. Empty: each request has its span and nothing was wrong."""
    if counts.requests and not counts.joined:
        came = (
            f"{counts.received:,} spans arrived, but none has the times of a request"
            if counts.received
            else "none arrived"
        )
        first = f"; the first mistake: {counts.mistake}" if counts.mistake else ""
        return (
            f"WARNING: no request has a span ({came}{first}): the server needs "
            f"--otlp-traces-endpoint "
            f"http://{address}/v1/traces and OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"
        )
    if counts.joined == counts.requests and not (
        counts.impossible or counts.malformed or counts.refused or counts.dropped
    ):
        return ""
    return f"spans: {counts}"
