"""Limit block lengths: how long a block at a prefill limit must be, by how long a request takes; and
how long a comparison of limits must be for the fewest rounds that give a conclusion."""

import math
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from locust_llm.text.format import format_duration

from .best_prefill_limit import LEAST_ROUNDS, SHORT_TTFT

WARM_BLOCK_S: Final = 2.0
"""The seconds of the first blocks, which count nowhere, until so many requests have ended:"""
WARM_REQUESTS: Final = 30
WARM_SHARE: Final = 0.2
"""The first blocks take at most this share of the run's time."""
SETTLE: Final = 0.5
"""How long a block settles, as a share of the p95 of request latency."""
BLOCK: Final = (3.0, 9.0)
"""The least and the most mean length of a block, in multiples of that p95."""
MIN_REQUESTS: Final = 5.0
"""A block has at least so many due requests."""
SPREAD: Final = 0.5
"""A block's length differs from the mean by at most this share of it."""
MIN_SETTLE_S: Final = 0.5
ADVISED: Final = re.compile(r"use at least -t \d+s, or fewer limits$")


class BlockLengths(NamedTuple):
    """The seconds of a block."""

    settle_s: float
    tail_s: float
    """Its end, whose requests do not count, as the next block may change them."""
    least_s: float
    """The least mean of the counted part."""
    most_s: float

    @property
    def beside_s(self) -> float:
        """What does not count."""
        return self.settle_s + self.tail_s


def find_block_lengths(
    latency_s: float, *, objective: str, first_s: float = 0.0, rate_per_s: float = 0.0
) -> BlockLengths:
    """``latency_s`` and ``first_s``: the p95 of request latency and of TTFT. ``rate_per_s``: of the
    requests; 0: not known."""
    latency_s = max(MIN_SETTLE_S, latency_s)
    settle_s = max(MIN_SETTLE_S, SETTLE * latency_s)
    tail_s = latency_s
    if objective == SHORT_TTFT:  # then only first tokens are waited for
        tail_s = min(latency_s, max(MIN_SETTLE_S, first_s))
    beside_s = settle_s + tail_s
    least_s, most_s = (max(latency_s, times * latency_s - beside_s) for times in BLOCK)
    if rate_per_s:
        least_s = max(least_s, MIN_REQUESTS / rate_per_s)
    return BlockLengths(settle_s, tail_s, least_s, max(most_s, least_s))


def find_shortest_comparison_s(limits: int, lengths: BlockLengths) -> float:
    """One first block, then the fewest rounds with the shortest blocks."""
    block_s = lengths.beside_s + (1 - SPREAD) * lengths.least_s
    return WARM_BLOCK_S + LEAST_ROUNDS * limits * block_s


def find_usual_comparison_s(limits: int, lengths: BlockLengths) -> float:
    """The fewest rounds with blocks of the least mean length, after all the first blocks."""
    return LEAST_ROUNDS * limits * (lengths.beside_s + lengths.least_s) / (1 - WARM_SHARE)


UNKNOWN_TIME: Final = "use a longer run (-t), or fewer limits"


def advise_run_time(needed_s: float, run_time_s: float) -> str:
    """``use at least -t 55s, or fewer limits``: whole seconds, more than the run had."""
    at_least_s = max(math.ceil(needed_s), math.floor(run_time_s) + 1)
    return f"use at least -t {at_least_s}s, or fewer limits"


def find_advised_run_time(notes: Iterable[str]) -> str:
    """The last advice that a run gave itself by ``explain_short_comparison``. Empty: none."""
    found = [match[0] for note in notes if (match := ADVISED.search(note))]
    return found[-1] if found else ""


def explain_short_comparison(
    limits: int, run_time_s: float, latency_s: float, lengths: BlockLengths
) -> str:
    """Why a comparison of that length cannot name the best limit. Empty: it may. ``latency_s``: 0
    where it is not known."""
    if run_time_s >= find_shortest_comparison_s(limits, lengths):
        return ""
    advice = advise_run_time(find_usual_comparison_s(limits, lengths), run_time_s)
    each = f" with requests of {format_duration(latency_s)}" if latency_s else ""
    return (
        f"-t {run_time_s:g} is too short to name the best of {limits} prefill limits, which takes "
        f"{LEAST_ROUNDS} rounds{each}: {advice}"
    )
