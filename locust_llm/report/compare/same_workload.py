"""Same workload: what a load asks of a server, and whether two loads ask for the same. The one rule
of all comparisons: a difference between loads of other work says nothing about the servers, so none
is given."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from locust_llm.text.format import format_brief

MAX_LENGTH_DIFFERENCE: Final = 0.02
"""Share of the shorter mean length; what differs by more, and by more than chance, is other
work."""
BETWEEN_TOOLS: Final = 0.05
"""The same where two load testers counted: their tokenizers differ, and not all count the chat
template."""
MAX_ERRORS: Final = 2.0
"""Standard errors; what differs by no more is chance."""
MAX_ERRORS_OF_SAME_SETTINGS: Final = 4.0
"""The same where both runs drew their lengths by the same settings: those are the same work, unless
chance cannot explain the means."""
ASKED_FOR: Final = " asked for"
"""Behind the name of a length, what was asked for beside what came of it."""


class LengthStatistics(NamedTuple):
    """The mean length of the requests in tokens, and its error."""

    mean: float
    error: float = 0.0
    """Standard error of the mean; 0 where it is not known."""


class RunWork(NamedTuple):
    model: str
    """Empty: not known."""
    lengths: Mapping[str, LengthStatistics | None]
    """By name; None: not known. What came is judged only where one of two loads does not say what
    it asked for."""
    counted_by: str = ""
    """The load tester; empty: ours."""
    drawn_by: tuple[object, ...] = ()
    """The settings by which the lengths were drawn; empty: not known."""


class WorkDifference(NamedTuple):
    """One way in which two loads differ."""

    what: str
    base: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} {self.here} for {self.base}"


def lengths_differ(
    base: LengthStatistics,
    here: LengthStatistics,
    most: float = MAX_LENGTH_DIFFERENCE,
    most_errors: float = MAX_ERRORS,
) -> bool:
    """Whether two lengths differ by more than ``most``, a share, and by more than chance: so many
    standard errors."""
    off = abs(here.mean - base.mean)
    chance = most_errors * math.hypot(base.error, here.error)
    return off > most * min(base.mean, here.mean) and off > chance


def choose_max_errors(base: tuple[object, ...], here: tuple[object, ...]) -> float:
    """By how many standard errors mean lengths may differ by chance, from the settings by which
    each run drew them; empty: not known."""
    return MAX_ERRORS_OF_SAME_SETTINGS if base and base == here else MAX_ERRORS


def is_judged_by_requested(
    what: str,
    base: Mapping[str, LengthStatistics | None],
    here: Mapping[str, LengthStatistics | None],
) -> bool:
    """Whether both know what was asked for: what came of it says nothing more about the work."""
    return all(lengths.get(what + ASKED_FOR) is not None for lengths in (base, here))


def find_work_differences(base: RunWork, here: RunWork) -> list[WorkDifference]:
    """In what the work of both differs; empty: they had the same to do. What one of them does not
    say is no reason."""
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
