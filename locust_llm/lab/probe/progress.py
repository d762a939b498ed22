"""Progress: which of its episodes a probe is at, and how much longer it takes."""

from itertools import chain
from statistics import fmean
from typing import Final, NamedTuple

from .requests import SIZED_KINDS, ProbeEpisode

SAME_KIND_SPREAD: Final = 0.1
"""An episode takes as many times what is expected as those of its kind and length did in earlier
rounds, by so much more or less;"""
LIKE: Final = 0.25
"""as those of its kind, where that length comes for the first time;"""
NEW: Final = (0.6, 1.6)
"""as all others so far, where its kind comes for the first time, times something between these. How
often the truth lies inside: docs/interference.md."""
NARROW: Final = 1.25
"""Most / least, up to which one number says it."""


class TimeLeft(NamedTuple):
    """Seconds to the end of the probe, between these."""

    least_s: float
    most_s: float


class ProbeProgress:
    """Of one probe. What its episodes took, as a share of what was expected, corrects the estimates
    of the others."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], list[float]] = {}
        """The shares of earlier episodes, by kind and length."""

    def ended(self, episode: ProbeEpisode, took_s: float) -> None:
        if episode.later is not None:
            self._shares.setdefault(_key(episode), []).append(took_s / episode.expected_s)

    def left(self, episode: ProbeEpisode) -> TimeLeft | None:
        """From the begin of this episode on. None: the schedule is not known that far."""
        if episode.later is None:
            return None
        ends = [self._takes(later_episode) for later_episode in (episode, *episode.later)]
        return TimeLeft(sum(least_s for least_s, _ in ends), sum(most_s for _, most_s in ends))

    def _takes(self, episode: ProbeEpisode) -> tuple[float, float]:
        """Seconds: (least, most)."""
        if alike := self._shares.get(_key(episode)):
            share = fmean(alike)
            least = 1 - SAME_KIND_SPREAD
            most = 1 + SAME_KIND_SPREAD
        elif kin := [shares for (kind, _), shares in self._shares.items() if kind == episode.kind]:
            share = fmean(chain.from_iterable(kin))
            least = 1 - LIKE
            most = 1 + LIKE
        else:
            others = list(chain.from_iterable(self._shares.values()))
            share = fmean(others) if others else 1.0
            least, most = NEW
        return share * least * episode.expected_s, share * most * episode.expected_s


def format_probe_position(
    number: int, episode: ProbeEpisode, most: int, left: TimeLeft | None
) -> str:
    """``episode 12 of 44, 1:30 to 2:40 left``. ``number``: from 0; ``most``: episodes, where it is
    not known how many there are."""
    if episode.later is None:
        return f"episode {number + 1} of about {most}"
    of = f"episode {number + 1} of {number + 1 + len(episode.later)}"
    if left is None:
        return of
    if left.most_s <= NARROW * left.least_s:
        return f"{of}, about {_clock((left.least_s + left.most_s) / 2)} left"
    return f"{of}, {_clock(left.least_s)} to {_clock(left.most_s)} left"


def _clock(seconds: float) -> str:
    """``1:30``: above a minute in tens of seconds."""
    whole = round(seconds) if seconds < 60 else round(seconds, -1)
    return f"{int(whole) // 60}:{int(whole) % 60:02}"


def _key(episode: ProbeEpisode) -> tuple[str, int]:
    sized = episode.kind in SIZED_KINDS
    return episode.kind, max(request.input_tokens for request in episode.requests) if sized else 0
