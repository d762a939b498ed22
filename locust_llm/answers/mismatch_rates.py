"""Mismatch rates: how often a server's answers to reference prompts differ from its idle answers, in
each situation that is known to break servers.

Answers to one prompt are alike, but each prompt is asked as often idle as under load, in turn. So
without an effect of the load both have the same expected rate. Different prompts only make the
counts more even than chance, and the test is on the safe side.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

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
    idle = _count(IDLE_SERVER, [one for one in compared if one.answer.asked == IDLE], None)
    rates = [] if idle is None else [idle]
    for name, belongs in _list_situations(cancelled or RequestEnds(), retried or RequestEnds()):
        chosen = [one for one in compared if belongs(one.answer)]
        if (rate := _count(name, chosen, idle)) is not None:
            rates.append(rate)
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
    yield "beside a cancelled request", under_load(cancelled.touch)
    yield "beside a retried request", under_load(retried.touch)
    yield AFTER, lambda answer: answer.asked == AFTER_LOAD


def _count(
    name: str, compared: Sequence[ComparedAnswer], idle: MismatchRate | None
) -> MismatchRate | None:
    """None: there are no answers."""
    if not compared:
        return None
    sizes = [one.difference.size for one in compared if one.difference is not None]
    wide, unknown = sizes.count(WIDE), sizes.count(UNKNOWN)
    low, high = binomial_shares(wide + unknown, len(compared), TAIL, TAIL)
    p = None
    if idle is not None:
        p = fisher_tail(wide + unknown, len(compared), idle.mismatches, idle.answers)
    return MismatchRate(
        situation=name,
        answers=len(compared),
        wide=wide,
        unknown=unknown,
        near_ties=sizes.count(NEAR_TIE),
        low=low,
        high=high,
        p=p,
    )


def fisher_tail(hits: int, of: int, other_hits: int, of_others: int) -> float:
    """The probability of at least so many hits among ``of`` if all hits fell by chance on either
    group (Fisher's exact test, one-sided)."""
    drawn = hits + other_hits
    most = min(drawn, of)
    all_ways = math.comb(of + of_others, drawn)
    ways = sum(math.comb(of, k) * math.comb(of_others, drawn - k) for k in range(hits, most + 1))
    return ways / all_ways
