"""Same workload: what a load asks of a server, and whether two loads ask for the same.

One rule holds for all comparisons: a difference between loads of other work shows nothing about the
servers, so none is given.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from locust_llm.text.format import format_brief

MAX_LENGTH_DIFFERENCE: Final = 0.02
"""The share of the shorter mean length. A difference above it, and above chance, is other work."""
BETWEEN_TOOLS: Final = 0.05
"""The same where two load testers counted: their tokenizers differ, and not all count the chat
template."""
MAX_ERRORS: Final = 2.0
"""A difference of fewer standard errors is chance."""
MAX_ERRORS_OF_SAME_SETTINGS: Final = 4.0
"""The same where both runs drew their lengths by the same settings. These are the same work, unless
chance cannot explain the means."""
ASKED_FOR: Final = " asked for"
"""The suffix for a requested length, beside the length that came of it."""


class LengthStatistics(NamedTuple):
    """The mean length of the requests in tokens, and its error."""

    mean: float
    error: float = 0.0
    """The standard error of the mean; 0 where it is not known."""


class RunWork(NamedTuple):
    model: str
    """Empty: not known."""
    lengths: Mapping[str, LengthStatistics | None]
    """The lengths by name. None: not known. A length that came is judged only where one of the
    loads has no requested length."""
    counted_by: str = ""
    """The load tester. Empty: this program."""
    drawn_by: tuple[object, ...] = ()
    """The settings by which the lengths were drawn. Empty: not known."""


class WorkDifference(NamedTuple):
    """One way in which two loads differ."""

    what: str
    base: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} {self.here} instead of {self.base}"


def lengths_differ(
    base: LengthStatistics,
    here: LengthStatistics,
    most: float = MAX_LENGTH_DIFFERENCE,
    most_errors: float = MAX_ERRORS,
) -> bool:
    """Whether two lengths differ by more than the share ``most`` and by more than ``most_errors``
    standard errors."""
    off = abs(here.mean - base.mean)
    chance = most_errors * math.hypot(base.error, here.error)
    return off > most * min(base.mean, here.mean) and off > chance


def choose_max_errors(base: tuple[object, ...], here: tuple[object, ...]) -> float:
    """How many standard errors mean lengths may differ by chance, from the settings by which each
    run drew them. Empty: not known."""
    return MAX_ERRORS_OF_SAME_SETTINGS if base and base == here else MAX_ERRORS


def is_judged_by_requested(
    what: str,
    base: Mapping[str, LengthStatistics | None],
    here: Mapping[str, LengthStatistics | None],
) -> bool:
    """Whether both requested lengths are known. Then the length that came shows nothing more about
    the work."""
    return all(lengths.get(what + ASKED_FOR) is not None for lengths in (base, here))


def find_work_differences(base: RunWork, here: RunWork) -> list[WorkDifference]:
    """The differences of the work. Empty: both had the same to do. An unknown value is no
    difference."""
    most = MAX_LENGTH_DIFFERENCE if base.counted_by == here.counted_by else BETWEEN_TOOLS
    most_errors = choose_max_errors(base.drawn_by, here.drawn_by)
    differences = (
        [WorkDifference("model", base.model, here.model)]
        if base.model and here.model and base.model != here.model
        else []
    )
    for what, a in base.lengths.items():
        b = here.lengths.get(what)
        if is_judged_by_requested(what, base.lengths, here.lengths):
            continue
        if a is not None and b is not None and lengths_differ(a, b, most, most_errors):
            differences.append(
                WorkDifference(what, f"{format_brief(a.mean)} on average", format_brief(b.mean))
            )
    return differences
