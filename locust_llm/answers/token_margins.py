"""Token margins: the tokens of an answer, and how much more likely each was than the next one, from
the logprobs of chat completions and plain completions."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from .reference_answer import AnswerToken


class _Likely(msgspec.Struct, gc=False):
    """A token that the model might have chosen."""

    token: str = ""
    logprob: float | None = None


class _Chosen(_Likely, gc=False):
    top_logprobs: list[_Likely] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    """Chat completions list tokens in ``content``, plain completions in three lists."""

    content: list[_Chosen] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    logprobs: _Logprobs | None = None


class _Choices(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_decode: Final = msgspec.json.Decoder(_Choices).decode


def read_token_margins(data: bytes) -> Iterator[AnswerToken]:
    """The tokens of the first choice in an event or a whole body. What has another form has
    none."""
    try:
        event = _decode(data)
    except (ValueError, RecursionError):
        return
    for choice in event.choices or ():
        if choice.logprobs is not None and not choice.index:
            yield from _read_tokens(choice.logprobs)


def _read_tokens(logprobs: _Logprobs) -> Iterator[AnswerToken]:
    for chosen in logprobs.content or ():
        likely = [(other.token, other.logprob) for other in chosen.top_logprobs or ()]
        yield _make_token(chosen.token, chosen.logprob, likely)
    known = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or []
    for place, text in enumerate(logprobs.tokens or ()):
        top = (tops[place] if place < len(tops) else None) or {}
        yield _make_token(text, known[place] if place < len(known) else None, [*top.items()])


def _make_token(
    text: str, logprob: float | None, likely: list[tuple[str, float | None]]
) -> AnswerToken:
    """``likely`` has the most likely tokens, mostly with the chosen one among them."""
    others = [value for name, value in likely if name != text and value is not None]
    margin = abs(logprob - max(others)) if others and logprob is not None else None
    return AnswerToken(text, logprob, margin)
