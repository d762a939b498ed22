"""Reuse: sessions of one prompt each, so that a given share of their input tokens is a prefix that
came before.

The working set is a number of prefixes, all as deep as the longest prompt needs. They take turns,
so that between two uses of one lie all the others: with a cache that drops what was used longest
ago, a working set that is larger than the cache is never found there (the worst case of LRU), and
one that fits always is. Each prompt takes as many whole blocks of its prefix as bring the sum of
what is shared nearest to the share asked for of the sum of all input tokens: a prompt is too short
or its blocks too coarse for the exact share, and what it lacks the next ones make up for.

A prefix ends half a block behind its last whole block, then the prompt's own text begins: an error
of half a block in what is known of the chat template, or of the prefix's length, changes nothing.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from .formats import DatasetSession, Turn
from .lengths import Sizes

BLOCK: Final = 16
"""Tokens; vLLM's default on GPUs."""
PREFIXES: Final = 10
"""Without a working set of its own."""
OWN_TOKENS: Final = 16
"""Behind the prefix: the number of the prompt, digit by digit, and the end of the chat template."""
PRIME_OUTPUT: Final = 16
"""The least that OpenAI's Responses take."""
SAMPLES: Final = 1_000
"""Of lengths, for the depth: what few prompts need more is made up for by the others."""


def max_cached_blocks(tokens: int, block: int) -> int:
    """Of a prompt of so many tokens, those that can come from a cache: behind them it has text of
    its own."""
    return max(0, (tokens - OWN_TOKENS - block // 2) // block)


class PrefixReuse:
    """``share``: of the input tokens, below 1. ``working_set``: tokens of all prefixes together, at
    least; None: of PREFIXES. The same seed gives the same lengths and the same order."""

    def __init__(
        self,
        sizes: Sizes,
        share: float,
        *,
        seed: str,
        block: int = BLOCK,
        working_set: int | None = None,
    ):
        self._sizes, self._share, self.block = sizes, share, block
        draws = Random(f"{seed}/depth")
        longest = max(sizes(draws)[0] for _ in range(SAMPLES))
        self.depth = (
            min(-int(-share * longest // block), max_cached_blocks(longest, block)) if share else 0
        )
        """Whole blocks of a prefix."""
        tokens = self.depth * block
        self.count = 0
        if tokens:
            self.count = PREFIXES if working_set is None else -(-working_set // tokens)
        """Prefixes."""
        self._random = Random(f"{seed}/lengths")
        self._owed = 0.0
        self._drawn = 0

    def prime(self) -> Iterator[DatasetSession]:
        """Each prefix once, all of it."""
        tokens = self.depth * self.block + self.block // 2
        for number in range(self.count):
            yield _item(f"prime {number}", tokens + 2 * OWN_TOKENS, PRIME_OUTPUT, (number, tokens))

    def prompts(self) -> Iterator[DatasetSession]:
        """Without end; each iterator goes on where the one before it stopped."""
        while True:
            tokens, output_tokens = self._sizes(self._random)
            self._owed += self._share * tokens
            blocks = max(
                0,
                min(
                    self.depth,
                    max_cached_blocks(tokens, self.block),
                    round(self._owed / self.block),
                ),
            )
            self._owed -= blocks * self.block
            number = self._drawn % self.count if self.count else 0
            self._drawn += 1
            prefix = (number, blocks * self.block + self.block // 2) if blocks else None
            yield _item(str(self._drawn), tokens, output_tokens, prefix)


def _item(
    id: str, input_tokens: int, output_tokens: int, prefix: tuple[int, int] | None
) -> DatasetSession:
    turn = Turn(input_tokens=input_tokens, output_tokens=output_tokens, prefix=prefix, row=0)
    return DatasetSession(id=id, turns=(turn,), row=0)
