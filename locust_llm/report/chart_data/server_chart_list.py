"""Server chart list: the charts of the server's own metrics, and their values at a moment.

It is pure Python, as the live page makes them in the process that generates the load.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from locust_llm.records.server_metrics_history import EngineHistory, counter_increase
from locust_llm.records.server_metrics_parser import EngineSample

RECENT: Final = 6
"""The samples, mostly a second apart, over which the live page takes a counter's growth."""
LINES: Final = 16
"""The lines of a chart: replicas, or GPUs."""


class Chart(NamedTuple):
    title: str
    what: str
    """The name of its axis."""
    unit: str
    """The unit as static/chart_format.js writes it."""
    field: str
    """The field of EngineSample."""
    kind: Literal["level", "rate", "share"] = "level"
    """``level``: the value. ``rate``: a counter's growth a second. ``share``: the counter's growth
    over the growth of the counter ``of``."""
    of: str = ""
    factor: float = 1.0
    caption: str = ""


CHARTS: Final = (
    Chart("Running in the server", "requests", "", "running",
        caption="Requests in the server's batch."),
    Chart("Waiting in the server", "requests", "", "waiting",
        caption="Requests in the server's queue."),
    Chart("KV cache in use", "in use", "%", "kv_used", factor=100,
        caption="At 100% the server preempts requests or lets them wait."),
    Chart("Preemptions per second", "preemptions/s", "/s", "preemptions", "rate",
        caption="Requests evicted from the KV cache."),
    Chart("Prefix cache hits", "hits", "%", "cache_hits", "share", "cache_queries", 100,
        "Share of prompt tokens found in the prefix cache."),
    Chart("Draft tokens accepted", "accepted", "%", "accepted", "share", "drafted", 100,
        "Speculative decoding: share of proposed tokens that were kept."),
    Chart("Draft tokens accepted", "accepted", "%", "acceptance", factor=100,
        caption=(
            "Speculative decoding: share of proposed tokens that were kept, as reported by the "
            "server."
        )),
    Chart("GPU use", "in use", "%", "gpu_use", factor=100,
        caption="Share of time in which the GPU was busy."),
    Chart("GPU memory, GiB", "GiB", "", "gpu_memory_bytes", factor=1 / (1 << 30),
        caption="Memory in use."),
    Chart("GPU power, W", "W", "", "gpu_power_w", caption="Power drawn."),
    Chart("GPU clock, MHz", "MHz", "", "gpu_clock_mhz",
        caption="Clock of the multiprocessors: it falls when the GPU throttles."),
    Chart("GPU memory clock, MHz", "MHz", "", "gpu_memory_clock_mhz",
        caption="Clock of the memory."),
)  # fmt: skip
"""The charts in their order on a page."""


def list_line_names(history: EngineHistory, before: Sequence[str] = ()) -> list[str]:
    """The names of the lines: ``before``, then the others, servers before GPUs. Lines beyond LINES
    are not drawn."""
    new = sorted(history.names - set(before), key=lambda name: (", GPU " in name, _numbered(name)))
    return [*before, *new][:LINES]


def _numbered(name: str) -> list[tuple[int, str]]:
    """The key of an order in which 2 comes before 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def read_current_values(
    history: EngineHistory, lines_of: Sequence[str]
) -> tuple[tuple[float | None, ...] | None, ...]:
    """For each chart, the present value of each line. None: the chart has no values."""
    lines = [history.by_name[name][-RECENT:] for name in lines_of]
    charts = list[tuple[float | None, ...] | None]()
    for chart in CHARTS:
        values = tuple(_last(chart, samples) for samples in lines)
        known = any(value is not None for value in values)
        charts.append(values if known else None)
    return tuple(charts)


def _last(chart: Chart, samples: Sequence[EngineSample]) -> float | None:
    if not samples or samples[-1].failure:
        return None
    if chart.kind == "level":
        return _rounded(getattr(samples[-1], chart.field), chart.factor)
    known = [sample for sample in samples if not sample.failure]
    growth = counter_increase(known, chart.field)
    over = (
        counter_increase(known, chart.of) if chart.kind == "share" else known[-1].at - known[0].at
    )
    return None if growth is None or not over else _rounded(growth / over, chart.factor)


def _rounded(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)
