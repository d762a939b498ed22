"""Marked session: puts the marker of a session into its prompts.

A synthetic session has it at the end of its first prompt: behind all that prompts share, and within
the length that was drawn. So a prefix cache finds as much as without it. A replayed session has it
at the end of the first message of the user, which becomes longer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from .synthetic_prompts import BEFORE_ENDING

T = TypeVar("T", bound=tuple[Any, ...])


Message = dict[str, Any]


class SessionMarker(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def sentence(self) -> str: ...


class SessionMarkers(Protocol):
    """Makes the markers of one process: see answers/session_markers.py."""

    def make(self) -> Any:
        """The marker of a new session."""

    def end_prompt(self, marker: Any, *, first: bool) -> tuple[str, bool]:
        """(the end of a prompt, whether it asks the model to repeat the marker)."""


class MarkedMessages(NamedTuple):
    """Replayed messages with the marker of their session."""

    messages: list[Message]
    added: str = ""
    """What was added to their texts."""
    asked: bool = False
    """They ask the model to repeat the marker."""


class MarkedSession:
    """The marker of one session. Its branches share it."""

    def __init__(self, markers: SessionMarkers | None) -> None:
        """Without ``markers`` no prompt is changed."""
        self._markers = markers
        self._marker: SessionMarker | None = None

    @property
    def marks(self) -> bool:
        """Prompts are marked."""
        return self._markers is not None

    @property
    def number(self) -> int | None:
        """The number of the marker. None: no prompt of the session has one."""
        return None if self._marker is None else self._marker.number

    def draw(self, make: Callable[[Sequence[str]], T], *, first: bool) -> tuple[T, bool]:
        """(a prompt, whether it asks the model to repeat the marker). ``make`` gets the ends that
        the prompt may have, and gives its text first. It takes the first end that there is room
        for: a prompt too short for marker and question has the marker alone.

        A session whose first prompt is no synthetic one, or is too short, has no marker.
        """
        if self._markers is None or (self._marker is None and not first):
            return make(()), False
        marker = self._markers.make() if self._marker is None else self._marker
        ending, asked = self._markers.end_prompt(marker, first=first)
        endings = [ending, marker.sentence] if first and asked else [ending]
        drawn = make(endings)
        if first and any(drawn[0].endswith(one) for one in endings):
            self._marker = marker
        return drawn, asked and drawn[0].endswith(ending)

    def mark_messages(self, messages: list[Message], *, first: bool) -> MarkedMessages:
        """Replayed messages with the marker. ``first``: they begin the conversation, so the first
        message of the user brings the marker.

        The last message asks for it, if it is the user's. A session that begins without a text of
        the user has no marker.
        """
        if self._markers is None or (self._marker is None and not first):
            return MarkedMessages(messages)
        places = [number for number, message in enumerate(messages) if _holds_user_text(message)]
        if first and not places:
            return MarkedMessages(messages)
        if self._marker is None:
            self._marker = self._markers.make()
        marked = [*messages]
        added = list[str]()
        if first:
            added.append(self._marker.sentence)
            marked[places[0]] = _end_message(marked[places[0]], self._marker.sentence)
        asked = False
        if places and places[-1] == len(marked) - 1:
            ending, asked = self._markers.end_prompt(self._marker, first=False)
            if asked:
                added.append(ending)
                marked[-1] = _end_message(marked[-1], ending)
        return MarkedMessages(marked, " ".join(added), asked)


def _holds_user_text(message: Message) -> bool:
    """The message is the user's, and its content is a text or a list of parts, to which a text can
    be added."""
    return message.get("role") == "user" and isinstance(message.get("content"), str | list)


def _end_message(message: Message, ending: str) -> Message:
    """A copy of the message with this last sentence."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{content}{BEFORE_ENDING}{ending}"}
    return {**message, "content": [*content, {"type": "text", "text": ending}]}
