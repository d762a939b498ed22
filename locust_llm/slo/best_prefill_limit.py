"""Best prefill limit: prefill limits compared round by round, until the best one is known.

A round is one block of load at each limit, with the same arrivals and lengths. Of two limits the
ratio of their figures, each over the blocks of all rounds that have both, is as uncertain as it
changes when rounds are drawn again, with replacement (the bootstrap: Efron, Annals of Statistics 7,
1979), so requests within a round may depend on each other as they like.

How much worse a limit is than the best one, its regret, has an interval that allows for not
knowing which is best (multiple comparisons with the best: Hsu, Annals of Statistics 9, 1981;
Edwards and Hsu, JASA 78, 1983). All of them hold together in 95 % of the runs, at all moments at
which a run looks at them (Bonferroni).
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain, permutations
from random import Random
from typing import Final, NamedTuple

from locust_llm.slo.percentile import find_percentile

from .student_t import find_student_t

Limit = int | None
"""None: there is no limit."""
NO_LIMIT: Final = "none"
TOLERANCE: Final = 0.03
"""A limit that is worse than the best one by less is as good."""
ERROR: Final = 0.05
"""The probability that an interval, or a statement of a run, is wrong."""
LAST_SHARE: Final = 0.6
"""The end of a run gets this share of the statements' errors. The looks before share the rest
evenly."""
LOOKS: Final = (4, 7, 12, 20)
"""After so many rounds a run checks whether it knows enough. It checks once more at its end."""
DRAWS: Final = 200
"""The draws of rounds."""
LEAST_ROUNDS: Final = 3
"""Fewer rounds give no conclusion."""
LEAST_VALUES: Final = 20
"""The fewest values of a limit. With fewer, a percentile is little more than the slowest value."""


class BlockSample(NamedTuple):
    """The result of one block."""

    values: Sequence[float]
    """The values of its requests. Infinite: the request failed."""
    seconds: float


Samples = Mapping[Limit, Mapping[int, BlockSample]]
"""The samples by limit and round."""


class Objective(NamedTuple):
    """The measure of a good limit."""

    percentile: float | None
    """The percentile of the values. None: their sum per second."""
    less_is_better: bool
    counts: bool = False
    """The value is 1 for a good request, else 0."""


GOODPUT: Final = "goodput"
SHORT_TTFT: Final = "ttft"
STALL: Final = "stall"
TOKENS: Final = "tokens"
OBJECTIVES: Final = {
    GOODPUT: Objective(percentile=None, less_is_better=False, counts=True),
    SHORT_TTFT: Objective(percentile=95.0, less_is_better=True),
    STALL: Objective(percentile=95.0, less_is_better=True),
    TOKENS: Objective(percentile=None, less_is_better=False),
}
"""The values of ``--objective``."""


class LimitRegret(NamedTuple):
    """One limit compared with the best one. A regret of 0.1 is 10 % worse."""

    limit: Limit
    figure: float | None
    """The value over all its blocks. None: there are no values."""
    rounds: int
    regret: float | None
    low: float
    high: float
    """The ends of its 95 % interval. The upper one is infinite where nothing bounds it."""
    surely_low: float
    surely_high: float
    """The ends between which all regrets lie in 95 % of the runs, at all looks."""
    left_out: bool = False
    """The run dropped the limit before its end."""
    values: int = 0
    """The requests behind its value."""

    @property
    def is_as_good(self) -> bool:
        """The limit is certainly not worse than the best one by more than the tolerance."""
        return self.surely_high <= TOLERANCE and not self.left_out

    @property
    def is_worse(self) -> bool:
        """The limit is certainly worse than the best one by more than the tolerance."""
        return self.surely_low > TOLERANCE or self.left_out

    @property
    def is_likely_worse(self) -> bool:
        """By its own interval alone the limit is worse than the best one, perhaps by less than the
        tolerance."""
        return self.low > 0 and not (self.is_worse or self.is_as_good)


class LogRatio(NamedTuple):
    """How much worse the first of two values is, and its standard error."""

    middle: float
    error: float
    freedom: int
    known: bool = True
    """False: there are too few rounds or values."""

    def reach(self, tail: float) -> float:
        """The half-width of the interval that leaves out ``tail`` at either end."""
        return find_student_t(max(2, self.freedom), tail) * self.error if self.known else math.inf


Ends = Mapping[tuple[Limit, Limit], tuple[float, float]]
"""The ends of how much worse the first limit of each pair is, as a logarithm."""


def compare_with_best(
    samples: Samples, objective: Objective, *, last: bool = True
) -> tuple[LimitRegret, ...]:
    """Each limit against the best one, in the order of ``samples``. Limits that a run has left out
    are certainly worse.

    ``last``: at the end of a run, not at a look before.
    """
    limits = list(samples)
    left_out = find_left_out(samples)
    figures = {limit: _Figure(samples[limit], objective) for limit in limits}
    ratios = {
        (one, other): compare_figures(figures[one], figures[other])
        for one, other in permutations(limits, 2)
    }
    others = max(1, len(limits) - 1)
    each = _bound_regrets(limits, left_out, _find_ends(ratios, ERROR / 2))
    spent = LAST_SHARE if last else (1 - LAST_SHARE) / len(LOOKS)
    surely = _bound_regrets(limits, left_out, _find_ends(ratios, spent * ERROR / 2 / others))
    found = []
    for limit in limits:
        against = [other for other in limits if other != limit and other not in left_out]
        middle = max((ratios[limit, other].middle for other in against), default=0.0)
        found.append(
            LimitRegret(
                limit=limit,
                figure=figures[limit].whole,
                rounds=len(figures[limit].rounds),
                regret=None if math.isnan(middle) else _from_log(max(0.0, middle)),
                low=each[limit][0],
                high=each[limit][1],
                surely_low=surely[limit][0],
                surely_high=surely[limit][1],
                left_out=limit in left_out,
                values=figures[limit].count(figures[limit].rounds),
            )
        )
    return tuple(found)


def find_likely_best(regrets: Sequence[LimitRegret]) -> LimitRegret | None:
    """The only limit that may still be the best one, where all others are worse or likely worse."""
    contenders = [one for one in regrets if not (one.is_worse or one.is_likely_worse)]
    if len(contenders) != 1 or contenders[0].is_as_good or not math.isfinite(contenders[0].high):
        return None
    return contenders[0]


def compare_two(
    samples: Samples, objective: Objective, one: Limit, other: Limit
) -> tuple[float, float, float] | None:
    """How many times as bad the first limit is, and the ends of its 95 % interval. None: not
    known."""
    ratio = compare_figures(_Figure(samples[one], objective), _Figure(samples[other], objective))
    reach = ratio.reach(ERROR / 2)
    if not math.isfinite(ratio.middle) or not math.isfinite(reach):
        return None
    return tuple(math.exp(ratio.middle + part) for part in (0.0, -reach, reach))  # type: ignore[return-value]


def _find_ends(ratios: "Mapping[tuple[Limit, Limit], LogRatio]", tail: float) -> Ends:
    ends = {}
    for pair, ratio in ratios.items():
        reach = ratio.reach(tail)
        ends[pair] = _add(ratio.middle, -reach), _add(ratio.middle, reach)
    return ends


def find_left_out(samples: Samples) -> set[Limit]:
    """The limits with two rounds fewer than others, as the last round may have been cut short."""
    most = max((len(blocks) for blocks in samples.values()), default=0)
    return {limit for limit, blocks in samples.items() if len(blocks) < most - 1}


def _bound_regrets(
    limits: Sequence[Limit], left_out: Set[Limit], ends: Ends
) -> dict[Limit, tuple[float, float]]:
    tried = [limit for limit in limits if limit not in left_out]
    worse = {one for one, other in permutations(tried, 2) if not ends[one, other][0] <= 0}
    may_be_best = [limit for limit in tried if limit not in worse]
    found = {}
    for limit in limits:
        better = [ends[limit, other] for other in may_be_best if other != limit]
        low = min((pair[0] for pair in better), default=0.0)
        high = max((pair[1] for pair in better), default=0.0)
        if limit in may_be_best:
            low = 0.0
        found[limit] = _from_log(max(0.0, low)), _from_log(max(0.0, high))
    return found


def _from_log(value: float) -> float:
    return math.inf if value > 700 else math.expm1(value)


def _add(middle: float, reach: float) -> float:
    """An infinitely worse limit stays so, whatever the unknown error is."""
    if math.isnan(middle) or (math.isinf(middle) and math.isinf(reach) and middle != reach):
        return math.copysign(math.inf, reach)
    return middle + reach


class _Figure:
    """The value of one limit: over all rounds, or over drawn rounds."""

    def __init__(self, blocks: Mapping[int, BlockSample], objective: Objective) -> None:
        self.rounds = frozenset(blocks)
        self._blocks, self._objective = blocks, objective
        self._falling = list[tuple[float, int]]()
        for number, block in blocks.items():
            self._falling += ((value, number) for value in block.values)
        self._falling.sort(reverse=True)
        self.whole = self._find_whole()

    def _find_whole(self) -> float | None:
        """The value over all its blocks. None: there are no values."""
        if self._objective.percentile is None:
            seconds = sum(block.seconds for block in self._blocks.values())
            return sum(value for value, _ in self._falling) / seconds if seconds > 0 else None
        rising = [value for value, _ in reversed(self._falling)]
        return find_percentile(rising, self._objective.percentile) if rising else None

    def cost(self, times: Mapping[int, int]) -> float:
        """A logarithm (more is worse), with each round taken so many times."""
        figure = self._over(times)
        if math.isnan(figure):
            return figure
        if not self._objective.less_is_better:
            return math.inf if figure <= 0 else -math.log(figure)
        return math.inf if math.isinf(figure) else math.log(max(figure, 1e-9))

    def _over(self, times: Mapping[int, int]) -> float:
        blocks = [(self._blocks[number], count) for number, count in times.items()]
        if self._objective.percentile is None:
            seconds = sum(count * block.seconds for block, count in blocks)
            return sum(count * sum(block.values) for block, count in blocks) / seconds
        last = sum(count * len(block.values) for block, count in blocks) - 1
        place = last - last * self._objective.percentile / 100  # from the highest one on
        share = place - int(place)
        upper = math.nan
        passed = 0
        for value, number in self._falling:
            passed += times.get(number, 0)
            if math.isnan(upper) and passed > int(place):
                upper = value
            if not math.isnan(upper) and (not share or passed > int(place) + 1):
                # between two values as the figure itself is, so that both are in one order
                return upper if math.isinf(upper) else upper - (upper - value) * share
        return upper

    def count(self, rounds: Iterable[int]) -> int:
        return sum(len(self._blocks[number].values) for number in rounds)

    def least_variance(self, rounds: Iterable[int]) -> float:
        """The least variance of a ratio with it. A few rounds may be alike by chance. For good and
        bad requests, a quarter of the bad ones, and one more, may be otherwise."""
        if not self._objective.counts:
            return 0.0
        values = list(chain.from_iterable(self._blocks[number].values for number in rounds))
        good = sum(values)
        return (1 + (len(values) - good) / 4) / good**2 if good else math.inf

    @property
    def least_values(self) -> int:
        """The number of values that give a result."""
        return 1 if self._objective.percentile is None else LEAST_VALUES


def compare_figures(one: _Figure, other: _Figure) -> LogRatio:
    """How much worse the first limit is."""
    rounds = tuple(sorted(one.rounds & other.rounds))
    freedom = len(rounds) - 1
    if not rounds:
        return LogRatio(math.nan, math.inf, 1, known=False)
    once = dict.fromkeys(rounds, 1)
    middle = _less(one.cost(once), other.cost(once))
    few = min(one.count(rounds), other.count(rounds)) < one.least_values
    if len(rounds) < LEAST_ROUNDS or few:
        return LogRatio(middle, math.inf, max(1, freedom), known=False)
    drawn = [_less(one.cost(times), other.cost(times)) for times in draw_rounds(rounds)]
    if not math.isfinite(middle):
        # failures: certain where no round alone makes them
        certain = all(value == middle for value in drawn)
        return LogRatio(middle, 0.0 if certain else math.inf, freedom, known=certain)
    if not all(map(math.isfinite, drawn)):
        return LogRatio(middle, math.inf, freedom, known=False)
    mean = sum(drawn) / len(drawn)
    squares = sum((value - mean) ** 2 for value in drawn) / len(drawn)
    # drawing from few varies less than the few did
    variance = squares * len(rounds) / freedom
    least = max(one.least_variance(rounds), other.least_variance(rounds))
    return LogRatio(middle, math.sqrt(max(variance, least)), freedom)


@lru_cache(maxsize=32)
def draw_rounds(rounds: tuple[int, ...]) -> tuple[Mapping[int, int], ...]:
    """How many times each round is taken in each draw. The draws are always the same."""
    random = Random(len(rounds))
    return tuple(Counter(random.choices(rounds, k=len(rounds))) for _ in range(DRAWS))


def _less(cost: float, of_other: float) -> float:
    """Two limits that fail in the same way are equal."""
    return 0.0 if cost == of_other else cost - of_other


def is_look(rounds: int) -> bool:
    """Whether a run checks after so many rounds what it knows."""
    place = bisect_right(LOOKS, rounds) - 1
    return place >= 0 and LOOKS[place] == rounds


def format_limit(limit: Limit) -> str:
    """``4``, or ``none``."""
    return NO_LIMIT if limit is None else str(limit)
