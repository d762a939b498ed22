"""Collector: receives OTLP over HTTP or gRPC in threads of this process, and keeps it."""

import gzip
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

REQUESTS = {
    "traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}  # fmt: skip
SERVICES = {
    "traces": ("trace.v1.TraceService", ExportTraceServiceResponse),
    "metrics": ("metrics.v1.MetricsService", ExportMetricsServiceResponse),
    "logs": ("logs.v1.LogsService", ExportLogsServiceResponse),
}
SCOPE, SIMULATOR = "locust-llm", "locust-llm-simulator"


def plain(attributes: Any) -> dict[str, Any]:
    """Converts attributes into a mapping."""

    def value(one: Any) -> Any:
        kind = one.WhichOneof("value")
        return (
            [value(inner) for inner in one.array_value.values]
            if kind == "array_value"
            else getattr(one, kind)
        )

    return {one.key: value(one.value) for one in attributes}


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.came: list[Any] = []
        """The list has the requests of all signals."""
        self.silent = Event()
        """If set, nothing is answered."""
        self.ended = Event()

    def answer(self) -> None:
        """Answers from now on, including waiting requests."""
        self.silent.clear()
        self.ended.set()

    def _of(
        self, kind: str, resources: str, scopes: str, items: str, by: str = SCOPE
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Returns (attributes of the resource, item) for items with the scope ``by``, since Locust
        sends some of its own."""
        for request in self.came:
            if isinstance(request, REQUESTS[kind]):
                for resource in getattr(request, resources):
                    for scope in getattr(resource, scopes):
                        if scope.scope.name == by:
                            yield from (
                                (plain(resource.resource.attributes), item)
                                for item in getattr(scope, items)
                            )

    @property
    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Returns (attributes of the resource, span)."""
        return [*self._of("traces", "resource_spans", "scope_spans", "spans")]

    @property
    def of_server(self) -> list[Any]:
        return [
            span
            for _, span in self._of("traces", "resource_spans", "scope_spans", "spans", SIMULATOR)
        ]

    @property
    def logs(self) -> list[tuple[dict[str, Any], Any]]:
        return [*self._of("logs", "resource_logs", "scope_logs", "log_records")]

    @property
    def points(self) -> dict[tuple[str, str, Mapping[str, Any] | Any], Any]:
        """Returns the last point of each series, by metric, instance and attributes."""
        points = {}
        for resource, metric in self._of("metrics", "resource_metrics", "scope_metrics", "metrics"):
            instance = resource["service.instance.id"]
            for point in metric.histogram.data_points:
                attributes = frozenset(plain(point.attributes).items())
                points[metric.name, instance, attributes] = point
        return points

    def count(self, metric: str, *attribute: str) -> int:
        """Returns a histogram's count over all instances, with this ``attribute`` if given."""
        asked = {attribute} if attribute else set()
        return sum(
            point.count
            for (name, _, has), point in self.points.items()
            if name == metric and asked <= has
        )


@contextmanager
def over_http() -> Iterator[Collector]:
    found = Collector()

    class Connection(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if found.silent.is_set():
                found.ended.wait(60)
                return
            found.came.append(REQUESTS[self.path.removeprefix("/v1/")].FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *values: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Connection)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield found
    finally:
        found.ended.set()
        server.shutdown()
        server.server_close()


@contextmanager
def over_grpc() -> Iterator[Collector]:
    import grpc

    found = Collector()

    def take(request: Any, context: Any) -> Any:
        if found.silent.is_set():
            found.ended.wait(60)
        found.came.append(request)
        return next(
            answer()
            for kind, (_, answer) in SERVICES.items()
            if isinstance(request, REQUESTS[kind])
        )

    server = grpc.server(ThreadPoolExecutor(8))
    for kind, (name, _) in SERVICES.items():
        handler = grpc.unary_unary_rpc_method_handler(
            take, REQUESTS[kind].FromString, lambda answer: answer.SerializeToString()
        )
        service = f"opentelemetry.proto.collector.{name}"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
        )
    found.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield found
    finally:
        found.ended.set()
        server.stop(None).wait()
