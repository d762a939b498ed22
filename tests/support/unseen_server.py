"""Unseen server: stable servers of families on which no threshold of the soak was chosen.

Nothing grows for good: each value comes back, or stays where it is, within the run. A rhythm has two
periods at least, and a fill is over after half of the run.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from support.aging_server import AgingServer, Values, draw_between

SHAPES: Final = ("switches", "pauses", "rhythm", "fill", "fractional", "workers")


class UnseenWobble(NamedTuple):
    """One shape of ``size``, with a little independent noise."""

    shape: str
    size: float
    length_s: float
    scale: float
    """From 0 to 1, the shape's own: how fast, how long, how correlated."""
    noise: float
    grain: float = 0.0

    def draw(self, at: Values, random: np.random.Generator) -> Values:
        """The values at these times (seconds, rising)."""
        draw = getattr(self, f"_draw_{self.shape}")
        values: Values = self.size * draw(at, random)
        return values + self.noise * random.standard_normal(len(at))

    def draw_means(self, ends: Values, asked: Values, random: np.random.Generator) -> Values:
        """The requests of an interval see its end: these shapes are slower than an interval."""
        return self.draw(ends, random)

    def _spread(self, low: float, high: float) -> float:
        """A part of the run's length, from ``low`` to ``high``."""
        return float(self.length_s * low * (high / low) ** self.scale)

    def _draw_switches(self, at: Values, random: np.random.Generator) -> Values:
        """A cache that is full or empty: a random telegraph."""
        changes = _draw_moments(
            random, lambda: random.exponential(self._spread(0.005, 0.3)), at[-1]
        )
        begin = int(random.integers(2))
        return ((np.searchsorted(changes, at) + begin) % 2).astype(np.float64)

    def _draw_pauses(self, at: Values, random: np.random.Generator) -> Values:
        """Garbage that piles up at an even rate. The times between two collections have a heavy
        tail, up to half of the run."""
        shortest = self._spread(0.001, 0.05)
        most = self.length_s / 2
        changes = _draw_moments(
            random, lambda: min(shortest * (1.0 + random.pareto(1.1)), most), at[-1]
        )
        begins = np.append(-random.uniform(0.0, shortest), changes)
        return (at - begins[np.searchsorted(begins, at, side="right") - 1]) / most

    def _draw_rhythm(self, at: Values, random: np.random.Generator) -> Values:
        """As of day and night: a sinusoid with its second harmonic."""
        turns = 2 * np.pi * at / self._spread(0.02, 0.5)
        first, second = random.uniform(0.0, 2 * np.pi, 2)
        values: Values = np.sin(turns + first) + 0.4 * np.sin(2 * turns + second)
        return 0.5 * values

    def _draw_fill(self, at: Values, random: np.random.Generator) -> Values:
        """A cache that fills by a power of the time, and is full then."""
        share = np.minimum(at / self._spread(0.01, 0.5), 1.0)
        return np.asarray(share ** random.uniform(0.3, 1.0))

    def _draw_fractional(self, at: Values, random: np.random.Generator) -> Values:
        """Fractional Gaussian noise with a Hurst exponent from 0.6 to 0.95."""
        hurst = 0.6 + 0.35 * self.scale
        count = 4 * len(at)
        frequencies = np.fft.rfftfreq(count)
        power = np.zeros(len(frequencies))
        power[1:] = frequencies[1:] ** (0.5 - hurst)
        waves = power * np.exp(2j * np.pi * random.uniform(size=len(frequencies)))
        noise = np.fft.irfft(waves, count)
        begin = int(random.integers(count - len(at)))
        return np.asarray(0.2 * noise[begin : begin + len(at)] / noise.std())

    def _draw_workers(self, at: Values, random: np.random.Generator) -> Values:
        """Up to eight workers that start and end at random, at the same rate."""
        live_s = self._spread(0.01, 0.2)
        values = np.zeros(len(at))
        for _ in range(8):
            changes = _draw_moments(random, lambda: random.exponential(live_s), at[-1])
            values += (np.searchsorted(changes, at) + int(random.integers(2))) % 2
        return values / 8


def _draw_moments(random: np.random.Generator, draw: Callable[[], float], end: float) -> Values:
    """Moments up to the end, with these times between them."""
    moments = list[float]()
    now = 0.0
    while now <= end:
        now += float(draw())
        moments.append(now)
    return np.asarray(moments)


def draw_unseen_wobble(random: np.random.Generator, size: float, length_s: float) -> UnseenWobble:
    return UnseenWobble(
        shape=str(random.choice(SHAPES)),
        size=size * draw_between(random, 1e-3, 0.5),
        length_s=length_s,
        scale=float(random.uniform()),
        noise=size * draw_between(random, 1e-5, 0.02),
        grain=float(random.choice([0.0, 4096.0])) if size > 1e6 else 0.0,
    )


def draw_unseen_server(seed: int, length_s: float) -> AgingServer:
    random = np.random.default_rng([seed, 11])
    memory = draw_between(random, 1e8, 1e11)
    return AgingServer(
        memory=memory,
        memory_wobble=draw_unseen_wobble(random, memory, length_s),
        latency_wobble=draw_unseen_wobble(random, 1.0, length_s),
        kv_wobble=draw_unseen_wobble(random, 0.3, length_s),
        queue_wobble=draw_unseen_wobble(random, 1.0, length_s),
        error_rate=float(random.choice([0.0, 0.001, 0.05])),
    )
