"""Looks: when a run that goes on until its rules are decided is judged, and what that does to its intervals."""

from typing import Final

STEP: Final = 1.5
"""Each look comes after so many times the time of the one before."""


def look_times(first_s: float | None, most_s: float | None) -> tuple[float, ...]:
    """Seconds from the start of profiling: the first look, then each STEP times as late, the last one at ``most_s``. A run
    that is judged once, at its end, has one; without a length there is none.

    Each look may be the one that is wrong, so each gets an equal part of the tails (Bonferroni): an interval of one of K
    looks holds the truth in 1 - 0.05 / K, all of them together in 95 %.
    """
    if not first_s:
        return ()
    times = [first_s]
    while most_s is not None and times[-1] < most_s:
        times.append(min(times[-1] * STEP, most_s))
    if len(times) > 2 and times[-1] < times[-2] * 1.1:  # hardly longer than the one before
        del times[-2]
    return tuple(times)
