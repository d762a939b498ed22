"""Simulated text: what an answer says, token by token, where a request asks for more than words.

At temperature 0 the words depend on the prompt alone. An answer begins with the session marker of its
prompt if the prompt asks for that, and fills in a JSON schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from .simulated_tokenizer import WORDS

MAX_TOP_LOGPROBS: Final = 20  # vLLM's --max-logprobs
ASKS_FOR_CODE: Final = "Begin your answer with the session code."
VOCABULARY: Final = tuple(dict.fromkeys(WORDS))
MAX_DEPTH: Final = 8
TIE_MARGIN: Final = 0.08  # nats
_CODE: Final = re.compile(r"Session code: ((?:[a-z]+ ){5}[a-z]+)\.")
_SURE_MARGIN: Final = 2.0

Messages = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Holds a token with its logprob and the likeliest tokens, the sampled one first."""

    text: str
    logprob: float
    likeliest: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class SimulatedText:
    """Describes the text of an answer: pieces of its own, then words without end.

    ``seed`` chooses the words by the prompt. None: they go on from ``first_word``, as in every
    ordinary answer. With ``ends`` the text is over after its pieces. ``changed`` has pieces that a
    fault puts in place of others, and ``tie_at`` the position where two tokens are nearly as
    likely.
    """

    pieces: tuple[str, ...] = ()
    first_word: int = 0
    seed: int | None = None
    ends: bool = False
    tie_at: int | None = None
    changed: dict[int, str] | None = None

    def piece(self, number: int) -> str:
        """Returns a token's text, with the blank before it."""
        if self.changed and number in self.changed:
            return self.changed[number]
        return self._planned(number)

    def text_of(self, begin: int, end: int) -> str:
        """Returns the text of these tokens. The first one has no blank before it."""
        return "".join(map(self.piece, range(begin, end))).removeprefix(" ")

    def sampled(self, number: int, num_likeliest: int, *, first: bool = False) -> SampledToken:
        """Returns a token with its logprobs. ``first``: no text comes before it."""
        text = self.piece(number)
        planned = self._planned(number)
        margin = _SURE_MARGIN + self._mix(number) % 300 / 100
        other = self.runner_up(number) if text == planned else planned
        if number == self.tie_at:
            margin = TIE_MARGIN
            other = self.runner_up(number) if text == planned else planned
        top = -math.log1p(math.exp(-margin))
        words = [text, other, *self._others(number, (text, other), num_likeliest - 2)]
        if first:
            words = [word.removeprefix(" ") for word in words]
        likeliest = tuple(
            (word, round(top - margin * rank, 6)) for rank, word in enumerate(words[:num_likeliest])
        )
        return SampledToken(words[0], round(top, 6), likeliest)

    def runner_up(self, number: int) -> str:
        """Returns the second likeliest token."""
        planned = self._planned(number)
        return next(word for word in self._candidates(number) if word != planned)

    def _planned(self, number: int) -> str:
        if number < len(self.pieces):
            return self.pieces[number]
        if self.seed is None:
            return f" {WORDS[(self.first_word + number) % len(WORDS)]}"
        # even and odd places in turn, so that no word comes twice in a row
        place = self._mix(number) % (len(VOCABULARY) // 2) * 2 + number % 2
        return f" {VOCABULARY[place]}"

    def _mix(self, number: int) -> int:
        return crc32(b"%d %d" % (number, self.seed or self.first_word))

    def _candidates(self, number: int) -> Iterator[str]:
        begin = self._mix(-1 - number)
        count = len(VOCABULARY)
        return (f" {VOCABULARY[(begin + step) % count]}" for step in range(count))

    def _others(self, number: int, known: tuple[str, ...], count: int) -> list[str]:
        others: list[str] = []
        for word in self._candidates(number):
            if len(others) >= count:
                break
            if word not in known:
                others.append(word)
        return others


@dataclass(frozen=True, slots=True)
class TextWish:
    """Describes what a request asks of the text."""

    messages: Messages
    seed: int | None = None  # of the prompt, at temperature 0
    asks_for_code: bool = False
    schema: dict[str, Any] | None = None  # of the JSON that is asked for, at temperature 0
    top_logprobs: int | None = None

    @property
    def is_special(self) -> bool:
        return self.seed is not None or self.asks_for_code or self.top_logprobs is not None

    def make_text(self, first_word: int, prompt: TextWish | None = None) -> SimulatedText:
        """Makes the text. ``prompt``: the server reads this prompt in place of the request's."""
        read = prompt or self
        if self.schema is not None:
            words = SimulatedText(seed=read.seed)
            return SimulatedText(_json_pieces(self.schema, words), seed=read.seed, ends=True)
        code = find_session_code(read.messages) if self.asks_for_code else ""
        seed = None if self.seed is None else read.seed
        return SimulatedText(_code_pieces(code), first_word, seed)


NO_WISH: Final = TextWish(())


def read_text_wish(
    asked: dict[str, Any],
    messages: Messages,
    pieces: Sequence[str],
    top_logprobs: int | None,
    *,
    has_tool: bool,
) -> TextWish:
    """Reads the request's fields. ``pieces`` are the tokens of its prompt."""
    temperature = asked.get("temperature")
    is_greedy = type(temperature) in (int, float) and temperature == 0
    users = [text for role, text in messages if role == "user"]
    return TextWish(
        messages,
        crc32("\0".join(pieces).encode("utf-8", "replace")) if is_greedy else None,
        bool(users) and ASKS_FOR_CODE in users[-1],
        _find_schema(asked) if is_greedy and not has_tool else None,
        top_logprobs,
    )


def quote_session_code(messages: Messages, first_word: int) -> SimulatedText:
    """Makes a text that begins with the session code of a prompt, whether it asks for it or not."""
    return SimulatedText(_code_pieces(find_session_code(messages)), first_word)


def find_session_code(messages: Messages) -> str:
    """Finds the session marker in the first message of the user, or returns an empty text."""
    first = next((text for role, text in messages if role == "user"), "")
    match = _CODE.search(first)
    return match[1] if match else ""


def _code_pieces(code: str) -> tuple[str, ...]:
    if not code:
        return ()
    first, *more = f"{code}.".split()
    return (first, *(f" {word}" for word in more))


# -- JSON --------------------------------------------------------------------------------------------


def _find_schema(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Finds the JSON schema of chat completions or of Responses."""
    form = asked.get("response_format")
    text = asked.get("text")
    if isinstance(text, dict):
        form = text.get("format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return None
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else form.get("schema")
    return schema if isinstance(schema, dict) else None


def _json_pieces(schema: dict[str, Any], words: SimulatedText) -> tuple[str, ...]:
    """Writes JSON that fits the schema, in pieces of one token."""
    count = 0

    def word() -> str:
        nonlocal count
        count += 1
        return words.piece(count).strip()

    text = json.dumps(_fit(schema, word, MAX_DEPTH))
    return tuple(re.findall(r"\s?\w{1,6}|\s?[^\s\w]+|\s", text))


def _fit(schema: Any, word: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth == 0:
        return word()
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next(iter(kind), None)
    properties = schema.get("properties")
    if kind == "object" or isinstance(properties, dict):
        fields = properties if isinstance(properties, dict) else {}
        return {name: _fit(inner, word, depth - 1) for name, inner in fields.items()}
    if kind == "array":
        count = schema.get("minItems")
        items = count if isinstance(count, int) and 0 < count < 100 else 1
        return [_fit(schema.get("items"), word, depth - 1) for _ in range(items)]
    simple: dict[Any, Any] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
    return simple[kind] if kind in simple else word()


# -- logprobs ----------------------------------------------------------------------------------------


def chat_logprobs(tokens: Sequence[SampledToken]) -> dict[str, Any]:
    """Builds the logprobs of chat completions."""
    content = []
    for token in tokens:
        likeliest = [_chat_entry(text, logprob) for text, logprob in token.likeliest]
        content.append({**_chat_entry(token.text, token.logprob), "top_logprobs": likeliest})
    return {"content": content}


def _chat_entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def plain_logprobs(tokens: Sequence[SampledToken], offset: int) -> dict[str, Any]:
    """Builds the logprobs of plain completions. ``offset`` is the length of the text before."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [token.logprob for token in tokens],
        "tokens": [token.text for token in tokens],
        "top_logprobs": [dict(token.likeliest) for token in tokens],
    }
