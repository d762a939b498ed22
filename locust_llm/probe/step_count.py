"""Steps: which of the gaps that a decoder has beside a prompt are those in which the server computed it.

A *step* of the server gives each decoder one token, so these gaps count the steps. That count needs no idea of how long a
step is, and noise in time hardly changes it. Before the server begins with a prompt it receives it and makes tokens of it,
and decoders go on meanwhile: so where gaps are much longer than those before, only the long ones count.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

MUCH: Final = 9.0
"""Where gaps beside a prompt are usually so many times as long as before, one of less than twice those is none of them."""
PLAINLY: Final = 30.0
"""Where they are so many times as long, a line half way (of their logarithms) parts them."""
HOLE: Final = 3.0
"""So does a hole between the two, from one gap to the next longer one that is so many times as long,"""
QUIETLY: Final = 2.5
"""if all below it are quiet ones, which are up to so many times as long as usual."""
SLOWED: Final = 1.1
"""Usual gaps beside a prompt, in quiet ones, from which on it shows where it began."""
FIRST: Final = 1.15
"""Times a quiet gap from which on one is of a step: the first steps of a prompt are shorter than the later ones, which
read all that is before them."""
UNLIKE: Final = 1.5
"""Usual steps, in quiet gaps, from which on one can tell them from those."""
SAME: Final = 0.05
"""A gap of less than this share of a usual one: two chunks came together, on their way or to this client."""


def evened(gaps: Sequence[float], quiet_s: float) -> list[float]:
    """Chunks that came together had a step each: they share the time since the one before them."""
    shared: list[list[float]] = []
    for gap in gaps:
        if gap < SAME * quiet_s and shared:
            shared[-1].append(gap)
        else:
            shared.append([gap])
    return [fmean(some) for some in shared for _ in some]


def threshold(gaps: Sequence[float], quiet_s: float, weighty_s: float) -> tuple[float, bool]:
    """(what a gap beside a prompt must be longer than to be a step, 0 where nobody knows; whether that is plain). ``gaps``:
    of all decoders; ``weighty_s``: one that is a step, if most of the time went into steps."""
    for below, above in pairwise(sorted([quiet_s, *(gap for gap in gaps if gap > quiet_s)])):
        if above > HOLE * below and below < QUIETLY * quiet_s and above <= weighty_s:
            return math.sqrt(below * above), True
    if weighty_s > PLAINLY * quiet_s:
        return math.sqrt(weighty_s * quiet_s), True
    return (2 * quiet_s if weighty_s > MUCH * quiet_s else 0.0), False


def counted(gaps: Sequence[float], quiet_s: float, least_s: float) -> list[float]:
    """Those of a decoder's gaps in which the server computed the prompt: all that are longer than ``least_s``; where that is
    0, from the first one on that is no quiet one."""
    usual_s = median(gaps) if gaps else 0.0
    first_s = max(least_s, FIRST * quiet_s)
    slowed = usual_s > SLOWED * quiet_s or least_s
    begin = next((i for i, gap in enumerate(gaps) if gap > first_s), 0) if slowed else 0
    return [gap for gap in gaps[begin:] if gap > least_s]


def surely(steps: Sequence[float], quiet_s: float) -> int:
    """A server that is slow to make tokens of a long prompt lets decoders go on at their pace, and noise hides where that
    ends; two such gaps in a row are hardly steps, unless steps are hardly longer."""
    if not steps or median(steps) < UNLIKE * quiet_s:
        return len(steps)
    quietly = [gap <= FIRST * quiet_s for gap in steps]
    last = max((i for i, both in enumerate(pairwise(quietly), 2) if all(both)), default=0)
    return len(steps) - last


def weighty(gaps: Sequence[float]) -> float:
    """The gap of which and above half of the time is made: the median by time, which neither many short ones nor one
    long one moves."""
    left = sum(gaps) / 2
    for gap in sorted(gaps, reverse=True):
        left -= gap
        if left <= 0:
            return gap
    return 0.0
