"""Reduce requests: finds the few requests that a random fault needs, by delta debugging (ddmin: Zeller
and Hildebrandt, Simplifying and isolating failure-inducing input, 2002).

It leaves out chunks of the requests, ever smaller ones, as long as the fault still appears. Tries
without it prove nothing: so many are made that a fault with the odds seen so far would be missed in
at most 5 % of the cases. A try with it may be luck, where a set has far lower odds than the one
before. So the fault must appear twice, unless its odds are so low that this would take too long.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from locust_llm.slo.binomial_intervals import TAIL, binomial_shares

MISSED: Final = 0.05
"""The share of the steps in which the fault may be missed."""
FIRST_HITS: Final = 3
"""The odds are known well enough to begin with so many tries with the fault."""
GIVE_UP_TRIES: Final = 299
"""So many tries without the fault show odds of at most 1 %."""
TWICE_ODDS: Final = 0.25
"""From these odds on, a smaller set must show the fault twice."""
MIN_TRIES: Final = 3
MAX_TRIES: Final = 59
"""Fewer and more tries than these are made in no step."""
RECENT_HITS: Final = 8
"""The odds are those of the last tries up to so many hits, as a smaller set may have other odds."""


class Odds(NamedTuple):
    """In how many tries of a set the fault appeared."""

    hits: int
    tries: int

    @property
    def ends(self) -> tuple[float, float]:
        """The 95 % interval of the odds. Without a hit, it is one-sided."""
        if not self.tries:
            return 0.0, 1.0
        if not self.hits:
            return 0.0, find_upper_odds(self.tries)
        return binomial_shares(self.hits, self.tries, TAIL, TAIL)


def find_upper_odds(tries: int) -> float:
    """The odds of a fault that as many tries miss in 5 % of the cases."""
    return 1 - math.exp(math.log(MISSED) / tries)


def count_needed_tries(odds: float) -> int:
    """So many tries miss a fault with these odds in at most 5 % of the cases."""
    if odds >= 1 - MISSED:
        return MIN_TRIES
    if odds <= 0:
        return MAX_TRIES
    tries = math.ceil(math.log(MISSED) / math.log(1 - odds))
    return max(MIN_TRIES, min(MAX_TRIES, tries))


class SearchEnded(Exception):
    """No more tries can be made: the time is over, or the server is gone."""


class TriedSet(NamedTuple):
    """A set of requests that was tried."""

    requests: int
    tries: int
    hits: int

    def __str__(self) -> str:
        size = "1 request" if self.requests == 1 else f"{self.requests} requests"
        tries = "1 try" if self.tries == 1 else f"{self.tries} tries"
        if self.hits:
            return f"{size}: the fault appeared in {self.hits} of {tries}"
        return f"{size}: no fault in {tries}"


class RequestReducer:
    """One search: ``try_all``, then ``leave_out``."""

    def __init__(
        self,
        count: int,
        try_once: Callable[[Sequence[int]], bool],
        report: Callable[[TriedSet], object] = lambda step: None,
        *,
        least: int = 1,
    ) -> None:
        """``try_once`` replays requests, by their places, and returns whether the fault appeared. It
        raises SearchEnded. ``least``: no set is smaller, 0 or 1."""
        self.requests: tuple[int, ...] = tuple(range(count))
        """The smallest set so far in which the fault appeared."""
        self.tries = 0
        self.steps = 0
        self._try_once, self._report, self._least = try_once, report, least
        self._tries_per_hit = deque[int](maxlen=RECENT_HITS)

    def try_all(self, most: int = GIVE_UP_TRIES) -> Odds:
        """Tries all requests, until the odds are known or so many tries were without a hit."""
        hits = tries = since = 0
        try:
            while hits < FIRST_HITS and (hits or tries < most):
                found = self._try(self.requests)
                tries += 1
                since += 1
                if found:
                    hits += 1
                    self._tries_per_hit.append(since)
                    since = 0
        except SearchEnded:
            pass
        return Odds(hits, tries)

    def leave_out(self) -> bool:
        """Leaves out requests as long as the fault appears. Returns whether no request can be left
        out any more; False: the search ended before."""
        try:
            self._leave_out()
        except SearchEnded:
            return False
        return True

    def _try(self, requests: Sequence[int]) -> bool:
        found = self._try_once(requests)
        self.tries += 1
        return found

    @property
    def _odds(self) -> float:
        """One try more than there were keeps few tries from showing certainty."""
        return len(self._tries_per_hit) / (1 + sum(self._tries_per_hit))

    def _leave_out(self) -> None:
        """Halves first, as long as one half suffices, then ever smaller chunks."""
        if not self._least and self.requests and self._shows_fault(()):
            self.requests = ()
        chunks = 2
        while len(self.requests) > self._least:
            before = len(self.requests)
            size = math.ceil(before / chunks)
            self._leave_out_chunks(size)
            is_smaller = len(self.requests) < before
            if size == 1 and not is_smaller:
                return
            if not is_smaller or chunks > 2:
                chunks = 2 * chunks
            chunks = max(1, min(chunks, len(self.requests)))

    def _leave_out_chunks(self, size: int) -> None:
        """Tries to do without each chunk of this size in turn, the earliest requests first."""
        begin = 0
        while begin < len(self.requests):
            rest = self.requests[:begin] + self.requests[begin + size :]
            if rest and self._shows_fault(rest):
                self.requests = rest
            else:
                begin += size

    def _shows_fault(self, requests: Sequence[int]) -> bool:
        needed = count_needed_tries(self._odds)
        hits = 2 if self._odds >= TWICE_ODDS else 1
        tries_per_hit = list[int]()
        tries = 0
        while len(tries_per_hit) < hits and tries < needed:
            tries += 1
            if self._try(requests):
                tries_per_hit.append(tries)
                tries = 0
        self.steps += 1
        found = len(tries_per_hit) == hits
        if found:
            self._tries_per_hit += tries_per_hit
        self._report(TriedSet(len(requests), sum(tries_per_hit) + tries, len(tries_per_hit)))
        return found
