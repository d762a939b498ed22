"""Telemetry sender: the load generator's side, which hands finished records to the exporting
process.

Nothing of OpenTelemetry runs here. Its cost here is the encoding of a record after its request, and
a write to a pipe four times a second.
"""

import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from importlib.metadata import version
from random import SystemRandom
from typing import Final
from uuid import uuid4

import locust

import gevent
import msgspec
from gevent.event import Event
from gevent.os import make_nonblocking, nb_read, nb_write

from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import make_run_trace
from locust_llm.records.telemetry_counts import TelemetryCounts
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.wire.worker_messages import LOCAL, Begin

from .exporters import GRPC, SIGNALS, find_exporter_mistake, read_exporter_names, read_otlp_protocol
from .telemetry_frames import RunDescription, add_frame_length, encode_record

PROCESS: Final = "locust_llm.integrations.otel.exporting_process"
EVERY_S: Final = 0.25
MOST_BYTES: Final = 64 << 20
"""So many bytes may wait for the exporting process. It loses records beyond them."""
END_S: Final = 7.0
"""The exporting process has so many seconds to end, of which its exporters get 5."""
_PASSED: Final = ("OTEL_", "GRPC_", "SSL_", "REQUESTS_", "PYTHON", "LD_", "LC_")
_ALSO: Final = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")


def validate_otel(settings: Settings, options: Namespace) -> Iterator[str]:
    """Why nothing could be sent."""
    if options.otel and (why := find_exporter_mistake(os.environ)):
        yield why
    if settings.otel_sample < 1 and not options.otel:
        yield "--otel-sample needs --otel"


def keep_loop_free(options: Namespace) -> None:
    """Change the variables before Locust makes its own exporters in this process.

    A gRPC exporter blocks gevent's loop, and with it all users, until the collector has answered
    (10 s where it does not), unless gRPC supports gevent.
    """
    if options.otel and any(
        "otlp" in read_exporter_names(signal_name, os.environ)
        and read_otlp_protocol(signal_name, os.environ) == GRPC
        for signal_name in SIGNALS
    ):
        from grpc.experimental.gevent import init_gevent

        init_gevent()


class Telemetry:
    """The telemetry of a process that sends, for all its runs."""

    def __init__(self, options: Namespace | None, instance: str) -> None:
        """``instance`` names the worker."""
        self._options = options
        is_requested = getattr(options, "otel", False) and any(
            read_exporter_names(signal, os.environ) for signal in SIGNALS
        )
        self._instance = f"{socket.gethostname()}_{uuid4().hex}" if instance == LOCAL else instance
        self._on = bool(is_requested)
        self._pipe: ExporterPipe | None = None

    def begin(self, order: Begin) -> None:
        """Begin a run. Raises OSError."""
        self.end()
        if self._on:
            self._pipe = ExporterPipe(self._about(order))

    def record(self, record: Record) -> None:
        """Pass on a finished request."""
        if self._pipe is not None:
            self._pipe.put(record)

    def end(self) -> TelemetryCounts | None:
        """End the run. Returns what became of its telemetry; None: it had none."""
        pipe, self._pipe = self._pipe, None
        return None if pipe is None else pipe.end()

    def _about(self, order: Begin) -> RunDescription:
        s, options = order.settings, self._options
        api = PROTOCOLS[s.endpoint_type]
        resource = {  # the first five as Locust has them
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "locust"),
            "service.version": locust.__version__,
            "host.name": socket.gethostname(),
            "filename": getattr(options, "locustfile", "") or "",
            "profile": getattr(options, "profile", "") or "",
            "service.instance.id": self._instance,
            "locust_llm.run": os.path.basename(order.folder.rstrip("/")),
        }
        return RunDescription(
            trace=order.trace or make_run_trace(SystemRandom()),
            operation=api.operation or s.endpoint_type,
            provider=api.provider,
            host=normalise_base_url(s.host),
            hosts=s.hosts,
            candidate=normalise_base_url(s.candidate) if s.candidate else "",
            streaming=s.streaming and api.streams,
            share=s.otel_sample,
            resource=resource,
            version=version("locust-llm"),
            began_ns=time.time_ns(),
        )


class ExporterPipe:
    """The pipe to the exporting process of one run."""

    def __init__(self, about: RunDescription) -> None:
        """Raises OSError where no process can be made."""
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        try:
            self._pid = _spawn(reads, writes)
        except BaseException:
            os.close(self._to)
            os.close(self._from)
            raise
        finally:
            os.close(reads)
            os.close(writes)
        make_nonblocking(self._to)
        make_nonblocking(self._from)
        self._waiting = [add_frame_length(msgspec.msgpack.encode(about))]
        self._bytes = len(self._waiting[0])
        self._put = 0
        """The waiting bytes, and the records that were to be sent."""
        self._over = Event()
        self._writer = gevent.spawn(self._write)

    def put(self, record: Record) -> None:
        self._put += 1
        packed = add_frame_length(encode_record(record))
        if self._bytes + len(packed) <= MOST_BYTES:
            self._waiting.append(packed)
            self._bytes += len(packed)

    def _write(self) -> None:
        """Write in a greenlet. Each write waits as long as the exporting process does not read."""
        try:
            over = False
            while not over:
                over = self._over.wait(EVERY_S)
                waiting = b"".join(self._waiting)
                self._waiting = []
                left = memoryview(waiting)
                while left:
                    left = left[nb_write(self._to, left) :]
                self._bytes -= len(waiting)
        except OSError:  # it has ended: what waits is lost, and counted by ``end``
            self._bytes = MOST_BYTES
        finally:
            os.close(self._to)

    def end(self) -> TelemetryCounts:
        """Wait until the exporting process reports what became of everything."""
        self._over.set()
        answer = b""
        with gevent.Timeout(END_S, False):
            self._writer.join()
            while piece := nb_read(self._from, 1 << 16):
                answer += piece
        self._writer.kill()
        os.close(self._from)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # it has said all that it has to say
        with suppress(ChildProcessError):  # an event loop may have asked for it first
            os.waitpid(self._pid, 0)
        try:
            counts = msgspec.json.decode(answer, type=TelemetryCounts)
        except ValueError:
            counts = TelemetryCounts(
                mistake="the exporting process ended before it reported what it had sent"
            )
        return msgspec.structs.replace(counts, lost=self._put - counts.requests)


def _spawn(reads: int, writes: int) -> int:
    """Uses posix_spawn(3), as a fork would run the hooks of Locust's own exporters in the child,
    which start greenlets."""
    # none of them is 0 or 1 before it shall be
    high = [fcntl(fd, F_DUPFD_CLOEXEC, 3) for fd in (reads, writes)]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", PROCESS],
            _environment(),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)],
            setsid=True,
        )
    finally:
        for fd in high:
            os.close(fd)


def _environment() -> dict[str, str]:
    """The variables that its exporters may need. The rest may hold a key."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ALSO or name.startswith(_PASSED) or name.lower().endswith("_proxy")
    }
