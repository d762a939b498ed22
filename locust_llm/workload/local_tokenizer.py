"""Tokenizer: prompts of an exact length, by the tokenizer of the model (``--tokenizer``, extra
``tokenizers``).

Tokenizers of today take a text word by word. Where a tokenizer does (that is tried on some text
when it is loaded), the tokens of each word of the corpus are counted once, and a prompt is cut
where their sums say: 16,000 tokens cost as little as without a tokenizer. Where it does not, each
prompt is encoded and cut or filled up at its end, at most MAX_TRIES times (as AIPerf's, 0.13,
dataset/generator/prompt.py, which encodes each).
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.resources import files
from itertools import accumulate, count, islice
from operator import add
from pathlib import Path
from random import Random
from typing import Final

from locust_llm.files.regular_file import read_regular

# -- corpus ----------------------------------------------------------------------------------------


@cache
def load_corpus() -> tuple[str, Sequence[int]]:
    """(text, where each word begins), twice over, so that a slice may begin anywhere."""
    words = 2 * files("locust_llm").joinpath("shakespeare.txt").read_text("ascii").split()
    letters = accumulate(map(len, words), initial=0)
    # before each word are the letters and a space of each word before; behind the last is no word
    starts = array("I", islice(map(add, letters, count()), len(words)))
    return " ".join(words) + " ", starts


@cache
def count_corpus_words() -> int:
    """The number of words in the corpus."""
    return len(load_corpus()[1]) // 2


@cache
def load_reference_tokens() -> tuple[int, ...]:
    """The tokens of the corpus before each 50 words, the total last, by GPT-2's vocabulary. Other
    vocabularies mostly take more for a word where this one does."""
    each = files("locust_llm").joinpath("shakespeare_tokens.txt").read_text("ascii").split()
    return tuple(accumulate(map(int, each), initial=0))


def cut_corpus_text(at: int, count: int) -> str:
    """``count`` words from number ``at`` on, from the end back to the begin."""
    text, starts = load_corpus()
    parts = []
    while count > 0:
        part = min(count, count_corpus_words())
        parts.append(text[starts[at] : starts[at + part] - 1])
        count -= part
        at = (at + part) % count_corpus_words()
    return " ".join(parts)


MAX_TRIES: Final = 10
MAX_WORD: Final = 8
"""The tokens that a text of whole words may lack."""
TOKENIZER_FILE: Final = "tokenizer.json"
_BEFORE: Final = "the"
_SAMPLES: Final = 20
_SAMPLE_WORDS: Final = 100


class Tokenizer:
    """Counts tokens, and cuts the corpus to size."""

    def __init__(self, count: Callable[[str], int]) -> None:
        """``count`` gives the tokens of a text, without marks of its begin or end."""
        self.count = count
        self._cost = lru_cache(1 << 16)(self._cost_of)
        words = load_corpus()[0].split()
        self._sums = array("Q", accumulate((self._cost(word, False) for word in words), initial=0))
        """The tokens of the corpus before each word."""
        self._fillers = {
            self._cost(word, False): word for word in reversed(words) if self._cost(word, False) > 0
        }
        """A word for each number of tokens."""
        self._costs = sorted(self._fillers, reverse=True)
        self.by_word = all(self._as_summed(Random(sample)) for sample in range(_SAMPLES))
        """The tokens of a text are the sum of its words' tokens, so ``fill`` is exact."""

    def fill(self, head: str, at: int, tokens: float, first: bool = True) -> tuple[str, int]:
        """(text, its tokens): the words of ``head``, the corpus from word ``at`` on, and a word
        that fills the rest.

        A head that is too long gives only its begin, at least one word. ``first``: nothing comes
        before the text.
        """
        left = max(0, round(tokens))
        wanted = left
        parts: list[str] = []
        for word in head.split(" "):
            cost = self._cost(word, first and not parts)
            if cost > left and parts:
                break
            parts.append(word)
            left -= cost
        if left > 0:
            count, left = self._words(at, left)
            parts += [cut_corpus_text(at, count)] if count else []
        filling, left = self._filling(left)
        return " ".join(parts + filling), wanted - left

    def begin(self, head: str, at: int, tokens: float) -> tuple[str, int]:
        """(text, its tokens): ``head``, then whole words from ``at`` on.

        With fewer tokens it begins as with more, and is up to a word short of them. Where words do
        not sum up, it comes as near as MAX_TRIES allow.
        """
        wanted = round(tokens)
        count, left = self._words(at, max(0, wanted - self.count(head)))
        text = f"{head} {cut_corpus_text(at, count)}".rstrip()
        if self.by_word:
            return text, wanted - left
        for _ in range(MAX_TRIES):
            num_tokens = self.count(text)
            if num_tokens <= wanted < num_tokens + MAX_WORD:
                break
            step = (
                abs(wanted - num_tokens) * count_corpus_words() // self._sums[count_corpus_words()]
                or 1
            )
            count = max(0, count + (step if num_tokens < wanted else -step))
            text = f"{head} {cut_corpus_text(at, count)}".rstrip()
        return text, self.count(text)

    def trim(self, text: str, tokens: int) -> tuple[str, int]:
        """(the text, cut or filled up at its end, its tokens): the requested tokens, if MAX_TRIES
        are enough."""
        for _ in range(MAX_TRIES):
            off = tokens - self.count(text)
            if off == 0:
                return text, tokens
            words = text.split(" ")
            if off > 0:
                words += self._filling(off)[0]
            else:
                words = words[
                    : max(
                        1,
                        len(words)
                        - max(1, -off * count_corpus_words() // self._sums[count_corpus_words()]),
                    )
                ]
            text = " ".join(words)
        return text, self.count(text)

    def _cost_of(self, word: str, first: bool) -> int:
        return self.count(word) if first else self.count(f"{_BEFORE} {word}") - self.count(_BEFORE)

    def _words(self, at: int, tokens: int) -> tuple[int, int]:
        """(how many words from ``at`` on fit into the tokens, how many tokens are left)."""
        rounds, tokens = divmod(tokens, self._sums[count_corpus_words()])
        end = bisect_right(self._sums, self._sums[at] + tokens) - 1
        return rounds * count_corpus_words() + end - at, self._sums[at] + tokens - self._sums[end]

    def _filling(self, tokens: int) -> tuple[list[str], int]:
        """(words of so many tokens, how many tokens are left, for which there is no word)."""
        words = []
        for cost in self._costs:
            while cost <= tokens:
                words.append(self._fillers[cost])
                tokens -= cost
        return words, tokens

    def _as_summed(self, random: Random) -> bool:
        head = str(random.randrange(10**8, 10**9))
        at = random.randrange(count_corpus_words())
        text = f"{head} {cut_corpus_text(at, _SAMPLE_WORDS)}"
        return (
            self.count(text)
            == self._cost(head, True) + self._sums[at + _SAMPLE_WORDS] - self._sums[at]
        )


MAX_TOKENIZER_BYTES: Final = 1 << 28
"""Large tokenizers have a tenth of it."""


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer in a folder or a file, or of a name in the local Hugging Face cache. Nothing is
    fetched. Raises ValueError of one sentence."""
    try:
        # by name: it is there only with the extra, and only who asks for it waits for it
        library = import_module("tokenizers")
    except ImportError:
        raise ValueError(
            "--tokenizer needs the package tokenizers: pip install 'locust-llm[tokenizers]'"
        ) from None
    path = _file(name)
    try:
        inner = library.Tokenizer.from_buffer(read_regular(path, MAX_TOKENIZER_BYTES))
    except Exception as error:  # the library raises nothing more precise
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"--tokenizer {name}: {path} cannot be read as a tokenizer: {why}"
        ) from None
    inner.no_truncation()  # a file may ask for either, and lengths would be those of the padding
    inner.no_padding()
    return Tokenizer(lambda text: len(inner.encode(text, add_special_tokens=False)))


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / TOKENIZER_FILE).is_file():
            return path / TOKENIZER_FILE
        raise ValueError(f"--tokenizer {name}: the folder has no {TOKENIZER_FILE}")
    try:
        cached_path = import_module("huggingface_hub").try_to_load_from_cache(name, TOKENIZER_FILE)
    except (ImportError, ValueError):  # not installed; a name that none can have
        cached_path = None
    if isinstance(cached_path, str):
        return Path(cached_path)
    raise ValueError(
        f"--tokenizer {name}: neither a folder nor a name in the local Hugging Face cache; give a "
        f"folder with {TOKENIZER_FILE}"
    )
