"""Time parts: divides the time of one sequence into parts by cause, with exact sums."""

from __future__ import annotations

from typing import NamedTuple

from .sequence import Sequence


class LatencyParts(NamedTuple):
    """Holds parts in seconds. The first three add up to the time from arrival at the engine to the
    first token, the others to the time from there to the last token."""

    queue: float
    """This time passed before its first step began."""
    own_prefill: float
    """Each step with tokens of its prompt adds the time that the step would have taken with them
    alone. If it was preempted before its first token, repeated work counts twice."""
    others: float
    """This is the rest until the first token: other work in its steps, and steps without its
    tokens. With separate prefill engines it includes the transfer."""
    pace: float
    """Each round of decoding adds the time that the step would have taken without any prompt."""
    stalls: float
    """This is the rest of these steps, and steps of prompts only while it decodes."""
    preemption: float
    """After its first token, this time passed from each loss of its blocks to the next token."""

    @property
    def prefill(self) -> float:
        """Returns the time from its first step to its first token, which servers report."""
        return self.own_prefill + self.others

    @property
    def decode(self) -> float:
        """Returns the time from its first token to its last."""
        return self.pace + self.stalls + self.preemption


def queue_and_prefill(sequence: Sequence) -> tuple[float, float] | None:
    """Returns the seconds until its first step, and from there to its first token, or None before
    that token.

    A step of a late engine begins before it is chosen, so requests that arrived in between did not
    wait.
    """
    arrived = sequence.arrived_at
    started = sequence.started_at
    first = sequence.first_at
    if arrived is None or started is None or first is None:
        return None
    started = max(arrived, started)
    return started - arrived, max(0.0, first - started)


def measure_latency_parts(sequence: Sequence) -> LatencyParts | None:
    """Returns None for a sequence that has not finished, or was aborted."""
    known = queue_and_prefill(sequence)
    first = sequence.first_at
    last = sequence.last_at
    if known is None or first is None or last is None:
        return None
    queue, prefill = known
    own_prefill = min(sequence.own_prefill_s, prefill)
    pace = sequence.pace_s
    preemption = sequence.preemption_s
    stalls = max(0.0, last - first - pace - preemption)  # rounding may make it negative
    return LatencyParts(queue, own_prefill, prefill - own_prefill, pace, stalls, preemption)
