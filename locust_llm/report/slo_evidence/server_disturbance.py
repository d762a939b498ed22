"""Disturbance between the visits of a search to one level: what changed at the server or beside it
from one to the next, beyond the errors of their figures. It makes the capacity less known."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.slo.binomial_intervals import NORMAL_REACH
from locust_llm.slo.capacity_search import MEAN_SCALE, RuleEvidence, StageEvidence
from locust_llm.slo.rules import Rule

MIN_TREND: Final = 3
"""If each of so many visits is worse than the one before, the earlier ones describe another
server."""


class Visit(NamedTuple):
    """A stage of a level that has others, with the value of a rule and its interval."""

    number: int
    low: float
    value: float
    high: float


class Disturbance(NamedTuple):
    """Visits to one level whose intervals do not overlap."""

    level: float
    visits: tuple[Visit, ...]
    """The visits in the order of time."""
    worsens: bool
    """Each visit is worse than the one before."""

    @property
    def spread(self) -> float:
        """The standard deviation in log-odds beyond the errors. What got worse with each visit may
        go on as far."""
        if self.worsens:
            drift = abs(math.log(self.visits[-1].value / self.visits[0].value))
            return MEAN_SCALE * drift
        known = pvariance(math.log(visit.value) for visit in self.visits)
        error = fmean(
            math.log(visit.high / visit.low) / (2 * NORMAL_REACH) for visit in self.visits
        )
        return MEAN_SCALE * math.sqrt(max(known - error * error, 0.0))

    @property
    def extremes(self) -> tuple[Visit, Visit]:
        """(visit with the lowest value, visit with the highest value)."""
        ordered = sorted(self.visits, key=lambda visit: visit.value)
        return ordered[0], ordered[-1]


def find_disturbance(rule: Rule, stages: Sequence[StageEvidence]) -> Disturbance | None:
    """The largest disturbance of a rule. None: visits to no level differ by more than their
    errors."""
    visits = defaultdict[float, list[Visit]](list)
    for stage in sorted(stages, key=lambda stage: stage.number):
        for evidence in stage.rules:
            if evidence.rule == str(rule) and evidence.figure is not None:
                visits[stage.level].append(Visit(stage.number, *evidence.figure))
    found = list[Disturbance]()
    for level, own in visits.items():
        if len(own) > 1 and max(visit.low for visit in own) > min(visit.high for visit in own):
            found.append(Disturbance(level, tuple(own), _worsens(rule, own)))
    return max(found, key=lambda one: one.spread, default=None)


def _worsens(rule: Rule, visits: Sequence[Visit]) -> bool:
    values = [visit.value if rule.op.startswith("<") else -visit.value for visit in visits]
    rises = all(after > before for before, after in pairwise(values))
    return len(values) >= MIN_TREND and rises


def weigh_disturbances(
    rules: Sequence[Rule], stages: Sequence[StageEvidence]
) -> list[StageEvidence]:
    """What the stages show about these rules, without evidence that a disturbance makes
    doubtful."""
    disturbed = {str(rule): find_disturbance(rule, stages) for rule in rules}
    weighed = list[StageEvidence]()
    for stage in stages:
        own = tuple(_select(stage, disturbed))
        if own:
            weighed.append(replace(stage, rules=own))
    return weighed


def _select(
    stage: StageEvidence, disturbed: dict[str, Disturbance | None]
) -> Iterator[RuleEvidence]:
    for evidence in stage.rules:
        if evidence.rule not in disturbed:
            continue
        one = disturbed[evidence.rule]
        if one is None:
            yield evidence
            continue
        outdated = one.worsens and stage.level == one.level
        if not outdated or stage.number >= one.visits[-1].number:
            yield replace(evidence, spread=one.spread)
