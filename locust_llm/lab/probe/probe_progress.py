"""Probe progress: shows the current episode of a probe and its remaining time."""

from itertools import chain
from statistics import fmean
from typing import Final, NamedTuple

from locust_llm.text.format import format_clock

from .episode_requests import SIZED_KINDS, ProbeEpisode

SAME_KIND_SPREAD: Final = 0.1
"""An episode may differ by this share from earlier episodes of its kind and length."""
LIKE: Final = 0.25
"""A new length of a known kind may differ by this share."""
NEW: Final = (0.6, 1.6)
"""A new kind may differ by these factors from all others so far."""
NARROW: Final = 1.25
"""One number is enough up to this ratio of the most to the least."""


class TimeLeft(NamedTuple):
    """Bounds the remaining time of the probe in seconds."""

    least_s: float
    most_s: float


class ProbeProgress:
    """Corrects the estimates of later episodes by the observed share of the expected time."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], list[float]] = {}

    def ended(self, episode: ProbeEpisode, took_s: float) -> None:
        if episode.later is not None:
            self._shares.setdefault(_key(episode), []).append(took_s / episode.expected_s)

    def left(self, episode: ProbeEpisode) -> TimeLeft | None:
        """Estimates the time from the begin of this episode on. None: the schedule is unknown so
        far."""
        if episode.later is None:
            return None
        ends = [self._takes(later_episode) for later_episode in (episode, *episode.later)]
        return TimeLeft(sum(least_s for least_s, _ in ends), sum(most_s for _, most_s in ends))

    def _takes(self, episode: ProbeEpisode) -> tuple[float, float]:
        """Returns the least and the most time of an episode in seconds."""
        if same_episodes := self._shares.get(_key(episode)):
            share = fmean(same_episodes)
            least = 1 - SAME_KIND_SPREAD
            most = 1 + SAME_KIND_SPREAD
        elif same_kind := [
            shares for (kind, _), shares in self._shares.items() if kind == episode.kind
        ]:
            share = fmean(chain.from_iterable(same_kind))
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
    """Formats the position, such as ``episode 12 of 44, 1:30 to 2:40 left``. ``number`` counts from
    0. ``most`` bounds the episodes of an unknown schedule."""
    if episode.later is None:
        return f"episode {number + 1} of about {most}"
    position = f"episode {number + 1} of {number + 1 + len(episode.later)}"
    if left is None:
        return position
    if left.most_s <= NARROW * left.least_s:
        return f"{position}, about {_format_clock((left.least_s + left.most_s) / 2)} left"
    return f"{position}, {_format_clock(left.least_s)} to {_format_clock(left.most_s)} left"


def _format_clock(seconds: float) -> str:
    """Formats minutes and seconds, such as ``1:30``. Times above a minute are in tens of
    seconds."""
    return format_clock(seconds if seconds < 60 else round(seconds, -1))


def _key(episode: ProbeEpisode) -> tuple[str, int]:
    sized = episode.kind in SIZED_KINDS
    return episode.kind, max(request.input_tokens for request in episode.requests) if sized else 0
