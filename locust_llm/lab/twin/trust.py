"""Trust: what a twin says of loads that were kept out of its fit, beside what was measured
there."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from .load_metrics import FIGURES as NAMES
from .load_metrics import stage_figures, steady_requests
from .loads import again
from .model import ServerModel
from .observations import ObservedStage
from .predict import SEED, WIDTH, alone, answer_of_run
from .twin import FIGURES, NOT_TO_BE_USED, SHAPE, HeldOutCheck, Trust

MAX_ERROR: Final = 0.1
"""Median of a figure's errors, up to which a twin is good for figures,"""
MAX_SHAPE_ERROR: Final = 0.25
"""and up to which it is good for shape."""
HALVINGS: Final = 60


def held_out(stages: Sequence[ObservedStage]) -> tuple[list[ObservedStage], list[ObservedStage]]:
    """(for the fit, for the check): every second one between the first and the last, so that a
    check is never an extrapolation."""
    ordered = sorted(stages, key=lambda one: (one.rate, one.users))
    out = [stage for number, stage in enumerate(ordered[:-1]) if number % 2]
    return [stage for stage in ordered if stage not in out], out


def check_predictions(
    models: Sequence[ServerModel], stages: Sequence[ObservedStage]
) -> list[HeldOutCheck]:
    """Each figure of each stage, as measured and as the models have it of the same requests: like
    with like, so a percentile of few requests is held against those of as few. ``low``, ``high``:
    where such a run is, if nothing is wrong with the model but what is uncertain in its costs. The
    requests are the same, so only the noise is left to chance."""
    found = list[HeldOutCheck]()
    for stage in stages:
        said = {
            figure: answer_of_run(logs)
            for figure, logs in alone(
                [again(model, stage, SEED + number // 2) for number, model in enumerate(models)],
                NAMES,
            ).items()
        }
        for figure, measured in stage_figures(stage).items():
            if figure in said:
                low, about, high = said[figure]
                found.append(
                    HeldOutCheck(
                        load=stage.label,
                        figure=figure,
                        said=about,
                        low=low,
                        high=high,
                        measured=measured,
                        requests=len(steady_requests(stage)),
                    )
                )
    return found


def trust(checks: Sequence[HeldOutCheck], doubts: Sequence[str] = ()) -> Trust:
    """``doubts``: why it cannot be used whatever the checks say. Medians of the errors decide: a
    single p99 of few requests is chance."""
    errors = {
        figure: [abs(one.error) for one in checks if one.figure == figure] for figure in NAMES
    }
    typical = {figure: median(some) for figure, some in errors.items() if some}
    beyond = _beyond(checks)
    if doubts or not typical:
        why = tuple(doubts) or (
            "no stage of the sweep was left to check the twin with: measure three loads or more",
        )
        return Trust(verdict=NOT_TO_BE_USED, error=None, reasons=why, errors=beyond)
    error = median(abs(one.error) for one in checks)
    worst = max(typical, key=lambda figure: typical[figure])
    said = (
        f"on loads that were kept out of the fit, {worst} was off by {typical[worst]:.0%} "
        f"(median), "
        f"all figures by {error:.0%}"
    )
    if error <= MAX_ERROR and typical[worst] <= MAX_SHAPE_ERROR:
        verdict = FIGURES
    else:
        verdict = (
            SHAPE
            if error <= MAX_SHAPE_ERROR and typical[worst] <= 2 * MAX_SHAPE_ERROR
            else NOT_TO_BE_USED
        )
    return Trust(verdict=verdict, error=error, reasons=(said,), errors=beyond)


def _beyond(checks: Sequence[HeldOutCheck]) -> dict[str, float]:
    """By figure: the error that neither the uncertainty of the fit nor the chance of the
    measurement explains, a share. A figure has few checks, so all of a metric have one error
    together."""
    offs: dict[str, list[tuple[float, float]]] = {}
    for one in checks:
        if one.measured > 0 and one.low > 0:
            known = (math.log(one.high / one.low) / (2 * WIDTH)) ** 2
            offs.setdefault(_metric(one.figure), []).append(
                (math.log(one.said / one.measured), known)
            )
    errors = {metric: math.sqrt(_variance_beyond(some)) for metric, some in offs.items()}
    return {figure: errors[_metric(figure)] for figure in NAMES if _metric(figure) in errors}


def _metric(figure: str) -> str:
    return figure.partition(" ")[0]


def _variance_beyond(offs: Sequence[tuple[float, float]]) -> float:
    """``offs``: each with the variance that is known of it. What has to be added to these for the
    squares to be as large as they should be, 1 on average, so that those that are hardly known
    hardly count (Paule & Mandel, "Consensus Values and Weighting Factors", 1982; their mean is 0
    here)."""
    least = 0.0
    most = max(off * off for off, _ in offs)
    for _ in range(HALVINGS if most else 0):
        middle = (least + most) / 2
        if fmean(off * off / (known + middle) for off, known in offs) > 1:
            least = middle
        else:
            most = middle
    return least
