"""A section of the page of the seeds: a claim, what came out, and the pieces that it is written with."""

from collections.abc import Sequence
from typing import NamedTuple

from pictures import Picture
from tabulate import tabulate


class Section(NamedTuple):
    """One claim. ``figures``: the charts at its end, file name to SVG; ``pictures``: before them, with the seed's words."""

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
        rows, headers=list(headers), tablefmt="pipe", disable_numparse=True, colalign=[align] * len(headers)
    )


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"
