"""Looked at once: loads of known truth for ``make intervals`` that no constant was chosen on. Their
processes are unlike those of interval_loads.py, and they were written before the first run of them.

Each makes many runs at once, as an array (runs, requests) in send order, or (runs, seconds).
"""

import heapq
import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from random import Random
from typing import Final

import numpy as np
from interval_loads import OUTCOME, RATE, Cell, Draw, Runs, cells, closed, gamma, lognormal
from interval_loads import simulated as simulate_engine

OneRun = Callable[[Random, int], list[float]]
"""Makes one run of so many requests."""


def run_each(one_run: OneRun, random: np.random.Generator, runs: int, count: int) -> Runs:
    seeds = random.integers(1 << 40, size=runs)
    return np.array([one_run(Random(int(seed)), count) for seed in seeds])


def wander(requests: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Draws standard normal values that keep 1/e of what they are for so many requests."""
    phi = math.exp(-1 / requests)
    noise = random.normal(size=(count, runs))
    noise[1:] *= math.sqrt(1 - phi * phi)
    for i in range(1, count):
        noise[i] += phi * noise[i - 1]
    return noise.T.copy()


# -- values that do not queue ----------------------------------------------------------------------


def changing_spread(random: np.random.Generator, runs: int, count: int) -> Runs:
    """The median stays, and the spread wanders over 60 requests: a third as large, or three times."""
    spread = 0.25 * np.exp(0.5 * wander(60, random, runs, count))
    return np.exp(spread * random.normal(size=(runs, count)))


def half_wave(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A run sees half of a day: its level swings by 15 % once in twice its length."""
    turns = np.arange(count) / (2 * count) + random.random((runs, 1))
    level: Runs = 1 + 0.15 * np.sin(2 * np.pi * turns)
    return level * lognormal(0.2, random, (runs, count))


def answer_lengths(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies by the tokens of chats, answers and documents. A request is of the kind of the one
    before in 85 of 100 cases."""
    tokens = np.array([120.0, 400.0, 2000.0])
    places = random.random((count, runs))
    kinds = np.searchsorted([0.7, 0.95], places)
    stays = random.random((count, runs)) < 0.85
    for i in range(1, count):
        kinds[i] = np.where(stays[i], kinds[i - 1], kinds[i])
    return 0.2 + 0.01 * tokens[kinds.T] * lognormal(0.4, random, (runs, count))


def growing_prompts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """TTFTs of six users by turns. A conversation has eight turns on average, and each makes the
    prompt longer by half of the first."""
    users = 6
    turns = count // users + 1
    warmup = 60
    turn = np.zeros((runs, users))
    found = np.empty((turns, runs, users))
    for i in range(-warmup, turns):
        turn = np.where(random.random((runs, users)) < 1 / 8, 0.0, turn + 1)
        if i >= 0:
            found[i] = 0.1 + 0.05 * turn
    levels = found.transpose(1, 0, 2).reshape(runs, -1)[:, :count]
    return levels * lognormal(0.2, random, (runs, count))


def slow_replica(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Four replicas by turns. One is twice as slow, and the level of each wanders by 20 % over 25 of
    its own requests."""
    length = count // 4 + 1
    levels = [1 + 0.2 * wander(25, random, runs, length) for _ in range(3)]
    levels.append(2 * (1 + 0.2 * wander(25, random, runs, length)))
    each = np.stack(levels, axis=2).reshape(runs, -1)[:, :count]
    return np.maximum(each, 0.1) * lognormal(0.2, random, (runs, count))


def noisy_neighbours(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Jobs of others slow the server by a tenth each. Two run on average, and their durations have
    infinite variance, so the level has long memory."""
    longest = 20 * count
    shape = 1.6
    mean = 40.0
    least = mean * (shape - 1) / shape
    level = np.zeros((runs, count))
    for run in level:
        jobs = random.poisson(2.0 * (longest + count) / mean)
        begins = random.uniform(-longest, count, jobs)
        ends = begins + least * (1 + random.pareto(shape, jobs))
        steps = np.zeros(count + 1)
        first = np.clip(np.ceil(begins), 0, count).astype(np.int64)
        last = np.clip(np.ceil(ends), 0, count).astype(np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, last, -1)
        run[:] = np.cumsum(steps)[:count]
    return (1 + 0.1 * level) * lognormal(0.2, random, (runs, count))


def rare_stalls(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Nearly equal values, and one in 300 is five times as long."""
    stalled = random.random((runs, count)) < 1 / 300
    return np.where(stalled, 5.0, 1.0) * lognormal(0.01, random, (runs, count))


# -- queues of an open loop ------------------------------------------------------------------------


def bursty_arrivals(
    load: float, servers: int, draw: Draw, random: np.random.Generator, runs: int, count: int
) -> Runs:
    """Returns sojourn times of GI/G/``servers``. Gaps are gamma with shape 0.4: more requests than
    Poisson's come close together."""
    free = np.zeros((runs, servers))
    now = np.zeros(runs)
    every = np.arange(runs)
    found = np.empty((count, runs))
    for i in range(-1000, count):
        now += random.gamma(0.4, 1 / (0.4 * load * servers), runs)
        slot = free.argmin(axis=1)
        free[every, slot] = np.maximum(free[every, slot], now) + draw(random, (runs,))
        if i >= 0:
            found[i] = free[every, slot] - now
    return found.T.copy()


def wide_gamma(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """Draws values with mean 1 and variance 2."""
    return random.gamma(0.5, 2.0, shape)


def three_speeds(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place. It is at its usual speed for 60 requests, slow for
    30 and very slow for 10, on average and in any order. Its load is 55 %."""
    times = np.array([0.7, 1.2, 2.5])
    dwell = np.array([60.0, 30.0, 10.0])
    state = random.choice(3, runs, p=dwell / dwell.sum())
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-1000, count):
        leaves = random.random(runs) < 1 / dwell[state]
        state = np.where(leaves, (state + random.integers(1, 3, runs)) % 3, state)
        sojourn = wait + times[state] * random.gamma(4.0, 0.25, runs)
        if i >= 0:
            found[i] = sojourn
        wait = np.maximum(sojourn - random.exponential(1.03 / 0.55, runs), 0.0)
    return found.T.copy()


PAUSE_EVERY_S: Final = 20.0
PAUSE_S: Final = 1.0


def pauses_of_a_queue(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place at 60 %, 6 requests per second, that pauses for a
    second every 20 s: garbage collection of a busy server."""
    works_s = PAUSE_EVERY_S - PAUSE_S
    now = random.uniform(0, PAUSE_EVERY_S, runs)
    free = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        now += random.exponential(1 / 6, runs)
        cycle, since = np.divmod(now, PAUSE_EVERY_S)
        arrived = cycle * works_s + np.minimum(since, works_s)  # in seconds of work
        free = np.maximum(free, arrived) + random.gamma(4.0, 0.025, runs)
        if i >= 0:
            cycle, since = np.divmod(free, works_s)
            found[i] = cycle * PAUSE_EVERY_S + since - now
    return found.T.copy()


def cold_starts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place at 45 %. It is stopped when it was idle for 2 s, and
    takes 4 s to start. 1.5 requests arrive per second."""
    now = np.zeros(runs)
    free = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-300, count):
        now += random.exponential(1 / 1.5, runs)
        begun = np.where(now - free > 2.0, now + 4.0, np.maximum(now, free))
        free = begun + random.gamma(4.0, 0.075, runs)
        if i >= 0:
            found[i] = free - now
    return found.T.copy()


def tandem(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a gateway at 60 % (exponential) and a server at 75 % (constant), one after
    the other."""
    gateway = np.zeros(runs)
    server = np.zeros(runs)
    now = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-1000, count):
        now += random.exponential(1.0, runs)
        gateway = np.maximum(gateway, now) + random.exponential(0.6, runs)
        server = np.maximum(server, gateway) + 0.75
        if i >= 0:
            found[i] = server - now
    return found.T.copy()


def token_bucket(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies behind a rate limit of 8 per s, of which 10 may come at once. Arrivals are Poisson,
    2 per s for 6 s and 12 per s for 3 s on average, so 67 % of the limit."""
    rates = np.array([2.0, 12.0])
    leaves = np.array([1 / 6, 1 / 3])
    state = (random.random(runs) < 1 / 3).astype(np.int64)
    tokens = np.full(runs, 10.0)
    found = np.full((runs, count), np.nan)
    at = np.full(runs, -500)
    every = np.arange(runs)
    while at.min() < count:
        gap = random.exponential(1 / (rates[state] + leaves[state]))
        tokens = np.minimum(tokens + 8 * gap, 10.0)
        changes = random.random(runs) < leaves[state] / (rates[state] + leaves[state])
        state = np.where(changes, 1 - state, state)
        arrived = ~changes
        tokens = tokens - arrived
        known = arrived & (at >= 0) & (at < count)
        found[every[known], at[known]] = np.maximum(-tokens[known], 0.0) / 8
        at += arrived
    return found + 0.4 * lognormal(0.3, random, (runs, count))


def crowds(random: Random, count: int) -> list[float]:
    """Sojourn times of eight places with a constant service of 0.6 s. 3 requests per second arrive
    one by one, and 24 of a scheduled job at once every 30 s."""
    free = [0.0] * 8
    warmup = 120
    now = 0.0
    crowd_at = random.uniform(0.0, 30.0)
    left = 0
    found = list[float]()
    while len(found) < count + warmup:
        if left:
            left -= 1
        else:
            alone_at = now + random.expovariate(3.0)
            now = min(alone_at, crowd_at)
            if crowd_at <= alone_at:
                crowd_at += 30.0
                left = 23
        done = max(now, heapq.heappop(free)) + 0.6
        heapq.heappush(free, done)
        found.append(done - now)
    return found[warmup:]


def two_priorities(random: Random, count: int) -> list[float]:
    """Sojourn times of a server with one place at 75 %. Two of five requests take 0.5 s and go before
    all others that wait, which take 4/3 s (exponential, without preemption)."""
    warmup = 400
    total = warmup + count
    arrivals = list(accumulate(random.expovariate(0.75) for _ in range(total)))
    first = [random.random() < 0.4 for _ in arrivals]
    found = [0.0] * total
    waiting = list[tuple[bool, int]]()
    free = 0.0
    next_ = 0
    for _ in arrivals:
        if not waiting:
            free = max(free, arrivals[next_])
        while next_ < total and arrivals[next_] <= free:
            heapq.heappush(waiting, (not first[next_], next_))
            next_ += 1
        _, index = heapq.heappop(waiting)
        free += random.expovariate(1 / 0.5 if first[index] else 0.75)
        found[index] = free - arrivals[index]
    return found[warmup:]


def sharing_open(random: Random, count: int) -> list[float]:
    """Sojourn times of a server at 70 % that shares itself equally among its requests. One in ten
    needs ten times as much as the others."""
    load = 0.7
    warmup = 600
    total = warmup + count
    number = 0
    now = 0.0
    served = 0.0  # what each request inside since the start would have got
    inside = list[tuple[float, int, float]]()
    times = dict[int, float]()
    next_at = random.expovariate(load)
    while len(times) < total:
        if inside and now + (inside[0][0] - served) * len(inside) <= next_at:
            end, index, arrived = heapq.heappop(inside)
            now += (end - served) * (len(inside) + 1)
            served = end
            if index < total:
                times[index] = now - arrived
            continue
        if inside:
            served += (next_at - now) / len(inside)
        now = next_at
        needed = random.expovariate(1.0) * (10 if random.random() < 0.1 else 1) / 1.9
        heapq.heappush(inside, (served + needed, number, now))
        number += 1
        next_at = now + random.expovariate(load)
    return [times[index] for index in range(warmup, total)]


def retry_storms(random: Random, count: int) -> list[float]:
    """Latencies of four places (exponential, 1 s) at 80 % with room for four that wait. Who finds
    none tries again after about 0.5, 1, 2, and then every 4 s, until there is some."""
    warmup = 300
    total = warmup + count
    sends = list(accumulate(random.expovariate(3.2) for _ in range(total)))
    tries = [(sent, 0, index) for index, sent in enumerate(sends)]
    heapq.heapify(tries)
    free = [0.0] * 4
    ends = list[float]()  # of all requests inside
    found = [0.0] * total
    while tries:
        now, tried, index = heapq.heappop(tries)
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        if len(ends) == 8:
            later = min(0.5 * 2**tried, 4.0) * random.uniform(0.5, 1.5)
            heapq.heappush(tries, (now + later, tried + 1, index))
            continue
        done = max(now, heapq.heappop(free)) + random.expovariate(1.0)
        heapq.heappush(free, done)
        heapq.heappush(ends, done)
        found[index] = done - sends[index]
    return found[warmup:]


# -- closed loops ----------------------------------------------------------------------------------


def pauses_of_users(random: np.random.Generator, shape: tuple[int, ...]) -> Runs:
    """Think times: five requests or so one after the other, then 10 s on average, with a heavy
    tail."""
    away = random.random(shape) < 0.2
    long = 10 * lognormal(1.5, random, shape)
    return np.where(away, long, random.exponential(0.2, shape))


def random_router(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Response times of 12 users before a router that sends each request to either of two replicas
    by chance. Each has two places, and the second is 2.5 times as slow."""
    users = 12
    ready = random.uniform(0, 8, (runs, users))
    free = np.zeros((runs, 2, 2))
    every = np.arange(runs)
    found = np.empty((count, runs))
    for i in range(-300, count):
        user = ready.argmin(axis=1)
        sent = ready[every, user]
        replica = random.integers(0, 2, runs)
        slot = free[every, replica].argmin(axis=1)
        service = lognormal(0.5, random, (runs,)) * np.where(replica, 2.5, 1.0)
        done = np.maximum(free[every, replica, slot], sent) + service
        free[every, replica, slot] = done
        ready[every, user] = done + random.exponential(8.0, runs)
        if i >= 0:
            found[i] = done - sent
    return found.T.copy()


def rounds(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies of 16 users who send at once, before four places, and wait for the slowest of them
    before the next round. The rounds of a run have a level that wanders by 10 % over 8 of them."""
    users = 16
    length = count // users + 1
    level = 1 + 0.1 * wander(8, random, runs, length)
    found = np.empty((runs, length, users))
    for i in range(length):
        free = np.zeros((runs, 4))
        for user in range(users):
            slot = free.argmin(axis=1)
            free[np.arange(runs), slot] += level[:, i] * lognormal(0.4, random, (runs,))
            found[:, i, user] = free[np.arange(runs), slot]
    return found.reshape(runs, -1)[:, :count]


# -- errors and rates ------------------------------------------------------------------------------


def contagious_errors(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures of 3 %: each makes 0.7 others among the next ten requests or so (Hawkes)."""
    caused = np.zeros(runs)
    found = np.empty((count, runs))
    keeps = math.exp(-1 / 10)
    for i in range(-500, count):
        failed = random.random(runs) < 0.009 + caused
        caused = (caused + failed * 0.7 * (1 - keeps) / keeps) * keeps
        if i >= 0:
            found[i] = failed
    return found.T.copy()


def quota_per_minute(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures: what comes after the 290th request of a minute is refused until the next
    one. 300 come in a minute on average."""
    now = random.uniform(0, 60, runs)
    minute = np.zeros(runs)
    some = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        now += random.exponential(0.2, runs)
        some = np.where(now // 60 > minute, 1, some + 1)
        minute = now // 60
        if i >= 0:
            found[i] = some > 290
    return found.T.copy()


def one_bad_user(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures of 20 users in a closed loop. Half of the requests of one of them fail."""
    users = 20
    ready = random.uniform(0, 1, (runs, users))
    every = np.arange(runs)
    found = np.empty((count, runs))
    for i in range(count):
        user = ready.argmin(axis=1)
        ready[every, user] += random.gamma(16.0, 1 / 16, runs)
        found[i] = (user == 0) & (random.random(runs) < 0.5)
    return found.T.copy()


def semi_markov_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns requests that end per second: 3, 8 or 14 per s by chance, each for a lognormal time of
    4 s on average."""
    found = np.zeros((runs, seconds))
    warmup = 60
    for run in found:
        ends = np.cumsum(4 * lognormal(1.0, random, (2 * (seconds + warmup),)))
        rates = random.choice([3.0, 8.0, 14.0], len(ends))
        edges = np.concatenate([[0.0], ends])
        work = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])
        expected = np.diff(np.interp(np.arange(warmup, warmup + seconds + 1), edges, work))
        run[:] = random.poisson(expected)
    return found


def contagious_rate(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns arrivals per second: 3 per s come of themselves, and each brings 0.6 others within 2 s
    or so (Hawkes), so 7.5 per s."""
    found = np.zeros((runs, seconds))
    warmup = 60
    for run in found:
        born = random.uniform(0, warmup + seconds, random.poisson(3.0 * (warmup + seconds)))
        everyone = [born]
        while len(born):
            children = random.poisson(0.6, len(born))
            born = np.repeat(born, children)
            born = born + random.exponential(2.0, len(born))
            everyone.append(born)
        at = np.concatenate(everyone) - warmup
        at = at[(at >= 0) & (at < seconds)]
        run += np.bincount(at.astype(np.int64), minlength=seconds)
    return found


def rate_with_pauses(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns the completions of a full server: one every 0.1 s or so, but none in a pause of 1.5 s
    after 8 to 16 s."""
    found = np.zeros((runs, seconds))
    for run in found:
        pauses = np.cumsum(random.uniform(8, 16, seconds // 8 + 10))  # in seconds of work
        at = np.cumsum(random.gamma(4.0, 0.025, 20 * seconds + 1000))
        at = at[at < pauses[-1]]
        at = at + 1.5 * np.searchsorted(pauses, at) - random.uniform(30, 60)
        at = at[(at >= 0) & (at < seconds)]
        run += np.bincount(at.astype(np.int64), minlength=seconds)[:seconds]
    return found


LOOKED_AT_ONCE: Final[tuple[Cell, ...]] = (
    *cells("spread that wanders", changing_spread, (300, 1200)),
    *cells("half a day's wave", half_wave, (400,)),
    *cells("chats, answers, documents", answer_lengths, (150, 600)),
    *cells("prompts that grow by turns", growing_prompts, (120, 600)),
    *cells("four replicas by turns, one slow", slow_replica, (200, 800)),
    *cells("noisy neighbours, long memory", noisy_neighbours, (500,)),
    *cells("rare stalls", rare_stalls, (200, 1000)),
    *cells(
        "GI/G/2 70 %, bursty arrivals", partial(bursty_arrivals, 0.7, 2, wide_gamma), (400, 1500)
    ),
    *cells("a server with three speeds", three_speeds, (400, 1500)),
    *cells("M/G/1 60 % with pauses", pauses_of_a_queue, (240, 900)),
    *cells("cold starts", cold_starts, (150, 600)),
    *cells("gateway and server", tandem, (400, 1500)),
    *cells("token bucket", token_bucket, (300, 1200)),
    *cells("crowds every 30 s", partial(run_each, crowds), (200, 800)),
    *cells("two priorities 75 %", partial(run_each, two_priorities), (500,)),
    *cells("open, sharing, 70 %", partial(run_each, sharing_open), (500, 2000)),
    *cells("retry storms", partial(run_each, retry_storms), (300, 1200)),
    *cells(
        "closed, 20 users on and off", partial(closed, 20, 8, pauses_of_users, gamma), (200, 800)
    ),
    *cells("random router, 12 users", random_router, (150, 600)),
    *cells("16 users in rounds", rounds, (160, 640)),
    *cells(
        "simulator as llama.cpp, 24 users",
        partial(simulate_engine, 0.0, 24, policy="llama.cpp"),
        (300,),
    ),
    *cells("contagious errors", contagious_errors, (500, 2000), OUTCOME),
    *cells("quota per minute", quota_per_minute, (1200, 3600), OUTCOME),
    *cells("one bad user of 20", one_bad_user, (400, 1600), OUTCOME),
    *cells("semi-Markov rate", semi_markov_rate, (60, 180), RATE),
    *cells("contagious rate", contagious_rate, (60, 180), RATE),
    *cells("rate with pauses", rate_with_pauses, (60, 180), RATE),
)
