"""Observations: what a client measured of a server, request by request: the episodes of a probe and
the stages of a sweep."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from locust_llm.lab.probe.requests import ProbeResult
from locust_llm.records.record import OK, Record


class ObservedRequest(NamedTuple):
    """A request that was answered in full. Seconds on one clock."""

    sent_at: float
    token_at: tuple[float, ...]
    """Of its chunks, which may hold several tokens."""
    prompt_tokens: int
    output_tokens: int
    held_s: float = 0.0
    """Before it was sent, by the load generator's gate."""

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.sent_at

    @property
    def ttft_from_due_s(self) -> float:
        """With the wait at the gate."""
        return self.held_s + self.ttft_s

    @property
    def latency_s(self) -> float:
        """From the send to its last token."""
        return self.token_at[-1] - self.sent_at

    @property
    def decode_s(self) -> float:
        """From its first token to its last."""
        return self.token_at[-1] - self.token_at[0]

    @property
    def itl_s(self) -> float | None:
        """The mean one; None with a single token, or where all came at once."""
        return (
            self.decode_s / (self.output_tokens - 1)
            if self.output_tokens > 1 and self.decode_s > 0
            else None
        )

    @property
    def tokens_a_chunk(self) -> float:
        return max(1.0, self.output_tokens / len(self.token_at))

    @property
    def stall_s(self) -> float:
        """The longest gap between two chunks."""
        return max((later - sooner for sooner, later in pairwise(self.token_at)), default=0.0)


class IdleEpisode(NamedTuple):
    """Requests of a probe that met an idle server."""

    kind: str
    requests: tuple[ObservedRequest, ...]

    @property
    def beside(self) -> int:
        """How many of its last requests are prompts beside decoders."""
        return {"stall": 1, "pair": 2}.get(self.kind, 0)

    @property
    def together(self) -> int:
        """How many of its last requests are equal prompts, sent at one moment."""
        return {"pair": 2, "burst": len(self.requests)}.get(self.kind, 0)


class ObservedStage(NamedTuple):
    """Requests at one load. One of ``users`` and ``rate`` is not 0."""

    users: int
    rate: float
    """Requests a second, at set times."""
    requests: tuple[ObservedRequest, ...]
    """In the order in which they were sent."""
    failed: int = 0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


def episodes_of(results: Iterable[ProbeResult]) -> list[IdleEpisode]:
    """Those of which every request was answered in full; a repeated prompt only the first time, as
    a cache may have it."""
    by_number = defaultdict[int, list[ProbeResult]](list)
    for one in results:
        by_number[one.episode].append(one)
    found = list[IdleEpisode]()
    again = set[int]()
    for _, some in sorted(by_number.items()):
        first = some[0]
        repeated = first.kind == "again" and first.round in again
        again |= {first.round} if first.kind == "again" else set()
        if not repeated and all(one.whole for one in some):
            seen = sorted(map(_of_result, some), key=lambda one: one.sent_at)
            found.append(IdleEpisode(first.kind, tuple(seen)))
    return found


def _of_result(one: ProbeResult) -> ObservedRequest:
    return ObservedRequest(one.sent_at, one.chunk_at, one.input_tokens, one.output_tokens)


def observe_requests(record: Record) -> ObservedRequest | None:
    """None of a request that failed, was cut or has no chunks or counts."""
    if record.outcome != OK or not record.chunk_us or record.sent_at is None:
        return None
    if not record.input_tokens or not record.output_tokens:
        return None
    sent_at = record.sent_at + record.clock_offset_s
    token_at = tuple(sent_at + us / 1e6 for us in record.chunk_us)
    return ObservedRequest(sent_at, token_at, record.input_tokens, record.output_tokens)
