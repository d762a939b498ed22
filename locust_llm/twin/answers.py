"""Answers: the figures of a load as a twin predicts them, each with its interval."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Final, NamedTuple

from .figures import figures, percentiles, steady
from .loads import Lengths, Load, simulated
from .model import Model, Settings
from .seen import Stage
from .twin import Twin

WIDTH: Final = 2.2
"""Standard errors to each side: 95% by Student's t, as they are from a dozen draws."""
SEED: Final = 20_000


class Answer(NamedTuple):
    """Seconds, or tokens a second."""

    low: float
    about: float
    high: float


class Asked(NamedTuple):
    """A what-if."""

    load: Load
    prefill_limit: float = math.inf
    settings: Settings | None = None
    """None: as they were fitted."""


def answers(
    models: Sequence[Model], asked: Asked, lengths: Lengths, errors: Mapping[str, float], *, seed: int = SEED
) -> dict[str, Answer]:
    """By figure. Each model is simulated once, neighbours with the same requests. ``errors``: of the model itself, as
    shares."""
    stages = [
        simulated(
            model if asked.settings is None else model.with_settings(asked.settings), asked.load, lengths,
            seed + number // 2, prefill_limit=asked.prefill_limit,
        )
        for number, model in enumerate(models)
    ]  # fmt: skip
    return answers_of(stages, errors)


def answers_of(stages: Sequence[Stage], errors: Mapping[str, float]) -> dict[str, Answer]:
    """Of one load, a stage of each draw. By how much neighbours differ is their costs', all else is the requests' and grows
    less with the number of stages."""
    each = [figures(stage) for stage in stages]
    about = percentiles([one for stage in stages for one in steady(stage)])  # of few requests a p99 is too low
    if speeds := [one["throughput"] for one in each if "throughput" in one]:
        about["throughput"] = fmean(speeds)
    return {
        figure: _answer(value, [one[figure] for one in each if figure in one], errors.get(figure, 0.0))
        for figure, value in about.items()
    }


def _answer(about: float, each: Sequence[float], error: float) -> Answer:
    logs = [math.log(max(value, 1e-9)) for value in each]
    pairs = list(zip(logs[::2], logs[1::2], strict=False))
    of_costs = fmean([(one - other) ** 2 / 2 for one, other in pairs]) if pairs else 0.0
    of_requests = max(0.0, (variance(logs) if len(logs) > 1 else 0.0) - of_costs)
    wide = math.exp(WIDTH * math.sqrt(of_costs + of_requests / max(1, len(pairs)) + error**2))
    return Answer(about / wide, about, about * wide)


def predict(twin: Twin, asked: Asked, *, lengths: Lengths = (), seed: int = SEED) -> dict[str, Answer]:
    return answers(twin.models(), asked, lengths or twin.lengths, twin.trust.errors, seed=seed)
