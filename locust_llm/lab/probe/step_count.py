"""Step count: in which of a decoder's gaps the server computed a prompt beside it.

A *step* of the server gives each decoder one token, so these gaps count the steps. The count does
not depend on the length of a step, and noise in time hardly changes it. While the server receives
and tokenizes a prompt, decoders go on: so where gaps are much longer than those before, only the
long ones count.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Final

LONG_STEP_RATIO: Final = 9.0
"""Typical gap beside a prompt / gap before it, above which a step is at least two gaps long."""
DISTINCT_STEP_RATIO: Final = 30.0
"""The same ratio, above which the geometric mean of both separates steps from other gaps."""
MIN_HOLE_RATIO: Final = 3.0
"""Between neighbours in order of length, a hole that separates steps from other gaps too,"""
MAX_QUIET_RATIO: Final = 2.5
"""if all gaps below it are quiet: at most this many times the usual gap."""
MIN_SLOWDOWN: Final = 1.1
"""Typical gap beside a prompt / quiet gap, above which the begin of the prefill can be found."""
MIN_FIRST_STEP_RATIO: Final = 1.15
"""Gap / quiet gap of a first step, which is shorter than the later ones, as those attend to all
tokens before them."""
MIN_CLEAR_STEP_RATIO: Final = 1.5
"""Typical step / quiet gap, above which steps differ clearly from quiet gaps."""
MIN_FULL_SHARE: Final = 0.5
"""Tokens computed in a gap / those of a usual step, below which it is no full step."""
MAX_PAUSE_SHARE: Final = 1 / 3
"""A gap / the first step, below which it is no step: a first step is a third of the second one or
more, even where all of their time is attention."""
MERGED_GAP_RATIO: Final = 0.05
"""Gap / usual gap, below which two chunks came together, on the network or in this client."""


def split_coalesced_gaps(gaps: Sequence[float], quiet_s: float) -> list[float]:
    """Chunks that came together had one step each, so the time since the one before is divided
    evenly."""
    shared: list[list[float]] = []
    for gap in gaps:
        if gap < MERGED_GAP_RATIO * quiet_s and shared:
            shared[-1].append(gap)
        else:
            shared.append([gap])
    return [fmean(some) for some in shared for _ in some]


def find_step_threshold(
    gaps: Sequence[float], quiet_s: float, heavy_s: float
) -> tuple[float, bool]:
    """(seconds above which a gap beside a prompt is a step, 0 if unknown; whether steps are
    distinct). ``gaps``: of all decoders; ``heavy_s``: a gap that is a step, if most of the time
    went into steps."""
    for below, above in pairwise(sorted([quiet_s, *(gap for gap in gaps if gap > quiet_s)])):
        if (
            above > MIN_HOLE_RATIO * below
            and below < MAX_QUIET_RATIO * quiet_s
            and above <= heavy_s
        ):
            return math.sqrt(below * above), True
    if heavy_s > DISTINCT_STEP_RATIO * quiet_s:
        return math.sqrt(heavy_s * quiet_s), True
    return (2 * quiet_s if heavy_s > LONG_STEP_RATIO * quiet_s else 0.0), False


def select_step_gaps(gaps: Sequence[float], quiet_s: float, least_s: float) -> list[float]:
    """The gaps of a decoder in which the server computed the prompt: those longer than ``least_s``;
    where that is 0, all from the first one on that is not quiet."""
    usual_s = median(gaps) if gaps else 0.0
    first_s = max(least_s, MIN_FIRST_STEP_RATIO * quiet_s)
    slowed = usual_s > MIN_SLOWDOWN * quiet_s or least_s
    begin = next((i for i, gap in enumerate(gaps) if gap > first_s), 0) if slowed else 0
    return [gap for gap in gaps[begin:] if gap > least_s]


def count_certain_steps(steps: Sequence[float], quiet_s: float) -> int:
    """Steps that are none by mistake: while a server tokenizes a long prompt, decoders keep their
    pace, and noise hides where that ends. Two quiet gaps in a row are no steps, unless steps are
    hardly longer."""
    if not steps or median(steps) < MIN_CLEAR_STEP_RATIO * quiet_s:
        return len(steps)
    quietly = [gap <= MIN_FIRST_STEP_RATIO * quiet_s for gap in steps]
    last = max((i for i, both in enumerate(pairwise(quietly), 2) if all(both)), default=0)
    return len(steps) - last


def drop_steps_before_pause(steps: Sequence[float], sent_in_s: float) -> Sequence[float]:
    """Steps without a pause before them: without the gap of ``sent_in_s`` in which the prompt was
    sent, if it is far shorter than the next one. It began before the prompt was sent, so the server
    was still busy with what it had before."""
    paused = len(steps) > 1 and steps[0] == sent_in_s and steps[0] < MAX_PAUSE_SHARE * steps[1]
    return steps[1:] if paused else steps


def count_doubtful_steps(
    steps: Sequence[float], sent_in_s: float, curve: Sequence[tuple[float, float]]
) -> int:
    """Gaps that were counted as steps, and may be pauses: the one in which the prompt was sent;
    and, apart from the last, those in which too few tokens of the prompt can have been computed, as
    a scheduler fills each step but the last. ``curve``: (tokens, seconds) of prompts alone, up to
    this one, both rising from (0, 0)."""
    stretch = curve[-1][1] / sum(steps)
    done = [0.0, *(_computed(stretch * end_s, curve) for end_s in accumulate(steps))]
    each = [after - before for before, after in pairwise(done)]
    usual = time_weighted_median(each)
    return sum(
        tokens < MIN_FULL_SHARE * usual or (i == 0 and steps[0] == sent_in_s)
        for i, tokens in enumerate(each[:-1])
    )


def _computed(seconds: float, curve: Sequence[tuple[float, float]]) -> float:
    """Tokens of a prompt after so much of its time, linear between those known."""
    for (few, soon_s), (many, late_s) in pairwise(curve):
        if seconds < late_s:
            return few + (many - few) * (seconds - soon_s) / (late_s - soon_s)
    return curve[-1][0]


def time_weighted_median(gaps: Sequence[float]) -> float:
    """The median gap weighted by time: gaps of this length and above make half of the time."""
    left = sum(gaps) / 2
    for gap in sorted(gaps, reverse=True):
        left -= gap
        if left <= 0:
            return gap
    return 0.0
