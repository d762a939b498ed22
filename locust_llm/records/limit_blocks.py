"""Limit blocks: short stretches of one load, each at another prefill limit, and what their requests
came to.

The load goes on while the limit changes. So a block first settles, until the effects of the limit
before are over. Requests that are due after that count, and the block lasts until they have ended.
A request in flight when the limit changes counts in neither block. Only a request that was due long
before, and should have ended by then, counts with its wait so far.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from locust_llm.slo.best_prefill_limit import (
    GOODPUT,
    SHORT_TTFT,
    STALL,
    TOKENS,
    BlockSample,
    Limit,
    Samples,
)
from locust_llm.slo.rules import Condition

from .outcomes import CUT, FAILURES, OK, RETRIED
from .record import Record
from .rule_measures import meets_condition


class LimitBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One block. Times are Unix seconds."""

    round: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """The round from 1. 0: the block finds the server cold, and counts nowhere."""
    limit: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None
    """None: there is no limit."""
    began_at: float
    settled_at: float
    """Requests that are due from here on count."""
    counted_until: float
    """Requests that are due from here on do not count."""
    ended_at: float
    """When the limit changed."""

    @property
    def seconds(self) -> float:
        """The seconds that count."""
        return self.counted_until - self.settled_at

    def counts(self, due_at: float) -> bool:
        """Whether a request counts that is due at ``due_at``."""
        return bool(self.round) and self.settled_at <= due_at < self.counted_until


class CountedRequest(NamedTuple):
    limit: Limit
    round: int
    due_at: float
    """Unix seconds."""
    input_tokens: int
    latency_s: float
    """The time from due to the end."""
    ttft_s: float
    """The time from due to the first token. It is infinite for a failure, and a lower bound for a
    cut request."""
    gate_wait_s: float
    stall_s: float
    """nan: the request has none."""
    output_tokens: float
    """The tokens that came before the limit changed."""
    good: bool
    failed: bool
    in_flight: bool
    """The request had not ended when the limit changed."""


class LimitBlockRecords:
    """The requests of all blocks, as they end."""

    def __init__(self, good: Sequence[Condition] = ()) -> None:
        """``good`` has the conditions of a good request."""
        self.requests: list[CountedRequest] = []
        self.left_out = 0
        """Requests that were in flight when the limit changed, and count nowhere."""
        self.latencies_s: list[float] = []
        """The latencies from due of all successful requests."""
        self._good = tuple(good)

    def add(self, record: Record, blocks: Sequence[LimitBlock]) -> None:
        """``blocks`` has all blocks so far, in the order of time."""
        if record.outcome == RETRIED or not blocks:
            return
        due_at = record.due_at + record.clock_offset_s
        closed_at = record.closed_unix_s
        if record.outcome == OK:
            self.latencies_s.append(closed_at - due_at)
        block = find_block(blocks, due_at)
        if block is None:
            return
        in_flight = closed_at > block.ended_at
        if block.counts(due_at):
            self.requests.append(self._make_request(record, block, in_flight=in_flight))
        else:
            self.left_out += in_flight

    def samples(
        self, objective: str, limits: Iterable[Limit], blocks: Sequence[LimitBlock]
    ) -> Samples:
        """The samples of ``blocks``, which have ended."""
        counted = [block for block in blocks if block.round]
        seconds = {(block.limit, block.round): block.seconds for block in counted}
        values: dict[tuple[Limit, int], list[float]] = {key: [] for key in seconds}
        longest = find_median_length(self.requests)
        for request in self.requests:
            key = (request.limit, request.round)
            if key in values:
                values[key].extend(_value_of(request, objective, longest))
        samples: dict[Limit, dict[int, BlockSample]] = {limit: {} for limit in limits}
        for key, lasted_s in seconds.items():
            limit, number = key
            if limit in samples:
                samples[limit][number] = BlockSample(values[key], lasted_s)
        return samples

    def _make_request(
        self, record: Record, block: LimitBlock, *, in_flight: bool
    ) -> CountedRequest:
        failed = record.outcome in FAILURES
        ttft_s = record.ttft_from_due_s
        if failed:
            ttft_s = math.inf
        elif ttft_s is None:
            ttft_s = record.closed_at - record.due_at
        stall_s = record.longest_stall_s
        return CountedRequest(
            limit=block.limit,
            round=block.round,
            due_at=record.due_at + record.clock_offset_s,
            input_tokens=_length_of(record),
            latency_s=record.closed_at - record.due_at,
            ttft_s=ttft_s,
            gate_wait_s=record.gate_wait_s or 0.0,
            stall_s=math.nan if stall_s is None or record.outcome == CUT else stall_s,
            output_tokens=_tokens_until(record, block.ended_at),
            good=record.outcome == OK and all(meets_condition(record, one) for one in self._good),
            failed=failed,
            in_flight=in_flight,
        )


def _tokens_until(record: Record, at: float) -> float:
    """The output tokens by ``at`` (Unix seconds), spread evenly between the first chunk and the
    last."""
    if record.sent_at is None or not record.chunk_us or not record.output_tokens:
        return 0.0
    sent_at = record.sent_at + record.clock_offset_s
    first, last = (sent_at + us / 1e6 for us in (record.chunk_us[0], record.chunk_us[-1]))
    if last <= at:
        return float(record.output_tokens)
    return 0.0 if first >= at else (at - first) / (last - first) * record.output_tokens


def _length_of(record: Record) -> int:
    """The prompt's length as requested, else as the server counted it."""
    asked = record.asked_input_tokens
    return (record.input_tokens if asked is None else asked) or 0


def _value_of(request: CountedRequest, objective: str, longest: float) -> Iterator[float]:
    if objective == GOODPUT:
        yield float(request.good)
    elif objective == SHORT_TTFT and request.input_tokens <= longest:
        yield request.ttft_s
    elif objective == TOKENS:
        yield request.output_tokens
    elif objective == STALL and not request.in_flight and not math.isnan(request.stall_s):
        yield request.stall_s


def find_median_length(requests: Sequence[CountedRequest]) -> float:
    """The longest short prompt: half of the prompts are short, or all prompts of one length."""
    lengths = sorted(request.input_tokens for request in requests)
    return lengths[(len(lengths) - 1) // 2] if lengths else 0.0


def find_block(blocks: Sequence[LimitBlock], at: float) -> LimitBlock | None:
    """The block at this moment. None: there is none."""
    place = bisect_right(blocks, at, key=lambda block: block.began_at) - 1
    return blocks[place] if place >= 0 and at < blocks[place].ended_at else None
