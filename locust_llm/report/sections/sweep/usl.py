"""USL: the Universal Scalability Law, throughput over the number of users, fitted to the stages of
a sweep."""

import math
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from locust_llm.report.array_types import Floats


class ScalabilityLaw(NamedTuple):
    """X(N) = lam N / (1 + sigma (N - 1) + kappa N (N - 1))."""

    lam: float
    """The throughput of one user."""
    sigma: float
    """Contention: work that cannot be done side by side."""
    kappa: float
    """Coherency: the work that each user adds to every other's."""
    r2: float

    @property
    def peak(self) -> float:
        """Where throughput is highest, at least 1. Infinite: it only approaches its asymptote."""
        return (
            max(1.0, math.sqrt(max(0.0, 1 - self.sigma) / self.kappa))
            if self.kappa > 0
            else math.inf
        )


STUDENT: Final = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % of Student's t with 2 degrees of freedom and more; beyond 10 that of 10."""


def kappa_interval(
    law: ScalabilityLaw, n: Floats, x: Floats, errors: Floats | None
) -> tuple[float, float]:
    """The 95 % interval of kappa by the delta method. Its low end may be below 0. It needs four
    different ``n``.

    ``errors``: standard errors of ``x``, each from ten stretches. The fit's residuals are a second
    measure of them, which also shows if the law is not the server's. The larger of the two counts.
    """
    below = 1 + law.sigma * (n - 1) + law.kappa * n * (n - 1)
    fitted = law.lam * n / below
    slopes = np.stack(
        [fitted / law.lam, -fitted * (n - 1) / below, -fitted * n * (n - 1) / below], axis=1
    )
    moves = np.linalg.pinv(slopes)[-1]
    freedom = len(n) - 3
    by_rest = math.sqrt(float(((x - fitted) ** 2).sum()) / freedom * float(moves @ moves))
    by_errors = 0.0 if errors is None else math.sqrt(float(moves**2 @ errors**2))
    reach = max(by_rest * STUDENT[min(freedom, 10) - 2], by_errors * STUDENT[9 - 2])
    return law.kappa - reach, law.kappa + reach


def fit_scalability_law(n: Floats, x: Floats) -> ScalabilityLaw:
    """Least squares on throughput, no parameter below 0 (Gunther, Guerrilla Capacity Planning,
    2007, chapters 4 to 6).

    N / X = a + b (N - 1) + c N (N - 1) is linear in a = 1 / lam, b = sigma / lam and c = kappa /
    lam: that, weighted by what an error of N / X means for X, is where Gauss-Newton begins. Where
    the best fit would be below 0 the parameter is 0, so each choice of parameters that are 0 is
    tried. For three different ``n`` and more.
    """
    terms = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1)
    best = np.zeros(3)
    best_error = math.inf
    for terms_kept in product((True, False), repeat=2):
        coefficients = np.zeros(3)
        free = np.array([True, *terms_kept])
        coefficients[free] = _fitted(terms[:, free], n, x)
        error = float(((n / (terms @ coefficients) - x) ** 2).sum())
        if (coefficients >= 0).all() and error < best_error:
            best, best_error = coefficients, error
    spread = float(((x - x.mean()) ** 2).sum())
    a, b, c = best.tolist()
    return ScalabilityLaw(1 / a, b / a, c / a, 1 - best_error / spread if spread else 0.0)


def _fitted(terms: Floats, n: Floats, x: Floats) -> Floats:
    """The parameters of n / (terms @ parameters) nearest to x. Halved steps keep the fit where that
    is above 0."""
    weight = x * x / n
    parameters = np.array(np.linalg.lstsq(terms * weight[:, None], n / x * weight)[0], np.float64)
    for _ in range(50):
        below = terms @ parameters
        if (below <= 0).any():
            break
        rest = x - n / below
        step = np.linalg.lstsq(-terms * (n / below**2)[:, None], rest)[0]
        scale = 1.0
        while scale > 1e-6 and not _better(
            terms @ (parameters + scale * step), n, x, float((rest**2).sum())
        ):
            scale /= 2
        if scale <= 1e-6:
            break
        parameters += scale * step
    return parameters


def _better(below: Floats, n: Floats, x: Floats, error: float) -> bool:
    return bool((below > 0).all()) and float(((x - n / below) ** 2).sum()) < error
