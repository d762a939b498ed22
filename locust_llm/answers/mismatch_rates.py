"""Mismatch rates: how often a server's answers to reference prompts differ from its idle answers, in
each situation that is known to break servers.

A server may differ from itself in some prompts and not in others, or where it streams. So the test
compares only answers to the same prompt, asked in the same way: given how many of them differ, chance
decides which ones, idle or loaded. It is Fisher's exact test in strata, exact for any mix of prompts.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from locust_llm.slo.binomial_intervals import TAIL, binomial_shares

from .compare_answers import NEAR_TIE, UNKNOWN, WIDE, ComparedAnswer
from .reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer
from .reference_prompts import SCHEMA, TOOL

CROWDED: Final = 2
"""From so many requests in flight on, an answer is made in a crowd."""
BESIDE_S: Final = 1.0
"""A request that ended so long before an answer began may still disturb it."""
IDLE_SERVER: Final = "idle"
LOADED_SERVER: Final = "under load"
AFTER: Final = "after the load"


class MismatchRate(msgspec.Struct, frozen=True, kw_only=True):
    """The answers in one situation, compared with the idle answers."""

    situation: str
    answers: int
    wide: int = 0
    """Mismatches with a wide margin."""
    unknown: int = 0
    """Mismatches whose margin the server does not give: possible ones."""
    near_ties: int = 0
    """Differences that rounding explains. They do not count."""
    low: float
    high: float
    """The 95 % interval of the rate."""
    p: float | None = None
    """How likely so many mismatches are by chance if the rate is the idle one. None: there is no
    idle rate."""

    @property
    def mismatches(self) -> int:
        return self.wide + self.unknown

    @property
    def rate(self) -> float:
        return self.mismatches / self.answers


class RequestEnds:
    """The times at which requests of the load were cancelled, say, in Unix seconds."""

    def __init__(self, times: Iterable[float] = ()) -> None:
        self._times = sorted(times)

    def touch(self, answer: ReferenceAnswer) -> bool:
        """Whether one fell into the time of the answer, or shortly before it."""
        next_one = bisect_left(self._times, answer.sent_at - BESIDE_S)
        return next_one < len(self._times) and self._times[next_one] <= answer.ended_at


def compute_mismatch_rates(
    compared: Sequence[ComparedAnswer],
    cancelled: RequestEnds | None = None,
    retried: RequestEnds | None = None,
) -> tuple[MismatchRate, ...]:
    """The rates of all situations with answers: idle first, then under load, then its parts."""
    idle = [one for one in compared if one.answer.asked == IDLE]
    rates = [_count(IDLE_SERVER, idle, ())] if idle else []
    for name, belongs in _list_situations(cancelled or RequestEnds(), retried or RequestEnds()):
        chosen = [one for one in compared if belongs(one.answer)]
        if chosen:
            rates.append(_count(name, chosen, idle))
    return tuple(rates)


def find_rate(rates: Iterable[MismatchRate], situation: str) -> MismatchRate | None:
    """None: there was no answer in this situation."""
    return next((rate for rate in rates if rate.situation == situation), None)


def _list_situations(
    cancelled: RequestEnds, retried: RequestEnds
) -> Iterator[tuple[str, Callable[[ReferenceAnswer], bool]]]:
    """Each situation with its test. Its answers were asked under load, but for the last one's."""

    def under_load(belongs: Callable[[ReferenceAnswer], bool]) -> Callable[[ReferenceAnswer], bool]:
        return lambda answer: answer.asked == UNDER_LOAD and belongs(answer)

    yield LOADED_SERVER, under_load(lambda answer: True)
    yield "crowded", under_load(lambda answer: answer.in_flight >= CROWDED)
    yield "cold prefix cache", under_load(lambda answer: answer.cached_tokens == 0)
    yield "warm prefix cache", under_load(lambda answer: bool(answer.cached_tokens))
    yield "streamed", under_load(lambda answer: answer.streamed)
    yield "not streamed", under_load(lambda answer: not answer.streamed)
    yield "tool call", under_load(lambda answer: answer.kind == TOOL)
    yield "JSON schema", under_load(lambda answer: answer.kind == SCHEMA)
    yield "next to a cancelled request", under_load(cancelled.touch)
    yield "next to a retried request", under_load(retried.touch)
    yield AFTER, lambda answer: answer.asked == AFTER_LOAD


def _count(
    name: str, compared: Sequence[ComparedAnswer], idle: Sequence[ComparedAnswer]
) -> MismatchRate:
    """``idle``: the answers to test against. Empty: there is no test."""
    sizes = [one.difference.size for one in compared if one.difference is not None]
    wide = sizes.count(WIDE)
    unknown = sizes.count(UNKNOWN)
    low, high = binomial_shares(wide + unknown, len(compared), TAIL, TAIL)
    return MismatchRate(
        situation=name,
        answers=len(compared),
        wide=wide,
        unknown=unknown,
        near_ties=sizes.count(NEAR_TIE),
        low=low,
        high=high,
        p=compute_strata_p(_group(compared, idle)) if idle else None,
    )


class PromptStratum(NamedTuple):
    """The answers to one prompt of one server, asked in one way."""

    hits: int
    answers: int
    """The mismatches in the situation, of so many."""
    idle_hits: int
    idle_answers: int


def _group(
    compared: Iterable[ComparedAnswer], idle: Iterable[ComparedAnswer]
) -> list[PromptStratum]:
    counts: defaultdict[tuple[str, int, bool], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for place, group in ((0, compared), (2, idle)):
        for one in group:
            answer = one.answer
            stratum = counts[answer.server, answer.prompt, answer.streamed]
            stratum[place] += one.difference is not None and one.difference.is_mismatch
            stratum[place + 1] += 1
    return [PromptStratum(*stratum) for stratum in counts.values()]


def compute_strata_p(strata: Iterable[PromptStratum]) -> float:
    """The probability of at least so many hits in the situation, if in each stratum all hits fell
    by chance on its answers, idle or not (Fisher's exact test, one-sided)."""
    total = 0
    chances = [1.0]
    for stratum in strata:
        total += stratum.hits
        chances = _add_chances(chances, _list_chances(stratum))
    return min(1.0, sum(chances[total:]))


def _list_chances(stratum: PromptStratum) -> list[float]:
    """The probability of 0, 1, 2 and so on of its hits among the answers in the situation."""
    hits = stratum.hits + stratum.idle_hits
    ways = math.comb(stratum.answers + stratum.idle_answers, hits)
    return [
        math.comb(stratum.answers, k) * math.comb(stratum.idle_answers, hits - k) / ways
        for k in range(min(hits, stratum.answers) + 1)
    ]


def _add_chances(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The chances of the sum of two independent counts."""
    sums = [0.0] * (len(one) + len(other) - 1)
    for a, chance in enumerate(one):
        for b, other_chance in enumerate(other):
            sums[a + b] += chance * other_chance
    return sums
