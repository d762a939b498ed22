"""Prompts of a wanted length in tokens, without a tokenizer: words of Shakespeare, counted by what the server says.

``locust_llm/shakespeare.txt`` holds lines of the Sonnets and of Hamlet (public domain), shuffled, so that any stretch of it
has as many tokens a word as any other. Every prompt begins with a number of its own, so that no two share a prefix and no
prefix cache makes a server look faster than it is.
"""

import random
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

TOKENS_A_WORD: Final = 1.35
"""English text in a modern BPE vocabulary, until the server has said better."""
TEMPLATE_TOKENS: Final = 12.0
"""What a chat template adds, until the server has said better."""
_NUMBERS: Final = 9 * 10**8
_STRIDE: Final = 556_230_589  # coprime to _NUMBERS: each comes once; the golden section: neighbours begin unlike


class Lengths(msgspec.Struct, frozen=True):
    """prompt tokens = template_tokens + tokens_a_word * words."""

    tokens_a_word: float = TOKENS_A_WORD
    template_tokens: float = TEMPLATE_TOKENS
    measured: bool = False

    def words(self, tokens: float) -> int:
        """How many words come nearest to ``tokens``; at least one."""
        return max(1, round((tokens - self.template_tokens) / self.tokens_a_word))


def fit(samples: Iterable[tuple[int, int]]) -> Lengths:
    """Lengths from (words, tokens) of prompts that a server counted: the least squares line, through two sizes at least.

    Raises ValueError for samples that no line with a positive slope fits.
    """
    points = list(samples)
    n = len(points)
    mean_words = sum(words for words, _ in points) / n
    mean_tokens = sum(tokens for _, tokens in points) / n
    spread = sum((words - mean_words) ** 2 for words, _ in points)
    slope = sum((w - mean_words) * (t - mean_tokens) for w, t in points) / spread if spread else 0.0
    if slope <= 0:
        raise ValueError(f"no line fits the token counts of the probes: {points}")
    return Lengths(slope, mean_tokens - slope * mean_words, True)


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


class Prompts:
    """Prompts and output lengths of one process, from a seed: the same seed and worker give the same prompts."""

    def __init__(
        self,
        lengths: Lengths,
        *,
        input_tokens: tuple[float, float],
        output_tokens: tuple[float, float],
        seed: int | None = None,
        worker: int = 0,
    ) -> None:
        """``input_tokens``, ``output_tokens``: mean and standard deviation (normal, cut at 1)."""
        self.lengths = lengths
        self._input, self._output = input_tokens, output_tokens
        # seeded by text: neighbouring numbers give unlike streams, and no fork shares one
        self._random = random.Random(None if seed is None else f"{seed}/{worker}")
        self._number = self._random.randrange(_NUMBERS)

    def prompt(self) -> tuple[str, int]:
        """(text, tokens it is meant to have)."""
        tokens = self._draw(*self._input)
        return self.words(self.lengths.words(tokens)), tokens

    def output_tokens(self) -> int:
        return self._draw(*self._output)

    def words(self, count: int) -> str:
        """``count`` words; the first is a number that is this prompt's own."""
        text, starts = corpus()
        half = len(starts) // 2
        self._number = (self._number + _STRIDE) % _NUMBERS
        parts = [str(10**8 + self._number)]
        count -= 1
        at = self._random.randrange(half)
        while count > 0:
            part = min(count, half)
            parts.append(text[starts[at] : starts[at + part] - 1])
            count -= part
            at = (at + part) % half
        return " ".join(parts)

    def _draw(self, mean: float, stddev: float) -> int:
        if stddev == 0:
            return max(1, round(mean))
        return max(1, round(self._random.gauss(mean, stddev)))
