"""Outage: a stretch of a run in which nothing answered."""

from collections.abc import Sequence

import msgspec

from locust_llm.text.format import format_count


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds after the begin of the profiling phase."""

    began_s: float
    ended_s: float | None
    """None: it lasted to the end of the run."""
    seconds: float
    """Of the time that rates are over."""
    unanswered: int
    """Requests that failed, or were cut, in it without an answer."""

    def __str__(self) -> str:
        """``from 9.7 s on``, ``until 3.2 s``, ``from 9.7 to 12.1 s``."""
        if self.ended_s is None:
            return f"from {self.began_s:.1f} s on"
        return f"from {self.began_s:.1f} to {self.ended_s:.1f} s" if self.began_s > 0 else f"until {self.ended_s:.1f} s"


def describe_outages(outages: Sequence[Outage]) -> str:
    """``nothing answered from 9.7 s on``; of several the longest ones."""
    longest = sorted(sorted(outages, key=lambda one: -one.seconds)[:3], key=lambda one: one.began_s)
    rest = len(outages) - len(longest)
    more = f" and {format_count(rest, 'more time')}" if rest else ""
    return f"nothing answered {', '.join(map(str, longest))}{more}"
