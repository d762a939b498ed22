"""SVG text: what the drawings that are files of their own have in common, the timeline and the
Pareto chart. All other charts are plots (plot_data.py), which the page draws.

Nothing measures text here: its width follows from the number of its letters.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from locust_llm.text.format import clean_line, truncate_text

LETTER: Final = 0.54
"""The average width of a letter of font size 1."""
FONTS: Final = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"


def escape_text(text: str) -> str:
    """The text of an element or an attribute, without control and direction characters."""
    return escape(clean_line(text))


def fit_text(text: str, width: float, size: float) -> str:
    """The escaped text, cut where it is wider than ``width`` in letters of this size."""
    return escape_text(truncate_text(clean_line(text), int(width / size / LETTER)))


def wrap_text(text: str, width: float, size: float) -> list[str]:
    """The escaped lines of the text, none wider than ``width``."""
    lines = textwrap.wrap(clean_line(text), int(width / size / LETTER), break_on_hyphens=False)
    return [escape_text(line) for line in lines]


def wrap_group(attributes: str, elements: Iterable[str]) -> Iterator[str]:
    """No elements give no group."""
    children: Sequence[str] = [element for element in elements if element]
    if children:
        yield f"<g {attributes}>"
        yield from children
        yield "</g>"


class TextBox(NamedTuple):
    """The place that a text takes, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "TextBox") -> bool:
        beside = self.left < other.right and other.left < self.right
        return beside and self.top < other.bottom and other.top < self.bottom


def choose_box(candidates: Sequence[TextBox], taken: Sequence[TextBox]) -> TextBox:
    """The first that overlaps none of those taken; else the one that overlaps fewest."""
    return min(candidates, key=lambda box: sum(box.overlaps(other) for other in taken))


@cache
def read_theme_colours() -> tuple[dict[str, str], dict[str, str]]:
    """The colours of static/plots.css by name, for light and for dark screens."""
    css = files("locust_llm").joinpath("static", "plots.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in css.split("@media")[:2])
    return light, light | dark
