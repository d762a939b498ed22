"""Intervals: 95 % intervals of the figures of a run, of requests that are not independent. A rule
is decided by them.

Requests that run at the same time wait in the same queue and share the same steps of the server, so
n of them say less than n independent ones would. Each figure here is the mean of a series in the
order of the sends, and long_run.py says how far such a mean may be off:

- a mean, of the values; its interval reaches further up than down, as runs that saw longer queues
  vary more;
- a share, of zeros and ones; its interval is the binomial one of as many independent requests as
  say as much;
- a percentile, of the zeros and ones of each level: its interval holds the levels for which the
  share of values within the level may be the percentile's. So "p95 < 1s" is decided as "95 % are
  within 1s" is, by every value's side of the limit;
- a rate, of the amounts in equal stretches of time; a ratio, of what each stretch adds to its
  error.

What a run has too few of, the large values, is taken to be correlated as much as its other values
foretell (LargeValues). Where fewer than some twenty independent values are beyond a percentile, its
upper end goes by how the values fall off there, and not by ranks alone: their mean excess is that
of an exponential tail, and the share that may truly be above the percentile of the run says how far
along it the true one may be (``bound_above``).

What a percentile passes, a lower one passes; what a lower one fails, a higher one fails.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.arrays import Floats
from locust_llm.slo.intervals import (
    MIN_OF_BOTH,
    TAIL,
    Ends,
    binomial_cdf,
    binomial_shares,
    normal_tail,
)
from locust_llm.slo.student_t import find_student_t

from .long_run import LongRunError, cosine_coefficients, measure_long_run

MIN_VALUES: Final = 8
"""Of fewer values nothing can be said of their correlation."""
HALF: Final = 0.5
UPPER: Final = (0.75, 0.9)
"""Shares of values whose levels show how correlated the larger ones are."""
QUEUE: Final = (0.8, 1.6)
"""Where larger values are that many times as correlated as the upper half of all: no queue, and
certainly one."""
SHORT: Final = 25.0
"""Fewer requests do not show how they are correlated."""
FEW: Final = 20.0
"""What a queue's correlation is underestimated by with few effective requests: by about 1 + FEW
over their number."""
RARER: Final = 0.75
"""By at least this power of how rare they are, large values are less correlated than the larger
half of all."""
PERCENTILES: Final = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""No upper end lies above that of a higher one of these."""
TAIL_VALUES: Final = 20.0
"""Where fewer independent values are beyond a percentile, its upper end goes by how so many fall
off."""
TAIL_PLACES: Final = (np.arange(32) + 0.5) / 32
CORRELATED: Final = 0.5
"""By how much it reaches further where values are correlated: few phases show a tail too."""
LEAST_OUTSIDE: Final = 1e-4
CLOSE: Final = 1.02
"""Down to which share outside of a limit the bound of a share is looked for, and how exactly."""
FURTHER_UP: Final = 4.0
"""By how much an end above reaches further, times the square of its reach as a share of the figure:
of a load that varies much, runs with a small figure have a small spread too."""
MOST_FURTHER: Final = 2.0
LEAST_SIZE: Final = 6.0
MOST_ERRORS: Final = 2.5
"""What a run shows often, it shows as well as so many independent requests, with an end so many
standard errors off."""
FEW_ERRORS: Final = 4.0
"""Standard errors of a rate of few requests: twice what independent ones have."""
TREND_COSINES: Final = 6
TAIL_TREND: Final = 0.01
"""A steady run is called one with a trend in one of fifty cases."""

RISES: Final = "rises"
FALLS: Final = "falls"


class ConfidenceInterval(NamedTuple):
    """A 95 % interval. None: it has no such end, as the values are too few or too correlated."""

    low: float | None
    high: float | None
    size: float = 0.0
    """Effective sample size."""
    extrapolated: bool = False
    """An end lies beyond all values."""

    @property
    def ends(self) -> Ends:
        return self.low, self.high


class ShareEvidence(NamedTuple):
    """What a series of zeros and ones says of the true share of ones."""

    share: float
    inflation: float
    """So many requests say as much as one independent one; at least 1."""
    errors: float
    """How many standard errors an end of its interval is off."""


class LargeValues(NamedTuple):
    """How the large values of a run are correlated, from all of them: in a queue they are the more
    correlated ones, and a run has too few of them to show it."""

    queue: float
    """From 0 (they are less correlated than the others, as where a level wanders) to 1 (certainly a
    queue)."""
    inflation: float
    """Of the mean of all values, which large ones of a queue have too."""
    half: float
    """Of the larger half of all values."""
    errors: float


NONE: Final = ConfidenceInterval(None, None)
NO_QUEUE: Final = LargeValues(0.0, 1.0, 1.0, 0.0)
INDEPENDENT: Final = ShareEvidence(1.0, 1.0, NormalDist().inv_cdf(1 - TAIL))


# -- means -----------------------------------------------------------------------------------------


def estimate_mean_interval(values: Floats, *, looks: int = 1) -> ConfidenceInterval:
    """Of a mean of ``values`` that are not negative, in the order of time. ``looks``: it is one of
    so many intervals of the same run (Settings.looks)."""
    n = len(values)
    if n < MIN_VALUES:
        return NONE
    mean = float(values.mean())
    if not math.isfinite(mean) or _constant(values):
        return ConfidenceInterval(mean, mean, float(n))
    error, size = _error_of_mean(values, looks)
    error, size = (
        max(error, _normal_quantile(TAIL / looks) * float(values.std()) / math.sqrt(n)),
        min(size, float(n)),
    )
    return ConfidenceInterval(mean / (1 + error / mean), mean + _reach_up(error, mean), size)


def estimate_rate_interval(amounts: Floats, *, looks: int = 1) -> ConfidenceInterval:
    """Of the mean amount of equal stretches of time, one after the other. What a full server does
    in one it does not in the next, so they may be worth more than their number."""
    n = len(amounts)
    if n < MIN_VALUES:
        return NONE
    mean = float(amounts.mean())
    if _constant(amounts):
        return ConfidenceInterval(mean, mean, float(n))
    error, size = _error_of_mean(amounts, looks)
    return ConfidenceInterval(max(0.0, mean - error), mean + error, size)


def widen_rate_of_few(found: ConfidenceInterval, rate: float, count: int) -> ConfidenceInterval:
    """The interval of a rate of ``count`` requests, at least with twice the error that independent
    ones have: they are too few to show how they correlate."""
    if found.low is None or found.high is None or not count:
        return found
    reach = math.exp(FEW_ERRORS / math.sqrt(count))
    return found._replace(low=min(found.low, rate / reach), high=max(found.high, rate * reach))


def estimate_ratio_interval(
    amounts: Floats, weights: Floats, *, looks: int = 1
) -> ConfidenceInterval:
    """Of sum over sum of equal stretches, one after the other: of the first-order error of a ratio
    (Cochran, Sampling Techniques, 3rd ed., section 6.5)."""
    n = len(amounts)
    whole = float(weights.sum())
    if n < MIN_VALUES or not whole > 0:
        return NONE
    ratio = float(amounts.sum()) / whole
    off = amounts - ratio * weights
    if _constant(off):
        return ConfidenceInterval(ratio, ratio, float(n))
    error, size = _error_of_mean(off, looks)
    reach = error / (whole / n)
    return ConfidenceInterval(ratio - reach, ratio + reach, size)


def estimate_effective_size(values: Floats) -> float:
    """As many independent values say as much of the mean; at most as many as there are."""
    if len(values) < 2 or _constant(values):
        return float(len(values))
    return min(_error_of_mean(values, 1)[1], float(len(values)))


def _reach_up(reach: float, figure: float) -> float:
    return reach * min(1 + FURTHER_UP * (reach / figure) ** 2, MOST_FURTHER) if figure else math.inf


def _error_of_mean(series: Floats, looks: int) -> tuple[float, float]:
    """(how far an end of its interval is off, the effective sample size)."""
    n = len(series)
    found = measure_long_run(series)
    return found.reach(TAIL / looks) / math.sqrt(n), n * float(series.var()) / found.deviation**2


# -- shares ----------------------------------------------------------------------------------------


def estimate_share_interval(
    ones: Floats, *, margins: Floats | None = None, looks: int = 1
) -> ConfidenceInterval:
    """Of the share of ones in a series of zeros and ones, in the order of time. ``margins``: what
    made each a one by being at most 1. They show how correlated the requests are and how far from
    the limit, where nearly all are ones."""
    n = len(ones)
    if not n:
        return NONE
    near = weigh_share(ones, looks)
    if margins is None or n < MIN_VALUES or near.share < HALF:
        return ConfidenceInterval(*share_ends(near, n), n / near.inflation)
    shown = near
    if near.share > UPPER[-1]:  # too few are above 1 to show their correlation
        tenth = _weigh_level(margins, UPPER[-1], looks)
        shown = near._replace(
            inflation=max(near.inflation, tenth.inflation), errors=max(near.errors, tenth.errors)
        )
    large = describe_large_values(margins, looks)
    low, _ = share_ends(expect_large(shown, large, near.share), n)
    _, high = share_ends(near, n)
    spread = _bound_share_within(margins, large, looks)
    return ConfidenceInterval(max(low, spread), high, n / near.inflation)


def _bound_share_within(margins: Floats, large: LargeValues, looks: int) -> float:
    """The largest share whose percentile is surely within 1; 0: not even the median is."""
    ordered, n = np.sort(margins), len(margins)

    def is_within(outside: float) -> bool:
        high = bound_above(
            1 - outside,
            lambda level: weigh_share((margins <= level).astype(np.float64), looks),
            lambda some: level_of_share(ordered, some),
            large,
            n,
        )
        return high < 1

    most, least = _few_beyond(large, n), LEAST_OUTSIDE
    if not is_within(most):
        return 0.0
    while most > CLOSE * least:
        middle = math.sqrt(most * least)
        most, least = (middle, least) if is_within(middle) else (most, middle)
    return 1 - most


def weigh_share(ones: Floats, looks: int = 1) -> ShareEvidence:
    share = float(ones.mean())
    if len(ones) < MIN_VALUES or share in (0.0, 1.0):
        return INDEPENDENT._replace(share=share, errors=_normal_quantile(TAIL / looks))
    found = measure_long_run(ones)
    independent = math.sqrt(share * (1 - share))
    return _evidence(share, found, independent, looks)


def weigh_ratio(ones: Floats, counts: Floats, looks: int = 1) -> ShareEvidence:
    """The same of so many ones among so many of each stretch of a run."""
    whole = float(counts.sum())
    share = float(ones.sum()) / whole
    off = ones - share * counts
    if share in (0.0, 1.0) or _constant(off):
        return INDEPENDENT._replace(share=share, errors=_normal_quantile(TAIL / looks))
    found = measure_long_run(off)
    return _evidence(share, found, math.sqrt(share * (1 - share) * whole / len(counts)), looks)


def _evidence(share: float, found: LongRunError, independent: float, looks: int) -> ShareEvidence:
    """Never less than of independent requests: a pattern that repeats is no proof that it goes
    on."""
    deviation = max(found.deviation, independent)
    errors = max(found.reach(TAIL / looks) / deviation, _normal_quantile(TAIL / looks))
    return ShareEvidence(share, (deviation / independent) ** 2, errors)


def share_ends(evidence: ShareEvidence, count: int) -> tuple[float, float]:
    seen = assume_least(evidence, count)
    low, _ = _binomial_ends(seen if evidence.share <= HALF else evidence, count)
    _, high = _binomial_ends(seen if evidence.share >= HALF else evidence, count)
    return low, high


def assume_least(evidence: ShareEvidence, count: int) -> ShareEvidence:
    """Of the kind that was seen often. Without any assumption a phase of half of a run may be one
    that comes once in twenty runs, and a server that fails from then on would break no rule."""
    return evidence._replace(
        inflation=min(evidence.inflation, max(count / LEAST_SIZE, 1.0)),
        errors=min(evidence.errors, MOST_ERRORS),
    )


def _binomial_ends(evidence: ShareEvidence, count: int) -> tuple[float, float]:
    size, tail = _effective(evidence, count), normal_tail(evidence.errors)
    return binomial_shares(evidence.share * size, size, tail, tail)


def _effective(evidence: ShareEvidence, count: int) -> float:
    return max(count / evidence.inflation, 1.0)


# -- large values ----------------------------------------------------------------------------------


def describe_large_values(values: Floats, looks: int = 1) -> LargeValues:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return NO_QUEUE
    capped = np.clip(values, finite.min(), finite.max())
    if _constant(capped):
        return NO_QUEUE
    half, *upper = (_weigh_level(values, share, looks) for share in (HALF, *UPPER))
    ratio = max(evidence.inflation for evidence in upper) / half.inflation
    none, certain = QUEUE
    queue = min(max(math.log(ratio / none) / math.log(certain / none), 0.0), 1.0)
    size = min(_error_of_mean(capped, looks)[1], len(values) / half.inflation)
    queue *= max(1 - size / len(values), 0.0)  # independent values are in no queue
    inflation = len(values) / size * _few_excursions(queue, size, len(values))
    return LargeValues(queue, inflation, half.inflation, max(half.errors, upper[0].errors))


def _few_excursions(queue: float, size: float, count: int) -> float:
    """By how much a queue of few excursions looks less correlated than it is."""
    return 1 + queue * FEW / size * max(1 - size / count, 0.0)


def expect_large(evidence: ShareEvidence, large: LargeValues, share: float) -> ShareEvidence:
    """Of a level beyond the percentile of ``share``: as correlated as the run shows there, or would
    if it were long."""
    far = min((share - HALF) / (UPPER[-1] - HALF), 1.0)
    inflation = max(evidence.inflation, large.half * (2 * max(1 - share, 0.0)) ** RARER)
    if (queue := large.queue * far) <= 0:
        return evidence._replace(inflation=inflation)
    mixed = inflation ** (1 - queue) * large.inflation**queue
    errors = evidence.errors + queue * max(large.errors - evidence.errors, 0.0)
    return evidence._replace(inflation=max(inflation, mixed), errors=errors)


def _weigh_level(values: Floats, share: float, looks: int) -> ShareEvidence:
    """Of the values within the level that ``share`` of them are within."""
    place = math.ceil(share * len(values)) - 1
    level = np.partition(values, place)[place]
    within = values <= level
    return weigh_share((within if not within.all() else values < level).astype(np.float64), looks)


# -- percentiles -----------------------------------------------------------------------------------


def estimate_percentile_interval(
    values: Floats, percentile: float, *, looks: int = 1
) -> ConfidenceInterval:
    """Of a percentile of ``values`` in the order of time (failures may be infinite)."""
    if len(values) < MIN_VALUES:
        return NONE
    if percentile < 50:
        found = estimate_percentile_interval(-values, 100 - percentile, looks=looks)
        high, low = (None if end is None else -end for end in found.ends)
        return found._replace(low=low, high=high)
    share = percentile / 100
    ordered = np.sort(values)
    n = len(values)
    at = max(math.ceil(round(share * n, 9)), 1) - 1
    if _constant(ordered):
        return ConfidenceInterval(float(ordered[0]), float(ordered[0]), float(n))
    large = describe_large_values(values, looks)

    @cache
    def weigh(level: float) -> ShareEvidence:
        return weigh_share((values <= level).astype(np.float64), looks)

    return search_percentile(
        ordered, at, share, weigh, lambda some: level_of_share(ordered, some), large, n
    )


def level_of_share(ordered: Floats, share: float) -> float:
    """Between the middles of the ranks."""
    place = min(max(share * len(ordered) - HALF, 0.0), len(ordered) - 1.0)
    below = float(ordered[math.floor(place)])
    above = float(ordered[math.ceil(place)])
    return below if below == above else below + (above - below) * (place % 1)


def search_percentile(
    levels: Floats,
    at: int,
    share: float,
    weigh: Callable[[float], ShareEvidence],
    level_at: Callable[[float], float],
    large: LargeValues,
    count: int,
) -> ConfidenceInterval:
    """The levels, in order, of which it is not decided whether the percentile of ``share`` (a half
    and more) is above or below. ``levels[at]`` is that of the run. ``weigh`` tells of the share of
    ``count`` values within a level, ``level_at`` the level of a share."""
    here = weigh(float(levels[at]))
    if here.share >= 1:
        below = levels[levels < levels[at]]
        here = weigh(float(below[-1])) if len(below) else here

    higher = [share, *(some for some in PERCENTILES if some > share)]
    lower = [share, *(some for some in PERCENTILES if some < share)]

    def is_exceeded(place: int) -> bool:
        """Whether this percentile is surely above the level, or a lower one is."""
        evidence = weigh(float(levels[place]))
        return any(_side(evidence, count, some) < 0 for some in lower)

    def is_kept(place: int) -> bool:
        """Whether this percentile is surely within the level, or a higher one is."""
        evidence = weigh(float(levels[place]))
        if evidence.share >= 1:
            evidence = here._replace(share=1.0)
        return any(
            evidence.share > some and _side(expect_large(evidence, large, some), count, some) > 0
            for some in higher
        )

    lowest = _find_first(len(levels), lambda place: not is_exceeded(place))
    highest = _find_first(len(levels), is_kept)
    upper = float(levels[max(highest, at)]) if highest < len(levels) else math.inf
    for some in higher:
        if 1 - some <= _few_beyond(large, count) and level_at(some) < upper:
            upper = min(upper, bound_above(some, weigh, level_at, large, count))
    bounded = lowest > 0 or _side(here._replace(share=0.0), count, share) < 0
    low = float(levels[min(lowest, at)]) if bounded else None
    extrapolated = bool(math.isfinite(upper) and upper > levels[-1])
    return ConfidenceInterval(low, upper, count / here.inflation, extrapolated)


def _find_first(count: int, is_true: Callable[[int], bool]) -> int:
    """The first of ``count`` places from which on it is true, or ``count``. It looks at the same
    places whatever is asked, so what is true of more places is found no later."""
    before, at = -1, count
    while at - before > 1:
        middle = (before + at) // 2
        before, at = (before, middle) if is_true(middle) else (middle, at)
    return at


def _side(evidence: ShareEvidence, count: int, share: float) -> int:
    """1: the true share within a level is above ``share``, -1: below, 0: either may be."""
    evidence = evidence if evidence.share > share else assume_least(evidence, count)
    size = round(_effective(evidence, count), 2)
    some, tail = evidence.share * size, normal_tail(evidence.errors)
    if evidence.share > share:
        return int(1 - _at_most(round(some, 4), size, share, 1) < tail)
    return -int(_at_most(round(some, 4), size, share, -1) < tail)


@lru_cache(maxsize=4096)
def _at_most(some: float, size: float, share: float, side: int) -> float:
    """That so many or fewer (fewer, for side 1) of ``size`` are within. Of MIN_OF_BOTH on either
    side on the outcome itself counts half (mid-P), of fewer in proportion less."""
    half = HALF * min(some, size - some, MIN_OF_BOTH) / MIN_OF_BOTH
    return (
        binomial_cdf(some - 1 + half, size, share)
        if side > 0
        else binomial_cdf(some - half, size, share)
    )


def _few_beyond(large: LargeValues, count: int) -> float:
    """Beyond which share there are too few independent values to show where a percentile is."""
    return min(TAIL_VALUES * large.half / count, HALF)


def bound_above(
    share: float,
    weigh: Callable[[float], ShareEvidence],
    level_at: Callable[[float], float],
    large: LargeValues,
    count: int,
) -> float:
    """The upper end of the percentile of ``share`` by how the values beyond it fall off: from so
    many as may truly be above that of the run, at the rate of an exponential tail (its mean excess),
    or as they do themselves where that is slower."""
    evidence = expect_large(weigh(level_at(min(share, 1 - 1 / count))), large, share)
    size = max(_effective(evidence, count), 2.0)
    anchor = min(share, 1 - 1 / size)
    start = max(min(anchor, 1 - TAIL_VALUES / size), HALF)
    level, base = level_at(anchor), level_at(start)
    beyond = np.array([level_at(1 - (1 - start) * place) for place in TAIL_PLACES])
    finite = beyond[np.isfinite(beyond)]
    if not len(finite) or not math.isfinite(base):
        return math.inf
    excess = float((np.minimum(beyond, finite.max()) - base).sum())
    above = 1 - _binomial_ends(evidence._replace(share=anchor), count)[0]
    reach = excess / len(finite) * math.log(above / (1 - share))
    own = level_at(1 - (1 - share) * (1 - anchor) / above) - level
    correlated = 1 + CORRELATED * (1 - 1 / large.half)
    return level + _reach_up(max(reach, own) * correlated, abs(level))


# -- trends ----------------------------------------------------------------------------------------


def detect_trend(values: Floats) -> str:
    """RISES or FALLS if the slowest cosine of the values' ranks, half a wave over the run, stands
    out from the next ones as it seldom does in a steady run; else empty."""
    if len(values) < MIN_VALUES:
        return ""
    ranks = _ranks(values)
    if _constant(ranks):
        return ""
    slow, *others = cosine_coefficients(ranks, TREND_COSINES + 1).tolist()
    rest = math.hypot(*others) / math.sqrt(len(others))
    if abs(slow) <= find_student_t(len(others), TAIL_TREND) * rest or rest <= 0:
        return ""
    return RISES if slow < 0 else FALLS


def _ranks(values: Floats) -> Floats:
    """Of equal values their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends: NDArray[np.int64] = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2.0)[inverse] / len(values)
    return ranks


def _constant(values: Floats) -> bool:
    """A variance of equal values is a rounding error, seldom 0."""
    return bool((values == values[0]).all())


@lru_cache(maxsize=16)
def _normal_quantile(tail: float) -> float:
    return NormalDist().inv_cdf(1 - tail)
