"""Prefill limit sweep: a run that looks for the best prefill limit, in blocks of one load that goes
on; which block comes next, and when enough is known. No clock: the caller says when a block begins.

The first blocks find the server cold, and show how long a request takes. Then come rounds: a block
at each limit, in an order that is drawn for each round, as is how long its blocks are. So whatever
the server does over time, it does as often at each limit, and no period of it can line up. Limits
that are certainly worse are left out of later rounds, so that time goes to those that may be best.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from random import Random
from typing import Final

from msgspec.structs import replace

from locust_llm.records.limit_blocks import (
    CountedRequest,
    LimitBlock,
    LimitBlockRecords,
    find_block,
)
from locust_llm.records.profile_export_jsonl import EncodedRecord, encode_record
from locust_llm.settings.limit_sweep_length import explain_short_limit_sweep
from locust_llm.settings.run_options import Settings
from locust_llm.slo.best_prefill_limit import (
    OBJECTIVES,
    Limit,
    LimitRegret,
    compare_with_best,
    format_limit,
    is_look,
)
from locust_llm.slo.limit_block_lengths import (
    MIN_SETTLE_S,
    SPREAD,
    WARM_BLOCK_S,
    WARM_REQUESTS,
    WARM_SHARE,
    explain_short_comparison,
    find_block_lengths,
)
from locust_llm.slo.percentile import find_percentile
from locust_llm.slo.rules import Condition, define_good_request
from locust_llm.text.format import format_count

WARM_S: Final = 120.0
"""The first blocks of a run without a length take at most so many seconds."""
WANTED_ROUNDS: Final = 10
"""Blocks are short enough for so many rounds, where they are not too short for a request."""
ROUNDS: Final = 12
"""The rounds of a run without a length."""
KEEPING_UP: Final = 1.5
"""No block waits for a p95 above this many times the middle limit's."""
BEHIND: Final = 2
"""A limit is dropped when the server could not keep up with it in so many blocks."""
LEFT_BEHIND: Final = 0.1
"""The share of a block's requests that are not over when they should be. Above it arrivals stop
until they are over, as the server cannot keep up at this limit."""


class LimitSweep:
    """``now`` and all other times are Unix seconds."""

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        objective: str,
        good: Sequence[Condition] = (),
        seed: int = 0,
        rate_per_s: float | None = None,
        longest_s: float | None = None,
        is_known_short: bool = False,
    ) -> None:
        """``good`` has the conditions of a good request. ``rate_per_s`` is an open loop's rate.
        ``longest_s`` bounds the run; None: ROUNDS rounds. ``is_known_short``: that is too short by
        what one request took before the load."""
        self.blocks: list[LimitBlock] = []
        """The blocks in the order of time. The last ones may be to come."""
        self.end = ""
        """Why there are no more blocks."""
        self.warning = ""
        """Why the run is too short, if that was found under its load."""
        self.records = LimitBlockRecords(good)
        self.regrets: tuple[LimitRegret, ...] = ()
        """The regrets at the last look."""
        self._limits = tuple(limits)
        self._contenders = list(limits)
        self._seed = seed
        self._objective, self._longest_s, self._rate_per_s = objective, longest_s, rate_per_s
        self._is_known_short = is_known_short
        self._order = Random(f"{seed}/limits")
        self._lengths = Random(f"{seed}/limit blocks")
        self._began_at: float | None = None
        self._round = 0
        self._left: list[Limit] = []
        """The limits whose block of this round is to come."""
        self._latency_s = self._settle_s = self._counted_s = self._tail_s = 0.0
        """The times of this round's blocks. The first one is the p95 of request latency."""
        self._due_at: list[float] = []
        """The arrivals of the last block."""
        self._behind = Counter[Limit]()
        """The blocks in which the server did not keep up, by limit."""
        self._looked = 0
        """The rounds at the last look."""

    @property
    def over(self) -> bool:
        return bool(self.end)

    def add_record(self, encoded: EncodedRecord) -> EncodedRecord:
        """Add a finished request. Returns it with its limit and round, where it counts."""
        record = encoded.record
        self.records.add(record, self.blocks)
        due_at = record.due_at + record.clock_offset_s
        block = find_block(self.blocks, due_at)
        if block is None or not block.counts(due_at):
            return encoded
        return encode_record(replace(record, arm=format_limit(block.limit), pair=block.round))

    def describe_round(self, number: int) -> str:
        """``Round 3: prefill limits none, 2, 4, 6.2 s each``"""
        seconds = next(
            block.ended_at - block.began_at for block in self.blocks if block.round == number
        )
        limits = ", ".join(format_limit(limit) for limit in self._contenders)
        return f"Round {number}: prefill limits {limits}, {seconds:.1f} s each"

    def next_block(self, now: float) -> LimitBlock | None:
        """The next block, right after the one before it, or after a pause. None: there are no more,
        and ``end`` has the reason."""
        if self._began_at is None:
            self._began_at = now
        begins_at = self.blocks[-1].ended_at if self.blocks else now
        if not self._round and self._is_cold(begins_at):
            return self._append(0, None, begins_at, 0.0, 0.0, WARM_BLOCK_S)
        self._look(now)
        if self.end:
            return None
        begins_at += self._pause_s(now)
        self._left = [limit for limit in self._left if limit in self._contenders]
        if not self._left and not self._begin_round(begins_at):
            return None
        limit = self._left.pop()
        return self._append(
            self._round, limit, begins_at, self._settle_s, self._counted_s, self._tail_s
        )

    def _append(
        self,
        number: int,
        limit: Limit,
        begins_at: float,
        settle_s: float,
        counted_s: float,
        tail_s: float,
    ) -> LimitBlock:
        settled_at = begins_at + settle_s
        block = LimitBlock(
            round=number,
            limit=limit,
            began_at=begins_at,
            settled_at=settled_at,
            counted_until=settled_at + counted_s,
            ended_at=settled_at + counted_s + tail_s,
        )
        self.blocks.append(block)
        return block

    def _is_cold(self, now: float) -> bool:
        assert self._began_at is not None
        most_s = WARM_S if self._longest_s is None else WARM_SHARE * self._longest_s
        if not self.blocks:
            return True
        enough = len(self.records.latencies_s) >= WARM_REQUESTS
        return not enough and now - self._began_at + WARM_BLOCK_S <= most_s

    def _begin_round(self, begins_at: float) -> bool:
        """Begin a round. False: there is no time for another one."""
        latency_s = self._find_p95(lambda request: request.latency_s)
        lengths = find_block_lengths(
            latency_s, objective=self._objective,
            first_s=self._find_p95(lambda request: request.ttft_s),
            rate_per_s=self._find_rate(begins_at),
        )  # fmt: skip
        self._latency_s = max(MIN_SETTLE_S, latency_s)
        self._settle_s, self._tail_s = lengths.settle_s, lengths.tail_s
        beside_s, least_s, most_s = lengths.beside_s, lengths.least_s, lengths.most_s
        count = len(self._contenders)
        if not self._round and not self._is_known_short and self._longest_s is not None:
            self.warning = explain_short_comparison(count, self._longest_s, latency_s, lengths)
        factor = self._lengths.uniform(1 - SPREAD, 1 + SPREAD)
        if self._longest_s is None:
            if self._round >= ROUNDS:
                self.end = f"{ROUNDS} rounds are done"
                return False
            self._counted_s = factor * least_s
        else:
            assert self._began_at is not None
            left_s = (self._began_at + self._longest_s - begins_at) / count
            if left_s - beside_s < (1 - SPREAD) * least_s:
                self.end = f"no time was left for another round within {self._longest_s:g} s"
                return False
            share_s = self._longest_s / count / WANTED_ROUNDS
            mean_s = min(max(share_s - beside_s, least_s), most_s)
            rounds = max(1, round(left_s / (mean_s + beside_s)))
            # the last one takes what is left
            even_s = left_s / rounds - beside_s
            others_s = (rounds - 1) * (beside_s + (1 - SPREAD) * least_s)
            longest_s = left_s - beside_s - others_s
            self._counted_s = min(factor * even_s, longest_s) if rounds > 1 else even_s
        self._round += 1
        self._left = list(self._contenders)
        self._order.shuffle(self._left)
        return True

    def _find_p95(self, read: Callable[[CountedRequest], float]) -> float:
        """The longest p95 of a time of the requests over the remaining limits, without limits at
        which the server cannot keep up."""
        by_limit: dict[Limit, list[float]] = {}
        for request in self.records.requests:
            if request.limit in self._contenders and not request.failed:
                by_limit.setdefault(request.limit, []).append(read(request))
        found = sorted(find_percentile(sorted(values), 95.0) for values in by_limit.values())
        if not found:
            known = sorted(self.records.latencies_s)
            return find_percentile(known, 95.0) if known else WARM_BLOCK_S
        return min(found[-1], KEEPING_UP * found[(len(found) - 1) // 2])

    def _find_rate(self, now: float) -> float:
        """The requests a second; in a closed loop as they ended. 0: none did."""
        if self._rate_per_s:
            return self._rate_per_s
        assert self._began_at is not None
        return len(self.records.latencies_s) / max(now - self._began_at, 1.0)

    def _pause_s(self, now: float) -> float:
        """How long no request may be due before the next block."""
        last = self.blocks[-1]
        if not self._rate_per_s or not last.round:
            return 0.0
        # those that are due later may well be under way
        until = min(last.counted_until, now - self._latency_s)
        due = sum(last.settled_at <= at < until for at in self._due_at)
        ended = sum(last.settled_at <= request.due_at < until for request in self.records.requests)
        missing = due - ended
        if missing <= LEFT_BEHIND * due + 2:
            return 0.0
        self._behind[last.limit] += 1
        if last.limit is not None and self._behind[last.limit] >= BEHIND:
            self._contenders = [limit for limit in self._contenders if limit != last.limit]
        return missing / due * last.seconds

    def _look(self, now: float) -> None:
        """After some rounds, find the limits that are certainly worse, and whether the best one is
        known."""
        unfinished = {block.round for block in self.blocks if block.ended_at > now}
        if self._left:
            unfinished.add(self._round)
        done = sum(number not in unfinished for number in range(1, self._round + 1))
        if done == self._looked or not is_look(done):
            return
        self._looked = done
        blocks = [block for block in self.blocks if block.round <= done]
        samples = self.records.samples(self._objective, self._contenders, blocks)
        self.regrets = compare_with_best(samples, OBJECTIVES[self._objective], last=False)
        if any(found.is_as_good for found in self.regrets):
            assert self._began_at is not None
            self.end = (
                f"the best one was known after {format_count(done, 'round')}, "
                f"{now - self._began_at:.0f} s"
            )
            return
        # what it is without a limit is always asked
        self._contenders = [
            found.limit for found in self.regrets if found.limit is None or not found.is_worse
        ]

    def arrivals(
        self, start: float, draw: Callable[[str], Iterator[float]], clock: Callable[[], float]
    ) -> Iterator[tuple[float, str]]:
        """For an open loop: (seconds after ``start`` at which a request is due, the name of its
        draws). ``draw`` has the arrivals of a round, the same for each of its blocks."""
        block = self.next_block(start)
        while block is not None:
            place = len(self.blocks)
            name = f"round {block.round}" if block.round else f"first block {place}"
            self._due_at.clear()
            times = self._fit_arrivals(name, block, draw(name))
            numbers = list(range(len(times)))
            # each number has its place in an even mix of lengths; what follows what is chance
            Random(f"{self._seed}/{name}/order").shuffle(numbers)
            for number, at_s in zip(numbers, times, strict=True):
                self._due_at.append(block.began_at + at_s)
                yield block.began_at - start + at_s, f"{name}/{number}"
            block = self.next_block(clock())

    def _fit_arrivals(self, name: str, block: LimitBlock, drawn: Iterator[float]) -> list[float]:
        """Finds as many arrivals as the rate asks for in a block, in seconds from its begin: those
        that are drawn, with all their distances longer or shorter. All blocks of a round have the
        same, so one with too many by chance would overload the server in each of them in turn."""
        seconds = block.ended_at - block.began_at
        if not self._rate_per_s:
            return list(takewhile(lambda at_s: at_s < seconds, drawn))
        chance = Random(f"{self._seed}/{name}/count").random()
        count = math.floor(self._rate_per_s * seconds + chance)
        times = list(islice(drawn, count + 1))
        return [at_s * seconds / times[-1] for at_s in times[:count]]


def make_limit_sweep(settings: Settings, response_s: float | None = None) -> LimitSweep | None:
    """The sweep of these settings. None: they compare no limits. ``response_s``: what one request
    took before the load."""
    if not settings.swept_limits:
        return None
    return LimitSweep(
        settings.swept_limits,
        objective=settings.chosen_objective,
        good=define_good_request(settings.rules)[0],
        seed=settings.random_seed or 0,
        rate_per_s=settings.request_rate,
        longest_s=settings.run_time_s,
        is_known_short=bool(explain_short_limit_sweep(settings, response_s)),
    )
