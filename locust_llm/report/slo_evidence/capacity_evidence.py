"""Capacity evidence: how likely the rules hold at each level, from all of its stages together.

What a rule asks about changes in one direction along the load: the more users, the more requests
are beyond the limit. So each stage says something about all levels. Its ``excess`` at a level is
the logarithm of a value's share of the limit, times MEAN_SCALE (of a share of requests, the
log-odds of one beyond the limit over those that are allowed): the rule holds where that is at most
0. Over the levels, from the lowest to the highest, the excess rises by a slope that is never
negative, is about the same from one level to the next, and may change at any level, as where a
server is full. All of that is a chain whose states are (excess, slope), so that the chances of each
level follow exactly from all stages (Rabiner, A tutorial on hidden Markov models, Proceedings of
the IEEE 77, 1989). A stage counts as the error of its value says, or its effective sample size;
stages of one level differ by more than that, by one of SPREADS, which the stages that come back to
a level show.
"""

import math
from collections.abc import Sequence, Set
from functools import lru_cache
from operator import mul
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from locust_llm.report.array_types import Floats
from locust_llm.slo.capacity_search import (
    MEAN_SCALE,
    CapacityEstimate,
    CapacitySearch,
    RuleEvidence,
    StageEvidence,
    StageProofs,
    leave_out_silences,
)
from locust_llm.slo.rules import Rule

from .server_disturbance import find_disturbance, weigh_disturbances
from .stage_settling import find_rise, select_shares, weigh_queues, weigh_rises

EXCESS: Final = np.linspace(-9.0, 9.0, 181)
"""The grid of log-odds."""
STEP: Final = float(EXCESS[1] - EXCESS[0])
SCALED_ERROR: Final = 2.0
"""The least error of a single request's value, in log-odds, that the grid shows well."""
MOST_SCALE: Final = 60.0
HALF: Final = 0.5
SLOPES: Final = np.geomspace(0.3, 300.0, 14)
"""The slopes of the excess, for each factor of e in the load."""
FLAT: Final = 1.2
"""A slope below this is FLAT_WEIGHT times as likely as another one. Past its full use a server's
latency grows as the load does, and its log-odds faster."""
FLAT_WEIGHT: Final = 0.3
DOUBTFUL: Final = 0.3
"""The probability that a rule is broken at the lowest level, over the probability that it holds."""
ANEW: Final = 0.3
"""The rate at which the slope changes to another one, for each factor of e in the load."""
WANDERS: Final = 0.6
"""The change of its logarithm beside that (standard deviation over a factor of e)."""
SPREADS: Final = {0.03: 0.75, 0.15: 0.17, 0.4: 0.06, 1.0: 0.02}
"""The standard deviations of a level's excess from stage to stage, with their probabilities."""
MORE: Final = 1.0
"""The error by which the geometric mean is too low."""
NEAR: Final = 0.2
"""Correlation is about the same within so many factors of e in the load."""
FREEDOM: Final = 8.0
"""The freedom of Student's t for the error of a stage's value."""


def find_capacity(search: CapacitySearch, rules: Sequence[Rule]) -> CapacityEstimate | None:
    """The capacity for these rules, by the stages of a search. None: they show nothing about the
    rules."""
    names = {str(rule) for rule in rules}
    own = [_select_rules(stage, names) for stage in leave_out_silences(search.stages)]
    if not search.whole:
        own = weigh_queues(select_shares(own))
    evidence = weigh_disturbances(rules, weigh_rises(own))
    found = estimate_capacity(search.levels, evidence)
    if found is None:
        return None
    known = _find_proofs(own, rules)
    return found.bound(known).limit_to(known.passing)


def _find_proofs(stages: Sequence[StageEvidence], rules: Sequence[Rule]) -> StageProofs:
    """What single stages show for certain, whatever the others do."""
    rises = [rise for rule in rules if (rise := find_rise(str(rule), stages)) is not None]
    long_s = max((rise.long_s for rise in rises), default=0.0)
    passing = [stage for stage in stages if stage.passes]

    def lasts(stage: StageEvidence) -> bool:
        return stage.measured_s >= long_s and all(rule.weight >= 1 for rule in stage.rules)

    lasting = [stage.level for stage in passing if lasts(stage)]
    proven = [] if rises else lasting
    if any(find_disturbance(rule, weigh_rises(stages)) for rule in rules):
        doubtful = {stage.level for stage in stages if not stage.passes}
        proven = [level for level in proven if level not in doubtful]
    failing = list[float]()
    for rule in rules:
        failing += [level for level, evidence in _select(str(rule), stages) if evidence.fails]
    return StageProofs(
        failing=failing,
        passing=[stage.level for stage in passing],
        lasting=lasting,
        proven=proven,
    )


def _select_rules(stage: StageEvidence, names: Set[str]) -> StageEvidence:
    return replace(stage, rules=tuple(one for one in stage.rules if one.rule in names))


def estimate_capacity(
    levels: Sequence[float], stages: Sequence[StageEvidence]
) -> CapacityEstimate | None:
    """``levels`` are the possible capacities. None: no stage shows anything about a rule."""
    names: dict[str, None] = {}
    for stage in stages:
        names.update(dict.fromkeys(rule.rule for rule in stage.rules))
    selected = {name: _select(name, stages) for name in names}
    chances = np.ones(len(levels))
    first = ""
    least = 2.0
    for name, known in selected.items():
        if not known:
            continue
        own = compute_chances(levels, known)
        if (middle := float(own.sum())) < least * len(levels):
            first = name
            least = middle / len(levels)
        chances = chances * own
    if not first:
        return None
    return CapacityEstimate(
        levels=tuple(levels),
        chances=tuple(chances.tolist()),
        rule=first,
        measured_to=max(stage.level for stage in stages),
    )


def _select(name: str, stages: Sequence[StageEvidence]) -> list[tuple[float, RuleEvidence]]:
    """What the stages show about one rule."""
    known: list[tuple[float, RuleEvidence]] = []
    for stage in stages:
        known += ((stage.level, rule) for rule in stage.rules if rule.rule == name)
    if not known or not known[0][1].needs_load:
        return known
    best, evidence = min(known, key=lambda pair: pair[1].excess)
    highest = max(level for level, _ in known)
    if best == highest and evidence.excess > 0:
        return []  # throughput still rises, and may reach the limit above
    return [(level, rule) for level, rule in known if level >= best]


def compute_chances(levels: Sequence[float], known: Sequence[tuple[float, RuleEvidence]]) -> Floats:
    """The probability that a rule holds at each level, and below."""
    points = np.array(sorted({*levels, *(level for level, _ in known)}))
    known = _pool_errors(_pool_inflation(known))
    scale = _choose_scale(known)
    found, weights = [], []
    for spread, weight in SPREADS.items():
        logs = np.zeros((len(points), len(EXCESS)))
        for level, evidence in known:
            place = int(np.searchsorted(points, level))
            logs[place] += _log_likelihood(evidence, spread, scale)
        chances, evidence_log = _smooth(points, logs)
        found.append(chances)
        weights.append(math.log(weight) + evidence_log)
    share = np.exp(np.array(weights) - max(weights))
    mixed = (share / share.sum()) @ np.array(found)
    mixed = np.minimum.accumulate(mixed)
    own: Floats = mixed[np.searchsorted(points, np.array(levels))]
    return own


def _pool_inflation(
    known: Sequence[tuple[float, RuleEvidence]],
) -> list[tuple[float, RuleEvidence]]:
    """The evidence with the mean inflation of near levels. Requests of near levels are about
    equally correlated, and a short stage shows badly how much."""
    shown = [(level, rule.count, rule.inflation) for level, rule in known if 0 < rule.beyond < 1]
    pooled = []
    for level, rule in known:
        if 0 < rule.beyond < 1:
            weights = [
                count * math.exp(-abs(math.log(other / level)) / NEAR) for other, count, _ in shown
            ]
            logs = [math.log(inflation) for _, _, inflation in shown]
            mean = sum(map(mul, weights, logs)) / sum(weights)
            rule = replace(rule, inflation=MORE * math.exp(mean))
        pooled.append((level, rule))
    return pooled


def _pool_errors(known: Sequence[tuple[float, RuleEvidence]]) -> list[tuple[float, RuleEvidence]]:
    """The evidence on percentiles with the mean errors of near levels, for the same reason."""
    shown = [(level, rule) for level, rule in known if rule.count and rule.error_above]
    below = [math.log(rule.error * math.sqrt(rule.count)) for _, rule in shown]
    above = [math.log(rule.error_above * math.sqrt(rule.count)) for _, rule in shown]
    pooled = []
    for level, rule in known:
        if rule.count and rule.error_above:
            weights = [
                other.count * math.exp(-abs(math.log(near / level)) / NEAR) for near, other in shown
            ]
            root = math.sqrt(rule.count)
            rule = replace(
                rule,
                error=math.exp(sum(map(mul, weights, below)) / sum(weights)) / root,
                error_above=math.exp(sum(map(mul, weights, above)) / sum(weights)) / root,
            )
        pooled.append((level, rule))
    return pooled


def _choose_scale(known: Sequence[tuple[float, RuleEvidence]]) -> float:
    """The log-odds for each factor of e in a value. They change faster where the values of requests
    are all about the same, as of a time between tokens: then a percentile is known well."""
    shown = [rule for _, rule in known if rule.count and rule.error_above]
    if not shown:
        return MEAN_SCALE
    logs = [math.log(rule.error * rule.error_above * rule.count) / 2 for rule in shown]
    counts = [rule.count for rule in shown]
    of_one = math.exp(sum(map(mul, counts, logs)) / sum(counts))
    return min(max(MEAN_SCALE, SCALED_ERROR / of_one), MOST_SCALE)


def _log_likelihood(evidence: RuleEvidence, spread: float, scale: float) -> Floats:
    """The log-likelihood of each excess."""
    if evidence.allowed is None:
        logs: Floats = _log_value_likelihood(evidence, scale)
    else:
        odds = math.log(evidence.allowed / (1 - evidence.allowed))
        size = evidence.weight * evidence.count / evidence.inflation
        some = evidence.beyond * size
        logs = -some * np.logaddexp(0, -(EXCESS + odds)) - (size - some) * np.logaddexp(
            0, EXCESS + odds
        )
    logs = logs - logs.max()
    likely = _spread_matrix(max(spread, evidence.spread * scale / MEAN_SCALE)) @ np.exp(logs)
    return np.log(np.maximum(likely, 1e-12))


def _log_value_likelihood(evidence: RuleEvidence, scale: float) -> Floats:
    """Of a value that a stage shows: it is the true one but for its error, or is still lower."""
    above = evidence.error_above or evidence.error
    likely = (1 - evidence.unsettled) * _density(evidence, above, scale)
    if evidence.unsettled:
        wide = math.hypot(above, evidence.later)
        likely = likely + evidence.unsettled * _density(evidence, wide, scale)
    logs: Floats = np.log(likely)
    return logs


def _density(evidence: RuleEvidence, error_above: float, scale: float) -> Floats:
    """The probability density of the excess of a stage, for each true one, up to a factor."""
    # a broken limit beyond the grid is at its end: to Student's t all of the grid is equally far
    shown = min(evidence.excess, float(EXCESS[-1]) / scale)
    off = EXCESS / scale - shown
    error = max(evidence.error, 1e-3)
    off = off * math.sqrt(evidence.weight) / np.where(off > 0, error_above, error)
    density: Floats = (1 + off * off / FREEDOM) ** (-(FREEDOM + 1) / 2) / (error + error_above)
    return density


@lru_cache(maxsize=8)
def _spread_matrix(spread: float) -> Floats:
    off: Floats = (EXCESS[:, None] - EXCESS[None, :]) / spread
    rows = np.exp(-off * off / 2)
    matrix: Floats = rows / rows.sum(axis=1, keepdims=True)
    return matrix


def _smooth(points: Floats, logs: Floats) -> tuple[Floats, float]:
    """(the chance of an excess of at most 0 at each level, the logarithm of how well this explains
    the stages)."""
    likely = np.exp(logs - logs.max(axis=1, keepdims=True))
    total = float(logs.max(axis=1).sum())
    prior = np.where(EXCESS <= 0, 1.0, DOUBTFUL)
    state = np.outer(prior / prior.sum(), _weigh_slopes())
    moves = [_move(float(step)) for step in np.diff(np.log(points))]
    forward = []
    for place in range(len(points)):
        if place:
            mixing, low, share = moves[place - 1]
            state = state @ mixing
            state = _shift(state, low, share)
        state = state * likely[place][:, None]
        size = state.sum()
        total += math.log(size)
        state = state / size
        forward.append(state)
    back = np.ones_like(state)
    chances = np.empty(len(points))
    within = np.clip(HALF - EXCESS / STEP, 0.0, 1.0)[:, None]
    for place in reversed(range(len(points))):
        both = forward[place] * back
        chances[place] = (within * both).sum() / both.sum()
        if place:
            mixing, low, share = moves[place - 1]
            back = _pull(back * likely[place][:, None], low, share) @ mixing.T
            back = back / back.max()
    return chances, total


def _weigh_slopes() -> Floats:
    weights = np.where(SLOPES < FLAT, FLAT_WEIGHT, 1.0)
    weighed: Floats = weights / weights.sum()
    return weighed


Move = tuple[Floats, NDArray[np.int64], Floats]


@lru_cache(maxsize=4096)
def _move(step: float) -> Move:
    """A step to the next level, whose logarithm is ``step`` higher: (how slopes change, how many
    whole STEPs each slope raises the excess, and the share of a STEP beyond)."""
    size = len(SLOPES)
    ratio = math.log(SLOPES[1] / SLOPES[0])
    parts = max(1, math.ceil(step / 0.1))
    aside = (WANDERS / ratio) ** 2 * step / parts / 2
    small = np.eye(size) * (1 - 2 * aside) + aside * (np.eye(size, k=1) + np.eye(size, k=-1))
    small[0, 0] += aside
    small[-1, -1] += aside
    kept = math.exp(-ANEW * step)
    mixing: Floats = kept * np.linalg.matrix_power(small, parts) + (1 - kept) * _weigh_slopes()
    raised = SLOPES * step / STEP
    low = np.floor(raised).astype(np.int64)
    share = np.asarray(raised - low, np.float64)
    return mixing, low, share


def _indices(low: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = np.arange(len(EXCESS))[:, None] + low
    last = len(EXCESS) - 1
    return np.minimum(rows, last), np.minimum(rows + 1, last)


def _pull(after: Floats, low: NDArray[np.int64], share: Floats) -> Floats:
    """The expectation of each state before, from the states after it."""
    near, far = _indices(low)
    pulled: Floats = (1 - share) * np.take_along_axis(after, near, 0) + share * np.take_along_axis(
        after, far, 0
    )
    return pulled


def _shift(before: Floats, low: NDArray[np.int64], share: Floats) -> Floats:
    """The excess after each slope has raised it. What would be above the highest stays there."""
    near, far = _indices(low)
    columns = np.broadcast_to(np.arange(before.shape[1]), before.shape)
    flat = (near * before.shape[1] + columns).ravel(), (far * before.shape[1] + columns).ravel()
    weights = ((1 - share) * before).ravel(), (share * before).ravel()
    shifted = np.zeros(before.size)
    for place, weight in zip(flat, weights, strict=True):
        shifted += np.bincount(place, weight, before.size)
    return shifted.reshape(before.shape)
