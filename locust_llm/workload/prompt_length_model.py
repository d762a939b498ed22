"""Prompt length model: how many tokens a text of so many words has, and how many words make a
prompt of so many tokens.

It is fitted to what the server counted before the load (server/tokenizer_calibration.py).
``--tokenizer`` takes its place (workload/local_tokenizer.py).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec

from .local_tokenizer import count_corpus_words, cut_corpus_text

TOKENS_A_WORD: Final = 1.35
"""English text in a modern BPE vocabulary. It is the default until the server has counted."""
TEMPLATE_TOKENS: Final = 12.0
"""The tokens of a chat template. It is the default until the server has counted."""
TAIL_TOKENS: Final = 5
"""The template's tokens after the text, in Llama 3's and ChatML. They are used where the text's
begin is not known."""
SUMS_EACH: Final = 50
"""The words between two sums. The tokens of a prompt between two places of the corpus are then
known to half a percent, instead of 3."""


class PromptLengthModel(msgspec.Struct, frozen=True):
    """prompt tokens = template_tokens + tokens_a_word * words."""

    tokens_a_word: float = TOKENS_A_WORD
    template_tokens: float = TEMPLATE_TOKENS
    measured: bool = False
    head_tokens: int | None = None
    """The tokens of the chat template before the text, as two answers of /tokenize have them in
    common. None: unknown."""
    sums: tuple[int, ...] = ()
    """The tokens of the corpus before each SUMS_EACH words, the total last. Empty: not known; each
    word then counts alike."""
    endings: dict[int, float] = {}
    """The tokens of the last sentences that a prompt may have, by their words. Those that are not
    known count as words of the corpus."""

    @property
    def head(self) -> int:
        """The tokens of the chat template before the text, estimated where they are not known."""
        return (
            self.head_tokens
            if self.head_tokens is not None
            else max(0, round(self.template_tokens) - TAIL_TOKENS)
        )

    def count_ending(self, ending: str) -> float:
        """The tokens of the last sentences of a prompt, with the blank lines before them."""
        words = len(ending.split())
        return self.endings.get(words, words * self.tokens_a_word)

    def words(self, tokens: float) -> int:
        """How many words come nearest to ``tokens``, at least one."""
        return max(1, round((tokens - self.template_tokens) / self.tokens_a_word))

    def fill(self, head: str, at: int, tokens: float, first: bool = True) -> tuple[str, float]:
        """(text, its tokens by this model): ``Tokenizer.fill`` to the nearest word."""
        heads = head.split(" ")
        words = max(1, round(tokens / self.tokens_a_word))
        if words <= len(heads):
            return " ".join(heads[:words]), words * self.tokens_a_word
        if not self.sums:
            return " ".join(
                [*heads, cut_corpus_text(at, words - len(heads))]
            ), words * self.tokens_a_word
        of_heads = len(heads) * self.tokens_a_word
        before = self.tokens_before(at)
        count = max(1, round(self._word_at(before + tokens - of_heads) - at))
        return " ".join([*heads, cut_corpus_text(at, count)]), of_heads + self.tokens_before(
            at + count
        ) - before

    def begin(self, head: str, at: int, tokens: float) -> tuple[str, float]:
        """As ``fill``, but with fewer tokens the text begins as with more."""
        return self.fill(head, at, tokens)

    def tokens_before(self, word: float) -> float:
        """The tokens of the corpus, over and over, before a word, by the sums."""
        rounds, word = divmod(word, count_corpus_words())
        number = int(word // SUMS_EACH)
        words = min(SUMS_EACH, count_corpus_words() - number * SUMS_EACH)
        tokens = self.sums[number + 1] - self.sums[number]
        return (
            rounds * self.sums[-1]
            + self.sums[number]
            + tokens * (word - number * SUMS_EACH) / words
        )

    def _word_at(self, tokens: float) -> float:
        """The word before which there are so many tokens."""
        rounds, tokens = divmod(tokens, self.sums[-1])
        number = bisect_right(self.sums, tokens) - 1
        words = min(SUMS_EACH, count_corpus_words() - number * SUMS_EACH)
        share = (tokens - self.sums[number]) / (self.sums[number + 1] - self.sums[number])
        return rounds * count_corpus_words() + number * SUMS_EACH + words * share


def fit_prompt_lengths(samples: Iterable[tuple[int, int]]) -> PromptLengthModel:
    """Lengths from (words, tokens) of prompts that a server counted: the least squares line,
    through two sizes at least.

    Raises ValueError for samples that no line with a positive slope fits.
    """
    points = list(samples)
    n = len(points)
    mean_words = sum(words for words, _ in points) / n
    mean_tokens = sum(tokens for _, tokens in points) / n
    spread = sum((words - mean_words) ** 2 for words, _ in points)
    slope = sum((w - mean_words) * (t - mean_tokens) for w, t in points) / spread if spread else 0.0
    if slope <= 0:
        few, tokens = min(points)
        many, tokens_of_many = max(points)
        raise ValueError(
            f"the server counted {tokens:,} tokens for prompts of {few:,} and {tokens_of_many:,} "
            f"for prompts of {many:,} words"
        )
    return PromptLengthModel(slope, mean_tokens - slope * mean_words, True)
