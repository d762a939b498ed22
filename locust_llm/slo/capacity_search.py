"""Capacity search: the highest load of a sweep at which all rules hold, as far as its stages show
it, and the load that a search for it (``--find-max``) runs next. Without numpy: the controller asks
here; the chances themselves are worked out in report/slo_evidence/capacity_evidence.py."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from locust_llm.text.format import format_brief, format_plain_number

TAIL: Final = 0.025
"""The probability that the capacity lies beyond either end of its interval."""
HALF: Final = 0.5
MEAN_SCALE: Final = 6.0
"""The log-odds of a request beyond the limit, for each factor of e in a value over its limit."""
UNLIKELY: Final = 0.1
"""A search goes up until the rules hold with a probability below this."""
MOST_GROWTH: Final = 2.0
"""The largest factor from the highest stage so far to the next one: no server gets more load at
once."""
FINEST: Final = 0.02
"""The share between two levels that a search distinguishes, where no whole number lies between."""
LONG: Final = 0.5
"""A stage is long from this share of the longest one on."""
LIKELY: Final = 0.75
"""The probability that a level holds which a stage shall prove."""
ASIDE: Final = 0.35
"""Every second stage runs so far from the middle to the farther end of the interval."""
CLIMB_SHARE: Final = 0.02
"""A stage that only looks for the limit from below is measured for this share of the search's
time."""
CLIMB_MOST: Final = 3.0
"""Such a stage is measured at most so many times as long, until it has CLIMB_REQUESTS."""
CLIMB_REQUESTS: Final = 20
NEVER_ENOUGH: Final = 10**9
"""A number of requests that ends no stage: a stage around the limit lasts its time, unless its load
is too high."""
SEARCH_STAGES: Final = 8
"""A search gives each stage around the limit about this part of all its time."""
MOST_STAGES: Final = 40
"""The stages of a search without a bound in time."""
LOWEST_VISITS: Final = 2
"""A search ends before its time where so many stages at the lowest level fail by themselves."""
MIN_MEASURED: Final = 0.6
"""At least this share of a stage's whole time is measured. The rest goes to its first and its last
wave."""


class RuleEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage shows about one rule: requests for and against it, or how far its value is off
    the limit."""

    rule: str
    beyond: float = 0.0
    """The share of requests that are beyond the limit."""
    allowed: float | None = None
    """The allowed share. None: the rule is about no share of requests."""
    count: float = 0.0
    """The number of requests. If none or all are beyond the limit, the effective sample size."""
    inflation: float = 1.0
    """The number of requests with as much information about the share as one independent
    request."""
    excess: float = 0.0
    """The logarithm of the value over its limit, above 0 where the rule is broken."""
    error: float = 0.0
    """The standard error of the excess, or below it where ``error_above`` is another one."""
    error_above: float = 0.0
    """The standard error of a larger excess. 0: it is the same."""
    weight: float = 1.0
    """The weight of its requests. A queue that has not built up yet shows little."""
    spread: float = 0.0
    """The standard deviation, in log-odds, between visits to a level, where these differ by more
    than their errors."""
    needs_load: bool = False
    """The rule is about a throughput, which a low load cannot reach. Below the level with the
    highest throughput the stage shows nothing."""
    passes: bool = False
    """The stage passes the rule by itself."""
    fails: bool = False
    """The stage breaks the rule by itself."""
    figure: tuple[float, float, float] | None = None
    """(low, value, high): the value of the rule between the ends of its 95 % interval."""
    rise: float = 0.0
    """How much nearer to the limit the values are after they settled, as a mean logarithm of the
    ratio."""
    rise_error: float = 0.0
    """The standard error of the rise. 0: the rise is not known."""
    later: float = 0.0
    """By how much the excess may be larger if values have not settled in the stage."""
    unsettled: float = 0.0
    """The probability that values have not settled."""
    begin: float = 0.0
    """The excess of the first requests of the stage."""
    settled: "RuleEvidence | None" = None
    """The evidence of the stage without the requests before its values settled."""
    share: "RuleEvidence | None" = None
    """The evidence by the requests beyond the limit alone."""


class StageEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage shows about all rules."""

    level: float
    number: int = 0
    measured_s: float = 0.0
    saturated_at: float | None = None
    """The completed requests per second of an overloaded server. None: it kept up, or the load was
    a closed loop."""
    rules: tuple[RuleEvidence, ...] = ()
    silent: bool = False
    """The server answered nothing for a while during the measurement."""

    @property
    def passes(self) -> bool:
        """The stage by itself passes all its rules."""
        return bool(self.rules) and all(rule.passes for rule in self.rules)

    @property
    def fails(self) -> bool:
        """The stage by itself breaks one of its rules."""
        return any(rule.fails for rule in self.rules)


class CapacitySearch(msgspec.Struct, frozen=True, kw_only=True):
    """The range of a capacity search, and what the stages so far show."""

    lowest: float
    highest: float
    whole: bool
    """Levels are whole numbers."""
    stages: tuple[StageEvidence, ...] = ()

    @property
    def levels(self) -> tuple[float, ...]:
        return list_levels(self.lowest, self.highest, whole=self.whole)


def find_single_silences(visits: Iterable[tuple[float, bool]]) -> set[float]:
    """The levels with one silent visit. Such a visit says little about the load: the server stood
    still once, or was started anew. If it does so again at a level, that belongs to the load.
    ``visits``: of each stage its level, and whether nothing answered for a while."""
    counts = Counter(level for level, silent in visits if silent)
    return {level for level, count in counts.items() if count == 1}


def leave_out_silences(stages: Sequence[StageEvidence]) -> tuple[StageEvidence, ...]:
    """The stages without single silent visits."""
    single = find_single_silences((stage.level, stage.silent) for stage in stages)
    return tuple(stage for stage in stages if not stage.silent or stage.level not in single)


class StageProofs(NamedTuple):
    """The levels with a stage that fails or passes by itself."""

    failing: Sequence[float]
    passing: Sequence[float]
    lasting: Sequence[float]
    """Those of ``passing`` with a stage that is long enough for its queue and its values."""
    proven: Sequence[float]
    """Those of ``lasting`` that all visits show, and where no values rise."""


class CapacityEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The highest level at which all rules hold, in the requested range."""

    levels: tuple[float, ...]
    """The levels in rising order."""
    chances: tuple[float, ...]
    """For each level, the probability that the capacity is this level or more."""
    rule: str = ""
    """The rule that limits it first."""
    measured_to: float = math.inf
    """The highest level with a stage. If no stage fails, the highest level that passes by itself.
    Beyond it nothing is claimed."""
    passed: bool = True
    """A stage passes by itself, or one fails. Otherwise no capacity is claimed."""
    passes_to: float = 0.0
    """The highest level with a stage that passes by itself, where none fails up to there. 0: there
    is none."""
    fails_from: float | None = None
    """The lowest level with a stage that fails by itself, where none passes from there on. None:
    there is none."""
    contradiction: tuple[float, float] | None = None
    """(lowest level with a stage that fails by itself, highest level with one that passes), where
    that is not lower."""

    @property
    def value(self) -> float | None:
        """The median. None: it is below the lowest level."""
        return self._highest(HALF)

    @property
    def low(self) -> float | None:
        """The low end of its 95 % interval. None: it may be below the lowest level."""
        return self._highest(1 - TAIL)

    @property
    def high(self) -> float | None:
        """The high end of its 95 % interval. None: it is certainly below the lowest level."""
        return self._highest(TAIL)

    def limit_to(self, passing: Sequence[float]) -> "CapacityEstimate":
        """``passing`` has the levels with a stage that passes by itself. Above the highest of them,
        a capacity requires a level that fails above; it then lies between the two."""
        if self.low is None and self.reaches_top:
            return msgspec.structs.replace(self, passed=False)
        likely = self.chance_of(min(self.measured_to, self.levels[-1])) >= HALF
        if self.fails_from is not None or not likely:
            return self
        if not passing:
            return msgspec.structs.replace(self, passed=False)
        return msgspec.structs.replace(self, measured_to=min(self.measured_to, max(passing)))

    def bound(self, known: "StageProofs") -> "CapacityEstimate":
        """What single stages show for certain holds for the interval as well."""
        lowest = min(known.failing, default=math.inf)
        below = [level for level in known.proven if level < lowest]
        above = [level for level in known.failing if level > max(known.lasting, default=0.0)]
        highest = max(known.passing, default=0.0)
        return msgspec.structs.replace(
            self,
            measured_to=max((self.measured_to, *below)),
            passes_to=max(below, default=0.0),
            fails_from=min(above, default=None),
            contradiction=(lowest, highest) if lowest <= highest else None,
        )

    def chance_of(self, level: float) -> float:
        """The probability that the capacity is this level or more."""
        return self.chances[self.levels.index(level)] if level in self.levels else 0.0

    @property
    def safe(self) -> float | None:
        """The next level below, or the low end of the interval where that is lower. None: there is
        none."""
        if self.value is None or self.low is None:
            return None
        below = [level for level in self.levels if level < self.value]
        return min(self.low, below[-1]) if below else None

    @property
    def is_open(self) -> bool:
        """The rules certainly hold at all levels that were measured, or requested."""
        return self.low == min(self.levels[-1], self.measured_to)

    @property
    def reaches_top(self) -> bool:
        """The capacity may lie above the range, or above all measured levels."""
        if self.fails_from is not None:
            return False
        above = [
            chance
            for level, chance in zip(self.levels, self.chances, strict=True)
            if level > self.measured_to
        ]
        return (above or self.chances[-1:])[0] > TAIL

    @property
    def probably_fails(self) -> float | None:
        """The highest measured level, where the rules probably, but not certainly, fail there, and
        higher ones are requested. None: they do not."""
        is_inside = self.measured_to < self.levels[-1]
        likely = self.chance_of(self.measured_to) < HALF
        return self.measured_to if self.reaches_top and is_inside and likely else None

    @property
    def is_narrow(self) -> bool:
        """Nothing is left to find: the interval is one level, or two neighbours."""
        if self.low is None or self.high is None:
            return self.high is None
        inside = [level for level in self.levels if self.low <= level <= self.high]
        return len(inside) <= 2 and not (self.reaches_top and self.low < self.levels[-1])

    def predict_interval(self, times: float) -> tuple[float, float] | None:
        """The likely interval after a search of so many times as long. None: it does not have two
        ends that could come nearer."""
        low, value, high = self.low, self.value, self.high
        if low is None or value is None or high is None or self.reaches_top:
            return None
        share = 1 / math.sqrt(times)
        ends = (value * (end / value) ** share for end in (low, high))
        least, most = (
            min(self.levels, key=lambda level: abs(math.log(level / end))) for end in ends
        )
        return least, most

    def format_interval(self, unit: str) -> str:
        """``10 to 14 users``, ``at least 32 users``, ``at most 2 users``, ``below 1 user``."""
        if self.high is None:
            return f"below {format_load(self.levels[0], unit)}"
        if self.low is not None and self.is_open:
            return f"at least {format_load(self.low, unit)}"
        high = f"{format_load(self.high, unit)}{' or more' * self.reaches_top}"
        if self.low == self.high:
            return high
        if self.low is None:
            return f"at most {high}"
        return f"{format_load(self.low)} to {high}"

    def _highest(self, chance: float) -> float | None:
        """The highest measured level that the capacity reaches with this probability, and with what
        single stages show for certain."""
        # a level that certainly fails leaves the capacity below it, in proportion to its chances
        above = 0.0 if self.fails_from is None else self.chance_of(self.fails_from)
        reached = [
            level
            for level, known in zip(self.levels, self.chances, strict=True)
            if known - above >= chance * (1 - above) and level <= self.measured_to
        ]
        if self.passes_to and (not reached or reached[-1] < self.passes_to):
            return self.passes_to
        possible = [
            level for level in reached if self.fails_from is None or level < self.fails_from
        ]
        return possible[-1] if possible else None


def fails_at_lowest(
    estimate: CapacityEstimate | None, stages: Sequence[StageEvidence], lowest: float
) -> bool:
    """No requested level holds all rules: the capacity is certainly below the lowest one, and
    LOWEST_VISITS stages at that level fail by themselves. One stage may have met a single stall."""
    if estimate is None or estimate.high is not None:
        return False
    failing = [
        stage for stage in leave_out_silences(stages) if stage.level == lowest and stage.fails
    ]
    return len(failing) >= LOWEST_VISITS


def format_load(level: float, unit: str = "") -> str:
    """``12 users``, ``1 user``, ``3.47 requests/s``."""
    number = format_plain_number(level) if level == int(level) else format_brief(level, digits=3)
    what, per, time = unit.partition("/")
    one = what.removesuffix("s") if level == 1 else what
    return f"{number} {one}{per}{time}".strip()


class SearchStage(NamedTuple):
    """The next stage of a search."""

    level: float
    at_least_s: float
    at_most_s: float
    """The seconds for which it is measured, after its first wave."""
    requests: int = 0
    """It may end with so many requests before ``at_most_s``."""


class StageTime(NamedTuple):
    """The time of a finished stage."""

    level: float
    measured_s: float
    whole_s: float
    """The time with its waves and its report."""
    silent: bool = False
    """The server answered nothing for a while during the measurement."""


def select_shown(done: Sequence[StageTime]) -> list[StageTime]:
    """The stages without single silent visits: their levels are visited again."""
    single = find_single_silences((stage.level, stage.silent) for stage in done)
    return [stage for stage in done if not stage.silent or stage.level not in single]


def list_levels(low: float, high: float, *, whole: bool) -> tuple[float, ...]:
    """The possible capacities: from ``low`` to ``high`` in steps of FINEST. For whole levels, a
    step is at least 1."""
    levels = [low]
    while levels[-1] < high:
        raised = float(f"{levels[-1] * (1 + FINEST):.4g}")
        levels.append(float(max(int(levels[-1]) + 1, round(raised))) if whole else raised)
    return (*levels[:-1], high) if len(levels) > 1 else (low,)


def choose_level(
    estimate: CapacityEstimate | None,
    done: Sequence[float],
    levels: Sequence[float],
    long: Sequence[float] = (),
) -> float:
    """The level of the next stage. ``done`` has the levels of the stages so far, ``long`` those of
    the long ones.

    It goes up until a level is likely too high. Then it alternates between the middle of the
    possible range, and a level on one side of it: the side without a long stage, or towards the
    farther end of the interval.
    """
    if estimate is None or not done:
        return levels[0]
    highest = max(done)
    if estimate.chance_of(highest) > UNLIKELY and highest < levels[-1]:
        above = [level for level in levels if highest < level <= highest * MOST_GROWTH]
        likely = [level for level in above if estimate.chance_of(level) > UNLIKELY]
        if above and estimate.value is None:
            return above[-1]  # doubtful only, perhaps of few requests: a bracket tells more
        return (likely or above or [level for level in levels if level > highest])[
            -1 if likely else 0
        ]
    turn = len(done) % 2
    unsure = [level for level in levels if TAIL < estimate.chance_of(level) < 1 - TAIL]
    if not unsure:  # it is checked from both sides
        return levels[0] if estimate.value is None else _next_to(levels, estimate.value, turn)
    middle = min(unsure, key=lambda level: abs(estimate.chance_of(level) - HALF))
    if not turn:
        return middle
    low, high = unsure[0], unsure[-1]
    safe = [level for level in unsure if estimate.chance_of(level) >= LIKELY]
    known = any(low <= level and estimate.chance_of(level) >= HALF for level in long)
    whole = all(level == int(level) for level in unsure)  # a stage of rates begins without a queue
    if safe and whole and not known:
        return safe[-1]
    farther = high if high * low > middle * middle else low
    between = middle * (farther / middle) ** ASIDE
    return min(unsure, key=lambda level: abs(math.log(level / between)))


def _next_to(levels: Sequence[float], level: float, steps: int) -> float:
    return levels[min(levels.index(level) + steps, len(levels) - 1)]


def plan_stage(
    estimate: CapacityEstimate | None,
    done: Sequence[StageTime],
    levels: Sequence[float],
    left_s: float,
    total_s: float,
) -> SearchStage | None:
    """The next stage of a search with a bound in time, of which ``left_s`` are left. None: there is
    no time for one."""
    shown = select_shown(done)
    timed = shown or done
    long_s = LONG * max((stage.measured_s for stage in shown), default=0.0)
    long = [stage.level for stage in shown if stage.measured_s >= long_s]
    level = choose_level(estimate, [stage.level for stage in shown], levels, long)
    shortest_s = CLIMB_SHARE * total_s
    if timed and left_s < _predict_waves_s(timed, level) + shortest_s:
        lower = _choose_shorter(estimate, timed, levels, left_s - shortest_s, level)
        if lower is None:
            return None
        level = lower
    waves_s = _predict_waves_s(timed, level)
    highest = max((stage.level for stage in shown), default=0.0)
    # of rates there is seldom a level at exactly twice the highest
    doubled = level * (1 + 2 * FINEST) > MOST_GROWTH * highest
    if doubled or not timed[-1].measured_s:
        shortest_s = max(shortest_s, min(waves_s, CLIMB_MOST * shortest_s))
        most_s = max(left_s - waves_s, shortest_s)
        return SearchStage(
            level, min(shortest_s, most_s), min(CLIMB_MOST * shortest_s, most_s), CLIMB_REQUESTS
        )
    wished_s = max(total_s / SEARCH_STAGES, waves_s * MIN_MEASURED / (1 - MIN_MEASURED))
    more = max(1, round(left_s / (wished_s + waves_s)))
    measured_s = max(left_s / more - waves_s, shortest_s / 2)
    return SearchStage(level, measured_s / 4, measured_s, NEVER_ENOUGH)


def _choose_shorter(
    estimate: CapacityEstimate | None,
    done: Sequence[StageTime],
    levels: Sequence[float],
    most_s: float,
    below: float,
) -> float | None:
    """The highest open level below this one whose waves take at most so long. None: there is
    none."""
    if estimate is None:
        return None
    fitting = [
        level
        for level in levels
        if level < below
        and TAIL < estimate.chance_of(level) < 1 - TAIL
        and _predict_waves_s(done, level) <= most_s
    ]
    return fitting[-1] if fitting else None


def plan_unbounded_stage(
    estimate: CapacityEstimate | None,
    done: Sequence[float],
    levels: Sequence[float],
    duration_s: tuple[float, float],
    requests: int,
) -> SearchStage | None:
    """The next stage of a search without a bound in time. None: nothing is left to find.

    ``done`` has the levels of the stages so far. ``duration_s`` has the least and the most seconds
    of each stage.
    """
    if estimate is not None and (estimate.is_narrow or len(done) >= MOST_STAGES):
        return None
    level = choose_level(estimate, done, levels)
    climbs = all(stage < level for stage in done)
    return SearchStage(level, *duration_s, CLIMB_REQUESTS if climbs else requests)


def _predict_waves_s(done: Sequence[StageTime], level: float) -> float:
    """The time of a stage beside its measured part, from the latest stage and the one with
    the nearest level above, in proportion to the load."""
    if not done:
        return 0.0
    above = [stage for stage in done if stage.level >= level]
    nearest = min(above or done, key=lambda stage: abs(math.log(stage.level / level)))
    return max(_scale_waves_s(nearest, level), _scale_waves_s(done[-1], level))


def _scale_waves_s(stage: StageTime, level: float) -> float:
    spent_s = max(stage.whole_s - stage.measured_s, 0.0)
    return spent_s * min(max(level / stage.level, 1.0), MOST_GROWTH)
