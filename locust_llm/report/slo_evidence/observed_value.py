"""Observed value: the value that a rule is held against, with its interval."""

import math
from dataclasses import dataclass

from locust_llm.slo.binomial_intervals import Ends
from locust_llm.slo.rules import Rule

from .confidence_intervals import EndBasis


@dataclass(frozen=True)
class ObservedValue:
    """A figure in the base unit of its rule: seconds, a share of 1, a number a second."""

    value: float | None
    """None: there is nothing to judge, and ``note`` says why."""
    ends: Ends | None = (None, None)
    """Of its interval; None: a fact of the run, which has none."""
    count: int = 0
    note: str = ""
    worst: float | None = None
    """The figure if what is not known of cut requests comes out at its worst, where it differs;
    then ``value`` is the one at its best."""
    cut: int = 0
    """Requests among them that were cut."""
    undecided: int = 0
    """Those of which it is not known whether they meet the rule."""
    never_sent: int = 0
    """Arrivals that were due and never sent: of none of them it is known whether it meets the
    rule."""
    size: float | None = None
    """Effective sample size: as many independent requests would say as much. None: of a fact, or of
    too few."""
    trend: str = ""
    """``rises`` or ``falls``: its values were not steady over the run."""
    later: float | None = None
    """What a figure that goes on to get worse comes to in as much time again (``_extrapolate``);
    None: not known."""
    extrapolated: bool = False
    """An end of its interval lies beyond all values."""
    basis: EndBasis = EndBasis.ERROR
    slowest: float = 0.0
    """Both as of a ConfidenceInterval."""
    gaps_of: int = 0
    """Of how many requests the ``count`` gaps are; 0: it counts no gaps."""
    infinite: int = 0
    """Failed requests that count as +infinity in a percentile."""
    cancelled: int = 0
    """Requests among them that were cancelled on purpose."""
    settled: "ObservedValue | None" = None
    """Of a rate: the same without the start and the end of the load. None: of any other figure, or
    where these are not left out."""

    def decides(self, rule: Rule) -> bool | None:
        """Whether the rule holds, at the figure and at both ends alike; None if they differ."""
        low, high = (self.value, self.value) if self.ends is None else self.ends
        at = (
            -math.inf if low is None else low,
            math.inf if high is None else high,
            self.value,
            self.worst,
        )
        held = {rule.holds(value) for value in at if value is not None}
        return held.pop() if len(held) == 1 and self.value is not None else None
