"""Twin prediction: computes the figures of a load by a twin, each with its interval and error."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean, stdev, variance
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.twin.server_observations import (
    IN_FLIGHT,
    REQUESTS_PER_S,
    SERVED,
    ObservedStage,
    latency_figures,
    stage_figures,
    steady_requests,
)
from locust_llm.lab.twin.twin_model import SchedulerSettings, ServerModel
from locust_llm.lab.twin.virtual_replay import (
    Lengths,
    OfferedLoad,
    resample_lengths,
    simulate_load,
)

WIDTH: Final = 2.2
"""An interval reaches this many standard errors to each side: 95% by Student's t with the eleven
degrees of freedom of a dozen draws."""
ERROR_WIDTH: Final = 2.0
"""The model's error reaches this many standard errors to each side, as dozens of checks measured
it."""
RUNS: Final = 2
"""Each model has this many simulations with other requests and other noise. Their differences are
chance, and independent of the costs."""
SEED: Final = 20_000
RESAMPLING_SEED: Final = 40_000
LEAST: Final = 1e-9
"""A figure counts as at least this value, so that it has a logarithm."""
Logarithms = Sequence[Sequence[float]]
"""Each model has the logarithms of a figure in its simulations."""


class PredictedValue(NamedTuple):
    """A value in seconds or tokens per second, with its 95 % interval."""

    low: float
    about: float
    high: float

    @property
    def plus_minus(self) -> float:
        """Returns half of the interval as a share of the value."""
        return math.sqrt(self.high / self.low) - 1


class WhatIf(NamedTuple):
    """Describes a load on a server with these settings, behind a gate that admits so many
    prompts."""

    load: OfferedLoad
    prefill_limit: float = math.inf
    settings: SchedulerSettings | None = None
    """None: the settings are as they were fitted."""


def simulate_logarithms(
    models: Sequence[ServerModel],
    what_if: WhatIf,
    lengths: Lengths,
    wanted: Sequence[str],
    *,
    count: int = 0,
    runs: int = RUNS,
    sampled: bool = False,
) -> dict[str, Logarithms]:
    """Simulates each model ``runs`` times, and returns the logarithms by figure. Two what-ifs of
    the same models have the same requests, so they can be compared in pairs: see ``log_ratios``.
    ``sampled``: the lengths are some of the requests of a workload, so others might have come as
    well: each model has lengths drawn from them with replacement."""
    stages = list[list[ObservedStage]]()
    for number, model in enumerate(models):
        changed = model if what_if.settings is None else model.with_settings(what_if.settings)
        here = resample_lengths(lengths, RESAMPLING_SEED + number) if sampled else lengths
        stages.append(
            [
                simulate_load(
                    changed,
                    what_if.load,
                    here,
                    SEED + number * runs + run,
                    prefill_limit=what_if.prefill_limit,
                    count=count,
                )
                for run in range(runs)
            ]
        )
    return pool_logarithms(stages, wanted)


def pool_logarithms(
    stages: Sequence[Sequence[ObservedStage]], wanted: Sequence[str]
) -> dict[str, Logarithms]:
    """Returns the logarithms of one load, by figure. A high percentile of few requests is too low
    on average, so percentiles are moved, all alike, to have the mean that all requests together
    have."""
    every = list(chain.from_iterable(stages))
    steady = list(chain.from_iterable(map(steady_requests, every)))
    together = latency_figures(steady, wanted)
    runs = len(stages[0])
    found = dict[str, Logarithms]()
    for figure, logs in logarithms_by_stage(every, wanted).items():
        moved = 0.0
        if figure in together:
            moved = math.log(max(together[figure], LEAST)) - fmean(logs)
        shifted = [log + moved for log in logs]
        found[figure] = [shifted[begin : begin + runs] for begin in range(0, len(shifted), runs)]
    return found


def logarithms_by_stage(
    stages: Sequence[ObservedStage], wanted: Sequence[str]
) -> dict[str, list[float]]:
    """Returns the logarithm of each figure of each stage, as they are: a run of so many requests is
    compared with these."""
    each = [stage_figures(stage, wanted) for stage in stages]
    logs_by_figure = {}
    for figure in wanted:
        logs = [math.log(max(figures[figure], LEAST)) for figures in each if figure in figures]
        if len(logs) == len(stages):
            logs_by_figure[figure] = logs
    return logs_by_figure


def log_ratios(logs: Logarithms, base: Logarithms) -> Logarithms:
    """Subtracts the logarithms of a base, simulation by simulation."""
    ratios = list[list[float]]()
    for here, there in zip(logs, base, strict=True):
        ratios.append([one - other for one, other in zip(here, there, strict=True)])
    return ratios


def mean_of_logarithms(logs: Logarithms) -> float:
    return fmean(chain.from_iterable(logs))


def interval_of_logarithms(logs: Logarithms, error: float, width: float = WIDTH) -> PredictedValue:
    """Returns the interval. ``width`` is the number of standard errors of the simulated mean to
    each side."""
    half_width = math.hypot(width * math.sqrt(variance_of_logarithms(logs)), ERROR_WIDTH * error)
    return _around(mean_of_logarithms(logs), half_width)


def interval_of_run(logs: Sequence[float]) -> PredictedValue:
    """Predicts one more run, which has its own chance beside what is uncertain about the mean.
    ``logs``: one of each model."""
    variance_of_run = variance(logs) * (1 + 1 / len(logs)) if len(logs) > 1 else 0.0
    return _around(fmean(logs), WIDTH * math.sqrt(variance_of_run))


def _around(about: float, half_width: float) -> PredictedValue:
    return PredictedValue(
        math.exp(about - half_width), math.exp(about), math.exp(about + half_width)
    )


def variance_of_logarithms(logs: Logarithms) -> float:
    """Estimates the variance of their mean. Costs that differ from model to model stay uncertain
    however much is simulated; chance averages out. The simulations of one model differ by chance
    alone, which separates the two (analysis of variance of a nested design). With one simulation
    of each model, all of the variance counts as the costs'."""
    runs = len(logs[0])
    chance = fmean(variance(some) for some in logs) if runs > 1 else 0.0
    of_costs = 0.0
    if len(logs) > 1:
        of_costs = max(0.0, variance([fmean(some) for some in logs]) - chance / runs)
    return of_costs * (1 + 1 / len(logs)) + chance / (runs * len(logs))


def cost_interval(drawn: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% interval of a cost, which is not below 0, from its draws."""
    about = fmean(drawn)
    wide = WIDTH * stdev(drawn)
    return max(0.0, about - wide), about + wide


# -- errors ----------------------------------------------------------------------------------------
# How far off a twin is, beyond what its fit leaves open: as its check found, and more the further
# away settings and lengths are from those of the fit.

PER_OCTAVE: Final = {"ttft": 0.04, "itl": 0.03, "stall": 0.05, "throughput": 0.025}
"""A factor of two between a what-if and the measurements adds these standard errors, as shares, and
squares add up over further ones. They were chosen on servers of other cost laws
(tests/bench/other_twins.py)."""
FAR_UP: Final = 98.0
FAR_UP_FACTOR: Final = 1.5
"""From this percentile on the error counts so many times: it hangs on rare meetings of requests,
of which a model knows less than of usual ones. Chosen for the same servers."""
OTHER_POLICY: Final = 3.0
"""Another policy counts as this many factors of two."""
QUANTILES: Final = 50
ALIKE: Final = {
    "ttft_from_due": ("ttft",),
    "request_latency": ("ttft", "itl"),
    IN_FLIGHT: ("ttft", "itl"),
    REQUESTS_PER_S: ("throughput",),
    SERVED: ("throughput",),
}
"""Metrics without checks consist of these."""


def standard_error_of(figure: str, errors: Mapping[str, float], octaves: float = 0.0) -> float:
    """Returns a standard error as a share. ``errors`` come from the check, by figure. Another
    percentile has the largest of its metric, a metric without a check the largest of its
    components. ``octaves`` is the distance from the measurements."""
    metric = figure if figure in ALIKE else figure.partition(" ")[0]
    metrics = ALIKE.get(metric, (metric,))
    alike = [error for name, error in errors.items() if name.partition(" ")[0] in metrics]
    checked = errors.get(figure, max(alike, default=0.0))
    error = math.hypot(checked, math.sqrt(octaves) * max(PER_OCTAVE[one] for one in metrics))
    _, _, percentile = figure.partition(" p")
    return FAR_UP_FACTOR * error if percentile and float(percentile) >= FAR_UP else error


def settings_apart(one: SchedulerSettings, other: SchedulerSettings) -> float:
    """Returns the factors of two between two settings, for the one that differs most. A limit that
    only one of them has counts as one factor."""
    if one.policy != other.policy:
        return OTHER_POLICY
    apart = [0.0]
    for values in (
        (_most_of_prompt(one), _most_of_prompt(other)),
        (one.max_num_seqs, other.max_num_seqs),
        (one.kv_tokens, other.kv_tokens),
    ):
        if values[0] and values[1]:
            apart.append(abs(math.log2(values[0] / values[1])))
        elif values[0] or values[1]:
            apart.append(1.0)
    return max(apart)


def _most_of_prompt(settings: SchedulerSettings) -> float:
    """Returns the most tokens of one prompt in a step."""
    budget = settings.max_num_batched_tokens / settings.max_num_partial_prefills
    return min(budget, settings.long_prefill_token_threshold or math.inf)


def lengths_apart(one: Lengths, other: Lengths) -> float:
    """Returns the factors of two between two workloads: the mean over their prompts from the
    shortest to the longest, or over their answers."""
    if not one or not other:
        return 0.0
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    logs = [np.quantile(np.log2(np.asarray(some)), shares, axis=0) for some in (one, other)]
    return float(np.abs(logs[0] - logs[1]).mean(axis=0).max())
