"""Errors: how far off a twin is, beyond what its fit leaves open: as its check found, and more at
other settings."""

import math
from collections.abc import Mapping
from typing import Final

from locust_llm.lab.twin.load_metrics import IN_FLIGHT, REQUESTS_PER_S, SERVED

OTHER_SETTINGS: Final = {"ttft": 0.1, "itl": 0.054, "stall": 0.155, "throughput": 0.06}
"""Standard errors that come with settings that were not measured, as shares: what explains how far
off predictions were that were written down before such servers were started (vLLM and llama.cpp,
work of the sweep; docs/twin.md)."""
ALIKE: Final = {
    "ttft_from_due": ("ttft",),
    "request_latency": ("ttft", "itl"),
    IN_FLIGHT: ("ttft", "itl"),
    REQUESTS_PER_S: ("throughput",),
    SERVED: ("throughput",),
}
"""Metrics that no check has, and what they are made of."""


def standard_error_of(
    figure: str, errors: Mapping[str, float], *, other_settings: bool = False
) -> float:
    """A standard error, as a share. ``errors``: of the check, by figure; of another percentile the
    largest of its metric, of a metric without a check the largest of what it is made of."""
    metric = figure if figure in ALIKE else figure.partition(" ")[0]
    metrics = ALIKE.get(metric, (metric,))
    alike = [error for name, error in errors.items() if name.partition(" ")[0] in metrics]
    checked = errors.get(figure, max(alike, default=0.0))
    return (
        math.hypot(checked, max(OTHER_SETTINGS[one] for one in metrics))
        if other_settings
        else checked
    )
