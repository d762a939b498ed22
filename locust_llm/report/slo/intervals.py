"""Intervals: what the requests of a run are worth together, and intervals of figures that widen by
it.

Requests that run at the same time wait in the same queue and share the same steps of the server:
they are not independent, and n of them say less than n would. How much less is the long-run
variance of their values, in the order of their sends, over their plain variance. It is the mean
power of the slowest cosines of that series (the equal-weighted cosine estimator with its Student's
t: Müller, HAC corrections for strongly autocorrelated time series, Journal of Business & Economic
Statistics 32, 2014; Lazarus, Lewis, Stock and Watson, HAR inference: recommendations for practice,
same journal, 36, 2018). How many cosines those are follows from the values' own correlation time,
so that only the flat part of the spectrum is used.

Three things are more than that textbook says, all chosen by measurement (benchmarks: ``make
intervals``). A run that saw no long queue looks calmer than the server is: so the end of an
interval on the side of rare, large values is built on the correlation at that end too, and on
degrees of freedom that also count how many independent excursions there were. That is so in queues,
where the large values are the more correlated ones; where they are less correlated than all values
together, the excursions are short and alike, and both ends are treated in the same way. And where a
run is shorter than SHORT correlation times, its spectrum cannot be trusted: four cosines, and a
wider tail.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.percentiles import interpolate_value
from locust_llm.report.selection import Floats
from locust_llm.slo.intervals import (
    TAIL_FAR,
    Ends,
    binomial_shares,
    extrapolate_bound,
    normal_tail,
    rank_shares,
    student_quantile,
)

MIN_VALUES: Final = 8
"""Of fewer values nothing can be said of their correlation."""
MAX_CELLS: Final = 8192
"""A longer series is averaged into so many cells first: its slow part, which is all that counts,
stays as it is."""
MIN_COSINES: Final = 4
MAX_COSINES: Final = 400
COSINES: Final = 0.15
"""Cosines for each independent request that the run is worth."""
MIN_ABOVE: Final = 5
"""So many values must lie above a level for their correlation to be known."""
MAX_FAR: Final = 4.0
"""By so much at most a figure's far end is taken for more correlated than the figure."""
MAX_NEAR: Final = 2.0
"""By so much at most its near end is taken for less correlated."""
LARGE: Final = 0.9
CALM: Final = 0.8
"""Values are calm if they are worth less than this share of what the indicator of their LARGE
quantile is worth."""
SHORT: Final = 25.0
"""A run worth fewer requests than this is short for its own correlation."""
ROOM_OF_SHORT: Final = 10.0
"""So many times as far lies a bound beyond all values of a short run, which shows neither its
correlation nor its tail. It was too low in 0.5 % of runs at most, of 8 to 24 values of queues at 95
% of capacity or of heavy tails; with 5 in 8 %."""
WINDOW: Final = 5.0
"""Autocorrelations are summed up to so many correlation times."""
EXCURSIONS: Final = 2.5
"""What the estimate of a correlation loses by few excursions: this over their number, on the side
of the rare values."""
FEW_EXCURSIONS: Final = 0.5
"""The same on the other side: what excursions of one length lose."""
CALM_EXCURSIONS: Final = 1.0
"""The same of calm values, on the side of the rare ones."""
TAIL_NEAR: Final = 0.0275
"""What may lie beyond an interval on the side of the many, usual values; on that of the few, large
ones TAIL_FAR."""
TAIL_SHORT: Final = 0.02
"""On either side, of a run that is short for its correlation."""
TAIL_TREND: Final = 0.01
"""A steady run is called one with a trend in one of fifty cases."""
MEAN_SHARE: Final = 0.07
"""A mean of skewed values rests on so large a part of them, the largest."""

# Of values with a trend the figure of the whole run lies on the far side of what they are when it
# has settled: of falling ones above it. So the end of the interval on that side is that of the
# values without their trend, the other one with it.

RISES: Final = "rises"
FALLS: Final = "falls"


class EffectiveSampleSize(NamedTuple):
    """What correlated values are worth."""

    size: float
    """Effective sample size: as many independent values say as much."""
    cosines: int
    """How many slow cosines the long-run variance is the mean of."""
    short: bool
    """The run is short for its own correlation."""
    values: int

    def freedom(self, lost: float) -> float:
        """Degrees of freedom. ``lost``: what few excursions cost, as one over degrees. Of
        independent values nothing about their correlation has to be estimated: the freedom is as
        good as infinite."""
        if self.short:
            return float(self.cosines)
        estimated = math.sqrt(max(0.0, 1 - self.size / self.values))
        return 1 / max((1 / self.cosines + lost) * estimated, 1e-4)


class ConfidenceInterval(NamedTuple):
    """A 95 % interval. None: it has no such end, as there are too few values."""

    low: float | None
    high: float | None
    size: float = 0.0
    """Effective sample size."""
    short: bool = False
    beyond: float | None = None
    """Of a percentile without an end on the far side: a bound beyond all values that rests on an
    assumption."""

    @property
    def ends(self) -> Ends:
        return self.low, self.high


NONE: Final = ConfidenceInterval(None, None)


# -- what a series is worth ------------------------------------------------------------------------


def effective_sample_size(
    series: Floats, overall: float, *, without: bool = False
) -> EffectiveSampleSize:
    """Of the mean of ``series`` (in the order of time). ``overall``: the effective sample size of
    the values that it is made of, by their ranks. ``without``: of what is left without the slowest
    cosine."""
    n = len(series)
    variance = float(series.var())
    short = overall < SHORT
    if _constant(series):
        return EffectiveSampleSize(float(n), max(1, min(MIN_COSINES, n // 2)), short, n)
    power, most = _power(series, without=without)
    if short:
        cosines = min(MIN_COSINES, most)
        return EffectiveSampleSize(
            min(n * variance / _mean(power, cosines), n, max(overall, 2.0)), cosines, True, n
        )
    size = overall
    for _ in range(3):
        cosines = max(min(int(min(size, overall) * COSINES), most), min(MIN_COSINES, most))
        size = min(n * variance / _mean(power, cosines), float(n))
    return EffectiveSampleSize(size, cosines, False, n)


def effective_size_by_ranks(values: Floats, *, without: bool = False) -> float:
    """Effective sample size of the mean rank of these values, in the order of time: the sum of
    their autocorrelations up to WINDOW correlation times (Sokal, Monte Carlo methods in statistical
    mechanics, 1989, section 3)."""
    n = len(values)
    ranks = _ranks(values)
    if without:
        ranks = ranks - _slowest(ranks)
    if n < 2 or _constant(ranks):
        return float(n)
    variance = float(ranks.var())
    cells, width = _cells(ranks)
    spectrum = np.fft.rfft(cells - cells.mean(), 2 * len(cells))
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: len(cells)] / len(cells)
    if covariance[0] <= 0:
        return float(n)
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    beyond = np.arange(len(cells)) >= WINDOW * times
    long_run = (
        width * float(covariance[0]) * float(times[int(beyond.argmax()) if beyond.any() else -1])
    )
    return min(float(n), n * variance / max(long_run, variance * 1e-9))


def detect_trend(values: Floats) -> str:
    """RISES or FALLS if the slowest cosine of the values' ranks, half a wave over the run, is too
    strong for a steady run with their correlation; else empty."""
    if len(values) < MIN_VALUES:
        return ""
    ranks = _ranks(values)
    if _constant(_cells(ranks)[0]):
        return ""
    coefficients, most = _cosines(ranks)
    cosines = max(
        min(int(effective_size_by_ranks(values) * COSINES), most - 1), min(MIN_COSINES, most - 1)
    )
    rest = float(np.mean(coefficients[1 : cosines + 1] ** 2)) if cosines else 0.0
    slow = float(coefficients[0])
    if slow * slow <= student_quantile(float(cosines), TAIL_TREND) ** 2 * rest or rest <= 0:
        return ""
    return RISES if slow < 0 else FALLS


def _with_trend(trend: str, interval: Callable[[bool], ConfidenceInterval]) -> ConfidenceInterval:
    """``interval(without)``: of the values with or without their slowest cosine."""
    if not trend:
        return interval(False)
    whole = interval(False)
    without = interval(True)
    lower, upper = (whole, without) if trend == FALLS else (without, whole)
    return ConfidenceInterval(lower.low, upper.high, without.size, without.short, upper.beyond)


# -- intervals -------------------------------------------------------------------------------------


def estimate_percentile_interval(
    values: Floats, percentile: float, *, trend: str = "", looks: int = 1
) -> ConfidenceInterval:
    """Of a percentile of ``values`` in the order of time (failures may be infinite): the ranks of a
    binomial distribution of as many values as these are worth, where the indicator of being below
    is what is correlated."""
    share = percentile / 100
    if len(values) < MIN_VALUES:
        return NONE
    if percentile < 50:
        other = {RISES: FALLS, FALLS: RISES}.get(trend, "")
        found = estimate_percentile_interval(-values, 100 - percentile, trend=other, looks=looks)
        high, low, far = (
            None if end is None else -end for end in (found.low, found.high, found.beyond)
        )
        return ConfidenceInterval(low, high, found.size, found.short, far)
    return _with_trend(trend, lambda without: _of_percentile(values, share, looks, without=without))


def _of_percentile(
    values: Floats, share: float, looks: int, *, without: bool
) -> ConfidenceInterval:
    n = len(values)
    overall = effective_size_by_ranks(values, without=without)
    ordered = np.sort(values)

    def indicator(level: float) -> EffectiveSampleSize:
        return effective_sample_size((values <= level).astype(np.float64), overall, without=without)

    at = ordered[max(math.ceil(round(share * n, 9)), 1) - 1]
    here = indicator(at)
    calm = _calm(values, overall, without=without)
    low, high = _shares(here, share, looks, calm=calm)
    near = at if low is None else interpolate_value(ordered, low, up=False)
    if near < at and (size := min(indicator(near).size, here.size * MAX_NEAR)) > here.size:
        low, _ = _shares(here._replace(size=math.sqrt(size * here.size)), share, looks, calm=calm)
    far = (
        ordered[-MIN_ABOVE]
        if high is None
        else min(interpolate_value(ordered, high, up=True), ordered[-MIN_ABOVE])
    )
    if far > at and not calm:
        there = indicator(far)
        if there.size < here.size:
            _, high = _shares(
                there._replace(size=max(there.size, here.size / MAX_FAR)), share, looks
            )
    room = 1.0 if (size := min(here.size, overall)) >= SHORT else ROOM_OF_SHORT
    return ConfidenceInterval(
        None if low is None else interpolate_value(ordered, low, up=False),
        None if high is None else interpolate_value(ordered, high, up=True),
        here.size,
        here.short,
        None
        if high is not None
        else extrapolate_bound(float(ordered[-1]), size, share, TAIL_FAR / looks, room),
    )


def _calm(values: Floats, overall: float, *, without: bool) -> bool:
    """The large values are less correlated than all together: excursions are short, unlike those of
    a queue."""
    if overall < SHORT:
        return False
    large = np.partition(values, place := math.ceil(LARGE * len(values)) - 1)[place]
    return (
        overall
        < CALM
        * effective_sample_size((values <= large).astype(np.float64), overall, without=without).size
    )


def estimate_mean_interval(
    values: Floats, *, trend: str = "", looks: int = 1
) -> ConfidenceInterval:
    """Of a mean of ``values`` that are not negative, in the order of time: Student's t, moved by
    their skewness (Hall, On the removal of skewness by transformation, Journal of the Royal
    Statistical Society B 54, 1992, in its first order)."""
    n = len(values)
    if n < MIN_VALUES:
        return NONE
    mean = float(values.mean())
    if not math.isfinite(mean):
        return ConfidenceInterval(mean, mean, float(n))
    return _with_trend(trend, lambda without: _of_mean(values, mean, looks, without=without))


def _of_mean(values: Floats, mean: float, looks: int, *, without: bool) -> ConfidenceInterval:
    overall = effective_size_by_ranks(values, without=without)
    variance = float(values.var())
    found = effective_sample_size(values, overall, without=without)
    if _constant(values):
        return ConfidenceInterval(mean, mean, found.size, found.short)
    error = math.sqrt(variance / found.size)
    skew = min(max(float(np.mean((values - mean) ** 3)) / variance**1.5, 0.0), 4.0) / math.sqrt(
        found.size
    )
    near, far = _tails(found, looks)
    t_low = student_quantile(found.freedom(0.0), near)
    lost = FEW_EXCURSIONS if _calm(values, overall, without=without) else EXCURSIONS
    t_high = student_quantile(found.freedom(lost / (found.size * MEAN_SHARE)), far)
    low = mean - error * (t_low - min(skew / 6 * (2 * t_low**2 + 1), t_low / 2))
    return ConfidenceInterval(
        max(0.0, low),
        mean + error * (t_high + skew / 6 * (2 * t_high**2 + 1)),
        found.size,
        found.short,
    )


def estimate_share_interval(ones: Floats, *, trend: str = "", looks: int = 1) -> ConfidenceInterval:
    """Of the share of ones in a series of zeros and ones, in the order of time: binomial ends of as
    many requests as these are worth. A run in which all are equal shows no correlation."""
    if not len(ones):
        return NONE
    return _with_trend(trend, lambda without: _of_share(ones, looks, without=without))


def _of_share(ones: Floats, looks: int, *, without: bool) -> ConfidenceInterval:
    n = len(ones)
    share = float(ones.mean())
    overall = effective_size_by_ranks(ones, without=without)
    found = (
        effective_sample_size(ones, overall, without=without)
        if n >= MIN_VALUES
        else EffectiveSampleSize(float(n), 1, False, n)
    )
    rare = max(found.size * min(share, 1 - share), 1e-9)
    lost = (FEW_EXCURSIONS, EXCURSIONS) if share <= 0.5 else (EXCURSIONS, FEW_EXCURSIONS)
    near, far = _tails(found, looks) if share <= 0.5 else _tails(found, looks)[::-1]
    tails = [
        _tail(found, lost_ / rare if 0 < share < 1 else 0.0, tail)
        for lost_, tail in zip(lost, (near, far), strict=True)
    ]
    low, high = binomial_shares(share * found.size, found.size, *tails)
    return ConfidenceInterval(low, high, found.size, found.short)


def estimate_rate_interval(
    amounts: Floats, *, trend: str = "", looks: int = 1
) -> ConfidenceInterval:
    """Of the mean amount of equal stretches of time, one after the other: Student's t. What a full
    server does in one second it does not in the next, so they may be worth more than their
    number."""
    if len(amounts) < MIN_VALUES:
        return NONE
    found = _with_trend(trend, lambda without: _of_rate(amounts, looks, without=without))
    return found._replace(low=None if found.low is None else max(0.0, found.low))


def _of_rate(amounts: Floats, looks: int, *, without: bool) -> ConfidenceInterval:
    n = len(amounts)
    mean = float(amounts.mean())
    variance = float(amounts.var())
    if _constant(amounts):
        return ConfidenceInterval(mean, mean, float(n))
    power, most = _power(amounts, without=without)
    overall = effective_size_by_ranks(amounts, without=without)
    cosines = max(min(int(overall * COSINES), most), min(MIN_COSINES, most))
    error = math.sqrt(_mean(power, cosines) / n)
    tail = (TAIL_SHORT if overall < MIN_VALUES else (TAIL_NEAR + TAIL_FAR) / 2) / looks
    reach = student_quantile(float(cosines), tail) * error
    return ConfidenceInterval(
        mean - reach, mean + reach, n * variance / (error * error * n), overall < MIN_VALUES
    )


def estimate_ratio_interval(
    amounts: Floats, weights: Floats, *, trend: str = "", looks: int = 1
) -> ConfidenceInterval:
    """Of sum over sum of equal stretches, one after the other: of the first-order error of a ratio
    (Cochran, Sampling Techniques, 3rd ed., section 6.5)."""
    n = len(amounts)
    whole = float(weights.sum())
    if n < MIN_VALUES or not whole > 0:
        return NONE
    ratio = float(amounts.sum()) / whole
    mean = whole / n
    off = amounts - ratio * weights
    found = _with_trend(trend, lambda without: _of_rate(off + mean, looks, without=without))
    assert found.low is not None
    assert found.high is not None
    low, high = ratio + (found.low - mean) / mean, ratio + (found.high - mean) / mean
    return ConfidenceInterval(low, high, found.size, found.short)


# -- parts -----------------------------------------------------------------------------------------


def _tails(found: EffectiveSampleSize, looks: int) -> tuple[float, float]:
    """What may lie beyond either end, of an interval that is one of so many looks
    (Settings.looks)."""
    near, far = (TAIL_SHORT, TAIL_SHORT) if found.short else (TAIL_NEAR, TAIL_FAR)
    return near / looks, far / looks


def _tail(found: EffectiveSampleSize, lost: float, tail: float) -> float:
    """The tail of a normal distribution that Student's t has there."""
    return normal_tail(student_quantile(found.freedom(lost), tail))


def _shares(found: EffectiveSampleSize, share: float, looks: int, *, calm: bool = False) -> Ends:
    """Between which shares of the values, in order, the percentile of ``share`` (a half and more)
    lies."""
    near, far = _tails(found, looks)
    rare = found.size * (1 - share)
    low = round(_tail(found, FEW_EXCURSIONS / rare, near), 5)
    high = round(_tail(found, (CALM_EXCURSIONS if calm else EXCURSIONS) / rare, far), 5)
    return _ranks_of(round(found.size, 1), share, low, high)


@lru_cache(maxsize=512)
def _ranks_of(size: float, share: float, low: float, high: float) -> Ends:
    return rank_shares(size, share, low, high)


def _constant(values: Floats) -> bool:
    """A variance of equal values is a rounding error, seldom 0."""
    return bool((values == values[0]).all())


def _mean(power: Floats, cosines: int) -> float:
    return max(float(power[:cosines].mean()), 1e-300)


def _power(series: Floats, *, without: bool = False) -> tuple[Floats, int]:
    coefficients, most = _cosines(series)
    if without and most > 1:
        return coefficients[1:] ** 2, most - 1
    return coefficients**2, most


def _slowest(series: Floats) -> Floats:
    """The part of a series that is the slowest cosine."""
    wave = np.cos(np.pi * (np.arange(len(series)) + 0.5) / len(series))
    part: Floats = wave * float(2 / len(series) * (series @ wave))
    return part


def _cosines(series: Floats) -> tuple[Floats, int]:
    """(the coefficients of the slowest cosines, scaled so that each square has the long-run
    variance of the series for its mean; how many)."""
    cells, width = _cells(series)
    n = len(cells)
    most = max(1, min(n // 4, MAX_COSINES))
    centred = cells - cells.mean()
    spectrum = np.fft.rfft(np.concatenate([centred, centred[::-1]]))[1 : most + 1]
    turn = np.exp(-0.5j * np.pi * np.arange(1, most + 1) / n)
    found: Floats = np.real(spectrum * turn) / 2 * math.sqrt(2 * width / n)
    return found, most


def _cells(series: Floats) -> tuple[Floats, int]:
    """(means of so many neighbours each, how many)."""
    width = math.ceil(len(series) / MAX_CELLS)
    if width == 1:
        return series, 1
    whole = len(series) // width * width
    return series[:whole].reshape(-1, width).mean(axis=1), width


def _ranks(values: Floats) -> Floats:
    """Of equal values their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends: NDArray[np.int64] = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2.0)[inverse] / len(values)
    return ranks
