"""Synthetic prompts of a given length in tokens: words of Shakespeare, counted by the server or by
a tokenizer.

Every prompt has a number of its own, at its beginning or right behind what it shares on purpose, so
that no two share more of a prefix than they should and no prefix cache makes a server look faster
than it is.

What is shared on purpose, the same in all processes that have one seed:

- a system prompt, the first message of every request;
- a pool of prefixes, of which the first prompt of each session begins with one;
- the blocks of a Mooncake trace, a text for each hash id (arXiv 2407.00079, section 4).

System prompt, prefix and the context that a session begins with, which is its own, come on top of
the length that was drawn, as AIPerf's do (0.13: ``--isl`` sizes the prompt alone).
"""

import random
import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from .generated_images_and_audio import MediaGenerator
from .length_distributions import Length, Sizes, combine_lengths, make_even_random, normal_length
from .local_tokenizer import Tokenizer, count_corpus_words, cut_corpus_text
from .prompt_length_model import PromptLengthModel

BLOCK_TOKENS: Final = 512
"""The tokens of a hash id, as in Mooncake's traces and AIPerf's ``--isl-block-size``."""
_NUMBERS: Final = 9 * 10**8
# coprime to _NUMBERS: each comes once; the golden section: neighbours begin unlike
_STRIDE: Final = 556_230_589
BEFORE_ENDING: Final = "\n\n"
_BLOCKS_A_SLICE: Final = 64
"""So many blocks are built in one piece, in about a millisecond."""
_FEWEST: Final = 16
"""A rest of fewer tokens after shared blocks is too short for a number, and for a cache."""


def format_prompt_number(number: int) -> str:
    """The begin of a prompt, of nine digits."""
    return str(10**8 + number % _NUMBERS)


def draw_sample_numbers(count: int) -> list[str]:
    """So many numbers, unlike each other and always the same."""
    return [format_prompt_number(place * _STRIDE) for place in range(count)]


class DrawnPrompt(NamedTuple):
    """A prompt and its lengths."""

    text: str
    input_tokens: int
    """The tokens of the request that are made here: chat template, system prompt, prefix and the
    drawn length."""
    output_tokens: int
    media: Sequence[dict[str, Any]] = ()
    """The content's parts after the text. A prefix cache begins with the text, and its number."""

    @property
    def message(self) -> dict[str, Any]:
        return {"role": "user", "content": append_media_parts(self.text, self.media)}


def append_media_parts(
    content: str | list[dict[str, Any]] | None, parts: Sequence[dict[str, Any]]
) -> Any:
    """The content of a message, followed by images and audio."""
    if not parts:
        return content
    return [
        *([{"type": "text", "text": content}] if isinstance(content, str) else content or ()),
        *parts,
    ]


class Prompts:
    """Prompts and output lengths of one process, from a seed: the same seed and worker give the
    same prompts."""

    def __init__(
        self,
        lengths: PromptLengthModel,
        sizes: Sizes | None = None,
        *,
        input_tokens: tuple[float, float] = (1, 0),
        output_tokens: tuple[float, float] = (1, 0),
        seed: int | None = None,
        worker: int = 0,
        system_tokens: int = 0,
        prefixes: int = 0,
        prefix_tokens: int = 0,
        context: Length | None = None,
        tokenizer: Tokenizer | None = None,
        batch: int = 1,
        media: MediaGenerator | None = None,
        salt: str = "",
        pause: Callable[[], object] = lambda: None,
    ) -> None:
        """``sizes`` draws input and output tokens together; None: each is normal with this mean and
        standard deviation, cut at 1. ``prefixes``: the size of the pool, at most the corpus's
        words. ``context`` draws how much longer a session's first prompt is.

        Without a seed, shared text uses seed 0, since processes must agree on it. ``batch``: the
        texts of a request, each of a drawn length. ``media``: the images and audio of each.
        ``salt`` belongs to one run, so that no prompt begins as one of another run with this seed.
        ``pause`` lets others run between two slices of a prompt of many blocks.
        """
        self._pause = pause
        self._pictures = media
        self.lengths, self.tokenizer, self._batch = lengths, tokenizer, batch
        self.off = 0
        """The prompts so far without exactly the requested tokens; counted only with a
        tokenizer."""
        self._sizes = sizes or combine_lengths(
            normal_length(*input_tokens), normal_length(*output_tokens)
        )
        self._ruler = tokenizer or lengths
        self._template = lengths.template_tokens
        if tokenizer is not None:
            # the line of the survey takes the number of a prompt for one word; with a tokenizer we
            # know better
            number = tokenizer.count(str(10**8)) if lengths.measured else lengths.tokens_a_word
            self._template = round(lengths.template_tokens + lengths.tokens_a_word - number)
        # seeded by text: neighbouring numbers give unlike streams, and no fork shares one
        self._random = random.Random(None if seed is None else f"{seed}/{worker}")
        self._draws = self._random
        """Draws lengths and prefixes."""
        self.salt = salt
        """The salt begins texts that are not made up here, so that no cache has them: see
        begin_block."""
        self._number = self._random.randrange(_NUMBERS)
        self._shift = 0
        if salt:  # other words, while all that is drawn stays as with this seed alone
            fresh = random.Random(f"{salt}/{worker}")
            self._number = fresh.randrange(_NUMBERS)
            self._shift = fresh.randrange(count_corpus_words())
        self._seed = seed or 0
        system_at, *prefix_at = random.Random(f"{self._seed}{salt}/shared").sample(
            range(count_corpus_words()), 1 + prefixes
        )
        self._prefixes = [self._shared(at, prefix_tokens) for at in prefix_at if prefix_tokens]
        """(text, tokens) of each prefix. Empty: a prompt begins with its number."""
        self._prefix_tokens = prefix_tokens if prefixes else 0
        self._context = context
        self.system_tokens = system_tokens
        self.system: dict[str, Any] | None = None
        """The message that all requests share."""
        if system_tokens:
            self.system = {"role": "system", "content": self._shared(system_at, system_tokens)[0]}

    def draw(self, first: bool = True, endings: Sequence[str] = ()) -> DrawnPrompt:
        """A new prompt of the drawn sizes. ``first`` of its session: a prefix begins it, and the
        system prompt counts. ``endings``: see ``text``."""
        tokens, output_tokens = self._sizes(self._draws)
        if not first:
            text = self.text(tokens, endings=endings)
            return DrawnPrompt(text, tokens, output_tokens, self._media())
        tokens += self._prefix_tokens + (
            self._context(self._draws) if self._context is not None else 0
        )
        prefix = self._draws.choice(self._prefixes) if self._prefixes else ("", 0)
        text = self.text(tokens, prefix=prefix, endings=endings)
        return DrawnPrompt(text, tokens + self.system_tokens, output_tokens, self._media())

    def drawn(self, input_tokens: int, endings: Sequence[str] = ()) -> DrawnPrompt:
        """A new prompt of this length. ``endings``: see ``text``."""
        text = self.text(input_tokens, endings=endings)
        return DrawnPrompt(text, input_tokens, self.output_tokens(), self._media())

    def batch(self, first: bool = True) -> list[DrawnPrompt]:
        """The texts of a request: one prompt, or several for embeddings and rerank."""
        return [self.draw(first) for _ in range(self._batch)]

    def resize(self, sizes: Sizes) -> None:
        """Draw from these sizes from now on. The prompts stay unlike all earlier ones."""
        self._sizes = sizes

    def begin_block(self, seed: str, salt: str) -> None:
        """Draw lengths and prefixes from this seed from now on. Texts stay unlike all earlier ones.
        A salt that is not empty changes blocks of hash ids and prompts of a file."""
        self.begin_draws(seed)
        self.salt = salt
        if self._pictures is not None:
            self._pictures.begin_block(f"{seed}/media")

    def begin_draws(self, seed: str) -> None:
        """Draw lengths and prefixes from this seed from now on. All else goes on."""
        self._draws = random.Random(f"{seed}/lengths")

    def begin_even_draws(self, sequence: str, number: int) -> None:
        """Draw lengths and prefixes as this request of a sequence does."""
        self._draws = make_even_random(sequence, number)

    def output_tokens(self) -> int:
        """The output tokens for a given prompt."""
        return self._sizes(self._draws)[1]

    def text(
        self,
        tokens: int,
        hash_ids: Sequence[int] = (),
        prefix: tuple[str, float] = ("", 0),
        block_tokens: int = BLOCK_TOKENS,
        endings: Sequence[str] = (),
    ) -> str:
        """A prompt that comes to ``tokens`` with the chat template: the prefix, the blocks of the
        ids, and its own text as far as there is room.

        If there is no room for all ids, the first ones are used, the last one in part. ``prefix``:
        (text, its tokens). ``block_tokens``: of each block. ``endings``: what the last sentences of
        the prompt may be, within ``tokens``. The first that there is room for is used.

        The text of a block follows from its id, the seed, and its place. The first text has no
        space before it, and so may have other tokens. It also makes up for what the texts before
        lack in whole words. A cache compares from the begin on and never sees the difference.
        """
        wanted = tokens - self._template
        for ending in filter(None, endings):
            of_ending = self.count_ending_tokens(ending)
            if wanted - prefix[1] - of_ending >= self.lengths.tokens_a_word:
                own = self.text(round(tokens - of_ending), hash_ids, prefix, block_tokens)
                return f"{own}{BEFORE_ENDING}{ending}"
        parts = [prefix[0]] if prefix[0] else []
        filled = prefix[1]
        salt = self.salt  # another one may be set in a pause
        for number, hash_id in enumerate(hash_ids, 1):
            if parts and wanted - filled < 1:
                break
            part, of_it = self._ruler.fill(
                *self._place(f"{self._seed}{salt}/{hash_id}"),
                min(number * block_tokens, wanted) - filled,
                not parts,
            )
            if number % _BLOCKS_A_SLICE == 0:
                self._pause()
            parts.append(part)
            filled += of_it
        left = wanted - filled
        if not hash_ids or left >= 1:
            at = (self._random.randrange(count_corpus_words()) + self._shift) % count_corpus_words()
            head = cut_corpus_text(at, 1) if hash_ids and left < _FEWEST else self._next_number()
            part, of_it = self._ruler.fill(head, (at + 1) % count_corpus_words(), left, not parts)
            parts.append(part)
            filled += of_it
        return self._checked(" ".join(parts), filled, wanted)[0]

    def reused(
        self, tokens: int, number: int, shared: int, endings: Sequence[str] = ()
    ) -> tuple[str, int]:
        """(prompt, tokens in common). The prompt comes to ``tokens`` with the chat template and
        begins with the prefix ``number``, as all others of that number do. The common tokens
        include the template's head: ``shared``, or a word less."""
        head, at = self._place(f"{self._seed}{self.salt}/prefix {number}")
        text, filled = self._ruler.begin(head, at, max(1, shared - self.lengths.head))
        prompt = self.text(tokens, prefix=(text, filled), endings=endings)
        return prompt, round(filled) + self.lengths.head

    def words(self, count: int) -> str:
        """``count`` words. The first is a number that is this prompt's own."""
        at = self._random.randrange(count_corpus_words())
        return " ".join([self._next_number(), cut_corpus_text(at, count - 1)]).rstrip()

    def tokens(self, text: str) -> float:
        """The tokens of a text: by the tokenizer, else estimated from its words."""
        if self.tokenizer is not None:
            return self.tokenizer.count(text)
        return len(text.split()) * self.lengths.tokens_a_word

    def count_ending_tokens(self, ending: str) -> float:
        if self.tokenizer is not None:
            return self.tokenizer.count(f"{BEFORE_ENDING}{ending}")
        return self.lengths.count_ending(ending)

    def _media(self) -> Sequence[dict[str, Any]]:
        return () if self._pictures is None else self._pictures.parts()

    def _next_number(self) -> str:
        self._number = (self._number + _STRIDE) % _NUMBERS
        return format_prompt_number(self._number)

    def _shared(self, at: int, tokens: int) -> tuple[str, float]:
        text, filled = self._ruler.fill(
            cut_corpus_text(at, 1), (at + 1) % count_corpus_words(), tokens
        )
        return self._checked(text, filled, tokens)

    def _place(self, name: str) -> tuple[str, int]:
        """(begin, where the corpus goes on) from a name. There are more than 10^13 begins of six
        words from three places; one place alone would soon come twice."""
        *heads, at = (
            number % count_corpus_words()
            for number in struct.unpack("<4I", blake2b(name.encode(), digest_size=16).digest())
        )
        return " ".join(cut_corpus_text(head, 2) for head in heads), at

    def _checked(self, text: str, filled: float, wanted: float) -> tuple[str, float]:
        """The text. With a tokenizer that cannot be summed up, it is encoded and made to fit."""
        if self.tokenizer is not None:
            if not self.tokenizer.by_word:
                text, filled = self.tokenizer.trim(text, max(1, round(wanted)))
            self.off += filled != wanted
        return text, filled
