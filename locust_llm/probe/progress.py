"""Progress: which of its episodes a probe is at, and how much longer it takes."""

from typing import Final

from .requests import Episode

PRIOR_S: Final = 10.0
"""So many seconds of the estimate are taken for right before the first episode has ended."""
SIZED_KINDS: Final = ("alone", "stall")
"""A round has several of each, of unlike length."""


class Progress:
    """Of one probe. What its episodes took corrects the estimates of the others."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[str, int], float] = {}
        self._expected_s = self._spent_s = PRIOR_S

    def ended(self, episode: Episode, took_s: float) -> None:
        self._took_s[_key(episode)] = took_s
        if episode.later is not None:
            self._expected_s += episode.expected_s
            self._spent_s += took_s

    def left_s(self, episode: Episode) -> float | None:
        """Seconds from the begin of this episode to the end of the probe. An episode takes what it took in the last
        round, if there was one. None: the schedule is not known that far."""
        if episode.later is None:
            return None
        ratio = self._spent_s / self._expected_s
        return sum(self._took_s.get(_key(one), ratio * one.expected_s) for one in (episode, *episode.later))


def place(number: int, episode: Episode, most: int, left_s: float | None) -> str:
    """``episode 12 of 44, about 1:50 left``. ``number``: from 0; ``most``: episodes, where it is not known how many there
    are."""
    if episode.later is None:
        return f"episode {number + 1} of about {most}"
    of = f"episode {number + 1} of {number + 1 + len(episode.later)}"
    return of if left_s is None else f"{of}, about {round(left_s) // 60}:{round(left_s) % 60:02} left"


def _key(episode: Episode) -> tuple[str, int]:
    sized = episode.kind in SIZED_KINDS
    return episode.kind, max(one.input_tokens for one in episode.requests) if sized else 0
