"""Span counts: what became of a run's spans, in run.json."""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class SpanCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields count spans, unless they name something else."""

    requests: Count = 0
    """The requests that succeeded: a server has a span of each."""
    joined: Count = 0
    """The successful requests that have the times of a span."""
    joined_others: Count = 0
    """The other requests that have the times of a span."""
    received: Count = 0
    other_traces: Count = 0
    """Spans of another run."""
    without_times: Count = 0
    """Spans of this run without a known attribute: of a router, or of a step within the server."""
    twice: Count = 0
    """Further spans of a request that had one: the first counts."""
    unknown: Count = 0
    """Spans of this run, without a request that has a record."""
    impossible: Count = 0
    """Spans with a time that is negative, no number, or longer than a day. They are not used."""
    late: Count = 0
    """Spans that were joined after the end of the run."""
    malformed: Count = 0
    """Exports that could not be read."""
    refused: Count = 0
    """Exports that were too large or of another kind, and connections that were too slow or too
    many."""
    dropped: Count = 0
    """Spans that waited for the record of their request, and were too many."""
    mistake: str = ""
    """The first fault of a span or an export."""

    def __str__(self) -> str:
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
