"""Stage settling: what the stages of a search say, each of which began with an idle server. Figures
may rise while a stage lasts, as where the users of a closed loop fall into step with one another.
In an open loop close to saturation a queue builds up slowly: at the rate r of a server that answers
s a second it takes about 1 / (sqrt(s) - sqrt(r))^2 seconds (the relaxation time of M/M/1; Morse,
Queues, Inventories and Maintenance, 1958), and varies as slowly later."""

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.slo.capacity_search import LONG, RuleEvidence, StageEvidence

LEAST_RISE: Final = 0.1
"""The least logarithm of a rise. A smaller one does not matter."""
UNSETTLED: Final = 0.1
"""Where values rise in other stages, and not in this one, they settled at once; with this
probability they have not begun to rise."""
MIN_ERRORS: Final = 3.0
"""A rise by so many standard errors is no chance."""

QUEUE_TIMES: Final = 3.0
"""After so many relaxation times a queue has its final length."""


class Rise(NamedTuple):
    """The rise of the values of one rule within the long stages."""

    rule: str
    factor: float
    """The factor from before the values of a stage settle to after it."""
    long_s: float
    """Shorter stages saw only the begin of the rise."""
    whole: float
    """The logarithm of the factor from the begin of a stage to its settled part."""


def find_rise(rule: str, stages: Sequence[StageEvidence]) -> Rise | None:
    """None: there is no rise, or it does not matter."""
    long_s = LONG * max((stage.measured_s for stage in stages), default=0.0)
    long_stages = [stage.rules for stage in stages if stage.measured_s >= long_s]
    known = [
        evidence
        for evidence in chain.from_iterable(long_stages)
        if evidence.rule == rule and evidence.rise_error > 0
    ]
    if not known:
        return None
    rise = fmean(evidence.rise for evidence in known)
    errors = sum(evidence.rise / evidence.rise_error for evidence in known) / math.sqrt(len(known))
    if rise < LEAST_RISE or errors < MIN_ERRORS:
        return None
    whole = [
        max(evidence.settled.excess - evidence.begin, 0.0)
        for evidence in known
        if evidence.settled is not None and evidence.settled.allowed is None
    ]
    return Rise(rule, math.exp(rise), long_s, fmean(whole or [rise]))


def weigh_rises(stages: Sequence[StageEvidence]) -> list[StageEvidence]:
    """What the stages show about their rules. If a rule's values rise, the settled part of each long
    stage counts. A shorter stage counts fully only where it breaks the rule, as it would break it
    more later. Elsewhere its value may be as much higher as those of long stages become."""
    every = chain.from_iterable(stage.rules for stage in stages)
    names = dict.fromkeys(evidence.rule for evidence in every)
    rises = {name: find_rise(name, stages) for name in names}
    weighed = list[StageEvidence]()
    for stage in stages:
        own = tuple(
            kept
            for evidence in stage.rules
            if (kept := _weigh_rise(stage, evidence, rises[evidence.rule])) is not None
        )
        if own:
            weighed.append(replace(stage, rules=own))
    return weighed


def _weigh_rise(
    stage: StageEvidence, evidence: RuleEvidence, rise: Rise | None
) -> RuleEvidence | None:
    if rise is None:
        return evidence
    if stage.measured_s < rise.long_s:
        if _is_broken(evidence):
            return evidence
        if evidence.allowed is not None:
            return None
        return replace(evidence, later=rise.whole, unsettled=1.0, count=0.0)
    if evidence.settled is None:
        return evidence
    kept = replace(
        evidence.settled,
        passes=evidence.passes,
        figure=evidence.figure,
        weight=evidence.weight,
    )
    if kept.allowed is None and kept.excess - evidence.begin < rise.whole / 2:
        kept = replace(kept, later=rise.whole, unsettled=UNSETTLED)
    return kept


def _is_broken(evidence: RuleEvidence) -> bool:
    if evidence.allowed is None:
        return evidence.excess > 0
    return evidence.beyond > evidence.allowed


def select_shares(stages: Sequence[StageEvidence]) -> list[StageEvidence]:
    """What the stages show by their requests beyond the limit alone. Of a queue that still grows
    no percentile is that of a longer stage."""
    return [replace(stage, rules=tuple(map(_select_share, stage.rules))) for stage in stages]


def _select_share(evidence: RuleEvidence) -> RuleEvidence:
    if evidence.share is None:
        return evidence
    settled = evidence.settled
    return replace(
        evidence.share,
        passes=evidence.passes,
        fails=evidence.fails,
        figure=evidence.figure,
        rise=evidence.rise,
        rise_error=evidence.rise_error,
        settled=None if settled is None else settled.share or settled,
    )


def weigh_queues(stages: Sequence[StageEvidence]) -> list[StageEvidence]:
    """The stages of an open loop show little where they ended before a queue had built up. Where
    the server kept up with every rate, nothing is known of that."""
    saturated = [stage for stage in stages if stage.saturated_at is not None]
    seconds = sum(stage.measured_s for stage in saturated)
    if not seconds:
        return list(stages)
    most_per_s = (
        sum((stage.saturated_at or 0.0) * stage.measured_s for stage in saturated) / seconds
    )
    return [_weigh_queue(stage, most_per_s) for stage in stages]


def _weigh_queue(stage: StageEvidence, most_per_s: float) -> StageEvidence:
    if stage.saturated_at is not None:
        return stage
    room = max(math.sqrt(most_per_s) - math.sqrt(stage.level), 0.0)
    weight = min(stage.measured_s * room * room / QUEUE_TIMES, 1.0) ** 2
    return replace(stage, rules=tuple(replace(rule, weight=weight) for rule in stage.rules))
