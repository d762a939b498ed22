"""Conversation: a session whose history grows by the answers received.

Pure state without clock and network: ``next`` gives the next request and its think time, ``add_answer`` takes the answer.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from .formats import Item, Turn
from .lengths import normal
from .media import Refs
from .model_mix import Model
from .prompts import Prompts, with_parts

Message = dict[str, Any]
Parts = Callable[[Refs], list[dict[str, Any]]]
"""Of the content of a message: pictures and sounds that a row names. May raise MediaError."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session."""

    turn: int
    """Its number, from 0."""
    messages: list[Message]
    """The whole history to send; it grows with the answer: read it before that, and do not change it."""
    input_tokens: int | None
    """Expected tokens of these messages, with chat template and earlier answers; None: unknown."""
    output_tokens: int
    delay_s: float = 0.0
    """Think time after the last answer; not used with ``at_s``."""
    at_s: float | None = None
    """The trace's own time."""
    body: dict[str, Any] = {}
    """More fields of the request's body, of this turn alone."""


class Conversation:
    """The turns of one session, in order.

    A turn whose request fails ends it: without the answer the rest would be another conversation. So ``next`` after an ask
    that got no answer gives None, and ``left`` is the number of turns that were not sent.
    """

    def __init__(
        self,
        prompts: Prompts,
        item: Item | None = None,
        *,
        id: str,
        random: Random,
        turns: int = 1,
        delay_ms: tuple[float, float] = (0.0, 0.0),
        model: str | None = None,
        parts: Parts | None = None,
    ) -> None:
        """``item``: a session of a file; its answers are not sent. None: ``turns`` made-up prompts. ``delay_ms``: mean and
        standard deviation of the think time (normal, cut at 0), for turns whose file names none. ``model``: that all its
        turns ask for; None: that of the run. ``parts``: of the pictures and sounds that a row names."""
        self.id, self.model, self._parts = id, model, parts
        self.turns = turns if item is None else len(item.turns)
        self._prompts, self._item, self._random, self._delay_ms = prompts, item, random, delay_ms
        self._turn = 0
        self._answered = True
        self._messages: list[Message] = [] if prompts.system is None else [prompts.system]
        self._tokens: float | None = prompts.system_tokens
        """Of the history; None: not known."""

    @property
    def left(self) -> int:
        """Turns that were not sent."""
        return self.turns - self._turn

    def next(self) -> Ask | None:
        """The next request; None: the session is over. Raises MediaError where a picture of its row cannot be read."""
        if not self._answered or self._turn == self.turns:
            return None
        number, self._turn, self._answered = self._turn, self._turn + 1, False
        if self._item is None:
            output_tokens = self._add_synthetic(first=number == 0)
            return self._ask(number, output_tokens, self._think_s(number))
        turn = self._item.turns[number]
        self._add(turn, first=number == 0)
        # as vLLM's and AIPerf's of ShareGPT: as long as the answer in the file
        output_tokens = turn.output_tokens or round(self._prompts.tokens(turn.reference))
        output_tokens = output_tokens or self._prompts.output_tokens()
        delay_s = turn.delay_s if number and turn.delay_s is not None else self._think_s(number)
        return self._ask(number, output_tokens, delay_s, turn.at_s, turn.body)

    def add_answer(self, reply: str, tokens: int | None = None, **more: Any) -> None:
        """The answer to the last request. ``tokens``: as the server counted it, without reasoning; None: estimated.
        ``more``: fields of its message."""
        self._messages.append({"role": "assistant", "content": reply, **more})
        self._answered = True
        if self._tokens is not None:
            self._tokens += self._prompts.tokens(reply) if tokens is None else tokens

    def _add_synthetic(self, first: bool) -> int:
        """Add a synthetic prompt; returns its output tokens."""
        drawn = self._prompts.batch(first)
        self._messages += [one.message for one in drawn]
        # the system prompt is in both of them
        self._count(sum(one.input_tokens for one in drawn) - (self._prompts.system_tokens if first else 0))
        return drawn[0].output_tokens

    def _add(self, turn: Turn, first: bool) -> None:
        """Add a turn of a file."""
        prompts = self._prompts
        if turn.whole:
            self._messages = [] if prompts.system is None else [prompts.system]
            self._tokens = prompts.system_tokens
        if turn.messages is not None:
            salt = prompts.salt if first or turn.whole else ""
            self._extend(salted(turn.messages, salt) if salt else turn.messages)
            self._count(turn.input_tokens)
        elif turn.input_tokens is None:
            self._add_synthetic(first=False)
        else:
            text = prompts.text(turn.input_tokens, turn.hash_ids)
            self._messages.append({"role": "user", "content": text})
            self._count(turn.input_tokens)
        if turn.media and self._parts is not None:
            last = self._messages[-1]
            content = with_parts(last.get("content"), self._parts(turn.media))
            self._messages = [*self._messages[:-1], {**last, "content": content}]

    def _extend(self, messages: list[Message]) -> None:
        """A system message of the file joins the shared one: two in a row are more than most chat templates take."""
        first = messages[0] if messages else {}
        text, shared = first.get("content"), self._prompts.system
        if (
            shared is not None
            and self._messages == [shared]
            and first.get("role") == "system"
            and isinstance(text, str)
        ):
            self._messages = [{**first, "content": f"{shared['content']}\n\n{text}"}]
            messages = messages[1:]
        self._messages += messages

    def _count(self, tokens: int | None) -> None:
        self._tokens = None if self._tokens is None or tokens is None else self._tokens + tokens

    def _think_s(self, number: int) -> float:
        mean_ms, stddev_ms = self._delay_ms
        if number == 0:
            return 0.0
        return max(0.0, self._random.gauss(mean_ms, stddev_ms) if stddev_ms else mean_ms) / 1e3

    def _ask(
        self,
        number: int,
        output_tokens: int,
        delay_s: float,
        at_s: float | None = None,
        body: dict[str, Any] | None = None,
    ) -> Ask:
        return Ask(
            turn=number,
            messages=self._messages,
            input_tokens=None if self._tokens is None else round(self._tokens),
            output_tokens=output_tokens,
            delay_s=delay_s,
            at_s=at_s,
            body=body or {},
        )


def salted(messages: list[Message], salt: str) -> list[Message]:
    """The same, but what the first one says begins with the salt."""
    first, *rest = messages or [{}]
    content = first.get("content")
    if isinstance(content, str):
        return [{**first, "content": f"{salt} {content}"}, *rest]
    if isinstance(content, list):
        return [{**first, "content": [{"type": "text", "text": salt}, *content]}, *rest]
    return messages


class Sessions:
    """Conversations of one process without end: the same seed and worker give the same ones."""

    def __init__(
        self,
        prompts: Prompts,
        *,
        turns: tuple[float, float] = (1.0, 0.0),
        delay_ms: tuple[float, float] = (0.0, 0.0),
        seed: int | None = None,
        worker: int = 0,
        models: Model | None = None,
        parts: Parts | None = None,
    ) -> None:
        """``turns``: mean and standard deviation (normal, cut at 1); ``delay_ms``, ``parts``: see Conversation.
        ``models``: draws that of each session, apart from all else: the rest is the same with and without a mix."""
        self._prompts, self._delay_ms, self._parts = prompts, delay_ms, parts
        self._turns = normal(*turns)
        self._random = Random(None if seed is None else f"{seed}/{worker}/sessions")
        self._models = models
        self._model_draws = Random(None if seed is None else f"{seed}/{worker}/models")
        self._seed = seed if seed is not None else Random().getrandbits(64)

    def begin_block(self, seed: str) -> None:
        """From now on turns, think times and models are drawn from this seed."""
        self._random, self._model_draws = Random(f"{seed}/sessions"), Random(f"{seed}/models")

    def model(self, session: str = "") -> str | None:
        """For the next session, or for the one of this name each time the same; None: the run has no mix."""
        if self._models is None:
            return None
        return self._models(Random(f"{self._seed}/models/{session}") if session else self._model_draws)

    def begin(self, item: Item | None = None) -> Conversation:
        """A new one, synthetic or of the session of a file, with its name."""
        # its think times do not depend on those of others, which interleave as their answers come
        random, model = Random(self._random.getrandbits(64)), self.model()
        if item is not None:
            return Conversation(
                self._prompts, item, id=item.id, random=random, delay_ms=self._delay_ms, model=model, parts=self._parts
            )
        name = f"{random.getrandbits(64):016x}{self._prompts.salt}"
        turns = self._turns(random)
        return Conversation(self._prompts, id=name, random=random, turns=turns, delay_ms=self._delay_ms, model=model)
