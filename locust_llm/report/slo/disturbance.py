"""Disturbance between the visits of a search to one level: what changed at the server or beside it
from one to the next, beyond the errors of their figures. It makes the capacity less known."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.report.rows import LoadLevel
from locust_llm.report.slo.capacity import MEAN_SCALE
from locust_llm.slo.capacity import RuleEvidence, StageEvidence
from locust_llm.slo.intervals import NORMAL_REACH
from locust_llm.slo.rules import Rule, SloResult

MIN_TREND: Final = 3
"""Visits of which each is worse than the one before: the earlier ones are about another server."""


class Visit(NamedTuple):
    """A stage of a level that has others, with the figure of a rule and its interval."""

    number: int
    result: SloResult
    low: float
    value: float
    high: float


class Disturbance(NamedTuple):
    """Visits to one level whose intervals do not overlap."""

    level: float
    visits: tuple[Visit, ...]
    """In the order of time."""
    worsens: bool
    """From each to the next."""

    @property
    def spread(self) -> float:
        """Standard deviation, in log-odds, beyond the errors. What got worse with each visit may go
        on as far."""
        if self.worsens:
            drift = abs(math.log(self.visits[-1].value / self.visits[0].value))
            return MEAN_SCALE * drift
        known = pvariance(math.log(visit.value) for visit in self.visits)
        error = fmean(
            math.log(visit.high / visit.low) / (2 * NORMAL_REACH) for visit in self.visits
        )
        return MEAN_SCALE * math.sqrt(max(known - error * error, 0.0))

    @property
    def ends(self) -> tuple[SloResult, SloResult]:
        """The results with the lowest and the highest figure."""
        ordered = sorted(self.visits, key=lambda visit: visit.value)
        return ordered[0].result, ordered[-1].result


def find_disturbance(rule: Rule, levels: Iterable[LoadLevel]) -> Disturbance | None:
    """The largest one of a rule; None: visits to no level differ by more than their errors."""
    visits = defaultdict[float, list[Visit]](list)
    for level in sorted(levels, key=lambda level: level.number):
        for result in level.slos:
            visit = _make_visit(level.number, result)
            if visit is not None and result.rule == str(rule):
                visits[level.value].append(visit)
    found = list[Disturbance]()
    for value, own in visits.items():
        if len(own) > 1 and max(visit.low for visit in own) > min(visit.high for visit in own):
            found.append(Disturbance(value, tuple(own), _worsens(rule, own)))
    return max(found, key=lambda one: one.spread, default=None)


def _make_visit(number: int, result: SloResult) -> Visit | None:
    low, value, high = result.low, result.observed, result.high
    if low is None or value is None or high is None or result.voided:
        return None
    if not 0 < low <= value <= high or math.isinf(high):
        return None
    return Visit(number, result, low, value, high)


def _worsens(rule: Rule, visits: Sequence[Visit]) -> bool:
    values = [visit.value if rule.op.startswith("<") else -visit.value for visit in visits]
    rises = all(after > before for before, after in pairwise(values))
    return len(values) >= MIN_TREND and rises


def collect_stage_evidence(
    rules: Sequence[Rule], levels: Sequence[LoadLevel]
) -> list[StageEvidence]:
    """What all stages say about these rules, as far as no disturbance makes it doubtful."""
    disturbed = {str(rule): find_disturbance(rule, levels) for rule in rules}
    collected = list[StageEvidence]()
    for level in levels:
        if level.evidence is not None:
            own = tuple(_select(level, level.evidence.rules, disturbed))
            if own:
                collected.append(replace(level.evidence, rules=own))
    return collected


def _select(
    level: LoadLevel, rules: Sequence[RuleEvidence], disturbed: dict[str, Disturbance | None]
) -> Iterator[RuleEvidence]:
    for evidence in rules:
        if evidence.rule not in disturbed:
            continue
        one = disturbed[evidence.rule]
        if one is None:
            yield evidence
            continue
        outdated = one.worsens and level.value == one.level
        if not outdated or level.number >= one.visits[-1].number:
            yield replace(evidence, spread=one.spread)
