"""Confidence intervals: 95 % intervals of the figures of a run, of requests that are not
independent. A rule is decided by them.

Requests that run at the same time wait in the same queue and share the same steps of the server, so
n of them say less than n independent ones would. Each figure here is the mean of a series in the
order of the sends, and long_run_error.py says how far such a mean may be off:

- a mean, of the values; its interval reaches further up than down, as runs that saw longer queues
  vary more;
- a share, of zeros and ones; its interval is the binomial one of as many independent requests as
  say as much;
- a percentile, of the zeros and ones of each level: its interval holds the levels for which the
  share of values within the level may be the percentile's. So "p95 < 1s" is decided as "95 % are
  within 1s" is, by every value's side of the limit;
- a rate, of the amounts in equal stretches of time; a ratio, of what each stretch adds to its
  error.

How correlated the values beyond a level are, a run shows by few of them. What all values show
counts too (``measure_long_run``), so that neighbouring percentiles have about the same error.

Where few independent values are beyond a percentile, the upper end goes at least as far as an
exponential tail may: from a level with more of them beyond, by their mean excess, with the errors
of their number and of that excess (``bound_tail``). In a queue a run of few excursions shows too
little of its tail, so it counts as a shorter one (``ValueLevels.few_excursions``).

No shape of a slow change, and no tail, takes an end far beyond what the values show: what a run of
400 values did not see is taken to be at most twice as far from the median as the mean of its
slowest values, or 1.43 times the largest one; of fewer values further. In a queue, whose largest
values may all be of one burst, they count as fewer (``bound_by_slowest``). So a limit far beyond
all values is kept, however they are correlated. So is the lower end no further below the median
than twice the mean of the lower half (``bound_by_fastest``). Too few values for any correlation
break a limit that all of them are far beyond (``bound_few``).

What a percentile passes, a lower one passes; what a lower one fails, a higher one fails.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from statistics import NormalDist, fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.array_types import Floats
from locust_llm.slo.binomial_intervals import (
    MIN_OF_BOTH,
    TAIL,
    Ends,
    binomial_cdf,
    binomial_shares,
    normal_tail,
)
from locust_llm.slo.percentile import count_beyond, find_share_beyond
from locust_llm.slo.student_t import find_student_t

from .long_run_error import LongRunError, cosine_coefficients, measure_long_run, weigh_shapes

MIN_VALUES: Final = 8
"""Of fewer values nothing can be said of their correlation."""
HALF: Final = 0.5
USUAL: Final = (0.25, 0.5, 0.75)
LARGE: Final = (0.9, 0.95)
"""The values above the levels of these shares are called large."""
SLOW_POWERS: Final = (0.0, 0.35, 0.7)
"""A level has as much of the slow part of the values as the variance of its ones and zeros to such
a power: all of it in a queue; at the highest power what a normal level that wanders leaves."""
QUEUE: Final = (-0.2, 0.1)
"""By how much the logarithm of the slow variance of large values exceeds the one of usual values:
no queue, and certainly one."""
EXCURSIONS: Final = 40.0
"""So many independent values of a queue are twice as uncertain as they look."""
SHORT: Final = 25.0
"""Fewer requests do not show how they are correlated."""
PERCENTILES: Final = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""No upper end lies above that of a higher one of these."""
TAIL_VALUES: Final = 20.0
"""Where fewer independent values are beyond a percentile, its upper end goes by how values fall
off."""
TAIL_SHARES: Final = (0.02, 0.05, 0.1, 0.25, 0.5)
LEAST_BEYOND: Final = 5.0
MEAN_BEYOND: Final = 20.0
"""Shares of values that may show how: from the smallest with so many independent ones on, as fast
as the smallest with so many values do."""
LEAST_TAIL: Final = 1.0
"""Of no fewer independent values the ends are made: a limit far beyond all values is kept."""
TAIL_PLACES: Final = (np.arange(32) + 0.5) / 32
LEAST_OUTSIDE: Final = 1e-4
CLOSE: Final = 1.02
"""Down to which share outside of a limit the bound of a share is looked for, and how exactly."""
SHOWN_BY: Final = 400
"""So many values show how slow the slowest are. Half as many leave twice the room."""
SLOW_VALUES: Final = 10.0
"""And so many values beyond the percentile."""
SLOWEST: Final = 1.1
"""The least that the upper end is allowed, times the mean of the slowest values."""
FAR_BEYOND: Final = 1 / 0.7
MOST_INFINITE: Final = 1 / 6
"""Of the slowest values so many may be failures. What has one cause in a run has up to five or six
in another of its length."""
FEWEST: Final = 3
"""Of fewer values nothing is said at all."""
ROOM: Final = 0.2
"""Of few values the ends lie so far below the smallest and above the largest, as a share of it."""
STEADY: Final = 0.003
"""No mean is known better than to such a share of it: a server does not come back to it more
exactly."""
MOST_FOLDS: Final = 100.0
"""How far above a mean its end may lie: nobody knows, and it is a number."""
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


class EndBasis(StrEnum):
    """What an upper end goes by; the first of two equal ends is the one in this order."""

    ERROR = ""
    LARGEST = "largest"
    """So many times the largest value."""
    MEAN = "mean of the slowest"
    MEAN_OF_BURST = "mean of the slowest, of one burst"
    """The same: the slowest values are many, and count as few, as all may be of one burst."""


class ConfidenceInterval(NamedTuple):
    """A 95 % interval. None: it has no such end, as the values are too few or too correlated."""

    low: float | None
    high: float | None
    size: float = 0.0
    """Effective sample size."""
    extrapolated: bool = False
    """An end lies beyond all values."""
    basis: EndBasis = EndBasis.ERROR
    """Of its upper end."""
    slowest: float = 0.0
    """The share of the slowest values whose mean bounds the end (``bound_by_slowest``); 0: none
    does."""

    @property
    def ends(self) -> Ends:
        return self.low, self.high


class UpperEnd(NamedTuple):
    """Of a percentile or of a mean."""

    level: float
    basis: EndBasis = EndBasis.ERROR
    slowest: float = 0.0
    """As of a ConfidenceInterval."""


class ShareEvidence(NamedTuple):
    """What a series of zeros and ones says of the true share of ones."""

    share: float
    inflation: float
    """So many requests say as much as one independent one; at least 1."""
    errors: float
    """How many standard errors an end of its interval is off."""
    slow_variance: float = 1.0
    """The mean square of the slowest cosines, over the one of independent requests; at least 1."""


@dataclass(frozen=True)
class ValueLevels:
    """The values of a run, as one looks at them from a level."""

    count: int
    weigh: Callable[[float], ShareEvidence]
    """Of the share of values within a level."""
    level_at: Callable[[float], float]
    """That so large a share of them is within."""
    room: float = 1.0
    """As many times as usual the upper end may be beyond the slowest values (``find_room``)."""

    def weigh_at(self, share: float) -> ShareEvidence:
        return self.weigh(self.level_at(share))._replace(share=share)

    @cached_property
    def half_size(self) -> float:
        """As many independent values are in the upper half."""
        return HALF * self.count / self.weigh_at(HALF).inflation

    @property
    def few_in_half(self) -> float:
        return self.few_excursions(self.half_size)

    @cached_property
    def queue(self) -> float:
        """From 0 (no queue) to 1: in a queue large values come together, more than others do."""
        usual = fmean(math.log(self.weigh_at(share).slow_variance) for share in USUAL)
        large = fmean(math.log(self.weigh_at(share).slow_variance) for share in LARGE)
        none, certain = QUEUE
        queue = (large - usual - none) / (certain - none)
        # independent values are in none
        return min(max(queue, 0.0), 1.0) * (1 - math.exp(-large)) ** 2

    def few_excursions(self, size: float) -> float:
        """How many times too many ``size`` independent values of a queue may be, which come in
        excursions of which a run shows few."""
        return 1 + EXCURSIONS * self.queue / size


NONE: Final = ConfidenceInterval(None, None)
INDEPENDENT: Final = ShareEvidence(1.0, 1.0, NormalDist().inv_cdf(1 - TAIL))


# -- means -----------------------------------------------------------------------------------------


def estimate_mean_interval(values: Floats, *, looks: int = 1) -> ConfidenceInterval:
    """Of a mean of ``values`` that are not negative, in the order of time. ``looks``: it is one of
    so many intervals of the same run (Settings.looks)."""
    n = len(values)
    if n < MIN_VALUES:
        return bound_few(values, None, looks)
    mean = float(values.mean())
    if not math.isfinite(mean) or _constant(values):
        return ConfidenceInterval(mean, mean, float(n))
    error, size = _error_of_mean(values, looks)
    independent = _normal_quantile(TAIL / looks) * float(values.std()) / math.sqrt(n)
    reach = max(error, independent, STEADY * mean) / mean
    levels = _make_levels(values, looks)
    up = reach * math.sqrt(levels.few_in_half)
    high = min(UpperEnd(mean * math.exp(min(up, MOST_FOLDS))), bound_by_slowest(levels, HALF))
    return ConfidenceInterval(
        mean * math.exp(-reach),
        max(high.level, mean),
        min(size, float(n)),
        basis=high.basis,
        slowest=high.slowest,
    )


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
    levels = _make_levels(margins, looks)
    if 0 < near.share < 1:
        near = levels.weigh(1.0)
    low, high = share_ends(near, n)
    within = _bound_share_within(levels)
    return ConfidenceInterval(within or min(low, HALF), high, n / near.inflation)


def _bound_share_within(levels: ValueLevels) -> float:
    """The largest share whose percentile is surely within 1; 0: not even the median is."""
    most, least = HALF, LEAST_OUTSIDE
    if bound_above(levels, 1 - most).level >= 1:
        return 0.0
    while most > CLOSE * least:
        middle = math.sqrt(most * least)
        within = bound_above(levels, 1 - middle).level < 1
        most, least = (middle, least) if within else (most, middle)
    return 1 - most


def weigh_share(ones: Floats, looks: int = 1, shown: Floats | None = None) -> ShareEvidence:
    """``shown``: what the values show that made them ones (``weigh_shapes``)."""
    share = float(ones.mean())
    if len(ones) < MIN_VALUES or share in (0.0, 1.0):
        return INDEPENDENT._replace(share=share, errors=_normal_quantile(TAIL / looks))
    found = measure_long_run(ones, shown=shown, slow_parts=_slow_parts(share, shown))
    independent = math.sqrt(share * (1 - share))
    return _evidence(share, found, independent, looks)


def weigh_ratio(
    ones: Floats, counts: Floats, looks: int = 1, shown: Floats | None = None
) -> ShareEvidence:
    """The same of so many ones among so many of each stretch of a run."""
    whole = float(counts.sum())
    share = float(ones.sum()) / whole
    off = ones - share * counts
    if share in (0.0, 1.0) or _constant(off):
        return INDEPENDENT._replace(share=share, errors=_normal_quantile(TAIL / looks))
    found = measure_long_run(off, shown=shown, slow_parts=_slow_parts(share, shown))
    return _evidence(share, found, math.sqrt(share * (1 - share) * whole / len(counts)), looks)


def _slow_parts(share: float, shown: Floats | None) -> tuple[float, ...]:
    if shown is None:
        return (1.0,)
    variance = round(4 * share * (1 - share), 2)
    return tuple(max(variance, 0.01) ** power for power in SLOW_POWERS)


def _evidence(share: float, found: LongRunError, independent: float, looks: int) -> ShareEvidence:
    """Never less than of independent requests: a pattern that repeats is no proof that it goes
    on."""
    deviation = max(found.deviation, independent)
    errors = max(found.reach(TAIL / looks) / deviation, _normal_quantile(TAIL / looks))
    slow_variance = max(found.slow_variance / independent**2, 1.0)
    return ShareEvidence(share, (deviation / independent) ** 2, errors, slow_variance)


def share_ends(evidence: ShareEvidence, count: int) -> tuple[float, float]:
    seen = assume_least(evidence, count)
    low, _ = _binomial_ends(seen if evidence.share <= HALF else evidence, count)
    _, high = _binomial_ends(seen if evidence.share >= HALF else evidence, count)
    # what more than half of all do is seen no less often than what half of them do
    half = _binomial_ends(seen._replace(share=HALF), count)
    if evidence.share > HALF:
        return max(low, half[0]), high
    return low, min(high, half[1]) if evidence.share < HALF else high


def assume_least(evidence: ShareEvidence, count: int) -> ShareEvidence:
    """Of the kind that was seen often. Without any assumption a phase of half of a run may be one
    that comes once in twenty runs, and a server that fails from then on would break no rule."""
    return evidence._replace(
        inflation=min(evidence.inflation, max(count / LEAST_SIZE, 1.0)),
        errors=min(evidence.errors, MOST_ERRORS),
    )


def _binomial_ends(evidence: ShareEvidence, count: int) -> tuple[float, float]:
    size = _effective(evidence, count)
    tail = normal_tail(evidence.errors)
    return binomial_shares(evidence.share * size, size, tail, tail)


def _effective(evidence: ShareEvidence, count: int) -> float:
    return max(count / evidence.inflation, 1.0)


# -- percentiles -----------------------------------------------------------------------------------


def estimate_percentile_interval(
    values: Floats, percentile: float, *, looks: int = 1, ordered: Floats | None = None
) -> ConfidenceInterval:
    """Of a percentile of ``values`` in the order of time (failures may be infinite). ``ordered``:
    the values from the least on, where they are known."""
    if len(values) < MIN_VALUES:
        return bound_few(values, percentile / 100, looks)
    if percentile < 50:
        found = estimate_percentile_interval(-values, 100 - percentile, looks=looks)
        high, low = (None if end is None else -end for end in found.ends)
        return found._replace(low=low, high=high)
    share = percentile / 100
    n = len(values)
    ordered = np.sort(values) if ordered is None else ordered
    at = max(math.ceil(round(share * n, 9)), 1) - 1
    if _constant(ordered):
        return ConfidenceInterval(float(ordered[0]), float(ordered[0]), float(n))
    levels = _make_levels(values, looks, ordered)
    return search_percentile(ordered, at, share, levels)


def _make_levels(values: Floats, looks: int, ordered: Floats | None = None) -> ValueLevels:
    """``ordered``: the values in order, where they are known."""
    ordered = np.sort(values) if ordered is None else ordered
    finite = ordered[np.isfinite(ordered)]
    capped = np.clip(values, finite[0], finite[-1]) if len(finite) else np.zeros(len(values))
    shown = None if _constant(capped) else weigh_shapes(capped)

    @cache
    def weigh(level: float) -> ShareEvidence:
        within = values <= level
        if within.all():
            within = values < level
        return weigh_share(within.astype(np.float64), looks, shown)

    return ValueLevels(
        len(values),
        weigh,
        lambda share: level_of_share(ordered, share),
        find_room(len(values), looks),
    )


def level_of_share(ordered: Floats, share: float) -> float:
    """Between the middles of the ranks."""
    place = min(max(share * len(ordered) - HALF, 0.0), len(ordered) - 1.0)
    below = float(ordered[math.floor(place)])
    above = float(ordered[math.ceil(place)])
    if below == above or math.isinf(below):
        return below
    return below + (above - below) * (place % 1)


def search_percentile(
    ordered: Floats, at: int, share: float, levels: ValueLevels
) -> ConfidenceInterval:
    """The levels, in order, of which it is not decided whether the percentile of ``share`` (a half
    and more) is above or below. ``ordered[at]`` is that of the run."""
    count = levels.count
    here = levels.weigh(float(ordered[at]))
    lower = [share, *(some for some in PERCENTILES if some < share)]

    def is_exceeded(place: int) -> bool:
        """Whether this percentile is surely above the level, or a lower one is."""
        evidence = levels.weigh(float(ordered[place]))
        return any(is_below(evidence, count, some) for some in lower)

    lowest = _find_first(at + 1, lambda place: not is_exceeded(place))
    bounded = lowest > 0 or is_below(here._replace(share=0.0), count, share)
    low = float(ordered[min(lowest, at)]) if bounded else None
    if low is not None:
        low = max(low, min(bound_by_fastest(levels), float(ordered[at])))
    upper = bound_above(levels, share)
    for some in PERCENTILES:
        if some > share and levels.level_at(some) < upper.level:
            upper = min(upper, bound_above(levels, some))
    high = max(upper.level, float(ordered[at]))
    extrapolated = bool(math.isfinite(high) and high > ordered[-1])
    size = count / here.inflation
    return ConfidenceInterval(low, high, size, extrapolated, upper.basis, upper.slowest)


def _find_first(count: int, is_true: Callable[[int], bool]) -> int:
    """The first of ``count`` places from which on it is true, or ``count``. It looks at the same
    places whatever is asked, so what is true of more places is found no later."""
    before, at = -1, count
    while at - before > 1:
        middle = (before + at) // 2
        before, at = (before, middle) if is_true(middle) else (middle, at)
    return at


def is_below(evidence: ShareEvidence, count: int, share: float) -> bool:
    """Whether the true share within a level is surely below ``share``."""
    if evidence.share > share:
        return False
    evidence = assume_least(evidence, count)
    size = round(_effective(evidence, count), 2)
    return _at_most(round(evidence.share * size, 4), size, share) < normal_tail(evidence.errors)


@lru_cache(maxsize=4096)
def _at_most(some: float, size: float, share: float) -> float:
    """The probability that so many or fewer of ``size`` are within. Of MIN_OF_BOTH on either side
    on the outcome itself counts half (mid-P), of fewer in proportion less."""
    half = HALF * min(some, size - some, MIN_OF_BOTH) / MIN_OF_BOTH
    return binomial_cdf(some - half, size, share)


def bound_above(levels: ValueLevels, share: float) -> UpperEnd:
    """The upper end of the percentile of ``share``."""
    return min(UpperEnd(_bound_by_error(levels, share)), bound_by_slowest(levels, share))


def bound_by_slowest(levels: ValueLevels, share: float) -> UpperEnd:
    """Twice as far from the median as the mean of the values beyond the percentile, or further
    (``find_room``); where enough are beyond it, FAR_BEYOND times the largest value. Of a mean the
    share is HALF, so it goes by the larger half of the values. In a queue the values beyond come in
    excursions, and count as fewer. Infinite: more of them are failures than one cause explains."""
    outside = find_share_beyond(share)
    number = count_beyond(levels.count, outside)
    beyond = number / levels.few_excursions(number)
    if math.isinf(levels.level_at(1 - MOST_INFINITE * outside)):
        return UpperEnd(math.inf)
    slow = levels.level_at(share) + _measure_excess(levels, outside)
    reach = max(slow - levels.level_at(HALF), (SLOWEST - 1) * abs(slow))
    is_burst = beyond < SLOW_VALUES <= number
    basis = EndBasis.MEAN_OF_BURST if is_burst else EndBasis.MEAN
    by_mean = UpperEnd(slow + max(levels.room, SLOW_VALUES / beyond) * reach, basis, outside)
    largest = levels.level_at(1.0)
    if beyond < SLOW_VALUES:
        return by_mean
    by_largest = largest + _far_beyond(levels.room) * abs(largest)
    return min(by_mean, UpperEnd(by_largest, EndBasis.LARGEST))


def _far_beyond(room: float) -> float:
    """How far above the largest value an end may lie, as a share of that value."""
    return room * (FAR_BEYOND - 1)


def find_most_times_largest(count: int, looks: int) -> float:
    """As many times the largest value the upper end that goes by it is (``bound_by_slowest``)."""
    return 1 + _far_beyond(find_room(count, looks))


def bound_by_fastest(levels: ValueLevels) -> float:
    """As many times below the median as twice the logarithm of the lower half's mean, further where
    the run shows less. Minus infinity: there is no such logarithm."""
    middle = levels.level_at(HALF)
    fast = float(np.mean([levels.level_at(HALF * place) for place in TAIL_PLACES]))
    if not 0 < fast <= middle < math.inf:
        return -math.inf
    return float(middle * (fast / middle) ** (2 * levels.room * levels.few_in_half))


def find_room(count: int, looks: int) -> float:
    """Of a run of so many requests, at each of so many looks."""
    return max(SHOWN_BY / count, 1.0) * _normal_quantile(TAIL / looks) / _normal_quantile(TAIL)


def _bound_by_error(levels: ValueLevels, share: float) -> float:
    evidence = levels.weigh_at(share)
    size = max(_effective(evidence, levels.count) / levels.few_in_half, 1.0)
    if count_beyond(size, find_share_beyond(share)) >= TAIL_VALUES:
        return levels.level_at(_most_within(evidence, size))
    return max(levels.level_at(_far_within(evidence, size)), bound_tail(levels, share))


def _most_within(evidence: ShareEvidence, size: float) -> float:
    """The smallest share of ``size`` independent values that is surely more than the true one."""

    def is_rare(within: float) -> bool:
        few = (1 - within) * size
        return _at_most(round(few, 4), round(size, 2), outside) < normal_tail(evidence.errors)

    outside = 1 - evidence.share
    return _find_least(evidence.share, outside / 100, is_rare)


def _far_within(evidence: ShareEvidence, size: float) -> float:
    """Of few beyond, for which that is next to all of them: the share whose odds are as many times
    higher as those of the true one may be lower."""

    def is_rare(true: float) -> bool:
        few = round(outside * size, 4)
        return _at_most(few, round(size, 2), true) < normal_tail(evidence.errors)

    outside = 1 - evidence.share
    most = min(_find_least(outside, outside / 100, is_rare), 1 - LEAST_OUTSIDE)
    odds = evidence.share / outside
    odds *= odds * most / (1 - most)
    return odds / (1 + odds)


def _find_least(low: float, exact: float, is_true: Callable[[float], bool]) -> float:
    """The least share above ``low`` from which on it is true, or 1."""
    high = 1.0
    while high - low > exact:
        middle = (low + high) / 2
        low, high = (low, middle) if is_true(middle) else (middle, high)
    return high


def bound_few(values: Floats, share: float | None, looks: int) -> ConfidenceInterval:
    """Of a percentile of so few values that nothing is known of their correlation, or of their mean
    (``share`` is None). That all of them are at the smallest or above it is too rare for a far
    percentile below it, and tells how many values at least are that large; so on the other side."""
    n = len(values)
    if n < FEWEST:
        return NONE
    rare = (TAIL / looks) ** (1 / n)
    smallest = float(values.min())
    largest = float(values.max())
    if share is None:
        return ConfidenceInterval(rare * _add_part(smallest, -ROOM), None, float(n))
    low = _add_part(smallest, -ROOM) if 1 - share <= rare else None
    high = _add_part(largest, ROOM) if share <= rare else None
    return NONE if low is None and high is None else ConfidenceInterval(low, high, float(n))


def _add_part(value: float, part: float) -> float:
    return value + part * abs(value) if math.isfinite(value) else value


def bound_tail(levels: ValueLevels, share: float) -> float:
    """Beyond some level the values are taken to fall off as exponential ones do. Of ``size``
    independent ones beyond it their share is known to 1 / sqrt(size) of it, and so is the mean
    excess, which counts as often as e-fold fewer are beyond the percentile."""
    outside, evidence = _find_tail_start(levels, share)
    size = max(levels.count * outside / evidence.inflation, LEAST_TAIL)
    size = max(size / levels.few_excursions(size), LEAST_TAIL)
    near = _measure_excess(levels, outside)
    folds = math.log(outside / (1 - share))
    far = folds * _measure_excess(levels, _find_tail_end(levels.count, share)) if folds else 0.0
    error = math.sqrt((near**2 * (1 - outside) + far**2) / size)
    reach = evidence.errors * error * (1 + evidence.errors / (2 * math.sqrt(size)))
    return levels.level_at(share) + reach


def _find_tail_start(levels: ValueLevels, share: float) -> tuple[float, ShareEvidence]:
    """The smallest share beyond which LEAST_BEYOND independent values are, or a half."""
    for outside in TAIL_SHARES:
        if 1 - share <= outside < HALF:
            evidence = levels.weigh_at(1 - outside)
            if count_beyond(levels.count / evidence.inflation, outside) >= LEAST_BEYOND:
                return outside, evidence
    return HALF, levels.weigh_at(HALF)


def _find_tail_end(count: int, share: float) -> float:
    """The smallest one with MEAN_BEYOND values, correlated or not."""
    for outside in TAIL_SHARES:
        if outside >= 1 - share and count_beyond(count, outside) >= MEAN_BEYOND:
            return outside
    return HALF


def _measure_excess(levels: ValueLevels, outside: float) -> float:
    """By how much the values beyond a level exceed it, on average."""
    base = levels.level_at(1 - outside)
    beyond = np.array([levels.level_at(1 - outside * place) for place in TAIL_PLACES])
    finite = beyond[np.isfinite(beyond)]
    if not len(finite) or not math.isfinite(base):
        return math.inf
    return float(np.minimum(beyond, finite.max()).mean()) - base


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
