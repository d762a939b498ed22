"""Conversation: a session whose history grows by the received answers, in a line or as a tree.

It is pure state without clock and network: ``next`` gives the next request and its wait,
``add_answer`` takes the answer.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from .dataset_formats import DatasetSession, Turn
from .images_and_audio import Refs
from .length_distributions import normal_length
from .marked_session import MarkedSession, SessionMarkers
from .model_and_tenant_mix import Model
from .synthetic_prompts import DrawnPrompt, Prompts, append_media_parts

Message = dict[str, Any]
Parts = Callable[[Refs], list[dict[str, Any]]]
"""Makes the parts of a message's content for the images and audio that a row names. May raise
MediaError."""


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session."""

    turn: int
    """The number of the turn, from 0."""
    messages: list[Message]
    """The whole history to send. It grows with the answer: read it before that, and do not change
    it."""
    input_tokens: int | None
    """The expected tokens of these messages, with chat template and earlier answers. None:
    unknown."""
    output_tokens: int
    delay_s: float = 0.0
    """The wait after the last of the answers that the request waits for. It is not used with
    ``at_s``."""
    tool: bool = False
    """A tool waits, not a user."""
    after: tuple[int, ...] = ()
    """The turns whose ends it waits for. The history of the first of them goes on."""
    at_s: float | None = None
    """The trace's own time."""
    body: dict[str, Any] = {}
    """Further fields of the request's body, for this turn alone."""
    prefix: tuple[int, int] | None = None
    """(number of the shared prefix that it begins with, tokens in common). None: there is none."""
    asked: bool = False
    """It asks the model to repeat the marker of its session."""


class _History:
    """Messages and their tokens. None: the number is not known."""

    __slots__ = ("messages", "tokens")

    def __init__(self, messages: list[Message], tokens: float | None) -> None:
        self.messages, self.tokens = messages, tokens

    def count(self, tokens: float | None) -> None:
        """Add so many tokens."""
        self.tokens = None if self.tokens is None or tokens is None else self.tokens + tokens


class Conversation:
    """The turns of one session. Each is sent when the turns that it waits for are answered, in the
    order of the file.

    A turn that waits for a failed turn is never sent, as it would be another conversation. So
    ``next`` gives None where nothing else is open, and ``left`` counts the turns that were not
    sent.
    """

    def __init__(
        self,
        prompts: Prompts,
        item: DatasetSession | None = None,
        *,
        id: str,
        random: Random,
        turns: int = 1,
        delay_ms: tuple[float, float] = (0.0, 0.0),
        model: str | None = None,
        parts: Parts | None = None,
        markers: SessionMarkers | None = None,
    ) -> None:
        """``item`` is a session of a file, whose answers are not sent. None: ``turns`` synthetic
        prompts.

        ``delay_ms``: mean and standard deviation of the think time (normal, cut at 0), for turns
        whose file has none. ``model``: the model of all turns; None: the run's model. ``parts``
        makes the content of images and audio that a row names. ``markers`` ends prompts with the
        session's marker, those of ``item`` too.
        """
        self.id, self.model, self._parts = id, model, parts
        self.marked = MarkedSession(markers)
        self._asks_marker = False
        """The last prompt asks the model to repeat the marker."""
        self.tenant = ""
        """The tenant. Empty: the run has no tenants."""
        self.turns = turns if item is None else len(item.turns)
        self._prompts, self._item, self._random, self._delay_ms = prompts, item, random, delay_ms
        self._after = (
            [*map(previous_turn, range(self.turns))]
            if item is None
            else list_turn_parents(item.turns)
        )
        self._open = [len(after) for after in self._after]
        """For each turn, how many answers it waits for."""
        self._children: list[list[int]] = [[] for _ in self._after]
        for number, after in enumerate(self._after):
            for before in after:
                self._children[before].append(number)
        self._heirs = Counter(after[0] for after in self._after if after)
        """How many turns the history of each turn still goes on in."""
        self._ready = deque(number for number, count in enumerate(self._open) if not count)
        self._histories: dict[int, _History] = {}
        self._lost: set[int] = set()
        self._shared: tuple[int, int] | None = None
        """The shared prefix of the last turn that was added."""
        self._asked = 0
        self._last = 0

    @property
    def left(self) -> int:
        """The turns that were not sent."""
        return self.turns - self._asked

    def next(self) -> ConversationRequest | None:
        """The next request that waits for no answer. None: there is none now. Raises MediaError
        where an image of its row cannot be read."""
        if not self._ready:
            return None
        number = self._last = self._ready.popleft()
        self._asked += 1
        history = self._histories[number] = self._inherited(number)
        if self._item is None:
            output_tokens = self._add_synthetic(history, first=number == 0)
            return self._ask(number, history, output_tokens, self._think_s(number))
        turn = self._item.turns[number]
        self._add(history, turn, first=not self._after[number])
        # as vLLM's and AIPerf's of ShareGPT: as long as the answer in the file
        output_tokens = turn.output_tokens or round(self._prompts.tokens(turn.reference))
        output_tokens = output_tokens or self._prompts.output_tokens()
        delay_s = turn.delay_s if number and turn.delay_s is not None else self._think_s(number)
        return self._ask(number, history, output_tokens, delay_s, turn)

    def add_answer(
        self, reply: str, tokens: int | None = None, *, to: int | None = None, **more: Any
    ) -> None:
        """Add the answer to the turn ``to``; None: to the last turn that was sent. For a turn with
        a recorded answer, the history goes on with that one.

        ``tokens`` is the server's count without reasoning; None: it is estimated. ``more`` has
        further fields of the message.
        """
        number = self._last if to is None else to
        history = self._histories[number]
        recorded = None if self._item is None else self._item.turns[number].recorded
        if recorded is None:
            history.messages.append({"role": "assistant", "content": reply, **more})
            if history.tokens is not None:
                history.count(self._prompts.tokens(reply) if tokens is None else tokens)
        elif recorded:
            history.messages.append(recorded)
            history.tokens = None
        if not self._heirs[number]:
            del self._histories[number]
        for child in self._children[number]:
            self._open[child] -= 1
            if not self._open[child]:
                self._ready.append(child)

    def lose(self, number: int) -> int:
        """This turn failed. Returns how many turns are never sent because of it, and of no earlier
        failure."""
        lost = set[int]()
        more = [number]
        while more:
            for child in self._children[more.pop()]:
                if child not in lost | self._lost:
                    lost.add(child)
                    more.append(child)
        self._lost |= lost
        return len(lost)

    def _inherited(self, number: int) -> _History:
        """The history that this turn goes on with, from here on its own."""
        after = self._after[number]
        if not after:
            system = self._prompts.system
            return _History([] if system is None else [system], self._prompts.system_tokens)
        before = after[0]
        self._heirs[before] -= 1
        if not self._heirs[before]:
            return self._histories.pop(before)
        history = self._histories[before]
        return _History([*history.messages], history.tokens)

    def _add_synthetic(self, history: _History, first: bool) -> int:
        """Add a synthetic prompt. Returns its output tokens."""
        drawn = self._draw(first)
        history.messages += [turn_drawn.message for turn_drawn in drawn]
        # the system prompt is in both of them
        history.count(
            sum(turn_drawn.input_tokens for turn_drawn in drawn)
            - (self._prompts.system_tokens if first else 0)
        )
        return drawn[0].output_tokens

    def _draw(self, first: bool) -> list[DrawnPrompt]:
        if not self.marked.marks:
            return self._prompts.batch(first)
        drawn, self._asks_marker = self.marked.draw(
            lambda endings: self._prompts.draw(first, endings), first=first
        )
        return [drawn]

    def _add(self, history: _History, turn: Turn, first: bool) -> None:
        """Add a turn of a file."""
        prompts = self._prompts
        if turn.whole:
            history.messages = [] if prompts.system is None else [prompts.system]
            history.tokens = prompts.system_tokens
        if turn.messages is not None:
            self._shared = None
            salt = prompts.salt if first or turn.whole else ""
            messages = add_salt(turn.messages, salt) if salt else turn.messages
            self._add_replayed(history, turn, messages, first=first)
        elif turn.input_tokens is None:
            self._shared = None
            self._add_synthetic(history, first=False)
        elif turn.prefix is None:
            # others may add a turn meanwhile
            text = prompts.text(turn.input_tokens, turn.hash_ids, block_tokens=turn.block_tokens)
            self._shared = None
            user = {"role": "user", "content": text}
            self._add_replayed(history, turn, [user], first=first)
        else:
            tokens, (number, common) = turn.input_tokens, turn.prefix
            (text, shared), self._asks_marker = self.marked.draw(
                lambda endings: prompts.reused(tokens, number, common, endings), first=first
            )
            self._shared = number, shared
            history.messages.append({"role": "user", "content": text})
            history.count(turn.input_tokens)
        if turn.media and self._parts is not None:
            last = history.messages[-1]
            content = append_media_parts(last.get("content"), self._parts(turn.media))
            history.messages = [*history.messages[:-1], {**last, "content": content}]

    def _add_replayed(
        self, history: _History, turn: Turn, messages: list[Message], first: bool
    ) -> None:
        """Add recorded messages, with the session's marker where the user asked for it."""
        marked = self.marked.mark_messages(messages, first=first or turn.whole)
        self._asks_marker = marked.asked
        self._extend(history, marked.messages)
        history.count(turn.input_tokens)
        if marked.added:
            history.count(self._prompts.count_ending_tokens(marked.added))

    def _extend(self, history: _History, messages: list[Message]) -> None:
        """Add messages. A system message of the file joins the shared one, as most chat templates
        accept only one."""
        first = messages[0] if messages else {}
        text = first.get("content")
        shared = self._prompts.system
        if (
            shared is not None
            and history.messages == [shared]
            and first.get("role") == "system"
            and isinstance(text, str)
        ):
            history.messages = [{**first, "content": f"{shared['content']}\n\n{text}"}]
            messages = messages[1:]
        history.messages += messages

    def _think_s(self, number: int) -> float:
        mean_ms, stddev_ms = self._delay_ms
        if number == 0:
            return 0.0
        return max(0.0, self._random.gauss(mean_ms, stddev_ms) if stddev_ms else mean_ms) / 1e3

    def _ask(
        self,
        number: int,
        history: _History,
        output_tokens: int,
        delay_s: float,
        turn: Turn | None = None,
    ) -> ConversationRequest:
        return ConversationRequest(
            turn=number,
            messages=history.messages,
            input_tokens=None if history.tokens is None else round(history.tokens),
            output_tokens=output_tokens,
            delay_s=delay_s,
            at_s=None if turn is None else turn.at_s,
            body={} if turn is None else turn.body,
            tool=turn is not None and turn.tool,
            after=self._after[number],
            prefix=self._shared,
            asked=self._asks_marker,
        )


def previous_turn(number: int) -> tuple[int, ...]:
    """The turns that a turn of a line waits for."""
    return (number - 1,) if number else ()


def list_turn_parents(turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    """The turns that each turn of a file waits for."""
    return [
        previous_turn(number) if turn.after is None else turn.after
        for number, turn in enumerate(turns)
    ]


def add_salt(messages: list[Message], salt: str) -> list[Message]:
    """Put the salt at the begin of the first message."""
    first, *rest = messages or [{}]
    content = first.get("content")
    if isinstance(content, str):
        return [{**first, "content": f"{salt} {content}"}, *rest]
    if isinstance(content, list):
        return [{**first, "content": [{"type": "text", "text": salt}, *content]}, *rest]
    return messages


class ConversationSource:
    """The conversations of one process, without end. The same seed and worker give the same
    ones."""

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
        markers: SessionMarkers | None = None,
    ) -> None:
        """``turns``: mean and standard deviation (normal, cut at 1). ``delay_ms``, ``parts`` and
        ``markers``: see Conversation.

        ``models`` draws each session's model, apart from all else: the rest is the same with and
        without a mix.
        """
        self._prompts, self._delay_ms, self._parts = prompts, delay_ms, parts
        self._markers = markers
        self._turns = normal_length(*turns)
        self._random = Random(None if seed is None else f"{seed}/{worker}/sessions")
        self._models = models
        self._model_draws = Random(None if seed is None else f"{seed}/{worker}/models")
        self._seed = seed if seed is not None else Random().getrandbits(64)

    def begin_block(self, seed: str) -> None:
        """Draw turns, think times and models from this seed from now on."""
        self._random = Random(f"{seed}/sessions")
        self._model_draws = Random(f"{seed}/models")

    def model(self, session: str = "") -> str | None:
        """The model of the next session. The same ``session`` name always gives the same model.
        None: the run has no mix."""
        if self._models is None:
            return None
        return self._models(
            Random(f"{self._seed}/models/{session}") if session else self._model_draws
        )

    def begin(self, item: DatasetSession | None = None) -> Conversation:
        """A new conversation, synthetic or for a session of a file, with its name."""
        # its think times do not depend on those of others, which interleave as their answers come
        random = Random(self._random.getrandbits(64))
        model = self.model()
        if item is not None:
            return Conversation(
                self._prompts,
                item,
                id=item.id,
                random=random,
                delay_ms=self._delay_ms,
                model=model,
                parts=self._parts,
                markers=self._markers,
            )
        name = f"{random.getrandbits(64):016x}{self._prompts.salt}"
        turns = self._turns(random)
        return Conversation(
            self._prompts, id=name, random=random, turns=turns, delay_ms=self._delay_ms,
            model=model, markers=self._markers,
        )  # fmt: skip
