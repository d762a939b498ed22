"""Interval loads have known truth, for ``make intervals``. Each makes many runs at once, as an
array (runs, requests) in send order.

TUNED are the loads that the constants of the intervals were chosen on. SEEN were held out of an
earlier rule, HELD_OUT of this one.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest

Runs = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Runs]
Process = Callable[[np.random.Generator, int, int], Runs]

LATENCY: Final = ("mean", "p50", "p90", "p95", "p99", "share")
"""These figures of latencies are checked. ``share`` is the share of requests within a limit that
nine of ten meet."""
OUTCOME: Final = ("error_rate",)
RATE: Final = ("rate",)
"""These figures are of successive amounts in equal bins of time."""
SERVER: Final = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=128, kv_tokens=400_000)


class Cell(NamedTuple):
    name: str
    process: Process
    count: int
    figures: tuple[str, ...] = LATENCY


# -- independent values
# ------------------------------------------------------------------------------------------------


def exponential(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    return random.exponential(size=shape)


def lognormal(sigma: float, random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """Draws values with mean 1."""
    return np.exp(random.normal(-sigma * sigma / 2, sigma, shape))


def uniform(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    return random.uniform(0.5, 1.5, shape)


def gamma(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    return random.gamma(4.0, 0.25, shape)


def hyperexponential(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """Draws values with mean 1, of which one in ten is ten times as long as the others."""
    return random.exponential(size=shape) * np.where(random.random(shape) < 0.1, 10, 1) / 1.9


def independent(draw: Draw, random: np.random.Generator, runs: int, count: int) -> Runs:
    return draw(random, (runs, count))


def bimodal(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies where one request in eight has a long prompt."""
    long = random.random((runs, count)) < 0.12
    return np.where(
        long, random.normal(5, 0.7, (runs, count)), random.normal(1, 0.2, (runs, count))
    )


def cached(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies where a cache answers three of ten, five times as fast."""
    hit = random.random((runs, count)) < 0.3
    return np.where(hit, 0.2, 1.0) * lognormal(0.25, random, (runs, count))


def waves(requests: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies whose level swings by 20 %, with a period of so many requests."""
    turns = np.arange(count) / requests + random.random((runs, 1))
    level: Runs = 1 + 0.2 * np.sin(2 * np.pi * turns)
    return level * lognormal(0.3, random, (runs, count))


def retries(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies where one in twelve is retried after a second, once or more often."""
    again = random.geometric(1 - 1 / 12, (runs, count)) - 1
    return lognormal(0.3, random, (runs, count)) + 2 * again


# -- correlated values
# -------------------------------------------------------------------------------------------------


def autoregressive(phi: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    return np.exp(_wander(phi, random, runs, count) / 2)


def _wander(phi: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws standard normal values with autocorrelation ``phi``."""
    noise = random.normal(size=(count, runs)) * math.sqrt(1 - phi * phi)
    noise[0] /= math.sqrt(1 - phi * phi)
    for i in range(1, count):
        noise[i] += phi * noise[i - 1]
    return noise.T.copy()


def drifting(
    amplitude: float, requests: float, random: np.random.Generator, runs: int, count: int
) -> Runs:
    """Draws latencies whose level wanders by ``amplitude``, over so many requests, times noise of
    20 %."""
    level = 1 + amplitude * _wander(math.exp(-1 / requests), random, runs, count)
    return np.maximum(level, 0.05) * lognormal(0.2, random, (runs, count))


def fractional(d: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies with long memory: fractionally integrated noise, over ten times the run."""
    length = 16 * count
    weights = np.cumprod(
        np.concatenate([[1.0], (np.arange(1, length) - 1 + d) / np.arange(1, length)])
    )
    size = 1 << (2 * length - 1).bit_length()
    spectrum = np.fft.rfft(weights, size)
    noise = [
        np.fft.irfft(np.fft.rfft(random.normal(size=length), size) * spectrum, size)
        for _ in range(runs)
    ]
    return np.exp(0.3 * np.array([one[length - count : length] for one in noise]))


def on_and_off(random: np.random.Generator, runs: int, count: int, slower: float = 3.0) -> Runs:
    """Draws latencies of a server that is so many times slower for 15 requests on average, after
    60."""
    slow = np.empty((count, runs), np.bool_)
    state = random.random(runs) < 0.2
    for i in range(count):
        state = np.where(random.random(runs) < np.where(state, 1 / 15, 1 / 60), ~state, state)
        slow[i] = state
    return np.where(slow.T, slower, 1.0) * lognormal(0.3, random, (runs, count))


def collected(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws latencies with a pause of the server every 40 requests. The next five or so have the
    rest of it."""
    phase = random.uniform(0, 40, runs)[:, None]
    since = (np.arange(count) + phase + random.uniform(-2, 2, (runs, count))) % 40
    return lognormal(0.3, random, (runs, count)) + np.maximum(0, 2 - since * 0.4)


def padded(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws batches of eight that take as long as their longest request. Each waits for the one
    before."""
    length = lognormal(0.6, random, (runs, count // 8 + 1, 8)).max(axis=2)
    waits = np.concatenate([np.zeros((runs, 1)), length[:, :-1]], axis=1)
    each: Runs = np.repeat(length + waits, 8, axis=1)[:, :count]
    return each * random.uniform(0.98, 1.02, each.shape)


# -- queues of an open loop
# --------------------------------------------------------------------------------------------


def single(load: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns sojourn times of M/M/1 in its steady state: Lindley's recursion."""
    wait = np.where(random.random(runs) < load, random.exponential(1 / (1 - load), runs), 0.0)
    found = np.empty((count, runs))
    for i in range(count):
        found[i] = wait + random.exponential(size=runs)
        wait = np.maximum(found[i] - random.exponential(1 / load, runs), 0.0)
    return found.T.copy()


def many(
    load: float,
    servers: int,
    draw: Draw,
    weight: float,
    random: np.random.Generator,
    runs: int,
    count: int,
) -> Runs:
    """Returns waits and so much of the service of M/G/``servers``, after a long warmup."""
    free = np.zeros((runs, servers))
    now = np.zeros(runs)
    every = np.arange(runs)
    warmup = int(min(20 / (1 - load) ** 2, 4000))
    found = np.empty((count, runs))
    for i in range(-warmup, count):
        now += random.exponential(1 / (load * servers), runs)
        slot = free.argmin(axis=1)
        start = np.maximum(free[every, slot], now)
        service = draw(random, (runs,))
        free[every, slot] = start + service
        if i >= 0:
            found[i] = start - now + service * weight
    return found.T.copy()


# -- closed loops ----------------------------------------------------------------------------------


def closed(
    users: int,
    servers: int,
    think: Draw,
    draw: Draw,
    random: np.random.Generator,
    runs: int,
    count: int,
) -> Runs:
    """Returns response times of users with think times before servers that serve in turn. All begin
    within one response."""
    ready = random.uniform(0, 1 + users / servers, (runs, users))
    every = np.arange(runs)
    free = np.zeros((runs, servers))
    warmup = 10 * users
    found = np.empty((count, runs))
    for i in range(-warmup, count):
        user = ready.argmin(axis=1)
        slot = free.argmin(axis=1)
        sent = ready[every, user]
        done = np.maximum(free[every, slot], sent) + draw(random, (runs,))
        free[every, slot] = done
        ready[every, user] = done + think(random, (runs,))
        if i >= 0:
            found[i] = done - sent
    return found.T.copy()


def shared(users: int, think: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns response times of a closed loop whose server shares itself equally among its requests
    (exponential work)."""
    every = np.arange(runs)
    warmup = 20 * users
    total = warmup + count
    left = np.full((runs, users), np.inf)
    ready = random.exponential(think, (runs, users))
    sent_at = np.zeros((runs, users))
    index = np.zeros((runs, users), np.int64)
    found = np.full((runs, total), np.nan)
    sends = np.zeros(runs, np.int64)
    now = np.zeros(runs)
    while np.isnan(found[:, warmup:]).any():
        inside = np.isfinite(left)
        sharing = np.maximum(inside.sum(axis=1), 1)
        next_done = left.min(axis=1) * sharing
        next_sent = ready.min(axis=1) - now
        step = np.minimum(next_done, next_sent)
        left = left - (step / sharing)[:, None]
        now = now + step
        ends = next_done <= next_sent
        rows = every[ends]
        user = left[rows].argmin(axis=1)
        left[rows, user] = np.inf
        known = index[rows, user] < total
        found[rows[known], index[rows, user][known]] = (now[rows] - sent_at[rows, user])[known]
        ready[rows, user] = now[rows] + random.exponential(think, len(rows))
        rows = every[~ends]
        user = ready[rows].argmin(axis=1)
        ready[rows, user] = np.inf
        left[rows, user] = random.exponential(size=len(rows))
        sent_at[rows, user] = now[rows]
        index[rows, user] = sends[rows]
        sends[rows] += 1
    return found[:, warmup:]


def deterministic(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns TTFTs of four users of a server without chance: 95 ms, and more beside others.
    Lengths repeat nearly."""
    users = 4
    every = np.arange(runs)
    ready = random.uniform(0, 1, (runs, users))
    lengths = np.array([1.0, 1.13, 0.91, 1.04, 1.21])
    last = np.full((runs, users), -1.0)
    found = np.empty((count, runs))
    begin = random.integers(0, 5, runs)
    for i in range(count):
        user = ready.argmin(axis=1)
        sent = ready[every, user]
        beside = (last > sent[:, None] - 0.1).sum(axis=1)
        found[i] = 0.095 + 0.0023 * beside
        last[every, user] = sent
        ready[every, user] = (
            sent + found[i] + 0.8 * lengths[(begin + i) % 5] * random.uniform(0.97, 1.03, runs)
        )
    return found.T.copy()


def lockstep(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns latencies of three users whose requests fall into one step at times, and part
    again."""
    together = _wander(0.97, random, runs, count) > 0.5
    place = (np.arange(count) + random.integers(0, 3, runs)[:, None]) % 3
    return (30 + np.where(together, 10 * place, 2 * place)) * lognormal(0.05, random, (runs, count))


# -- errors and rates
# --------------------------------------------------------------------------------------------------


def error_bursts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures: once in a thousand requests twenty in a row of which half fail."""
    failed = np.zeros((runs, count))
    for run in failed:
        for begin in np.flatnonzero(random.random(count + 20) < 1 / 1000) - 20:
            some = run[max(begin, 0) : begin + 20]
            some[random.random(len(some)) < 0.5] = 1
    return failed


def errors(share: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    return (random.random((runs, count)) < share).astype(np.float64)


def outages(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures of 3 %, in spells of 15 after 485."""
    found = np.empty((count, runs))
    state = random.random(runs) < 0.03
    for i in range(count):
        state = np.where(random.random(runs) < np.where(state, 1 / 15, 1 / 485), ~state, state)
        found[i] = state
    return found.T.copy()


def modulated(dwell_s: float, random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns requests that end per second, by a Markov chain of 12/s and 4/s that stays
    ``dwell_s`` in either."""
    steps = 20
    state = random.random(runs) < 0.5
    found = np.zeros((seconds, runs))
    for i in range(seconds * steps):
        state = np.where(random.random(runs) < 1 / (dwell_s * steps), ~state, state)
        found[i // steps] += random.poisson(np.where(state, 12.0, 4.0) / steps)
    return found.T.copy()


def full_server(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns the completions of a server that is always busy: eight places, lognormal service of 1
    s."""
    found = np.zeros((runs, seconds))
    for run in found:
        for _ in range(8):
            ends = np.cumsum(random.lognormal(-0.18, 0.6, 4 * seconds + 40)) - random.uniform(5, 10)
            ends = ends[(ends >= 0) & (ends < seconds)]
            run += np.bincount(ends.astype(np.int64), minlength=seconds)[:seconds]
    return found


def poisson_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    return random.poisson(6.0, (runs, seconds)).astype(np.float64)


def drifting_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    level = 1 + 0.15 * _wander(math.exp(-1 / 8), random, runs, seconds)
    return random.poisson(8 * np.maximum(level, 0.05)).astype(np.float64)


# -- the simulator ---------------------------------------------------------------------------------


def simulated(
    rate_per_s: float, users: int, random: np.random.Generator, runs: int, count: int
) -> Runs:
    """Returns TTFTs of a simulated H100 with an 8B model and chunked prefill, in an open loop or a
    closed one of so many users. A tenth of the requests is warmup."""
    return np.array(
        [
            _simulated(rate_per_s, users, int(seed), count)
            for seed in random.integers(1 << 40, size=runs)
        ]
    )


def _simulated(rate_per_s: float, users: int, seed: int, count: int) -> list[float]:
    random = Random(seed)
    clock = VirtualClock()
    scheduler = Scheduler(SERVER, POLICIES["chunked"], record=True)
    load = Virtual(clock, BatchEngine(scheduler, LLAMA_8B_H100, clock))
    warmup = count // 2 if rate_per_s else users
    requests = [
        VirtualRequest(min(int(random.lognormvariate(7.0, 0.8)), 8000), random.randrange(10, 60))
        for _ in range(count + warmup)
    ]
    if rate_per_s:
        arrivals = accumulate(random.expovariate(rate_per_s) for _ in requests)
        load.open_loop(zip(arrivals, requests, strict=True))
    else:
        load.closed_loop(users, iter(requests), stagger_s=0.01)
    rows = sorted(load.run(), key=lambda row: row.sent_at)[warmup:]
    return [row.ttft_s for row in rows]


def thinks(mean: float, random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    return random.exponential(mean, shape)


def cells(
    name: str, process: Process, counts: tuple[int, ...], figures: tuple[str, ...] = LATENCY
) -> list[Cell]:
    return [Cell(name, process, count, figures) for count in counts]


TUNED: Final = (
    *cells("independent exponential", partial(independent, exponential), (100, 400, 2000)),
    *cells("independent, spread 30 %", partial(independent, partial(lognormal, 0.3)), (100, 400)),
    *cells("bimodal", bimodal, (100, 400, 2000)),
    *cells("AR(1) 0.5", partial(autoregressive, 0.5), (400, 2000)),
    *cells("AR(1) 0.9", partial(autoregressive, 0.9), (400, 2000)),
    *cells("AR(1) 0.98", partial(autoregressive, 0.98), (10_000,)),
    *cells("M/M/1 50 %", partial(single, 0.5), (300, 1000, 5000)),
    *cells("M/M/1 80 %", partial(single, 0.8), (500, 2000, 10_000)),
    *cells("M/G/8 80 %", partial(many, 0.8, 8, partial(lognormal, 0.5), 0.1), (500, 2000)),
    *cells(
        "M/G/4 80 %, lognormal 1.5",
        partial(many, 0.8, 4, partial(lognormal, 1.5), 1.0),
        (500, 2000),
    ),
    *cells(
        "closed, 32 users, 8 servers",
        partial(closed, 32, 8, partial(thinks, 2.2), exponential),
        (300, 1000),
    ),
    *cells("closed, sharing, 40 users", partial(shared, 40, 30.0), (300, 1000)),
    *cells("closed, deterministic, 4 users", deterministic, (100, 328)),
    *cells("closed, lockstep, 3 users", lockstep, (150, 453)),
    *cells("drift of 5 % over 30", partial(drifting, 0.05, 30), (300, 1000)),
    *cells("drift of 15 % over 20", partial(drifting, 0.15, 20), (300, 1000)),
    *cells("drift of 30 % over 50", partial(drifting, 0.30, 50), (300, 1000)),
    *cells("fractional noise, d = 0.3", partial(fractional, 0.3), (300, 1000)),
    *cells("errors of 3 %", partial(errors, 0.03), (300, 1000), OUTCOME),
    *cells("error bursts", error_bursts, (1000, 3000), OUTCOME),
    *cells("Poisson rate", poisson_rate, (60,), RATE),
    *cells("two-state Markov rate", partial(modulated, 5.0), (60, 240), RATE),
    *cells("full server's rate", full_server, (60,), RATE),
)
SEEN: Final = (
    *cells(
        "M/G/8 85 %, hyperexponential", partial(many, 0.85, 8, hyperexponential, 1.0), (500, 2000)
    ),
    *cells("M/M/1 70 %", partial(single, 0.7), (300, 2000)),
    *cells("on and off, three times as slow", on_and_off, (300, 1000)),
    *cells("pauses every 40", collected, (100, 400)),
    *cells("padded batches of 8", padded, (200, 800)),
    *cells("retries", retries, (100, 500)),
    *cells("AR(1) 0.95", partial(autoregressive, 0.95), (1000,)),
    *cells("drift of 10 % over 40", partial(drifting, 0.10, 40), (400,)),
    *cells("fractional noise, d = 0.2", partial(fractional, 0.2), (500,)),
    *cells(
        "closed, 16 users, 4 servers, lognormal",
        partial(closed, 16, 4, partial(thinks, 1.5), partial(lognormal, 0.8)),
        (200, 800),
    ),
    *cells("closed, sharing, 12 users", partial(shared, 12, 4.0), (300,)),
    *cells("simulator, open, 8/s", partial(simulated, 8.0, 0), (300,)),
    *cells("simulator, open, 14/s", partial(simulated, 14.0, 0), (1500,)),
    *cells("simulator, 48 users", partial(simulated, 0.0, 48), (300,)),
    *cells("outages", outages, (1000, 5000), OUTCOME),
    *cells("two-state Markov rate, slower", partial(modulated, 8.0), (120,), RATE),
    *cells("drifting rate", drifting_rate, (100,), RATE),
)
HELD_OUT: Final = (
    *cells("uniform", partial(independent, uniform), (100, 400)),
    *cells("independent, spread 50 %", partial(independent, gamma), (100, 400)),
    *cells("independent, lognormal 0.8", partial(independent, partial(lognormal, 0.8)), (150, 600)),
    *cells("cache hits", cached, (120, 500)),
    *cells("M/M/1 60 %", partial(single, 0.6), (400, 2000)),
    *cells("M/G/6 75 %, hyperexponential", partial(many, 0.75, 6, hyperexponential, 1.0), (1000,)),
    *cells("AR(1) 0.8", partial(autoregressive, 0.8), (300, 1500)),
    *cells("closed, sharing, 20 users", partial(shared, 20, 8.0), (400,)),
    *cells(
        "closed, 24 users, 6 servers, uniform",
        partial(closed, 24, 6, partial(thinks, 2.0), uniform),
        (300, 900),
    ),
    *cells("drift of 20 % over 30", partial(drifting, 0.20, 30), (300, 900)),
    *cells("a wave of 50 requests", partial(waves, 50), (300,)),
    *cells("fractional noise, d = 0.25", partial(fractional, 0.25), (500,)),
    *cells("on and off, 1.6 times as slow", partial(on_and_off, slower=1.6), (500,)),
    *cells("retries, longer", retries, (600,)),
    *cells("simulator, open, 10/s", partial(simulated, 10.0, 0), (400,)),
    *cells("simulator, 32 users", partial(simulated, 0.0, 32), (300,)),
    *cells("errors of 1 %", partial(errors, 0.01), (500,), OUTCOME),
    *cells("outages, longer", outages, (2000,), OUTCOME),
    *cells("two-state Markov rate, faster", partial(modulated, 3.0), (120,), RATE),
    *cells("drifting rate, shorter", drifting_rate, (60,), RATE),
)
"""These were evaluated once, after the last change of the rule."""
