"""Compare answers: how an answer to a reference prompt differs from the idle answer, and whether
rounding can be the reason.

The same prompt at temperature 0 can give two texts on a sound server, as the sums of a batch are
rounded in another order. Rounding only swaps tokens that are nearly as likely as each other. So the
margins at the first difference tell rounding from a fault.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from .answer_integrity import name_text_difference
from .fault_names import PROMPT_TOKENS_DIFFER
from .reference_answer import IDLE, AnswerToken, ReferenceAnswer

NEAR_TIE: Final = "near tie"
WIDE: Final = "wide margin"
UNKNOWN: Final = "unknown margin"
NEAR_TIE_NATS: Final = 0.5
"""Below this shift of two logits against each other, rounding explains a difference.

A logit between 32 and 64 in bfloat16 has steps of 0.25, and rounding moves it by half a step. Two
tokens in two runs are four roundings, so at most 0.5. Reports of sound servers have 0.06 (vLLM 5543)
and 0.125 (vLLM 52701).
"""
REPEATS: Final = 20
"""So many equal tokens in a row are a sign of broken text."""
REPLACEMENT: Final = "�"
BROKEN_CHARACTERS: Final = "replacement characters"
REPEATED_TOKEN: Final = "one token repeated"
EMPTY: Final = "empty"
OTHER_SCRIPT: Final = "another script"


class AnswerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer differs from the idle answer to its prompt."""

    at_character: int
    """The place of the first difference in ``whole_text``."""
    at_token: int | None = None
    """The same in tokens. None: tokens are not known, or all are the same."""
    margin: float | None = None
    """By how many nats the two tokens there moved against each other, at least. None: not known."""
    size: str
    """NEAR_TIE, WIDE or UNKNOWN."""
    characters: tuple[int, int]
    """The lengths of the idle answer and of this one."""
    finish_reasons: tuple[str, str]
    broken: tuple[str, ...] = ()
    """The signs of broken text that the idle answer does not have."""

    @property
    def is_mismatch(self) -> bool:
        """Whether it counts: rounding does not."""
        return self.size != NEAR_TIE


class ComparedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer beside the idle answer to the same prompt of the same server."""

    answer: ReferenceAnswer
    idle: ReferenceAnswer
    difference: AnswerDifference | None = None
    """None: they are the same."""

    def list_faults(self) -> Iterator[str]:
        """What is wrong in the answer, by name, with what only the idle answer shows."""
        yield from self.answer.faults
        counted, expected = self.answer.input_tokens, self.idle.input_tokens
        if counted is not None and expected is not None and counted != expected:
            yield PROMPT_TOKENS_DIFFER
        if self.difference is not None and self.difference.is_mismatch and self.answer.streamed:
            name = name_text_difference(self.idle.text, self.answer.text)
            if name and name not in self.answer.faults:
                yield name


class IdleAnswers:
    """The first idle answer to each prompt of each server, which all others are compared with."""

    def __init__(self) -> None:
        self._first = dict[tuple[str, int], ReferenceAnswer]()

    def add(self, answer: ReferenceAnswer) -> bool:
        """Whether it is the first idle one, which is kept. A failed request has no answer."""
        key = answer.server, answer.prompt
        if answer.asked != IDLE or answer.error or key in self._first:
            return False
        self._first[key] = answer
        return True

    def compare(self, answer: ReferenceAnswer) -> ComparedAnswer | None:
        """None: it is a failed request, or its prompt has no idle answer."""
        idle = self._first.get((answer.server, answer.prompt))
        if idle is None or answer.error:
            return None
        return ComparedAnswer(answer=answer, idle=idle, difference=compare_answers(idle, answer))


def compare_with_idle(answers: Sequence[ReferenceAnswer]) -> Iterator[ComparedAnswer]:
    """Compare each answer with the first idle answer to its prompt, later idle answers too.

    A failed request, and a prompt without an idle answer, have no comparison.
    """
    idle = IdleAnswers()
    others = [answer for answer in answers if not idle.add(answer)]
    for answer in others:
        compared = idle.compare(answer)
        if compared is not None:
            yield compared


def compare_answers(idle: ReferenceAnswer, other: ReferenceAnswer) -> AnswerDifference | None:
    """None: the two are the same."""
    before, now = idle.whole_text, other.whole_text
    if before == now and idle.finish_reason == other.finish_reason:
        return None
    at = _find_first_different(before, now)
    at = len(before) if at is None else at
    at_token, margin, size = _judge_tokens(idle, other, at)
    return AnswerDifference(
        at_character=at,
        at_token=at_token,
        margin=margin,
        size=size,
        characters=(len(before), len(now)),
        finish_reasons=(idle.finish_reason, other.finish_reason),
        broken=tuple(_list_new_signs(idle, other)),
    )


def _judge_tokens(
    idle: ReferenceAnswer, other: ReferenceAnswer, at: int
) -> tuple[int | None, float | None, str]:
    """(the place of the first different token, the margin there, its size)."""
    known = [answer for answer in (idle, other) if answer.tokens]
    has_tokens = all(_covers(answer.tokens, answer.reasoning) for answer in known)
    if idle.reasoning != other.reasoning and not has_tokens:
        return None, None, UNKNOWN  # the first difference is in text without tokens
    if len(known) < 2:
        one = known[0] if known else idle
        place = _find_token(one.tokens, one.whole_text, at)
        margin = None if place is None else one.tokens[place].margin
        return place, margin, _size(margin)
    place = _find_first_different(
        [token.text for token in idle.tokens], [token.text for token in other.tokens]
    )
    if place is None:
        # the model chose the same tokens, so no rounding has made the texts differ
        return None, None, WIDE
    margins = [
        tokens[place].margin
        for tokens in (idle.tokens, other.tokens)
        if place < len(tokens)  # the end of an answer has no token
    ]
    known_margins = [margin for margin in margins if margin is not None]
    margin = sum(known_margins) if known_margins else None
    return place, margin, _size(margin)


def _size(margin: float | None) -> str:
    if margin is None:
        return UNKNOWN
    return NEAR_TIE if margin < NEAR_TIE_NATS else WIDE


def _covers(tokens: Sequence[AnswerToken], text: str) -> bool:
    """Whether the tokens have this text, too."""
    return bool(text) and text in "".join(token.text for token in tokens)


def _find_first_different(before: Sequence[str], now: Sequence[str]) -> int | None:
    """None: all are the same."""
    for place, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return place
    shorter, longer = sorted((len(before), len(now)))
    return None if shorter == longer else shorter


def _find_token(tokens: Sequence[AnswerToken], text: str, at: int) -> int | None:
    """The token that holds a character. None: there are no tokens, or they do not join to the
    text."""
    if "".join(token.text for token in tokens) != text:
        return None
    end = 0
    for place, token in enumerate(tokens):
        end += len(token.text)
        if at < end:
            return place
    return None


# -- broken text -----------------------------------------------------------------------------------


def _list_new_signs(idle: ReferenceAnswer, other: ReferenceAnswer) -> Iterator[str]:
    known = set(find_broken_text(idle))
    yield from (sign for sign in find_broken_text(other) if sign not in known)
    if find_scripts(other.whole_text) - find_scripts(idle.whole_text):
        yield OTHER_SCRIPT


def find_broken_text(answer: ReferenceAnswer) -> Iterator[str]:
    """The signs of broken text that show in one answer alone."""
    text = answer.whole_text
    if REPLACEMENT in text:
        yield BROKEN_CHARACTERS
    words = [token.text for token in answer.tokens] or text.split()
    if _longest_run(words) >= REPEATS or _longest_run(text.replace(" ", "")) >= REPEATS:
        yield REPEATED_TOKEN
    if not text.strip() and answer.finish_reason == "stop":
        yield EMPTY


def _longest_run(items: Sequence[str]) -> int:
    """How often the same item comes in a row at most."""
    lengths = [len([*run]) for _, run in groupby(items)]
    return max(lengths, default=0)


def find_scripts(text: str) -> set[str]:
    """The scripts of its letters, as Unicode names them: LATIN, CYRILLIC, CJK."""
    letters = {letter for letter in text if letter.isalpha()}
    return {unicodedata.name(letter, "unnamed").split(" ")[0].split("-")[0] for letter in letters}
