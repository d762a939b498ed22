"""Answers: the figures of a load as a twin predicts them, each with its interval."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Final, NamedTuple

from .figures import FIGURES, figures
from .loads import Lengths, Load, simulated
from .model import Model, Settings
from .twin import Twin

WIDTH: Final = 1.96
"""Standard errors to each side: 95%."""
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
    models: Sequence[Model],
    asked: Asked,
    lengths: Lengths,
    errors: Mapping[str, float],
    *,
    seed: int = SEED,
    count: int = 0,
) -> dict[str, Answer]:
    """By figure. Each model is simulated once, neighbours with the same requests: by how much two of them differ is their
    costs', all else is the requests' and grows less with their number. ``errors``: of the model itself, as shares."""
    found: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    for number, model in enumerate(models):
        stage = simulated(
            model if asked.settings is None else model.with_settings(asked.settings), asked.load, lengths,
            seed + number // 2, prefill_limit=asked.prefill_limit, count=count,
        )  # fmt: skip
        for figure, value in figures(stage).items():
            found[figure].append(math.log(max(value, 1e-9)))
    return {figure: _answer(logs, errors.get(figure, 0.0)) for figure, logs in found.items() if logs}


def _answer(logs: Sequence[float], error: float) -> Answer:
    about = fmean(logs)
    pairs = list(zip(logs[::2], logs[1::2], strict=False))
    of_costs = fmean([(one - other) ** 2 / 2 for one, other in pairs]) if pairs else 0.0
    of_requests = max(0.0, (variance(logs) if len(logs) > 1 else 0.0) - of_costs)
    wide = WIDTH * math.sqrt(of_costs + of_requests / max(1, len(pairs)) + error**2)
    return Answer(math.exp(about - wide), math.exp(about), math.exp(about + wide))


def predict(twin: Twin, asked: Asked, *, lengths: Lengths = (), seed: int = SEED, count: int = 0) -> dict[str, Answer]:
    return answers(twin.models(), asked, lengths or twin.lengths, twin.trust.errors, seed=seed, count=count)
