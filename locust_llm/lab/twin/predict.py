"""Predict: the figures of a load as a twin predicts them, each with its interval and error."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev, variance
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.twin.model import SchedulerSettings, ServerModel
from locust_llm.lab.twin.observations import (
    FIGURES,
    IN_FLIGHT,
    REQUESTS_PER_S,
    SERVED,
    ObservedStage,
    latency_figures,
    stage_figures,
    steady_requests,
)
from locust_llm.lab.twin.replay import (
    Lengths,
    OfferedLoad,
    resample_lengths,
    simulate_load,
)

WIDTH: Final = 2.45
"""Standard errors to each side: 95% by Student's t with six degrees of freedom, the pairs of a
dozen draws."""
ERROR_WIDTH: Final = 2.0
"""The same of the error of the model, which dozens of checks tell."""
SEED: Final = 20_000
LEAST: Final = 1e-9
"""Of a figure, so that it has a logarithm."""


class PredictedValue(NamedTuple):
    """Seconds, or tokens a second."""

    low: float
    about: float
    high: float


class WhatIf(NamedTuple):
    """A what-if."""

    load: OfferedLoad
    prefill_limit: float = math.inf
    settings: SchedulerSettings | None = None
    """None: as they were fitted."""


def predict_figures(
    models: Sequence[ServerModel],
    asked: WhatIf,
    lengths: Lengths,
    errors: Mapping[str, float],
    *,
    seed: int = SEED,
) -> dict[str, PredictedValue]:
    """By figure. ``errors``: of the model itself, as shares."""
    found = simulate_logarithms(models, asked, lengths, FIGURES, seed=seed)
    return {
        figure: interval_of_logarithms(logs, errors.get(figure, 0.0))
        for figure, logs in found.items()
    }


def simulate_logarithms(
    models: Sequence[ServerModel],
    asked: WhatIf,
    lengths: Lengths,
    wanted: Sequence[str],
    *,
    seed: int = SEED,
    count: int = 0,
    sampled: bool = False,
) -> dict[str, list[float]]:
    """By figure, one of each model: ``interval_of_logarithms`` makes an interval of them. Each is
    simulated once, neighbours with the same requests. What was asked with the same seed has the
    same requests and models, so two can be compared in pairs: see ``log_ratios``. ``sampled``: the
    lengths are some of the requests of a workload, so others might have come as well: each model
    has lengths drawn from them with replacement."""
    stages = [
        simulate_load(
            model if asked.settings is None else model.with_settings(asked.settings), asked.load,
            resample_lengths(lengths, seed + number) if sampled else lengths,
            seed + number // 2, prefill_limit=asked.prefill_limit, count=count,
        )
        for number, model in enumerate(models)
    ]  # fmt: skip
    return pool_logarithms(stages, wanted)


def pool_logarithms(
    stages: Sequence[ObservedStage], wanted: Sequence[str]
) -> dict[str, list[float]]:
    """Of one load, a stage of each model. A high percentile of few requests is too low on average,
    so percentiles are moved, all alike, to have the mean that all requests together have."""
    found = logarithms_by_stage(stages, wanted)
    together = latency_figures([one for stage in stages for one in steady_requests(stage)], wanted)
    for figure, value in together.items():
        if figure in found:
            moved = math.log(max(value, LEAST)) - fmean(found[figure])
            found[figure] = [one + moved for one in found[figure]]
    return found


def logarithms_by_stage(
    stages: Sequence[ObservedStage], wanted: Sequence[str]
) -> dict[str, list[float]]:
    """The same, each as it is: what a run of so many requests is held against."""
    each = [stage_figures(stage, wanted) for stage in stages]
    logs_by_figure = {}
    for figure in wanted:
        logs = [math.log(max(figures[figure], LEAST)) for figures in each if figure in figures]
        if len(logs) == len(stages):
            logs_by_figure[figure] = logs
    return logs_by_figure


def log_ratios(logs: Sequence[float], base: Sequence[float]) -> list[float]:
    """How many times as much, as logarithms, model by model."""
    return [one - other for one, other in zip(logs, base, strict=False)]


def interval_of_logarithms(
    logs: Sequence[float], error: float, width: float = WIDTH
) -> PredictedValue:
    """``width``: standard errors of the simulated mean to each side."""
    wide = math.hypot(width * math.sqrt(variance_of_logarithms(logs)), ERROR_WIDTH * error)
    return _around(fmean(logs), wide)


def answer_of_run(logs: Sequence[float]) -> PredictedValue:
    """Where one more run is: with its own chance beside what is uncertain about the mean."""
    return _around(
        fmean(logs), WIDTH * math.sqrt(variance_of_logarithms(logs) + _variances(logs)[1])
    )


def _around(about: float, wide: float) -> PredictedValue:
    return PredictedValue(math.exp(about - wide), math.exp(about), math.exp(about + wide))


def variance_of_logarithms(logs: Sequence[float]) -> float:
    """Variance of their mean: what the costs of the models make of it, which more of them do not
    lessen, and the chance of the requests, which they do."""
    of_costs, of_requests = _variances(logs)
    return of_costs + of_requests / max(1, len(logs) // 2)


def _variances(logs: Sequence[float]) -> tuple[float, float]:
    """Of one run, by its costs and by the chance of its requests. Neighbours had the same requests:
    by how much they differ is their costs', and half of that is in the means of two."""
    pairs = list(zip(logs[::2], logs[1::2], strict=False))
    of_costs = fmean([(one - other) ** 2 / 2 for one, other in pairs]) if pairs else 0.0
    of_means = variance([(one + other) / 2 for one, other in pairs]) if len(pairs) > 1 else 0.0
    return of_costs, max(0.0, of_means - of_costs / 2)


def cost_interval(drawn: Sequence[float]) -> tuple[float, float]:
    """95% of a cost, which is not below 0, from its draws."""
    about = fmean(drawn)
    wide = WIDTH * stdev(drawn)
    return max(0.0, about - wide), about + wide


# -- errors ----------------------------------------------------------------------------------------
# How far off a twin is, beyond what its fit leaves open: as its check found, and more the further
# away settings and lengths are from those of the fit.

PER_OCTAVE: Final = {"ttft": 0.04, "itl": 0.03, "stall": 0.05, "throughput": 0.025}
"""Standard errors, as shares, that come with a factor of two between what is asked and what was
measured; their squares add up over further ones. Chosen for servers of other cost laws
(tests/bench/other_twins.py)."""
OTHER_POLICY: Final = 3.0
"""Factors of two, for which another policy counts."""
QUANTILES: Final = 50
ALIKE: Final = {
    "ttft_from_due": ("ttft",),
    "request_latency": ("ttft", "itl"),
    IN_FLIGHT: ("ttft", "itl"),
    REQUESTS_PER_S: ("throughput",),
    SERVED: ("throughput",),
}
"""Metrics that no check has, and what they are made of."""


def standard_error_of(figure: str, errors: Mapping[str, float], octaves: float = 0.0) -> float:
    """A standard error, as a share. ``errors``: of the check, by figure; of another percentile the
    largest of its metric, of a metric without a check the largest of what it is made of.
    ``octaves``: how far it is from what was measured."""
    metric = figure if figure in ALIKE else figure.partition(" ")[0]
    metrics = ALIKE.get(metric, (metric,))
    alike = [error for name, error in errors.items() if name.partition(" ")[0] in metrics]
    checked = errors.get(figure, max(alike, default=0.0))
    return math.hypot(checked, math.sqrt(octaves) * max(PER_OCTAVE[one] for one in metrics))


def settings_apart(one: SchedulerSettings, other: SchedulerSettings) -> float:
    """Factors of two between two settings: of the one that differs most. A limit that only one of
    them has is one factor."""
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
    """Tokens of one prompt that a step may have."""
    budget = settings.max_num_batched_tokens / settings.max_num_partial_prefills
    return min(budget, settings.long_prefill_token_threshold or math.inf)


def lengths_apart(one: Lengths, other: Lengths) -> float:
    """Factors of two between two workloads: the mean over their prompts from the shortest to the
    longest, or over their answers."""
    if not one or not other:
        return 0.0
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    logs = [np.quantile(np.log2(np.asarray(some)), shares, axis=0) for some in (one, other)]
    return float(np.abs(logs[0] - logs[1]).mean(axis=0).max())
