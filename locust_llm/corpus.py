"""Corpus: the words that made-up prompts are made of.

``locust_llm/shakespeare.txt`` holds lines of the Sonnets and of Hamlet (public domain), shuffled, so that any stretch of it
has as many tokens a word as any other.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files


@cache
def corpus() -> tuple[str, Sequence[int]]:
    """(text, where each word begins), twice over, so that a slice may begin anywhere."""
    lines = files("locust_llm").joinpath("shakespeare.txt").read_text("ascii")
    text = " ".join(lines.split()) + " "
    text += text
    starts = [0]
    while (at := text.find(" ", starts[-1])) >= 0 and at + 1 < len(text):
        starts.append(at + 1)
    return text, starts


@cache
def size() -> int:
    """How many words there are, once over."""
    return len(corpus()[1]) // 2


def stretch(at: int, count: int) -> str:
    """``count`` words from number ``at`` (below ``size()``) on, from the end back to the beginning."""
    text, starts = corpus()
    parts = []
    while count > 0:
        part = min(count, size())
        parts.append(text[starts[at] : starts[at + part] - 1])
        count -= part
        at = (at + part) % size()
    return " ".join(parts)
