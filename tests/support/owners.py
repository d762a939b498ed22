"""Owners against the truth: loads on the simulator in virtual time, as records and spans that a client would have, and the
parts of each request that the engine itself knows."""

from collections.abc import Mapping
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.core.record import Record
from locust_llm.core.server_times import SPANS, ServerTimes
from locust_llm.report.analysis.columns import Columns, collect
from locust_llm.report.analysis.occupancy import Occupancy, occupancy
from locust_llm.report.waterfall.price import Prompts
from locust_llm.report.waterfall.waterfall import frame
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Config, Scheduler
from locust_llm.simulator.scheduling.virtual import Request, Row, Virtual
from locust_llm.simulator.scheduling.waiting import queue

Floats = NDArray[np.float64]

UNIX: Final = 1.7e9
SERVER_UNIX: Final = 1.6e9
"""The server's clock is far off: it may enter no sum."""
NETWORK_S: Final = 0.002
"""There and back, which is what TCP says; JITTER_S more at most, of each chunk by itself."""
JITTER_S: Final = 0.0003
WRITTEN_US: Final = 50
TENANTS: Final = ("gold", "free", "free", "free")
TRUTH: Final = ("network", "queue", "prefill", "others", "pace", "stalls", "preemption")
ESTIMATED: Final = ("queue", "prefill", "others")
"""With an interval."""
ROUNDING_S: Final = 0.0005


class Load(NamedTuple):
    policy: str
    rate_per_s: float = 0.0
    users: int = 0
    """Of a closed loop, where there is no rate."""
    seconds: float = 60.0
    budget: int = 16384
    waiting: str = "fcfs"
    kv_tokens: int = LLAMA_8B_H100.kv_tokens
    input_tokens: tuple[int, ...] = (200, 1000, 4000)
    output_tokens: tuple[int, int] = (50, 200)
    config: Mapping[str, Any] = {}
    spread: float = 0.5
    """Of the lengths, to both sides."""


def rows_of(load: Load, seed: int = 1) -> list[Row]:
    """Of all its requests, in the order of their ends, with tokens and parts."""
    clock, random = VirtualClock(), Random(seed)
    config = Config(
        max_num_batched_tokens=load.budget, max_num_seqs=256, kv_tokens=load.kv_tokens, **load.config
    )  # fmt: skip
    scheduler = Scheduler(config, POLICIES[load.policy], waiting=queue(load.waiting), record=True)
    virtual = Virtual(clock, BatchEngine(scheduler, LLAMA_8B_H100, clock), keep_tokens=True, keep_parts=True)

    def request() -> Request:
        tokens = int(random.choice(load.input_tokens) * random.uniform(1 - load.spread, 1 + load.spread))
        tenant = random.randrange(len(TENANTS))
        return Request(tokens, random.randint(*load.output_tokens), tenant=TENANTS[tenant], priority=min(tenant, 1))

    if load.users:
        virtual.closed_loop(load.users, iter([request() for _ in range(int(load.seconds * 3))]), stagger_s=0.05)
    else:
        at, arrivals = 0.0, list[tuple[float, Request]]()
        while (at := at + random.expovariate(load.rate_per_s)) < load.seconds:
            arrivals.append((at, request()))
        virtual.open_loop(arrivals)
    return sorted(virtual.run(), key=lambda row: row.done_at)


def alone(load: Load) -> list[tuple[int, float]]:
    """What a probe of that server finds: prompts of doubling length, one at a time."""
    lengths = [500 * 2**i for i in range(5)]
    found = []
    for tokens in lengths:
        (row,) = rows_of(load._replace(users=1, seconds=0.4, input_tokens=(tokens,), spread=0.0))
        found.append((tokens, row.token_at[0] - row.sent_at + NETWORK_S))
    return found


class Seen(NamedTuple):
    """What a client and its server's spans say of a load, and what is true."""

    records: list[Record]
    spans: dict[str, ServerTimes]
    truth: dict[str, Floats]
    """Seconds, a value a record; by part."""

    def columns(self) -> tuple[Columns, Occupancy]:
        columns = collect(self.records)
        return columns, occupancy(columns.requests, ())

    def estimated(self, *, spans: bool, alone: Prompts = ()) -> dict[str, Floats]:
        """The columns of ``waterfall.frame``; ``alone``: of a probe."""
        columns, levels = self.columns()
        found = frame(columns, levels, self.records, self.spans if spans else {}, alone)
        return {name: found[name].to_numpy() for name in found}


def seen(rows: list[Row], seed: int = 2, network_ms: float = 0, queue_ms: float = 0) -> Seen:
    """So much more planted on the way to the first token, and in the queue."""
    more_s = (network_ms + queue_ms) / 1e3
    random = Random(seed)
    records, spans, truth = list[Record](), dict[str, ServerTimes](), list[tuple[float, ...]]()
    for i, row in enumerate(rows):
        us, last = list[int](), 0
        for at in row.token_at:
            last = max(last, round((at - row.sent_at + NETWORK_S + more_s + random.uniform(0, JITTER_S)) * 1e6))
            us.append(last)
        parts = row.parts
        assert parts is not None
        records.append(_record(f"r-{i}", row, tuple(us)))
        spans[f"r-{i}"] = ServerTimes(
            source=SPANS, queue_us=round(parts.queue * 1e6 + queue_ms * 1e3), prefill_us=round(parts.prefill * 1e6),
            decode_us=round(parts.decode * 1e6), arrived_at=row.sent_at + SERVER_UNIX,
        )  # fmt: skip
        network = us[0] / 1e6 - WRITTEN_US / 1e6 - parts.queue - parts.prefill
        truth.append(
            (network, parts.queue, parts.own_prefill, parts.others, parts.pace, parts.stalls, parts.preemption)
        )
    return Seen(records, spans, dict(zip(TRUTH, np.array(truth).T, strict=True)))


def _record(name: str, row: Row, us: tuple[int, ...]) -> Record:
    at = row.sent_at
    return Record(
        id=name, clock_offset_s=UNIX, due_at=at, asked_at=at, admitted_at=at, sent_at=at, written_us=WRITTEN_US,
        closed_at=at + us[-1] / 1e6, chunk_us=us, first_output=0, status=200, tokens_from="usage",
        input_tokens=row.request.prompt_tokens, output_tokens=row.request.output_tokens,
        cached_tokens=row.cached_tokens, rtt_us=round(NETWORK_S * 1e6),
    )  # fmt: skip


class Off(NamedTuple):
    """One part of one load."""

    part: str
    error_ms: float
    """Median of the absolute error."""
    truth_ms: float
    """Median."""
    bias_ms: float
    """Mean of the error."""
    held: float | None
    """Share of the intervals that hold the truth; None: it has no interval."""
    wide_ms: float
    """Median of the intervals."""

    @property
    def near(self) -> bool:
        """Within 2 ms or 5 %, whichever is larger."""
        return self.error_ms <= max(2.0, 0.05 * self.truth_ms)


def off(found: Mapping[str, Floats], truth: Mapping[str, Floats]) -> list[Off]:
    lines = []
    for part, true in truth.items():
        error, held, wide_ms = (found[f"{part}_s"] - true) * 1e3, None, 0.0
        if part in ESTIMATED:
            low, high = found[f"{part}_low_s"], found[f"{part}_high_s"]
            held = float(((low - ROUNDING_S <= true) & (true <= high + ROUNDING_S)).mean())
            wide_ms = float(np.median(high - low)) * 1e3
        middle, truth_ms = float(np.median(abs(error))), float(np.median(true)) * 1e3
        lines.append(Off(part, middle, truth_ms, float(error.mean()), held, wide_ms))
    return lines
