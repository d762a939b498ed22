"""Tool registry: the tools whose formats can be read or written, in one table."""

from functools import cache
from importlib import import_module
from typing import Final

from locust_llm.lab.interop.tool_format import (
    ExportFormat,
    ToolFormat,
)

READ: Final = "read"
WRITTEN: Final = "written"
TOOLS: Final = {
    "aiperf": READ,
    "vllm_bench": READ,
    "guidellm": READ,
    "inference_perf": READ,
    "evalscope": READ,
    "genai_bench": READ,
    "vllm_bench_export": WRITTEN,
    "benchmark_report": WRITTEN,
    "parquet_export": WRITTEN,
}
"""These files beside this one have a FORMAT, in the order in which texts name them. Formats that
are only written need numpy. Reading must not import it, as the web UI of a running test reads
results."""


@cache
def load_formats(use: str) -> dict[str, ToolFormat]:
    """Imports the formats for reading or writing, and returns them by the names of their files."""
    formats: dict[str, ToolFormat] = {}
    for name, its_use in TOOLS.items():
        if its_use == use:
            formats[name] = import_module(f"{__package__}.{name}").FORMAT
    return formats


def list_export_formats() -> dict[str, ExportFormat]:
    """Returns the formats for writing, by the names that ``--format`` takes."""
    exports: dict[str, ExportFormat] = {}
    for tool in load_formats(WRITTEN).values():
        exports |= tool.exports
    return exports
