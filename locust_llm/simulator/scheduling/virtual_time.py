"""Virtual time: runs whole loads without sockets, an hour of traffic in seconds, with equal times
in every run."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from operator import sub

from .clock import VirtualClock
from .engine import Engine
from .sequence import Sequence
from .time_parts import LatencyParts, measure_latency_parts


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    prompt_tokens: int
    output_tokens: int
    block_keys: Series[int] = ()
    kind: str = ""
    tenant: str = ""
    priority: int = 0


@dataclass(slots=True, eq=False)
class VirtualResult:
    """Holds the result of a request, with times in seconds of the run. nan means not yet. asked_at
    is before sent_at if a prefill limit held it back. token_at and parts are empty unless the run
    keeps them."""

    request: VirtualRequest
    asked_at: float
    sent_at: float
    first_at: float = math.nan
    done_at: float = math.nan
    longest_stall_s: float = 0.0
    cached_tokens: int = 0
    preemptions: int = 0
    token_at: array[float] = field(default_factory=lambda: array("d"))
    parts: LatencyParts | None = None

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.sent_at

    @property
    def itl_s(self) -> float:
        """Returns the mean gap, or nan with a single token."""
        tokens = self.request.output_tokens
        return (self.done_at - self.first_at) / (tokens - 1) if tokens > 1 else math.nan


class Virtual:
    """Runs a load on an engine in virtual time. ``engine`` must use the given clock and record its
    decoding.

    A prefill limit holds requests back, first come, first served, while that many wait for their
    first token, as the load generator's gate does. The code is written again here because the
    simulator shares no code with it.
    """

    def __init__(
        self,
        clock: VirtualClock,
        engine: Engine,
        *,
        prefill_limit: float = math.inf,
        most_open: float = math.inf,
        keep_tokens: bool = False,
        keep_parts: bool = False,
    ) -> None:
        self.clock = clock
        self.engine = engine
        self.keep_tokens = keep_tokens
        self.keep_parts = keep_parts
        self.prefill_limit = prefill_limit
        self.most_open = most_open
        self.rows: list[VirtualResult] = []  # of those that are done
        self.num_open = self.num_prefilling = self.max_prefilling = 0
        self._held: deque[Callable[[], None]] = deque()

    def open_loop(self, arrivals: Iterable[tuple[float, VirtualRequest]]) -> None:
        """Sends requests at set times in order. The iterator advances as they come due."""
        coming = iter(arrivals)

        def wait_for(arrival: tuple[float, VirtualRequest] | None) -> None:
            while arrival and arrival[0] <= self.clock.now:
                self.ask(arrival[1])
                arrival = next(coming, None)
            if arrival:
                self.clock.call_at(arrival[0], lambda: wait_for(arrival))

        wait_for(next(coming, None))

    def closed_loop(
        self, users: int, requests: Iterator[VirtualRequest], *, stagger_s: float = 0.0
    ) -> None:
        """Runs users that send the next request when the last one is done, until there is none.
        They start ``stagger_s`` apart."""

        def send() -> None:
            if (request := next(requests, None)) is not None:
                self.ask(request, on_done=send)

        for user in range(users):
            self.clock.call_at(self.clock.now + user * stagger_s, send)

    def ask(self, request: VirtualRequest, on_done: Callable[[], None] | None = None) -> None:
        """Sends a request as soon as the prefill limit permits it."""
        asked_at = self.clock.now
        self._held.append(lambda: self._send(request, asked_at, on_done))
        self._let_go()

    def run(self, until: float = math.inf) -> list[VirtualResult]:
        """Runs until everything is done, or until that time, and returns the finished rows."""
        self.clock.run(until)
        return self.rows

    def _let_go(self) -> None:
        while (
            self._held
            and self.num_prefilling < self.prefill_limit
            and self.num_open < self.most_open
        ):
            self._held.popleft()()

    def _send(
        self, request: VirtualRequest, asked_at: float, on_done: Callable[[], None] | None
    ) -> None:
        clock = self.clock
        row = VirtualResult(request, asked_at, clock.now)
        sequence = Sequence(
            request.prompt_tokens, request.output_tokens, request.block_keys,
            priority=request.priority, tenant=request.tenant,
        )  # fmt: skip
        self.num_open += 1
        self.num_prefilling += 1
        self.max_prefilling = max(self.max_prefilling, self.num_prefilling)

        def on_token() -> None:
            if math.isnan(row.first_at):
                row.first_at = clock.now
                self.num_prefilling -= 1
            if sequence.is_finished:
                row.done_at = clock.now
                self.num_open -= 1
                self._close(row, sequence)
                if on_done:
                    on_done()
            self._let_go()

        self.engine.add(sequence, on_token, each=False)

    def _close(self, row: VirtualResult, sequence: Sequence) -> None:
        row.cached_tokens = sequence.num_cached_tokens
        row.preemptions = sequence.num_preemptions
        times = sequence.token_times()
        row.longest_stall_s = max(map(sub, times[1:], times), default=0.0)
        if self.keep_parts:
            row.parts = measure_latency_parts(sequence)
        if self.keep_tokens:
            row.token_at.extend(times)
        self.rows.append(row)
