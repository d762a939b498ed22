"""Prefix reuse: sessions of one prompt each, so that a given share of their input tokens is a
prefix that came before.

The working set is a number of prefixes, all as long as the longest prompt needs. They take turns,
so between two uses of one lie all the others. With a cache that drops the least recently used
entry, a working set larger than the cache is never found (LRU's worst case), and a smaller one
always is.

Each prompt takes whole blocks of its prefix, so that the sum of shared tokens comes nearest to the
requested share of all input tokens. A prompt may be too short or its blocks too coarse for the
exact share; the next ones make up for it. A prefix ends half a block after its last whole block,
and then the prompt's own text begins. So an error of half a block in the chat template's or the
prefix's length changes nothing.
"""

import math
from collections.abc import Iterator
from random import Random
from typing import Final

from .dataset_formats import DatasetSession, Turn
from .length_distributions import Sizes

BLOCK: Final = 16
"""The tokens of a block: vLLM's default on GPUs."""
PREFIXES: Final = 10
"""The number of prefixes without a working set."""
OWN_TOKENS: Final = 16
"""The tokens after the prefix: the number of the prompt, digit by digit, and the end of the chat
template."""
PRIME_OUTPUT: Final = 16
"""The least output that OpenAI's Responses accept."""
SAMPLES: Final = 1_000
"""So many lengths are sampled for the depth. The few prompts that need more are made up for by the
others."""


def max_cached_blocks(tokens: int, block: int) -> int:
    """How many blocks of a prompt with so many tokens can come from a cache: its own text follows
    them."""
    return max(0, (tokens - OWN_TOKENS - block // 2) // block)


class PrefixReuse:
    """``share`` of the input tokens, below 1. ``working_set``: the least tokens of all prefixes
    together; None: PREFIXES prefixes. The same seed gives the same lengths and the same order."""

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
            min(math.ceil(round(share * longest, 6) / block), max_cached_blocks(longest, block))
            if share
            else 0
        )
        """The whole blocks of a prefix."""
        tokens = self.depth * block
        self.count = 0
        if tokens:
            self.count = PREFIXES if working_set is None else -(-working_set // tokens)
        """The number of prefixes."""
        self._random = Random(f"{seed}/lengths")
        self._owed = 0.0
        self._drawn = 0

    def prime(self) -> Iterator[DatasetSession]:
        """Each whole prefix once."""
        tokens = self.depth * self.block + self.block // 2
        for number in range(self.count):
            yield _item(f"prime {number}", tokens + 2 * OWN_TOKENS, PRIME_OUTPUT, (number, tokens))

    def prompts(self) -> Iterator[DatasetSession]:
        """Prompts without end. Each iterator goes on where the one before it stopped."""
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
