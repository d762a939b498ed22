"""The end in the load generator: hands finished records to the exporting process. Nothing of OpenTelemetry runs here.

What it costs there is the encoding of a record when its request is over, and a write to a pipe four times a second.
"""

import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import version
from random import SystemRandom
from typing import Any, Final
from uuid import uuid4

import locust

import gevent
import msgspec
from gevent.event import Event
from gevent.subprocess import PIPE, Popen

from locust_llm.core.record import Record
from locust_llm.core.settings import Settings
from locust_llm.core.spans.ids import run_trace
from locust_llm.core.telemetry import TelemetryCounts
from locust_llm.protocols.known import PROTOCOLS
from locust_llm.run.address import base_url
from locust_llm.run.protocol import LOCAL, Begin

from .exporters import SIGNALS, asked, mistake
from .frames import About, encode_record, framed

PROCESS: Final = "locust_llm.run.telemetry.process"
EVERY_S: Final = 0.25
MOST_BYTES: Final = 64 << 20
"""That wait for the exporting process; records beyond are lost to it."""
END_S: Final = 7.0
"""For the exporting process to end, which gives its exporters 5 s."""
_PASSED: Final = ("OTEL_", "GRPC_", "SSL_", "REQUESTS_", "PYTHON", "LD_", "LC_")
_ALSO: Final = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")


def mistakes(settings: Settings, options: Namespace) -> Iterator[str]:
    """Why nothing could be sent."""
    if options.otel and (why := mistake(os.environ)):
        yield why
    if settings.otel_sample < 1 and not options.otel:
        yield "--otel-sample is a share of the spans that --otel sends: give --otel too"


class Telemetry:
    """Of a process that sends, for all its runs."""

    def __init__(self, options: Namespace | None, instance: str) -> None:
        """``instance``: of the worker."""
        self._options = options
        asked_for = getattr(options, "otel", False) and any(asked(signal, os.environ) for signal in SIGNALS)
        self._instance = f"{socket.gethostname()}_{uuid4().hex}" if instance == LOCAL else instance
        self._on = bool(asked_for)
        self._pipe: Pipe | None = None

    def begin(self, order: Begin) -> None:
        """A run begins. Raises OSError."""
        self.end()
        if self._on:
            self._pipe = Pipe(self._about(order))

    def record(self, record: Record) -> None:
        """A request is over."""
        if self._pipe is not None:
            self._pipe.put(record)

    def end(self) -> TelemetryCounts | None:
        """The run is over: what became of its telemetry; None: it had none."""
        pipe, self._pipe = self._pipe, None
        return None if pipe is None else pipe.end()

    def _about(self, order: Begin) -> About:
        s, options = order.settings, self._options
        protocol = PROTOCOLS[s.endpoint_type]
        resource = {  # the first five as Locust has them
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "locust"),
            "service.version": locust.__version__,
            "host.name": socket.gethostname(),
            "filename": getattr(options, "locustfile", "") or "",
            "profile": getattr(options, "profile", "") or "",
            "service.instance.id": self._instance,
            "locust_llm.run": os.path.basename(order.folder.rstrip("/")),
        }
        return About(
            trace=order.trace or run_trace(SystemRandom()),
            operation=protocol.operation or s.endpoint_type,
            provider=protocol.provider,
            host=base_url(s.host),
            hosts=s.hosts,
            candidate=base_url(s.candidate) if s.candidate else "",
            streaming=s.streaming and protocol.streams,
            share=s.otel_sample,
            resource=resource,
            version=version("locust-llm"),
            began_ns=time.time_ns(),
        )


class Pipe:
    """To the exporting process of one run."""

    def __init__(self, about: About) -> None:
        """Raises OSError where there can be no process."""
        self._process: Any = Popen(
            [sys.executable, "-m", PROCESS], stdin=PIPE, stdout=PIPE, start_new_session=True, env=_environment()
        )
        self._waiting = [framed(msgspec.msgpack.encode(about))]
        self._bytes, self._put = len(self._waiting[0]), 0
        """Bytes that wait; records that were to be sent."""
        self._over = Event()
        self._writer = gevent.spawn(self._write)

    def put(self, record: Record) -> None:
        self._put += 1
        packed = framed(encode_record(record))
        if self._bytes + len(packed) <= MOST_BYTES:
            self._waiting.append(packed)
            self._bytes += len(packed)

    def _write(self) -> None:
        """The greenlet that writes; each write waits as long as the exporting process does not read."""
        try:
            while True:
                over = self._over.wait(EVERY_S)
                waiting, self._waiting = b"".join(self._waiting), []
                self._process.stdin.write(waiting)
                self._process.stdin.flush()
                self._bytes -= len(waiting)
                if over:
                    break
            self._process.stdin.close()
        except OSError:  # it has ended: what waits is lost, and counted by ``end``
            self._bytes = MOST_BYTES

    def end(self) -> TelemetryCounts:
        """Wait for the exporting process to say what became of all."""
        self._over.set()
        said = b""
        with gevent.Timeout(END_S, False):
            self._writer.join()
            said = self._process.stdout.read()
        self._writer.kill()
        if not said:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        try:
            counts = msgspec.json.decode(said, type=TelemetryCounts)
        except ValueError:
            status = self._process.returncode
            counts = TelemetryCounts(mistake=f"the exporting process ended with status {status}")
        return msgspec.structs.replace(counts, lost=self._put - counts.requests)


def _environment() -> dict[str, str]:
    """What its exporters may need; there may be a key in the rest."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ALSO or name.startswith(_PASSED) or name.lower().endswith("_proxy")
    }
