"""Answer integrity: whether one answer contradicts itself or its request.

Each check finds only what no sound server does, so that a run of a million sound answers gives no
alarm. Where a server has its own way (it gives each event an id, or numbers none), nothing is
found. An answer without a finish reason is a failed request already, and is not checked here.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from .fault_names import (
    BROKEN_TEXT,
    DOUBLED_DELTA,
    ID_SWITCHED,
    LOGPROBS_TEXT,
    LOST_DELTA,
    REORDERED_DELTA,
    TOOL_ARGUMENTS,
    WRONG_MODEL,
    WRONG_USAGE,
)
from .received_answer import AnswerRequested, LogprobToken, ReceivedAnswer

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
LENGTH: Final = frozenset({"length", "max_tokens", "incomplete"})
"""The finish reasons of answers that reached the length asked for."""
CALLED: Final = frozenset({"tool_calls", "function_call", "tool_use", "stop", "end_turn"})
"""The finish reasons of whole tool calls. A call that was cut off by its length is no JSON."""
LONGEST_TOKEN: Final = 128
"""The most characters of a token in common vocabularies."""
BLANKS: Final = {"\N{LOWER ONE EIGHTH BLOCK}": " ", "Ġ": " ", "Ċ": "\n"}
"""How vocabularies write blanks and line breaks, where a server lists tokens as they stand there."""
MAX_SHIFT: Final = 24
"""Swapped parts may begin or end alike: so many characters around a difference are tried."""


def find_answer_faults(
    answer: ReceivedAnswer, asked: AnswerRequested, models: "ModelNames | None" = None
) -> tuple[str, ...]:
    """The faults of one answer, by name. ``models`` are the names that the server gave so far."""
    found: list[str] = []
    if has_switched_id(answer):
        found.append(ID_SWITCHED)
    if models is not None and has_wrong_model(answer, asked, models):
        found.append(WRONG_MODEL)
    deltas = find_delta_faults(answer, asked)
    if not deltas and has_wrong_usage(answer, asked):
        found.append(WRONG_USAGE)
    if has_broken_arguments(answer):
        found.append(TOOL_ARGUMENTS)
    if not deltas and has_other_logprobs(answer):
        found.append(LOGPROBS_TEXT)
    found += deltas
    if has_replacement(answer):
        found.append(BROKEN_TEXT)
    return tuple(found)


# -- ids and models --------------------------------------------------------------------------------


def has_switched_id(answer: ReceivedAnswer) -> bool:
    """Whether the response id changes within the stream. Where most events have an id of their own,
    the stream has no id that could change."""
    events = answer.events
    if events is None or events.id_changes < 2 or events.id_changes == events.named_events:
        return False
    return events.id_changes <= max(2, events.named_events // 4)


def has_wrong_model(answer: ReceivedAnswer, asked: AnswerRequested, models: "ModelNames") -> bool:
    events = answer.events
    if events is None:
        return False
    return any(models.is_wrong(asked.model, name) for name in events.models)


class ModelNames:
    """The names under which a server answers for a model that was asked for.

    Servers answer with an alias, a dated version or a path. A name is wrong if the server's own
    list shows it as another model, or if it is none of the names that this model had first.
    """

    def __init__(self, roots: dict[str, str] | None = None) -> None:
        """``roots`` has for each name in the server's list the model behind it."""
        self._roots = roots or {}
        self._first: dict[str, str] = {}
        """The name of the first answer, for each model that was asked for."""

    def is_wrong(self, asked: str, answered: str) -> bool:
        if not asked:
            return False
        if is_same_model(asked, answered):
            self._first.setdefault(asked, answered)
            return False
        asked_root = self._roots.get(asked)
        answered_root = self._roots.get(answered)
        if asked_root is not None and answered_root is not None:
            return asked_root != answered_root
        return self._first.setdefault(asked, answered) != answered


def is_same_model(asked: str, answered: str) -> bool:
    """Whether a name is the model asked for, its dated version, or its name without the
    provider."""
    asked = asked.lower()
    answered = answered.lower()
    if asked == answered:
        return True
    short = asked.rpartition("/")[2]
    other = answered.rpartition("/")[2]
    if short == other:
        return True
    longer, begin = (other, short) if len(other) > len(short) else (short, other)
    rest = longer.removeprefix(begin)
    return rest != longer and rest[:1] in ("-", "@", ":") and rest[1:2].isdigit()


# -- counts ----------------------------------------------------------------------------------------


def has_wrong_usage(answer: ReceivedAnswer, asked: AnswerRequested) -> bool:
    """Whether the counts contradict each other, the length asked for, or what was sent."""
    written = answer.completion_tokens
    if written is None:
        return False
    return (
        _is_total_too_small(answer)
        or _is_longer_than_asked(answer, asked, written)
        or len(answer.text) > LONGEST_TOKEN * max(1, written)
        or _count_of_logprobs_differs(answer, written)
    )


def _is_total_too_small(answer: ReceivedAnswer) -> bool:
    """A total may hold hidden reasoning, so a larger one is no fault. Of several choices llama.cpp
    gives the total of the last one."""
    total, prompt, written = answer.total_tokens, answer.prompt_tokens, answer.completion_tokens
    if not total or prompt is None or written is None or answer.choices > 1:
        return False
    return total < prompt + written


def _is_longer_than_asked(answer: ReceivedAnswer, asked: AnswerRequested, written: int) -> bool:
    """Some servers do not count reasoning towards the length."""
    if asked.max_tokens is None or answer.reasoning:
        return False
    return written - (answer.reasoning_tokens or 0) > asked.max_tokens * answer.choices


def _count_of_logprobs_differs(answer: ReceivedAnswer, written: int) -> bool:
    listed = _countable_logprobs(answer)
    if listed is None:
        return False
    at_end = 0 if answer.finish_reason in LENGTH else 1  # the end of the answer is a token too
    return not written - at_end <= len(listed) <= written


def _comparable_logprobs(answer: ReceivedAnswer) -> Sequence[LogprobToken] | None:
    """The listed tokens, where the server lists each one of the text. None: it does not. Some
    servers list no token that holds part of a character, and none of reasoning or tool calls."""
    listed = answer.events.logprob_tokens if answer.events is not None else None
    if not listed or answer.choices > 1 or not answer.text.isascii():
        return None
    return None if _has_reasoning(answer) or answer.tool_arguments else listed


def _countable_logprobs(answer: ReceivedAnswer) -> Sequence[LogprobToken] | None:
    """The listed tokens, where the text is made of them and of nothing else. llama.cpp holds back
    what stands before the JSON of a schema, and most of its tokens with it."""
    listed = _comparable_logprobs(answer)
    if listed is None or not join_tokens(listed).removeprefix(" ").startswith(
        answer.text.removeprefix(" ")
    ):
        return None
    return listed


def _has_reasoning(answer: ReceivedAnswer) -> bool:
    return bool(answer.reasoning or answer.reasoning_tokens)


# -- texts -----------------------------------------------------------------------------------------


def has_broken_arguments(answer: ReceivedAnswer) -> bool:
    """Whether the arguments of a whole tool call are no JSON object. Servers leave the arguments of
    a function without parameters empty."""
    if answer.finish_reason not in CALLED:
        return False
    return any(bool(text.strip()) and not _is_json_object(text) for text in answer.tool_arguments)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def has_other_logprobs(answer: ReceivedAnswer) -> bool:
    """Whether the listed tokens lack the text. They may hold more: a stop sequence, or the end.
    Blanks are not compared, as servers write them in several ways."""
    listed = _comparable_logprobs(answer)
    if listed is None:
        return False
    joined = join_tokens(listed)
    return REPLACEMENT not in joined and _without_blanks(answer.text) not in _without_blanks(joined)


def join_tokens(tokens: Sequence[LogprobToken]) -> str:
    if all(token.bytes is not None for token in tokens):
        listed = chain.from_iterable(token.bytes or () for token in tokens)
        return bytes(byte & 255 for byte in listed).decode("utf-8", "replace")
    joined = "".join([token.token for token in tokens])
    for written, meant in BLANKS.items():
        joined = joined.replace(written, meant)
    return joined


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def has_replacement(answer: ReceivedAnswer) -> bool:
    """Whether the text holds a replacement character. One at the end of an answer that its length
    or its client cut off is half a character."""
    text = answer.text + answer.reasoning
    if answer.finish_reason is None or answer.finish_reason in LENGTH:
        text = answer.text.rstrip(REPLACEMENT) + answer.reasoning.rstrip(REPLACEMENT)
    # how each of the other choices ended is not known
    others = [other.rstrip(REPLACEMENT) for other in answer.other_texts]
    return any(REPLACEMENT in part for part in (text, *others))


# -- deltas ----------------------------------------------------------------------------------------


def find_delta_faults(answer: ReceivedAnswer, asked: AnswerRequested) -> tuple[str, ...]:
    """Which deltas were lost, doubled or reordered, as far as the stream itself shows it."""
    found = {*_by_event_number(answer), *_by_tokens_so_far(answer), *_by_logprobs(answer, asked)}
    return tuple(name for name in (LOST_DELTA, DOUBLED_DELTA, REORDERED_DELTA) if name in found)


def _by_event_number(answer: ReceivedAnswer) -> Iterator[str]:
    """Responses numbers its events."""
    if answer.events is None:
        return
    order = answer.events.order
    if order.has_lost:
        yield LOST_DELTA
    if order.has_doubled:
        yield DOUBLED_DELTA
    if order.has_reordered:
        yield REORDERED_DELTA


def _by_tokens_so_far(answer: ReceivedAnswer) -> Iterator[str]:
    """Usage with each chunk counts upwards. A jump is no fault: a chunk may hold several tokens."""
    counts, texts = answer.tokens_so_far, answer.chunk_texts
    if len(counts) != len(texts) or len(set(counts)) * 2 < len(counts):
        return  # a server whose counts stand still
    for before, now in pairwise(zip(counts, texts, strict=True)):
        if now[0] < before[0]:
            yield REORDERED_DELTA
        elif now == before:
            yield DOUBLED_DELTA


def _by_logprobs(answer: ReceivedAnswer, asked: AnswerRequested) -> Iterator[str]:
    """Each delta brings its logprobs. Where the answer has the length asked for, too few of them
    mean a lost delta, too many a doubled one."""
    listed = _countable_logprobs(answer)
    if listed is None or answer.finish_reason not in LENGTH:
        return
    if asked.max_tokens is None or answer.completion_tokens != asked.max_tokens:
        return
    if len(listed) < asked.max_tokens:
        yield LOST_DELTA
    elif len(listed) > asked.max_tokens:
        yield DOUBLED_DELTA


def name_text_difference(expected: str, text: str) -> str:
    """The delta fault that alone explains how a text differs from the expected one. Empty: none
    does.

    A model that goes another way writes other words. A text that lacks one piece, has one twice or
    has two swapped, and is the same before and behind it, was damaged on its way.
    """
    if expected == text:
        return ""
    begin = _count_common(expected, text)
    end = _count_common(expected[begin:][::-1], text[begin:][::-1])
    if len(text) < len(expected):
        is_cut = begin == len(text)
        return LOST_DELTA if begin + end == len(text) and not is_cut else ""
    if len(text) > len(expected):
        extra = len(text) - len(expected)
        is_repeated = text[begin - extra : begin] == text[begin : begin + extra]
        fits = begin + end == len(expected) and begin >= extra
        return DOUBLED_DELTA if fits and is_repeated else ""
    return REORDERED_DELTA if _is_swapped(expected, text, begin, len(text) - end) else ""


def _count_common(one: str, other: str) -> int:
    """How many characters at their begin are the same."""
    for count, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine != yours:
            return count
    return min(len(one), len(other))


def _is_swapped(expected: str, text: str, begin: int, end: int) -> bool:
    """Whether two neighbouring pieces around this difference changed places."""
    for left in range(max(0, begin - MAX_SHIFT), begin + 1):
        for right in range(end, min(len(text), end + MAX_SHIFT) + 1):
            if text[left:right] in 2 * expected[left:right]:
                return True
    return False
