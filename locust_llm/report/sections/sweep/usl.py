"""USL: the Universal Scalability Law, throughput over the number of users, fitted to the stages of
a sweep."""

import math
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from locust_llm.report.arrays import Floats


class ScalabilityLaw(NamedTuple):
    """X(N) = lam N / (1 + sigma (N - 1) + kappa N (N - 1))."""

    lam: float
    """Throughput of one."""
    sigma: float
    """Contention: what cannot be done side by side."""
    kappa: float
    """Coherency: what each adds to the work of every other."""
    r2: float

    @property
    def peak(self) -> float:
        """Where throughput is highest, at least 1; infinite: it only comes closer to its
        asymptote."""
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
    """95 % interval of kappa by the delta method; its low end may be below 0. For four different
    ``n`` and more.

    ``errors``: standard errors of ``x``, each of ten stretches. What the fit leaves is a second
    measure of them, and has in it that the law may not be the server's: the larger of the two
    counts.
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
    """The parameters of n / (terms @ parameters) nearest to x; halved steps keep it from leaving
    where that is above 0."""
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
