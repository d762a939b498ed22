"""Long-run error: how far the mean of a series may lie from its truth, where neighbours are
correlated.

The squares of the slowest cosines of the series (periods from twice the run down to a sixteenth of
it and less) show how its variance is spread over slow and fast changes. What decides about the mean
is the variance at period infinity, which no run shows. So it is extrapolated, by each of 66 shapes
of such a spectrum: flat (independent values), a slow part above a floor (an autoregressive process,
a queue, a drift below noise) of eight speeds and eight heights, and a power law (long memory). Each
shape counts by how well it explains the cosines, times how often such a shape is met (its prior
weight): under each the mean has Student's t with as many degrees of freedom as there are cosines,
so the whole is a mixture of these (Whittle's likelihood with the level integrated out; Hoeting et
al., Bayesian model averaging, Statistical Science 14, 1999; cosines: Müller, HAC corrections for
strongly autocorrelated time series, Journal of Business & Economic Statistics 32, 2014).

Which values are within a level says less of the shape than the values do. So what all values show
(``weigh_shapes``) counts for the series of a level too. Its slow part is as high as that of the
values (as in a queue, whose large values come together) or lower (as of a level that wanders): each
of a few heights is a shape of its own.

A flat spectrum costs an interval a tenth to a fifth of width over one that knows of the
independence. The prior weights were chosen by measurement (``make intervals``), on loads and seeds
that are apart from those of the published table.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.array_types import Floats
from locust_llm.slo.binomial_intervals import normal_tail
from locust_llm.slo.student_t import find_student_t

MAX_CELLS: Final = 8192
"""A longer series is averaged into so many cells first: its slow part, which is all that counts,
stays as it is."""
MIN_COSINES: Final = 4
MAX_COSINES: Final = 64
SLOW_COSINES: Final = 32
"""Over so many cosines a series is compared with others of the same run."""
VALUES_PER_COSINE: Final = 4
"""Of a short run the fast half of the spectrum is left out: users who take turns leave a line
there."""
FLAT: Final = 0.6
"""Prior weight of independent values."""
POWERS: Final = {0.3: 0.15}
"""Of long memory, by the exponent d of fractional noise."""
SHOWN: Final = 0.5
"""What all values show of a shape counts so much for a level: the level shows part of it itself."""
CORNERS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Where a slow part falls to half: in cosines, half waves over the run. All have the same
weight."""
HEIGHTS: Final = {
    1.0: 0.25,
    3.0: 0.25,
    10.0: 0.15,
    30.0: 0.1,
    100.0: 0.1,
    400.0: 0.05,
    2000.0: 0.05,
    10_000.0: 0.05,
}
"""How high it stands above the floor, and with which weight."""
NEGLIGIBLE: Final = 2e-3
"""Shapes of a smaller weight are left out."""
CLOSE: Final = 1.005
STEPS: Final = 65
"""How exact a quantile of the mixture is: between so many values."""


class SpectrumShapes(NamedTuple):
    """All of them, of so many cosines."""

    inverse: Floats
    """(shapes, cosines): one over the expected square of each cosine, up to a factor."""
    log_scales: Floats
    """Half of the sum of the logarithms of these squares."""
    at_mean: Floats
    """What the variance of the mean has for its factor."""


class ShapeFit(NamedTuple):
    """Of each shape to a series."""

    log_likelihoods: Floats
    deviations: Floats
    """Standard deviation of the mean times the root of the number of values."""


class LongRunError(NamedTuple):
    """Of the mean of a series: a mixture of Student's t."""

    cosines: int
    slow_variance: float
    """The mean square of its slowest cosines: of independent values their variance."""
    weights: Floats
    deviations: Floats
    """Standard deviation of the mean times the root of the number of values, by shape."""

    @property
    def deviation(self) -> float:
        """The geometric mean over the shapes."""
        return math.exp(float(self.weights @ np.log(self.deviations)))

    def reach(self, tail: float) -> float:
        """What the mean, times that root, is off by more than with probability ``tail`` on either
        side."""
        t = find_student_t(float(self.cosines), tail)
        low = t * float(self.deviations.min())
        high = t * float(self.deviations.max())
        if high <= CLOSE * low:  # under each shape alone it is t of its deviations
            return high
        reaches = np.linspace(math.log(low), math.log(high), STEPS)
        steps, tails = _student_tails(self.cosines)
        times = reaches - np.log(self.deviations)[:, None]
        off = self.weights @ np.exp(np.interp(times, steps, tails))
        return math.exp(float(np.interp(-math.log(tail), -np.log(off), reaches)))


def measure_long_run(
    series: Floats, *, shown: Floats | None = None, slow_parts: Sequence[float] = (1.0,)
) -> LongRunError:
    """Of a series in the order of time, of two values or more. ``shown``: what other series of the
    same run show of each shape (``weigh_shapes``), of whose slow part this one has one of these
    shares."""
    power = cosine_coefficients(series, _count_cosines(len(series))) ** 2
    fits = [_fit_shapes(power, slow) for slow in slow_parts]
    known = _log_priors() if shown is None else _log_priors() + SHOWN * shown
    logs = np.concatenate([known + fit.log_likelihoods for fit in fits])
    deviations = np.concatenate([fit.deviations for fit in fits])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    kept = weights > NEGLIGIBLE
    slow_variance = float(power[:SLOW_COSINES].mean())
    return LongRunError(
        len(power), slow_variance, weights[kept] / weights[kept].sum(), deviations[kept]
    )


def weigh_shapes(series: Floats) -> Floats:
    """How well each shape explains it: logarithms of likelihoods, up to the same constant."""
    power = cosine_coefficients(series, _count_cosines(len(series))) ** 2
    return _fit_shapes(power, 1.0).log_likelihoods


def _count_cosines(count: int) -> int:
    return max(min(MIN_COSINES, count - 1), min(MAX_COSINES, count // VALUES_PER_COSINE))


def _fit_shapes(power: Floats, slow: float) -> ShapeFit:
    shapes = _shapes(len(power), slow)
    level = np.maximum(shapes.inverse @ power, 1e-300) / len(power)
    return ShapeFit(
        -shapes.log_scales - len(power) / 2 * np.log(level), np.sqrt(level * shapes.at_mean)
    )


def cosine_coefficients(series: Floats, most: int) -> Floats:
    """Of the slowest cosines, scaled so that each square has the variance of independent values for
    its mean."""
    cells, width = _cells(series)
    n = len(cells)
    centred = cells - cells.mean()
    spectrum = np.fft.rfft(np.concatenate([centred, centred[::-1]]))[1 : most + 1]
    turn = np.exp(-0.5j * np.pi * np.arange(1, len(spectrum) + 1) / n)
    found: Floats = np.real(spectrum * turn) / 2 * math.sqrt(2 * width / n)
    return found


@lru_cache(maxsize=1)
def _log_priors() -> Floats:
    """Of the shapes of ``_shapes``."""
    weights = [FLAT, *POWERS.values()]
    rest = (1 - sum(weights)) / len(CORNERS)
    for _ in CORNERS:
        weights += [rest * weight for weight in HEIGHTS.values()]
    logs: Floats = np.log(weights)
    return logs


@lru_cache(maxsize=512)
def _shapes(cosines: int, slow: float) -> SpectrumShapes:
    """Of a series that has ``slow`` of the slow part of each shape; long memory leaves the rest of
    the variance to independent values."""
    j = np.arange(1, cosines + 1, dtype=np.float64)
    spectra, at_mean = [np.ones(cosines)], [1.0]
    for d in POWERS:
        average = cosines ** (-2 * d) / (1 - 2 * d)
        spectra.append(slow * j ** (-2 * d) / average + 1 - slow)
        at_mean.append(slow * power_law_factor(d) / average + 1 - slow)
    for corner in CORNERS:
        for height in HEIGHTS:
            spectra.append(1 + slow * height / (1 + (j / corner) ** 2))
            at_mean.append(1 + slow * height * slow_part_factor(corner))
    expected = np.array(spectra)
    return SpectrumShapes(1 / expected, np.log(expected).sum(axis=1) / 2, np.array(at_mean))


def power_law_factor(d: float) -> float:
    """The variance of the mean of fractional noise, times the count, over the expected square of
    its slowest cosine (Beran, Statistics for Long-Memory Processes, 1994, section 2.2)."""
    at_zero: float = (
        math.gamma(1 - 2 * d)
        * math.sin(math.pi * d)
        / (math.pi * d * (1 + 2 * d))
        * math.pi ** (2 * d)
    )
    return at_zero


def slow_part_factor(corner: float) -> float:
    """The share of a slow part's height that the mean of the run has, where its correlation falls
    exponentially: pi times ``corner`` is the length of the run in correlation times."""
    times = math.pi * corner
    return 1 - (1 - math.exp(-times)) / times


@lru_cache(maxsize=128)
def _student_tails(freedom: int) -> tuple[Floats, Floats]:
    """Logarithms of what Student's t exceeds, and with which probability (Wallace, Bounds on normal
    approximations, Annals of Mathematical Statistics 30, 1959)."""
    steps = np.linspace(math.log(1e-3), math.log(1e3), 20 * STEPS)
    z = np.sqrt(freedom * np.log1p(np.exp(2 * steps) / freedom))
    z *= (8 * freedom + 1) / (8 * freedom + 3)
    return steps, np.array([math.log(max(normal_tail(one), 1e-300)) for one in z.tolist()])


def _cells(series: Floats) -> tuple[Floats, int]:
    """(means of so many neighbours each, how many)."""
    width = math.ceil(len(series) / MAX_CELLS)
    if width == 1:
        return series, 1
    whole = len(series) // width * width
    cells: NDArray[np.float64] = series[:whole].reshape(-1, width).mean(axis=1)
    return cells, width
