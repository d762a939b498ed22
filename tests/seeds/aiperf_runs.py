"""The commands of AIPerf's page on prefill concurrency, what it prints for them, and its gate under
a steady load."""

from itertools import repeat
from typing import NamedTuple

import numpy as np
from experiments import load, poisson

from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult

GATE = 2
"""Prefills at a time, of ``gated``."""


class Gated(NamedTuple):
    """Mean TTFT in seconds."""

    rate: float
    without: float
    from_send: float
    from_due: float
    sent_per_s: float


def gated(rates: tuple[float, ...] = (4, 7, 8, 10), seconds: float = 60.0) -> list[Gated]:
    """Poisson arrivals for a minute, without and with a gate; all requests are waited for."""
    found = []
    for rate in rates:
        without, gate = load(), load(limit=GATE)
        for run in (without, gate):
            run.open_loop(poisson(rate, seconds, lambda _: VirtualRequest(3000, 100)))
            run.run()
        sent = sum(row.sent_at <= seconds for row in gate.rows) / seconds
        found.append(
            Gated(
                rate,
                float(np.mean([row.ttft_s for row in without.rows])),
                float(np.mean([row.ttft_s for row in gate.rows])),
                float(np.mean([row.first_at - row.asked_at for row in gate.rows])),
                sent,
            )
        )
    return found


class Sample(NamedTuple):
    """The averages that the page prints for a command, and what the command asks for."""

    latency_s: float
    ttft_s: float
    itl_s: float
    per_s: float
    output_tokens: int
    limit: int
    seconds: float
    """What its progress line says."""
    count: int = 0
    """Requests; 0: not printed."""

    @property
    def expected_latency_s(self) -> float:
        return self.ttft_s + (self.output_tokens - 1) * self.itl_s

    @property
    def in_prefill(self) -> float:
        """On average: Little's law."""
        return self.per_s * self.ttft_s


SAMPLES = (
    Sample(4.56789, 2.34567, 0.01845, 3.89, 500, 3, 525, 100),
    Sample(5.67834, 3.45678, 0.02134, 2.34, 200, 5, 120),
    Sample(2.89045, 1.23456, 0.01678, 9.87, 300, 10, 60),
)


class Command(NamedTuple):
    """Means over the requests that ended."""

    ttft_s: float
    latency_s: float
    itl_s: float
    per_s: float
    wait_s: float
    """At the gate."""
    most_in_prefill: int
    ttft_by_limit: tuple[float, ...] = ()
    """Of those that were sent while the ramp stood at each limit."""


def commands() -> list[Command]:
    """The three of the page, in its order."""
    count = load(limit=3)
    count.closed_loop(30, iter([VirtualRequest(16_000, 500)] * 100))
    rows = count.run()
    first = _command(count, rows, max(row.done_at for row in rows))

    ramp = load(limit=1)
    for limit in range(2, 6):
        ramp.clock.call_at(
            7.5 * (limit - 1), lambda limit=limit: setattr(ramp, "prefill_limit", limit)
        )
    ramp.closed_loop(50, repeat(VirtualRequest(32_000, 200)))
    rows = ramp.run(until=120)
    limits = [min(5, 1 + int(row.sent_at / 7.5)) for row in rows]
    by_limit = tuple(
        float(np.mean([row.ttft_s for row, at in zip(rows, limits, strict=True) if at == limit]))
        for limit in range(1, 6)
    )
    second = _command(ramp, rows, 120.0)._replace(ttft_by_limit=by_limit)

    rate = load(limit=10)
    rate.most_open = 100
    rate.open_loop(poisson(10, 60, lambda _: VirtualRequest(8000, 300)))
    third = _command(rate, rate.run(until=60), 60.0)
    return [first, second, third]


def _command(run: Virtual, rows: list[VirtualResult], seconds: float) -> Command:
    return Command(
        float(np.mean([row.ttft_s for row in rows])),
        float(np.mean([row.done_at - row.sent_at for row in rows])),
        float(np.mean([row.itl_s for row in rows])),
        len(rows) / seconds,
        float(np.mean([row.sent_at - row.asked_at for row in rows])),
        run.max_prefilling,
    )
