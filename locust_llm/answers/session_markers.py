"""Session markers: six words that belong to one session of a run. An answer that holds the marker of
another session is a leak.

The first three words are the number of the session, the last three its keyed hash (33 bits), made
with the run's key. So each process recognises every marker of the run without a table of them, also
the markers of sessions that ended long ago. A text that happens to hold six words of the list passes
for a marker once in 2^33 times.
"""

import re
from functools import cache
from hashlib import blake2s
from importlib.resources import files
from secrets import token_bytes
from typing import Final, NamedTuple

WORDS: Final = 2048
"""The words of the list, in marker_words.txt: common nouns and adjectives of 4 to 8 letters. None
begins with another one."""
_WORD_BITS: Final = 11
_PART_WORDS: Final = 3
"""So many words have the number, and so many its hash."""
MARKER_WORDS: Final = 2 * _PART_WORDS
SENTENCE_WORDS: Final = 2 + MARKER_WORDS
"""The words of Marker.sentence."""
_PART_BITS: Final = _PART_WORDS * _WORD_BITS
_NUMBERS: Final = 1 << _PART_BITS
_COUNT_BITS: Final = 22
"""A process makes four million markers before one comes again, and 2,048 processes make others."""
_QUICK_BITS: Final = 64 - _WORD_BITS
"""Below so many bits of a sum of 64 are left out."""
KEY_BYTES: Final = 16
ASKED_SHARE: Final = 0.2
"""The share of requests that ask the model to repeat its marker."""
ASK_SENTENCE: Final = "Begin your answer with the session code."
_GOLDEN: Final = 0.6180339887498949
_LETTERS: Final = re.compile(r"[a-z]+")
_JSON_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[bfnrt])")
r"""In JSON a line break is the two characters ``\n``, whose letter would join the next word."""


def make_marker_key() -> bytes:
    """The key of a run, which nobody can guess."""
    return token_bytes(KEY_BYTES)


class Marker(NamedTuple):
    number: int
    text: str
    """Six words with a space between two."""

    @property
    def sentence(self) -> str:
        """The sentence at the end of the first user message of the session."""
        return f"Session code: {self.text}."


@cache
def load_marker_words() -> tuple[tuple[str, ...], dict[str, int]]:
    """(the words, the place of each)."""
    words = tuple(files(__package__).joinpath("marker_words.txt").read_text("ascii").split())
    return words, {word: place for place, word in enumerate(words)}


class MarkerKey:
    """Makes the markers of one process, and finds those of all processes of the run."""

    def __init__(self, key: bytes, process: int = 0) -> None:
        """``key`` is the run's, ``process`` the place of this process among all."""
        self._key = key
        self._next = process % (_NUMBERS >> _COUNT_BITS) << _COUNT_BITS
        spread = int.from_bytes(blake2s(b"spread", key=key, digest_size=16).digest(), "little")
        # an odd factor makes this a permutation of the numbers: each has words of its own
        self._factor = spread % _NUMBERS | 1
        self._shift = (spread >> _PART_BITS) % _NUMBERS
        self._inverse = pow(self._factor, -1, _NUMBERS)
        quick = blake2s(b"quick", key=key, digest_size=16).digest()
        self._quick_factor = int.from_bytes(quick[:8], "little") | 1
        self._quick_shift = int.from_bytes(quick[8:], "little")
        self._asked_at = 0.0

    def make(self) -> Marker:
        """The marker of a new session."""
        number = self._next
        first = number >> _COUNT_BITS << _COUNT_BITS
        self._next = first | (number + 1) % (1 << _COUNT_BITS)
        spread = (number * self._factor + self._shift) % _NUMBERS
        words, _ = load_marker_words()
        places = [*_split_places(spread), *_split_places(self._hash(spread))]
        return Marker(number, " ".join([words[place] for place in places]))

    def end_prompt(self, marker: Marker, *, first: bool) -> tuple[str, bool]:
        """(the end of the next prompt of a session, whether it asks the model to repeat its
        marker). ``first``: it is the session's first prompt, which brings the marker."""
        asked = self._asks()
        sentences = [marker.sentence] if first else []
        if asked:
            sentences.append(ASK_SENTENCE)
        return " ".join(sentences), asked

    def _asks(self) -> bool:
        """An even spread that keeps step with no number of users."""
        self._asked_at = (self._asked_at + _GOLDEN) % 1
        return self._asked_at < ASKED_SHARE

    def find(self, text: str) -> list[int]:
        """The numbers of all markers in a text, each once, in their order. Case, punctuation,
        markup and line breaks between the words do not matter."""
        if "\\" in text:
            text = _JSON_ESCAPE.sub(" ", text)
        words = _LETTERS.findall(text.lower())
        place_of = load_marker_words()[1]
        found: dict[int, None] = {}
        # six words in a row have one at each sixth place, so only those are looked up
        for at in range(MARKER_WORDS - 1, len(words), MARKER_WORDS):
            if words[at] in place_of:
                for number in self._find_around(words, at):
                    found[number] = None
        return list(found)

    def _find_around(self, words: list[str], at: int) -> list[int]:
        """The numbers of the markers that the word at this place belongs to."""
        place_of = load_marker_words()[1]
        first = last = at
        while first > max(0, at - MARKER_WORDS + 1) and words[first - 1] in place_of:
            first -= 1
        while last < min(len(words), at + MARKER_WORDS) - 1 and words[last + 1] in place_of:
            last += 1
        places = [place_of[word] for word in words[first : last + 1]]
        found = []
        for begin in range(len(places) - MARKER_WORDS + 1):
            # by hand, as a text of nothing but words of the list does this for each word
            a, b, c, quick, *_ = places[begin : begin + MARKER_WORDS]
            spread = a | b << _WORD_BITS | c << 2 * _WORD_BITS
            if self._hash_quickly(spread) != quick:
                continue
            if self._hash(spread) == _join_places(
                places[begin + _PART_WORDS : begin + MARKER_WORDS]
            ):
                found.append((spread - self._shift) * self._inverse % _NUMBERS)
        return found

    def _hash(self, spread: int) -> int:
        """33 bits. The first word of them is quick, so hardly another text needs the slow ones."""
        digest = blake2s(spread.to_bytes(8, "little"), key=self._key, digest_size=8).digest()
        slow = int.from_bytes(digest, "little") << _WORD_BITS
        return (slow | self._hash_quickly(spread)) % _NUMBERS

    def _hash_quickly(self, spread: int) -> int:
        """11 bits: the upper ones of a product with a secret factor."""
        return (spread * self._quick_factor + self._quick_shift >> _QUICK_BITS) & (WORDS - 1)


def _split_places(value: int) -> list[int]:
    return [value >> _WORD_BITS * part & (WORDS - 1) for part in range(_PART_WORDS)]


def _join_places(places: list[int]) -> int:
    return sum([place << _WORD_BITS * part for part, place in enumerate(places)])
