"""Calibration: compares the simulator with measurements of a real server. `make calibration` prints
the errors of its times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Final, NamedTuple

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import (
    BLOCK_SIZE,
    FOUR_LLAMA_8B_H100,
    LLAMA_8B_H100,
    V0_LLAMA_8B_H100,
    StepCostConstants,
)
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

PROMPT_TOKENS, OUTPUT_TOKENS, SECONDS, MOST_OPEN = 204, 64, 60, 440
SATURATED: Final = 0.97  # of the offered rate completed: below that the server is the limit


class Point(NamedTuple):
    """Is a stage of load: requests at even distances for 60 s, with at most 440 open at a time."""

    policy: str
    max_num_seqs: int
    cached_prompt_tokens: int
    rate_per_s: float
    ttft_ms: float  # mean; not fitted: it has 18 to 20 ms of HTTP and tokenizer in it
    tpot_ms: float  # mean of (latency - TTFT) / 63
    completed_per_s: float

    @property
    def saturated(self) -> bool:
        return self.completed_per_s < SATURATED * self.rate_per_s


# Llama-3.1-8B in bf16 on one H100-80GB, about 204 tokens in (of which 128 the same in all requests)
# and 64 out: what inference-perf's kubecon-na-2025 demo published of vLLM 0.11 (v1) and 0.9 (v0,
# prefill-first). TPOT recomputed from its latency and TTFT, as its own column has the error of
# inference-perf's issue 564.
H100_LLAMA_8B: Final = (
    Point("v1", 128, 0, 1, 31.1, 7.13, 1),
    Point("v1", 128, 0, 31.4, 29.8, 8.2, 31.2),
    Point("v1", 128, 0, 61.8, 34.9, 10.23, 61.2),
    Point("v1", 128, 0, 92.2, 50.5, 15.41, 91.4),
    Point("v1", 128, 0, 122.6, 2616, 19.48, 101.2),
    Point("v1", 128, 128, 1, 29.9, 7.14, 1),
    Point("v1", 128, 128, 43.2, 26.9, 7.89, 42.9),
    Point("v1", 128, 128, 85.5, 28.9, 8.73, 84.8),
    Point("v1", 128, 128, 127.8, 32.2, 10.06, 126.5),
    Point("v1", 128, 128, 170, 101.3, 11.29, 167.8),
    Point("v1", 128, 128, 212.2, 1685, 11.68, 170.2),
    Point("v0", 128, 0, 1, 37.4, 7.53, 1),
    Point("v0", 128, 0, 40.2, 39.9, 16.64, 39.8),
    Point("v0", 128, 0, 79.4, 2142, 26.13, 73.4),
    Point("v0", 128, 0, 118.6, 3939, 25.0, 75.5),
)


class Simulated(NamedTuple):
    ttft_ms: float
    tpot_ms: float
    completed_per_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    point: Point
    simulated: Simulated

    @property
    def log_errors(self) -> tuple[float, ...]:
        """Returns the errors of the TPOT, and of the throughput if one of the two was saturated."""
        tpot = math.log(self.simulated.tpot_ms / self.point.tpot_ms)
        completed = math.log(self.simulated.completed_per_s / self.point.completed_per_s)
        saturated = (
            self.point.saturated
            or self.simulated.completed_per_s < SATURATED * self.point.rate_per_s
        )
        return (tpot, completed) if saturated else (tpot,)


def simulate(point: Point, cost: StepCostConstants) -> Simulated:
    config = SchedulerConfig(
        max_num_batched_tokens=8192,  # vLLM's default on an H100
        max_num_seqs=point.max_num_seqs,
        kv_tokens=cost.kv_tokens,
        enable_prefix_caching=point.cached_prompt_tokens > 0,
    )
    clock = VirtualClock()
    policy = POLICIES["chunked" if point.policy == "v1" else "prefill-first"]
    load = Virtual(
        clock, BatchEngine(Scheduler(config, policy, record=True), cost, clock), most_open=MOST_OPEN
    )
    request = VirtualRequest(
        PROMPT_TOKENS, OUTPUT_TOKENS, tuple(range(point.cached_prompt_tokens // BLOCK_SIZE))
    )
    load.open_loop(
        (n / point.rate_per_s, request) for n in range(round(SECONDS * point.rate_per_s))
    )
    rows = load.run()
    return Simulated(
        fmean(row.ttft_s for row in rows) * 1e3,
        fmean(row.itl_s for row in rows) * 1e3,
        len(rows) / max(row.done_at for row in rows),
    )


def compare(
    cost: StepCostConstants, v0_cost: StepCostConstants, points: Iterable[Point] = H100_LLAMA_8B
) -> list[Comparison]:
    return [
        Comparison(point, simulate(point, v0_cost if point.policy == "v0" else cost))
        for point in points
    ]


def rms(comparisons: Sequence[Comparison]) -> float:
    errors = list(chain.from_iterable(comparison.log_errors for comparison in comparisons))
    return math.sqrt(fmean(error * error for error in errors))


def saturation(comparisons: Sequence[Comparison]) -> float:
    """Returns the mean log error of the throughput of saturated rows. Negative: the simulated
    server does less. nan: there was none."""
    errors = list(chain.from_iterable(comparison.log_errors[1:] for comparison in comparisons))
    return fmean(errors or [math.nan])


def report() -> str:
    """Formats the calibration: each row beside its measurement, and the errors of both fits."""
    with_overheads = compare(LLAMA_8B_H100, V0_LLAMA_8B_H100)
    four = compare(FOUR_LLAMA_8B_H100, FOUR_LLAMA_8B_H100)
    return "\n".join(
        [
            "Llama-3.1-8B on an H100, simulated / measured (inference-perf kubecon-na-2025; v1: "
            "vLLM 0.11, v0: 0.9)",
            "",
            f"{'engine  cached  offered/s':<26}{'TTFT ms':>15}{'TPOT ms':>16}{'completed/s':>17}   "
            f"log errors",
            *map(_line, with_overheads),
            "",
            f"RMS log error: {rms(with_overheads):.3f} with V0's two extra overheads, "
            f"{rms(four):.3f} with four parameters",
            "(of the TPOT of every row, and of what was completed where one of the two was "
            "saturated, the measured one",
            f"with a *). Mean log error of that throughput: {saturation(with_overheads):+.3f} and "
            f"{saturation(four):+.3f}.",
            "In sample: the parameters were fitted to these rows. One model, one GPU, about 204 "
            "tokens in and 64 out.",
            "TTFT was not fitted: in the measured one are some 20 ms of HTTP and tokenizer, which "
            "the simulator does not",
            "have.",
        ]
    )


def _line(comparison: Comparison) -> str:
    point, simulated = comparison.point, comparison.simulated
    measured = point.ttft_ms, point.tpot_ms, point.completed_per_s
    pairs = "".join(
        f"{ours:>8.4g} / {theirs:<6g}" for ours, theirs in zip(simulated, measured, strict=True)
    )
    errors = "  ".join(f"{error:+.3f}" for error in comparison.log_errors)
    name = f"{point.policy:<8}{point.cached_prompt_tokens:>6}{point.rate_per_s:>11}"
    return f"{name}{'*' if point.saturated else ' '}{pairs}  {errors}"


if __name__ == "__main__":
    print(report())
