"""Received answer: what came of one answer, as far as its integrity can be checked.

The protocols read text, tool calls and counts. The fields that they need not read (response ids,
model names, event numbers, logprobs) are read here once more, event by event.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

MAX_KEPT_NAMES: Final = 8
"""So many different ids or models of one answer are kept. More of them say nothing new."""
MAX_MISSING: Final = 1_000
MIN_NUMBERED: Final = 4
STRANGE_SHARE: Final = 0.25
"""Where more events than this have an unexpected number, the server does not number its events."""


class LogprobToken(msgspec.Struct, gc=False):
    """A token in logprobs. Its bytes are exact where its text holds part of a character only."""

    token: str = ""
    bytes: list[int] | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[LogprobToken] | None = None
    tokens: list[str] | None = None
    """The form of plain completions."""


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    logprobs: _Logprobs | None = None


class _Named(msgspec.Struct, gc=False):
    """The object that holds id and model in Responses and Messages."""

    id: str | None = None
    model: str | None = None


class _EventFields(msgspec.Struct, gc=False):
    """The fields of an event or a whole body, in any protocol."""

    id: str | None = None
    model: str | None = None
    sequence_number: int | None = None
    choices: list[_Choice] | None = None
    response: _Named | None = None
    message: _Named | None = None


_decode: Final = msgspec.json.Decoder(_EventFields).decode


class EventOrder:
    """Follows the numbers of the events, where the server numbers them."""

    __slots__ = ("_count", "_doubled", "_missing", "_next", "_reordered", "_strange")

    def __init__(self) -> None:
        self._next: int | None = None
        self._missing: set[int] = set()
        self._count = self._strange = self._doubled = self._reordered = 0

    def add(self, number: int) -> None:
        self._count += 1
        if self._next is None or number == self._next:
            self._next = number + 1
            return
        self._strange += 1
        if number > self._next:
            self._missing.update(range(self._next, min(number, self._next + MAX_MISSING)))
            self._next = number + 1
        elif number in self._missing:
            self._missing.discard(number)
            self._reordered += 1
        else:
            self._doubled += 1

    @property
    def is_numbered(self) -> bool:
        return self._count >= MIN_NUMBERED and self._strange <= STRANGE_SHARE * self._count

    @property
    def has_lost(self) -> bool:
        return self.is_numbered and bool(self._missing)

    @property
    def has_doubled(self) -> bool:
        return self.is_numbered and self._doubled > 0

    @property
    def has_reordered(self) -> bool:
        return self.is_numbered and self._reordered > 0


class EventReader:
    """Reads these fields from each event of a stream, or from a whole body."""

    __slots__ = (
        "_last_id", "_logprob_tokens", "id_changes", "ids", "models", "named_events", "order",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ids: list[str] = []
        """The first response ids, in the order of the events, each change once."""
        self.named_events = 0
        """The events that have a response id."""
        self.id_changes = 0
        """The events whose id differs from the one before; the first of them counts too."""
        self._last_id = ""
        self.models: list[str] = []
        """The names of models in the order of the events, each change once."""
        self.order = EventOrder()
        self._logprob_tokens: list[LogprobToken] | None = None

    def add(self, data: bytes) -> None:
        """Read one event, or one body. What is no JSON object is left out."""
        try:
            fields = _decode(data)
        except (ValueError, RecursionError):
            return
        if fields.sequence_number is not None:
            self.order.add(fields.sequence_number)
        named = fields.response or fields.message
        if named is not None:
            self._take_names(named.id, named.model)
        elif fields.choices != []:  # usage alone, which some gateways send under an id of its own
            self._take_names(fields.id, fields.model)
        for choice in fields.choices or ():
            if choice.logprobs is not None and not choice.index:
                self._take_logprobs(choice.logprobs)

    @property
    def logprob_tokens(self) -> Sequence[LogprobToken] | None:
        """The tokens of the first choice. None: the server lists none."""
        return self._logprob_tokens

    def _take_names(self, id_: str | None, model: str | None) -> None:
        if id_:
            self.named_events += 1
            if id_ != self._last_id:
                self._last_id = id_
                self.id_changes += 1
                self.ids = [*self.ids, id_][:MAX_KEPT_NAMES]
        if model and (not self.models or self.models[-1] != model):
            self.models = [*self.models, model][:MAX_KEPT_NAMES]

    def _take_logprobs(self, logprobs: _Logprobs) -> None:
        tokens = logprobs.content
        if tokens is None and logprobs.tokens is not None:
            tokens = [LogprobToken(text) for text in logprobs.tokens]
        if tokens:
            self._logprob_tokens = self._logprob_tokens or []
            self._logprob_tokens += tokens


class ReceivedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one answer. Counts are the server's, None where it gave none."""

    text: str = ""
    reasoning: str = ""
    tool_arguments: tuple[str, ...] = ()
    """The arguments of each tool call, joined."""
    finish_reason: str | None = None
    choices: int = 1
    other_texts: tuple[str, ...] = ()
    """Everything that choices beside the first one hold, a text for each."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    chunk_texts: tuple[str, ...] = ()
    """The text of each chunk that has text. Empty: not kept, or not streamed."""
    tokens_so_far: tuple[int, ...] = ()
    """The server's count with each chunk of ``chunk_texts``. Empty: it counts at the end only."""
    events: EventReader | None = None


class AnswerRequested(msgspec.Struct, frozen=True, kw_only=True):
    """What the request asked for, as far as an answer can contradict it."""

    model: str = ""
    max_tokens: int | None = None
