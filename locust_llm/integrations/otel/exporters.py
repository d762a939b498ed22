"""Exporters: the OpenTelemetry SDK's exporters that the OTEL_* variables ask for, chosen as
Locust's --otel chooses its own."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

EXTRA: Final = "pip install 'locust-llm[otel]'"
SIGNALS: Final = ("traces", "metrics", "logs")
GRPC: Final = "grpc"
_HTTP: Final = "opentelemetry.exporter.otlp.proto.http"
_PACKAGES: Final = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": _HTTP,
    "http": _HTTP,
}
_CLASSES: Final = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_CONSOLE: Final = {
    "traces": ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
    "metrics": ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
    "logs": ("opentelemetry.sdk._logs.export", "ConsoleLogRecordExporter"),
}
Export = Callable[[Any], bool]
"""Returns whether the batch was accepted."""


def read_exporter_names(signal: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """``otlp``, ``console``. Empty: this signal is not sent."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    names = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").lower().split(",")
    return tuple(name.strip() for name in names if name.strip() not in ("", "none"))


def read_otlp_protocol(signal: str, environ: Mapping[str, str]) -> str:
    usual = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", GRPC)
    return environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", usual).lower().strip()


def find_exporter_mistake(environ: Mapping[str, str]) -> str:
    """Why nothing can be sent with these variables. Empty: it can."""
    for signal in SIGNALS:
        for name in read_exporter_names(signal, environ):
            if name not in ("otlp", "console"):
                return (
                    f"--otel: OTEL_{signal.upper()}_EXPORTER takes otlp, console or none, got "
                    f"{name!r}"
                )
            if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
                return f"--otel needs opentelemetry-sdk: {EXTRA}"
            if name == "otlp" and (why := _otlp_mistake(read_otlp_protocol(signal, environ))):
                return why
    return ""


def _otlp_mistake(spoken: str) -> str:
    if (package := _PACKAGES.get(spoken)) is None:
        return f"--otel: OTEL_EXPORTER_OTLP_PROTOCOL takes grpc or http/protobuf, got {spoken!r}"
    try:
        there = find_spec(package) is not None
    except ModuleNotFoundError:
        there = False
    return "" if there else f"--otel by {spoken} needs {package.replace('.', '-')}: {EXTRA}"


def make_exporter(signal: str, environ: Mapping[str, str]) -> Export | None:
    """An exporter of a signal to all requested destinations. None: the signal is not sent. The
    console is standard error."""
    exporters = [
        _make_named_exporter(signal, name, environ) for name in read_exporter_names(signal, environ)
    ]
    if not exporters:
        return None

    def export(batch: Any) -> bool:
        taken = [exporter.export(batch).name == "SUCCESS" for exporter in exporters]
        return all(taken)

    return export


def _make_named_exporter(signal: str, name: str, environ: Mapping[str, str]) -> Any:
    if name == "console":
        module, kind = _CONSOLE[signal]
        return getattr(import_module(module), kind)(out=sys.stderr)
    place, kind = _CLASSES[signal]
    return getattr(
        import_module(f"{_PACKAGES[read_otlp_protocol(signal, environ)]}.{place}"), kind
    )()
