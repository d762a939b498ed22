"""A section of the page of the seeds: a claim, what came out, and the pieces that it is written
with."""

from collections.abc import Sequence
from typing import NamedTuple

from pictures import Picture
from tabulate import tabulate


class Check(NamedTuple):
    """A part of a claim, and whether the runs show it."""

    what: str
    holds: bool
    found: str = ""
    """The figures that it was seen by."""

    def __str__(self) -> str:
        return f"{self.what} ({self.found})" if self.found else self.what


def verdict(*checks: Check) -> str:
    """``reproduced``, ``in part`` or ``not reproduced``, and which parts are which."""
    held, failed = (
        "; ".join(str(check) for check in checks if check.holds is holds) for holds in (True, False)
    )
    if not failed:
        return f"reproduced: {held}"
    return f"in part: {held}. Not: {failed}" if held else f"not reproduced: {failed}"


def short(verdict: str) -> str:
    """For a table of all: what does not hold, without what does."""
    word, _, held = verdict.partition(": ")
    if word == "not reproduced":
        return verdict
    _, _, failed = held.partition(". Not: ")
    return f"{word}; not: {failed}" if failed else word


class Section(NamedTuple):
    """One claim. ``figures``: the charts at its end, file name to SVG; ``pictures``: before them,
    with the seed's words."""

    claim: str
    source: str
    verdict: str
    text: str
    figures: dict[str, str]
    pictures: tuple[Picture, ...] = ()
    closing: str = ""
    """Below the pictures: what they have in common."""

    def files(self) -> dict[str, str]:
        return self.figures | {picture.name: picture.svg for picture in self.pictures}


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], align: str = "right") -> str:
    """Markdown; numbers are right-aligned as text, so that they keep their digits."""
    return tabulate(
        rows,
        headers=list(headers),
        tablefmt="pipe",
        disable_numparse=True,
        colalign=[align] * len(headers),
    )


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"
