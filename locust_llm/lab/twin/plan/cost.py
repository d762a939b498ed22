"""Cost: what replicas cost a month and a million tokens."""

from statistics import fmean
from typing import Final, NamedTuple

from locust_llm.lab.twin.replay import Lengths

from .arrivals import HOUR_S, PlannedArrivals
from .replicas import Fleet

MONTH_H: Final = 730
"""Hours: a year / 12."""
MILLION: Final = 1e6


class PlanCost(NamedTuple):
    """In the currency of the price."""

    gpus: int
    month: float
    month_scaled: float
    """With as many replicas each hour as it needs."""
    million_output: float
    million_all: float
    """Of prompts and answers together."""


def cost(
    fleet: Fleet,
    arrivals: PlannedArrivals,
    lengths: Lengths,
    gpus_per_replica: int,
    gpu_hour: float,
) -> PlanCost:
    gpus = fleet.replicas * gpus_per_replica
    hourly = gpus * gpu_hour
    bursts = arrivals.peak / max(arrivals.hours)
    scaled = (
        fmean(fleet.needed(rate * bursts) for rate in arrivals.hours) * gpus_per_replica * gpu_hour
    )
    requests = arrivals.mean * HOUR_S
    prompt, output = (fmean(one[i] for one in lengths) for i in (0, 1))
    return PlanCost(
        gpus=gpus, month=hourly * MONTH_H, month_scaled=scaled * MONTH_H,
        million_output=hourly / (requests * output) * MILLION,
        million_all=hourly / (requests * (prompt + output)) * MILLION,
    )  # fmt: skip
