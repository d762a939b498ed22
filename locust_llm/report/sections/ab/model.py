"""What the comparison of two arms in pairs of blocks came to, as data; ab.json holds it."""

from typing import Final

import msgspec

DIFFERENT: Final = "DIFFERENT"
SAME: Final = "NO DIFFERENCE TO BE SEEN"
INCONCLUSIVE: Final = "INCONCLUSIVE"
"""Verdicts of all figures together."""
HOLDS: Final = "HOLDS"
BROKEN: Final = "DOES NOT HOLD"
UNDECIDED: Final = "NOT DECIDED"
ISOLATION_ROOM: Final = 10.0
"""Percent, by which latencies beside others may be longer than alone."""


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both arms, in ``unit``. Base and candidate: the mean over the blocks, geometric where the difference is
    a ratio."""

    metric: str
    stat: str
    label: str
    unit: str
    relative: bool
    """Ratios of the pairs are averaged, and the interval is of their percentage; else differences, in the unit."""
    base: float | None = None
    candidate: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval of the difference."""
    percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    """The same of the base's figure; None: that is 0."""
    word: str = "-"
    """better, worse, no difference to be seen, not concluded, or - for nothing to compare."""
    note: str = ""
    pairs: tuple[tuple[float, float], ...] = ()
    """(base, candidate) of each pair."""

    @property
    def few(self) -> bool:
        """A percentile of too few requests a block: the note has how many."""
        return bool(self.note and self.pairs)

    @property
    def different(self) -> bool:
        return self.word in ("better", "worse")


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms."""

    schema: int = 1
    verdict: str
    """DIFFERENT, NO DIFFERENCE TO BE SEEN or INCONCLUSIVE."""
    reason: str = ""
    """Why it is inconclusive."""
    chance: float | None = None
    """How often equal arms would show so large a difference in some figure: the p of the verdict."""
    warning: str = ""
    """The arms did not get the same load."""
    aa: bool = False
    """Both arms are the base."""
    isolated: str = ""
    """The arms are this tenant alone (base) and beside the others (candidate), and the figures are of its requests."""
    isolation: str = ""
    """HOLDS, DOES NOT HOLD or NOT DECIDED: is none of its latencies longer by more than ``ISOLATION_ROOM`` percent?"""
    pairs: int = 0
    """That are whole, and counted."""
    planned: int = 0
    figures: tuple[PairedFigure, ...] = ()

    @property
    def known(self) -> int:
        """Figures that there are."""
        return sum(bool(figure.pairs) for figure in self.figures)

    @property
    def different(self) -> int:
        """Figures that are called better or worse."""
        return sum(figure.different for figure in self.figures)
