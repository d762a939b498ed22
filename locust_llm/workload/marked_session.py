"""Marked session: the synthetic prompts of one session, which end with its marker.

The marker stands at the end of the first prompt, behind all that prompts share, and within the
length that was drawn. So a prefix cache finds as much as without it.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


class SessionMarker(Protocol):
    @property
    def number(self) -> int: ...


class SessionMarkers(Protocol):
    """Makes the markers of one process: see answers/session_markers.py."""

    def make(self) -> Any:
        """The marker of a new session."""

    def end_prompt(self, marker: Any, *, first: bool) -> tuple[str, bool]:
        """(the end of a prompt, whether it asks the model to repeat the marker)."""


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

    def draw(self, make: Callable[[str], T], *, first: bool) -> tuple[T, bool]:
        """(a prompt, whether it asks the model to repeat the marker). ``make`` gets the end of the
        prompt, and gives its text first. It leaves the end out where there is no room for it.

        A session whose first prompt is no synthetic one, or is too short, has no marker.
        """
        if self._markers is None or (self._marker is None and not first):
            return make(""), False
        marker = self._markers.make() if self._marker is None else self._marker
        ending, asked = self._markers.end_prompt(marker, first=first)
        drawn = make(ending)
        fits = drawn[0].endswith(ending)
        if first and fits:
            self._marker = marker
        return drawn, asked and fits
