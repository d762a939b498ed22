"""The truth of one sequence: whose work its time went to, part by part, to sums that are exact."""

from __future__ import annotations

from typing import NamedTuple

from .sequence import Sequence


class LatencyParts(NamedTuple):
    """Seconds. The first three add up to the time from its arrival at the engine to its first
    token, the others to that from there to its last token."""

    queue: float
    """Until its first step began."""
    own_prefill: float
    """Of each step with tokens of its prompt: what that step would have taken with them alone.
    Where it was preempted before its first token, what it computed twice counts twice."""
    others: float
    """The rest until its first token: what else was in those steps, and steps that had nothing of
    it; where prompts are computed by other engines, the transfer too."""
    pace: float
    """Of each round of decoding: what that step would have taken without any prompt in it."""
    stalls: float
    """The rest of those steps, and steps of prompts alone while it decodes."""
    preemption: float
    """From the step before which its blocks were taken away to its next token, once it has had a
    token."""

    @property
    def prefill(self) -> float:
        """From its first step to its first token, which is what servers report."""
        return self.own_prefill + self.others

    @property
    def decode(self) -> float:
        """Returns the time from its first token to its last."""
        return self.pace + self.stalls + self.preemption


def queue_and_prefill(sequence: Sequence) -> tuple[float, float] | None:
    """Seconds until its first step, and from there to its first token; None until it has that.

    A step of an engine that is late begins before the moment in which it is chosen: what arrived in
    between did not wait.
    """
    arrived, started, first = sequence.arrived_at, sequence.started_at, sequence.first_at
    if arrived is None or started is None or first is None:
        return None
    started = max(arrived, started)
    return started - arrived, max(0.0, first - started)


def measure_latency_parts(sequence: Sequence) -> LatencyParts | None:
    """None of one that has not finished, or was aborted."""
    known = queue_and_prefill(sequence)
    first = sequence.first_at
    last = sequence.last_at
    if known is None or first is None or last is None:
        return None
    queue, prefill = known
    own_prefill = min(sequence.own_prefill_s, prefill)
    pace, preemption = sequence.pace_s, sequence.preemption_s
    stalls = max(0.0, last - first - pace - preemption)  # below 0 by rounding alone
    return LatencyParts(queue, own_prefill, prefill - own_prefill, pace, stalls, preemption)
