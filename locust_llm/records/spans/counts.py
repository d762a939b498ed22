"""Counts: what became of the spans that came for a run, in run.json."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class SpanCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Spans, unless it says otherwise."""

    requests: Count = 0
    """Requests that had come to a good end: a server has a span of each of these."""
    joined: Count = 0
    """Those of them that have the times of a span."""
    joined_others: Count = 0
    """Requests that came to no good end, and have them all the same."""
    received: Count = 0
    other_traces: Count = 0
    """Not of this run."""
    without_times: Count = 0
    """Of this run, without an attribute that is known: those of a router, or of a step within the
    server."""
    twice: Count = 0
    """Of a request that had one already: the first counts."""
    unknown: Count = 0
    """Of this run, and of no request that has a record."""
    impossible: Count = 0
    """A time is negative, no number, or longer than a day: not used."""
    late: Count = 0
    """Joined after the end of the run."""
    malformed: Count = 0
    """Exports that could not be read."""
    refused: Count = 0
    """Exports too large or of another kind, connections too slow or too many."""
    dropped: Count = 0
    """Spans that waited for the record of their request, and were too many."""
    mistake: str = ""
    """The first thing that was wrong with one."""

    def __str__(self) -> str:
        """Describes the counts in a sentence."""
        others = {
            "of other traces": self.other_traces, "without known times": self.without_times,
            "twice": self.twice,
            "of no request": self.unknown, "impossible": self.impossible, "dropped": self.dropped,
        }  # fmt: skip
        more = [f"{count:,} {what}" for what, count in others.items() if count]
        if self.malformed + self.refused:
            more.append(f"{self.malformed + self.refused:,} exports refused")
        first = f"; the first mistake: {self.mistake}" if self.mistake else ""
        return f"{self.joined:,} of {self.requests:,} requests have a span" + (
            f" ({', '.join(more)}{first})" * bool(more)
        )
