"""Trust: what a twin says of loads that were kept out of its fit, beside what was measured there."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

import numpy as np

from .answers import SEED, WIDTH, answer, logarithms_of
from .figures import FIGURES as NAMES
from .figures import figures, steady
from .loads import again
from .model import Model
from .seen import Stage
from .twin import FIGURES, NOT_TO_BE_USED, SHAPE, Check, Trust

MAX_ERROR: Final = 0.1
"""Median of a figure's errors, up to which a twin is good for figures,"""
MAX_SHAPE_ERROR: Final = 0.25
"""and up to which it is good for shape."""
RESAMPLES: Final = 200
BLOCK: Final = 10
"""Requests that are drawn together: neighbours are alike."""


def held_out(stages: Sequence[Stage]) -> tuple[list[Stage], list[Stage]]:
    """(for the fit, for the check): every second one between the first and the last, so that a check is never an
    extrapolation."""
    ordered = sorted(stages, key=lambda one: (one.rate, one.users))
    out = [stage for number, stage in enumerate(ordered[:-1]) if number % 2]
    return [stage for stage in ordered if stage not in out], out


def check(models: Sequence[Model], stages: Sequence[Stage]) -> list[Check]:
    """Each figure of each stage, as measured and as the models have it of the same requests."""
    found = list[Check]()
    for stage in stages:
        said = {
            figure: answer(logs, 0.0)
            for figure, logs in logarithms_of(
                [again(model, stage, SEED + number // 2) for number, model in enumerate(models)], NAMES
            ).items()
        }
        for figure, measured in figures(stage).items():
            if figure in said:
                low, about, high = said[figure]
                found.append(
                    Check(
                        load=stage.label,
                        figure=figure,
                        said=about,
                        low=low,
                        high=high,
                        measured=measured,
                        requests=len(steady(stage)),
                    )
                )
    return found


def trust(checks: Sequence[Check], stages: Sequence[Stage], doubts: Sequence[str] = ()) -> Trust:
    """``doubts``: why it cannot be used whatever the checks say. Medians of the errors decide: a single p99 of few requests
    is chance."""
    errors = {figure: [abs(one.error) for one in checks if one.figure == figure] for figure in NAMES}
    typical = {figure: median(some) for figure, some in errors.items() if some}
    beyond = _beyond(checks, stages)
    if doubts or not typical:
        why = tuple(doubts) or ("no stage of the sweep was left to check the twin with: measure three loads or more",)
        return Trust(verdict=NOT_TO_BE_USED, error=None, reasons=why, errors=beyond)
    error = median(abs(one.error) for one in checks)
    worst = max(typical, key=lambda figure: typical[figure])
    said = (
        f"on loads that were kept out of the fit, {worst} was off by {typical[worst]:.0%} (median), "
        f"all figures by {error:.0%}"
    )
    if error <= MAX_ERROR and typical[worst] <= MAX_SHAPE_ERROR:
        verdict = FIGURES
    else:
        verdict = SHAPE if error <= MAX_SHAPE_ERROR and typical[worst] <= 2 * MAX_SHAPE_ERROR else NOT_TO_BE_USED
    return Trust(verdict=verdict, error=error, reasons=(said,), errors=beyond)


def _beyond(checks: Sequence[Check], stages: Sequence[Stage]) -> dict[str, float]:
    """By figure: the error that neither the uncertainty of the fit nor the chance of the measurement explains, a share. A
    figure has few checks, so none has less than all of them together."""
    chance = {(stage.label, figure): error for stage in stages for figure, error in _chance(stage).items()}
    more: dict[str, list[float]] = {}
    for one in checks:
        if one.measured > 0 and one.low > 0:
            known = (math.log(one.high / one.low) / (2 * WIDTH)) ** 2 + chance[one.load, one.figure] ** 2
            more.setdefault(one.figure, []).append(math.log(one.said / one.measured) ** 2 - known)
    every = [one for some in more.values() for one in some]
    least = max(0.0, fmean(every)) if every else 0.0
    return {figure: math.sqrt(max(least, fmean(some))) for figure, some in more.items()}


def _chance(stage: Stage) -> dict[str, float]:
    """Standard error of each measured figure, as a share, from requests drawn again in blocks."""
    random = np.random.default_rng(len(stage.requests))
    requests = steady(stage)
    blocks = np.array_split(np.arange(len(requests)), max(1, len(requests) // BLOCK))
    drawn = dict[str, list[float]]()
    for _ in range(RESAMPLES):
        some = np.concatenate([blocks[i] for i in random.integers(len(blocks), size=len(blocks))])
        again = Stage(users=0, rate=1.0, requests=tuple(requests[i] for i in some))
        for figure, value in figures(again).items():
            drawn.setdefault(figure, []).append(math.log(max(value, 1e-9)))
    return {figure: float(np.std(drawn.get(figure, [0.0]))) for figure in NAMES}
