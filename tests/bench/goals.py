"""Goals: checks whether reported times are close enough to true ones, and whether the verdict
reflects it."""

from collections.abc import Sequence
from typing import NamedTuple

# streams of 50 tokens a second: how far TTFT p50, TTFT p99 and gap p99 may be from the truth.
# Absolute in ms, or a share of the truth in per cent; None: no goal
GOALS = (
    (200, ("0.1 ms", "0.5 ms", "0.3 ms")),
    (800, ("0.2 ms", "2 ms", "0.5 ms")),
    (1500, ("2 %", "10 %", None)),
)
FIGURES = ("TTFT p50", "TTFT p99", "gap p99")


class Off(NamedTuple):
    """Holds the error of one figure, and its limit in ms. ``goal_ms`` None: there is no goal."""

    what: str
    by_ms: float
    goal_ms: float | None

    @property
    def missed(self) -> bool:
        return self.goal_ms is not None and abs(self.by_ms) > self.goal_ms

    @property
    def well_met(self) -> bool:
        """Returns whether the error is within half of the goal."""
        return self.goal_ms is None or abs(self.by_ms) <= self.goal_ms / 2

    def __str__(self) -> str:
        return (
            f"{self.by_ms:+.2f}"
            if self.goal_ms is None
            else f"{self.by_ms:+.2f} of {self.goal_ms:.3g}"
        )


def offs(streams: int, said_ms: Sequence[float], true_ms: Sequence[float]) -> list[Off]:
    """Returns the error of each of FIGURES. A number of streams without goals of its own has the
    goals of the next larger one."""
    goals = next((goals for most, goals in GOALS if streams <= most), GOALS[-1][1])
    found = []
    for what, said, true, goal in zip(FIGURES, said_ms, true_ms, goals, strict=True):
        number, _, unit = goal.partition(" ") if goal else ("", "", "")
        limit = float(number) * (true / 100 if unit == "%" else 1) if number else None
        found.append(Off(what, said - true, limit))
    return found


def goals_met(streams: int, found: Sequence[Off], verdict: str | None) -> str:
    """Returns ``met``, ``missed``, or ``INVALID said``. Above 800 streams a run may miss its goals
    if it reports that."""
    if not any(off.missed for off in found):
        return "met"
    return "INVALID said" if streams > 800 and verdict == "INVALID" else "missed"


def rule_kept(found: Sequence[Off], verdict: str | None) -> str:
    """Returns ``kept``, or how the rule was broken. A run that misses a goal must be below OK, and
    a run within half of all goals must not."""
    if verdict is None:
        return "no verdict"
    if any(off.missed for off in found) and verdict == "OK":
        return "BROKEN: off, and OK"
    if all(off.well_met for off in found) and verdict != "OK":
        return f"BROKEN: true, and {verdict}"
    return "kept"
