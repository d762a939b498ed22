"""Interval loads have known truth, for ``make intervals``. Each makes many runs at once, as an
array (runs, requests) in send order.

TUNED and BURSTS are the loads that the intervals were chosen on. SEEN and SEEN_LATER were
held out of the two rules before, HELD_OUT of this one.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

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


def measure_mean(process: Process, runs: int, count: int) -> float:
    return float(process(np.random.default_rng(7), runs, count).mean())


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


def weibull(shape_of: float, random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    return random.weibull(shape_of, shape)


def pareto(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """A tail that falls with the fourth power."""
    return 1 + random.pareto(4.0, shape)


def rounded(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """Whole steps of a server, mostly 3 to 8."""
    return 3.0 + random.poisson(2.5, shape)


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


def mixed_prompts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Three short prompts and a long one by turns, as a script sends them."""
    long = (np.arange(count) + random.integers(0, 4, runs)[:, None]) % 4 == 0
    return np.where(long, 2.5, 1.0) * lognormal(0.2, random, (runs, count))


def collected_at_random(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A pause of the server after 60 requests on average, of which the next five or so have what is
    left."""
    pauses = random.random((runs, count + 8)) < 1 / 60
    left = sum(
        2 * (1 - age / 6) * pauses[:, 8 - age : 8 - age + count].astype(np.float64)
        for age in range(6)
    )
    values: Runs = lognormal(0.3, random, (runs, count)) + left
    return values


def filled(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A cache that fills over 70 requests or so and is emptied: up to 40 % slower, by turns."""
    lengths = random.integers(50, 90, (runs, count // 50 + 3))
    found = np.empty((runs, count))
    for run, some in zip(found, lengths.tolist(), strict=True):
        levels = np.concatenate([np.linspace(1.0, 1.4, length) for length in some])
        begin = int(random.integers(0, some[0]))
        run[:] = levels[begin : begin + count]
    return found * lognormal(0.25, random, (runs, count))


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


def oscillating(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Autoregressive of order 2: swings of 25 requests or so that come and go."""
    damped, turn = 0.95, 2 * math.pi / 25
    first, second = 2 * damped * math.cos(turn), -damped * damped
    warmup = 200
    noise = random.normal(size=(warmup + count, runs))
    for i in range(2, warmup + count):
        noise[i] += first * noise[i - 1] + second * noise[i - 2]
    swings = noise[warmup:].T
    return np.exp(0.25 * swings / swings.std()) * lognormal(0.2, random, (runs, count))


def reflected(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A level that walks at random between 0.8 and 1.3."""
    level = random.uniform(0, 1, (runs, 1)) + 0.06 * np.cumsum(
        random.normal(size=(runs, count)), axis=1
    )
    folded = np.abs((level + 1) % 2 - 1)
    return (0.8 + 0.5 * folded) * lognormal(0.2, random, (runs, count))


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


def in_batches(load: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place where requests arrive in groups of one to five."""
    wait, found = np.zeros(runs), np.empty((count, runs))
    left, warmup = np.zeros(runs, np.int64), int(20 / (1 - load) ** 2)
    for i in range(-warmup, count):
        last = left == 0
        gap = np.where(last, random.exponential(3 / load, runs), 0.0)
        left = np.where(last, random.integers(0, 5, runs), left - 1)
        wait = np.maximum(wait - gap, 0.0)
        wait += random.gamma(2.0, 0.5, runs)
        if i >= 0:
            found[i] = wait
    return found.T.copy()


# -- bursts ----------------------------------------------------------------------------------------


def surges(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place. Requests come at 1.6 times its capacity for 25 of
    them on average, and at half of it for 35."""
    rates = np.array([0.5, 1.6])
    leaves = np.array([1 / 35, 1 / 25])
    state = (random.random(runs) < 0.5).astype(np.int64)
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        changes = random.random(runs) < leaves[state]
        state = np.where(changes, 1 - state, state)
        wait = np.maximum(wait - random.exponential(1 / rates[state]), 0.0) + 1
        if i >= 0:
            found[i] = wait
    return found.T * random.uniform(0.95, 1.05, (runs, count))


def broken_down(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of M/M/1 at 50 %, which stops for 12 services on average every 120 requests."""
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        wait = np.maximum(wait - random.exponential(2.0, runs), 0.0)
        wait += random.exponential(1.0, runs)
        wait += np.where(random.random(runs) < 1 / 120, random.exponential(12.0, runs), 0.0)
        if i >= 0:
            found[i] = wait
    return found.T.copy()


def shocks(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies above which shocks of exponential height stand. They fade over 15 requests."""
    level = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-200, count):
        comes = random.random(runs) < 1 / 100
        level = level * math.exp(-1 / 15) + np.where(comes, random.exponential(3.0, runs), 0.0)
        if i >= 0:
            found[i] = 1 + level
    return found.T * lognormal(0.2, random, (runs, count))


def uneven_phases(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Slow phases of 20 requests on average, one in 100. Each has a level of its own, 1.5 to 6."""
    level = np.ones(runs)
    slow = np.zeros(runs, np.bool_)
    found = np.empty((count, runs))
    for i in range(-300, count):
        changes = random.random(runs) < np.where(slow, 1 / 20, 1 / 80)
        begins = changes & ~slow
        usual = np.where(changes, 1.0, level)
        level = np.where(begins, np.exp(random.uniform(0.4, 1.8, runs)), usual)
        slow = slow ^ changes
        if i >= 0:
            found[i] = level
    return found.T * lognormal(0.2, random, (runs, count))


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


def swinging_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """An arrival rate that swings by 40 %, with a period of 15 s."""
    turns = np.arange(seconds) / 15 + random.random((runs, 1))
    return random.poisson(7 * (1 + 0.4 * np.sin(2 * np.pi * turns))).astype(np.float64)


def batched_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Sixteen requests that end together, every 1.5 to 2.5 s."""
    found = np.zeros((runs, seconds))
    for run in found:
        ends = np.cumsum(random.uniform(1.5, 2.5, seconds)) - random.uniform(0, 2.5)
        ends = ends[(ends >= 0) & (ends < seconds)]
        run += 16 * np.bincount(ends.astype(np.int64), minlength=seconds)[:seconds]
    return found


# -- the simulator ---------------------------------------------------------------------------------


def simulated(
    rate_per_s: float,
    users: int,
    random: np.random.Generator,
    runs: int,
    count: int,
    policy: str = "chunked",
) -> Runs:
    """Returns TTFTs of a simulated H100 with an 8B model, in an open loop or a closed one of so
    many users. A tenth of the requests is warmup."""
    return np.array(
        [
            _simulated(rate_per_s, users, int(seed), count, policy)
            for seed in random.integers(1 << 40, size=runs)
        ]
    )


def _simulated(rate_per_s: float, users: int, seed: int, count: int, policy: str) -> list[float]:
    random = Random(seed)
    clock = VirtualClock()
    scheduler = Scheduler(SERVER, POLICIES[policy], record=True)
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
BURSTS: Final = (
    *cells("surges", surges, (300, 1200)),
    *cells("broken", broken_down, (400, 1500)),
    *cells("shocks", shocks, (300, 1200)),
    *cells("phases", uneven_phases, (300, 1200)),
)
"""The upper ends of values that come in bursts were chosen on these, and on TUNED."""
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
SEEN_LATER: Final = (
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
HELD_OUT: Final = (
    *cells("Weibull 0.7", partial(independent, partial(weibull, 0.7)), (120, 500)),
    *cells("Pareto 4", partial(independent, pareto), (100, 400)),
    *cells("whole steps", partial(independent, rounded), (100, 400)),
    *cells("long and short by turns", mixed_prompts, (100, 400)),
    *cells("pauses at random", collected_at_random, (150, 600)),
    *cells("a cache that fills", filled, (200, 800)),
    *cells("AR(2), swings of 25", oscillating, (200, 800)),
    *cells("a level between walls", reflected, (400, 1200)),
    *cells("AR(1) 0.7", partial(autoregressive, 0.7), (150, 600)),
    *cells("drift of 8 % over 60", partial(drifting, 0.08, 60), (400, 1200)),
    *cells("fractional noise, d = 0.15", partial(fractional, 0.15), (400,)),
    *cells("groups of one to five, 60 %", partial(in_batches, 0.6), (400, 2000)),
    *cells(
        "M/G/2 70 %, lognormal 0.8", partial(many, 0.7, 2, partial(lognormal, 0.8), 1.0), (600,)
    ),
    *cells("M/G/16 70 %, gamma", partial(many, 0.7, 16, gamma, 1.0), (500,)),
    *cells(
        "closed, 10 users, 3 servers, gamma",
        partial(closed, 10, 3, partial(thinks, 1.0), gamma),
        (150, 600),
    ),
    *cells(
        "closed, 64 users, 16 servers",
        partial(closed, 64, 16, partial(thinks, 3.5), exponential),
        (400,),
    ),
    *cells("closed, sharing, 8 users", partial(shared, 8, 6.0), (250,)),
    *cells(
        "simulator as SGLang, open, 9/s",
        partial(simulated, 9.0, 0, policy="sglang"),
        (300,),
    ),
    *cells("simulator, 20 users", partial(simulated, 0.0, 20), (300,)),
    *cells("errors of 5 %", partial(errors, 0.05), (150, 600), OUTCOME),
    *cells("outages, shorter", outages, (3000,), OUTCOME),
    *cells("swinging rate", swinging_rate, (60, 150), RATE),
    *cells("batches' rate", batched_rate, (60,), RATE),
    *cells("two-state Markov rate, fast", partial(modulated, 2.0), (60,), RATE),
)
"""These were evaluated once, after the last change of the rule."""
