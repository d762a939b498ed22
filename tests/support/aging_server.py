"""An aging server in virtual time: the readings that a soak would take of it, with planted leaks,
slow-downs, caches that fill and are emptied, warm-ups and steps."""

import math
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from locust_llm.trends.soak_readings import MOST_POINTS, SoakReading

Values = NDArray[np.float64]
LOOKS: Final = 10
"""Looks at memory in an interval, at random moments, as the sampler takes them."""


class Wobble(NamedTuple):
    """What a value does without growing."""

    noise: float = 0.0
    """The standard deviation of independent noise."""
    slow_noise: float = 0.0
    slow_s: float = 1.0
    """The standard deviation and the time constant of an AR(1) process."""
    walk: float = 0.0
    """The standard deviation of a random walk at the end of the run."""
    saw: float = 0.0
    period_s: float = 1.0
    phase: float = 0.0
    """A sawtooth: what fills and is emptied."""
    warm: float = 0.0
    warm_s: float = 1.0
    """A rise that saturates, and its time constant."""
    step: float = 0.0
    step_s: float = 0.0
    """A single step, and when it happens."""
    grain: float = 0.0
    """The unit of memory, such as a page."""

    def draw(self, at: Values, random: np.random.Generator) -> Values:
        """The values at these times (seconds, rising)."""
        count = len(at)
        steps = np.diff(at, prepend=0.0)
        values = self.noise * random.standard_normal(count)
        if self.slow_noise:
            values += self.slow_noise * _draw_slow_noise(steps, self.slow_s, random)
        if self.walk:
            values += self.walk * np.cumsum(np.sqrt(steps / at[-1]) * random.standard_normal(count))
        values += self._draw_saw(at)
        values += self.warm * (1.0 - np.exp(-at / self.warm_s))
        values += self.step * (at >= self.step_s)
        return values

    def draw_means(self, ends: Values, asked: Values, random: np.random.Generator) -> Values:
        """What the requests of each interval, at the moments ``asked``, see on average."""
        return self._replace(saw=0.0).draw(ends, random) + self._draw_saw(asked).mean(axis=0)

    def _draw_saw(self, at: Values) -> Values:
        return self.saw * ((at / self.period_s + self.phase) % 1.0)


class AnyWobble(Protocol):
    """What a value does without growing."""

    @property
    def grain(self) -> float:
        """The unit of memory, such as a page."""

    def draw(self, at: Values, random: np.random.Generator) -> Values: ...

    def draw_means(self, ends: Values, asked: Values, random: np.random.Generator) -> Values: ...


def _draw_slow_noise(steps: Values, slow_s: float, random: np.random.Generator) -> Values:
    values = np.empty(len(steps))
    level = random.standard_normal()
    for place, step in enumerate(steps):
        kept = math.exp(-step / slow_s)
        level = kept * level + math.sqrt(1 - kept * kept) * random.standard_normal()
        values[place] = level
    return values


class AgingServer(NamedTuple):
    """Memory in bytes, latencies relative to 1."""

    memory: float = 4e9
    memory_wobble: AnyWobble = Wobble()
    leak_per_request: float = 0.0
    leak_per_token: float = 0.0
    latency_wobble: AnyWobble = Wobble()
    slower_per_hour: float = 0.0
    kv_wobble: AnyWobble = Wobble()
    kv_leak_per_hour: float = 0.0
    queue_wobble: AnyWobble = Wobble()
    error_rate: float = 0.0


def take_aging_readings(
    server: AgingServer,
    length_s: float,
    seed: int,
    requests_per_s: float = 2.0,
    tokens_per_request: float = 100.0,
) -> list[SoakReading]:
    random = np.random.default_rng(seed)
    every_s = length_s / MOST_POINTS
    ends = every_s * np.arange(1, MOST_POINTS + 1)
    looks = np.sort(random.uniform(0.0, length_s, MOST_POINTS * LOOKS))
    memory = server.memory + server.memory_wobble.draw(looks, random)
    leak_per_s = requests_per_s * (
        server.leak_per_request + server.leak_per_token * tokens_per_request
    )
    memory = memory + leak_per_s * looks
    if server.memory_wobble.grain:
        memory = np.ceil(memory / server.memory_wobble.grain) * server.memory_wobble.grain
    used = 0.3 + server.kv_wobble.draw(looks, random)
    used = np.clip(used + server.kv_leak_per_hour * looks / 3600, 0.0, 1.0)
    queue = np.maximum(server.queue_wobble.draw(looks, random), 0.0)
    growth = 1.0 + server.slower_per_hour * ends / 3600
    asked = random.uniform(0.0, every_s, (LOOKS, MOST_POINTS)) + ends - every_s
    ttft = growth * (1.0 + server.latency_wobble.draw_means(ends, asked, random))
    itl = growth * (1.0 + server.latency_wobble.draw_means(ends, asked, random))
    ended = random.poisson(requests_per_s * every_s, MOST_POINTS)
    failed = random.binomial(ended, server.error_rate)
    requests = np.cumsum(ended)
    readings = []
    begins = np.searchsorted(looks, np.append(0.0, ends))
    for place in range(MOST_POINTS):
        seen = slice(int(begins[place]), max(int(begins[place + 1]), int(begins[place]) + 1))
        if len(memory[seen]) == 0:
            seen = slice(-1, None)
        readings.append(
            SoakReading(
                at=float(ends[place]),
                hours=float(ends[place]) / 3600,
                requests=int(requests[place]),
                tokens=int(requests[place] * tokens_per_request),
                ended=int(ended[place]),
                failed=int(failed[place]),
                ttft_s=0.2 * float(ttft[place]),
                itl_s=0.02 * float(itl[place]),
                memory_bytes=float(memory[seen].min()),
                kv_free=1.0 - float(used[seen].min()),
                waiting=float(queue[seen].mean()),
            )
        )
    return readings


def draw_between(random: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def draw_wobble(random: np.random.Generator, size: float, length_s: float) -> Wobble:
    """Any mixture of what a stable server does, up to the order of ``size``. A random walk has no
    level to return to, so it is none."""

    def sometimes(share: float, low: float, high: float) -> float:
        return size * draw_between(random, low, high) if random.uniform() < share else 0.0

    return Wobble(
        noise=sometimes(0.7, 1e-4, 0.05),
        slow_noise=sometimes(0.5, 1e-4, 0.05),
        slow_s=draw_between(random, length_s / 500, length_s / 5),
        saw=sometimes(0.6, 1e-3, 0.5),
        period_s=draw_between(random, 2.0, length_s / 2),
        phase=float(random.uniform()),
        warm=sometimes(0.5, 1e-3, 1.0),
        warm_s=draw_between(random, length_s / 500, length_s / 2),
        step=sometimes(0.4, 1e-3, 0.5),
        step_s=float(random.uniform(0.0, length_s)),
        grain=float(random.choice([0.0, 4096.0, 2.0**20])),
    )


def draw_stable_server(seed: int, length_s: float) -> AgingServer:
    random = np.random.default_rng([seed, 7])
    memory = draw_between(random, 1e8, 1e11)
    return AgingServer(
        memory=memory,
        memory_wobble=draw_wobble(random, memory, length_s),
        latency_wobble=draw_wobble(random, 1.0, length_s)._replace(grain=0.0),
        kv_wobble=draw_wobble(random, 0.3, length_s),
        queue_wobble=draw_wobble(random, 1.0, length_s),
        error_rate=float(random.choice([0.0, 0.001, 0.05])),
    )
