"""Looked at later: loads of known truth for ``make intervals``, most of which come in bursts. Their
processes are unlike those of interval_loads.py and looked_at_once.py, but for breakdowns and shots.
They were committed before their first run, after the upper ends were changed for bursts.

Each makes many runs at once, as an array (runs, requests) in send order, or (runs, seconds).
"""

import math
from typing import Final

import numpy as np
from interval_loads import OUTCOME, RATE, Cell, Runs, cells, gamma, lognormal

# -- values that do not queue ----------------------------------------------------------------------


def spread_after_surprises(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies whose spread grows after an outlier: a GARCH(1, 1) of the logarithm."""
    variance = np.full(runs, 0.06)
    found = np.empty((count, runs))
    for i in range(-200, count):
        step = np.sqrt(variance) * random.normal(size=runs)
        variance = 0.006 + 0.15 * step**2 + 0.75 * variance
        if i >= 0:
            found[i] = np.exp(step)
    return found.T.copy()


def shots(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies above which shots stand that fade over 12 requests. One comes in 50 requests on
    average, and its height falls off with the third power."""
    level = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-200, count):
        comes = random.random(runs) < 1 / 50
        level = level * math.exp(-1 / 12) + comes * 0.6 * (1 + random.pareto(3.0, runs))
        if i >= 0:
            found[i] = level
    return (1 + found.T) * lognormal(0.15, random, (runs, count))


def popular_keys(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Latencies before a cache of 30 answers. Requests ask for one of 100 topics by Zipf's law, and
    for another favourite every 60 requests on average. A miss takes six times as long."""
    keys = 100
    weights = 1 / np.arange(1, keys + 1)
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random((count + 200, runs)))
    every = np.arange(runs)
    last_asked = np.full((runs, keys), -np.inf)
    offset = np.zeros(runs, np.int64)
    found = np.empty((count, runs))
    for i in range(-200, count):
        moves = random.random(runs) < 1 / 60
        offset = np.where(moves, random.integers(0, keys, runs), offset)
        key = (np.minimum(ranks[i + 200], keys - 1) + offset) % keys
        newer = (last_asked > last_asked[every, key][:, None]).sum(axis=1)
        hit = np.isfinite(last_asked[every, key]) & (newer < 30)
        last_asked[every, key] = i
        if i >= 0:
            found[i] = np.where(hit, 0.5, 3.0)
    return found.T * lognormal(0.2, random, (runs, count))


def hedged(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A request that waits for 2 s is sent again, and the first answer counts."""
    first = lognormal(0.9, random, (runs, count))
    second = 2.0 + lognormal(0.9, random, (runs, count))
    return np.minimum(first, second)


def leaking(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A server that gets slower with the square of the requests since its start, to three times
    after 150. It is started again after 100 to 200."""
    age = random.integers(0, 100, runs)
    limit = random.integers(100, 201, runs)
    found = np.empty((count, runs))
    for i in range(count):
        found[i] = 1 + 2 * (age / 150) ** 2
        age = age + 1
        ends = age >= limit
        limit = np.where(ends, random.integers(100, 201, runs), limit)
        age = np.where(ends, 0, age)
    return found.T * lognormal(0.2, random, (runs, count))


def thrashing(random: np.random.Generator, runs: int, count: int) -> Runs:
    """The fill of a memory wanders. Above a threshold requests are preempted, which takes longer the
    fuller it is, and fills it further."""
    fill = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-300, count):
        above = np.maximum(fill - 1.2, 0.0)
        if i >= 0:
            found[i] = 1 + 2 * above
        fill = (0.93 + 0.04 * (above > 0)) * fill + 0.3 * random.normal(size=runs)
    return found.T * lognormal(0.2, random, (runs, count))


# -- queues ----------------------------------------------------------------------------------------


def breakdowns(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place at 45 %. It fails every 100 requests on average, and
    its repair takes two to 18 services."""
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        fails = random.random(runs) < 1 / 100
        wait = wait + fails * random.uniform(2, 18, runs)
        sojourn = wait + random.gamma(2.0, 0.5, runs)
        if i >= 0:
            found[i] = sojourn
        wait = np.maximum(sojourn - random.exponential(1 / 0.45, runs), 0.0)
    return found.T.copy()


def trains(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place at 50 %. Agents send trains of geometric length, ten
    requests on average, a tenth of a service apart."""
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    between = 10 / 0.5 - 0.9
    for i in range(-600, count):
        sojourn = wait + gamma(random, (runs,))
        if i >= 0:
            found[i] = sojourn
        ends = random.random(runs) < 1 / 10
        gap = np.where(ends, random.exponential(between, runs), 0.1)
        wait = np.maximum(sojourn - gap, 0.0)
    return found.T.copy()


def polled(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Waits for a server that has two models by turns, each for 4 to 12 s, with 1 s between. It
    answers all that wait for a model in 0.05 s each. Arrivals are Poisson, 5 per s."""
    now = np.zeros(runs)
    ends = random.uniform(4, 12, runs)
    stays = random.uniform(4, 12, runs)
    model = np.zeros(runs, np.int64)
    waiting = np.zeros((runs, 2))
    every = np.arange(runs)
    found = np.empty((count, runs))
    for i in range(-300, count):
        now += random.exponential(0.2, runs)
        changes = now >= ends + 1
        ends = np.where(changes, ends + 1 + stays, ends)
        stays = np.where(changes, random.uniform(4, 12, runs), stays)
        model = np.where(changes, 1 - model, model)
        waiting[every[changes], model[changes]] = 0
        asked = random.integers(0, 2, runs)
        own = asked == model
        at_once = own & (now < ends)
        wait = ends + 1 - now + own * (stays + 1) + 0.05 * waiting[every, asked]
        waiting[every, asked] += ~at_once
        if i >= 0:
            found[i] = 0.3 + np.where(at_once, 0.0, wait)
    return found.T * lognormal(0.1, random, (runs, count))


def autoscaled(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times where places follow the load 12 requests later: one to six. Arrivals come at
    half, once or twice the usual rate, for 50 requests on average."""
    wait = np.zeros(runs)
    places = np.full(runs, 2.0)
    rates = np.array([1.0, 2.0, 4.0])
    state = random.integers(0, 3, runs)
    found = np.empty((count, runs))
    for i in range(-400, count):
        leaves = random.random(runs) < 1 / 50
        state = np.where(leaves, random.integers(0, 3, runs), state)
        wanted = rates[state] * 1.4
        places += (wanted - places) / 12
        gap = random.exponential(1 / rates[state])
        service = random.gamma(2.0, 0.5, runs)
        if i >= 0:
            found[i] = wait / places + service
        wait = np.maximum(wait + service - gap * places, 0.0)
    return found.T.copy()


def fork_and_join(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A request asks three servers with one place each at 60 %, and waits for the slowest."""
    wait = np.zeros((runs, 3))
    found = np.empty((count, runs))
    for i in range(-600, count):
        sojourn = wait + random.exponential(size=(runs, 3))
        if i >= 0:
            found[i] = sojourn.max(axis=1)
        wait = np.maximum(sojourn - random.exponential(1 / 0.6, (runs, 1)), 0.0)
    return found.T.copy()


def timeouts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of a server with one place at 90 %, which drops whom would wait for more than
    12 services, and answers those from a smaller model in 12."""
    wait = np.zeros(runs)
    found = np.empty((count, runs))
    for i in range(-600, count):
        service = random.exponential(size=runs)
        dropped = wait > 12
        if i >= 0:
            found[i] = np.where(dropped, 12.0, wait + service)
        wait = np.where(dropped, wait, wait + service)
        wait = np.maximum(wait - random.exponential(1 / 0.9, runs), 0.0)
    return found.T.copy()


def collected_batches(random: np.random.Generator, runs: int, count: int) -> Runs:
    """A server that waits for eight requests or for 3 s, and then answers all in 1 s. Poisson, two
    per s for 40 requests on average, then one in 2 s for ten."""
    rates = np.array([2.0, 0.5])
    leaves = np.array([1 / 40, 1 / 10])
    found = np.empty((runs, count))
    for run in found:
        state = 0
        gaps = np.empty(count + 60)
        for i, place in enumerate(random.random(len(gaps)).tolist()):
            state = 1 - state if place < leaves[state] else state
            gaps[i] = random.exponential(1 / rates[state])
        sent = np.cumsum(gaps)
        done = np.empty(len(sent))
        first = 0
        free = 0.0
        while first < len(sent):
            full = sent[first + 7] if first + 7 < len(sent) else math.inf
            begun = max(min(full, sent[first] + 3.0), free)
            last = min(int(np.searchsorted(sent, begun, side="right")), first + 8)
            free = begun + 1.0
            done[first:last] = free
            first = last
        run[:] = (done - sent)[20 : 20 + count]
    return found


# -- errors and rates ------------------------------------------------------------------------------


def circuit_breaker(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures: one in 100, and two within ten requests open a breaker that refuses the next
    15."""
    since = np.full(runs, 100)
    refuses = np.zeros(runs, np.int64)
    found = np.empty((count, runs))
    for i in range(-300, count):
        open_ = refuses > 0
        fails = ~open_ & (random.random(runs) < 1 / 100)
        opens = fails & (since <= 10)
        refuses = np.where(opens, 15, np.maximum(refuses - 1, 0))
        since = np.where(fails, 0, since + 1)
        if i >= 0:
            found[i] = open_ | fails
    return found.T.copy()


def bad_prompts(random: np.random.Generator, runs: int, count: int) -> Runs:
    """Returns failures of a client's batch of prompts: 40 one after the other, of which a share
    fails that differs from batch to batch (beta, 4 % on average)."""
    batches = count // 40 + 2
    shares = np.repeat(random.beta(0.4, 9.6, (runs, batches)), 40, axis=1)[:, :count]
    failed: Runs = (random.random((runs, count)) < shares).astype(np.float64)
    return failed


def clustered_gaps(random: np.random.Generator, runs: int, seconds: int) -> Runs:
    """Returns arrivals per second whose gaps are Weibull with shape 0.5: 6 per s on average."""
    gaps = random.weibull(0.5, (runs, 12 * seconds + 400)) / 12
    at = np.cumsum(gaps, axis=1) - 20
    found = np.empty((runs, seconds))
    for run, some in zip(found, at, strict=True):
        run[:] = np.histogram(some, bins=np.arange(seconds + 1))[0]
    return found


LOOKED_AT_LATER: Final[tuple[Cell, ...]] = (
    *cells("spread after surprises", spread_after_surprises, (300, 1200)),
    *cells("shots that fade", shots, (300, 1200)),
    *cells("topics before a cache", popular_keys, (300, 1200)),
    *cells("hedged requests", hedged, (150,)),
    *cells("a leaking server", leaking, (400, 1500)),
    *cells("a memory that thrashes", thrashing, (400, 1500)),
    *cells("breakdowns of a queue", breakdowns, (400, 1500)),
    *cells("trains of agents", trains, (400, 1500)),
    *cells("two models by turns", polled, (300, 1200)),
    *cells("autoscaled places", autoscaled, (400, 1500)),
    *cells("fork and join 60 %", fork_and_join, (500,)),
    *cells("M/M/1 90 % with timeouts", timeouts, (400, 1500)),
    *cells("batches of eight or 3 s", collected_batches, (300,)),
    *cells("circuit breaker", circuit_breaker, (1000,), OUTCOME),
    *cells("batches of bad prompts", bad_prompts, (400, 1600), OUTCOME),
    *cells("clustered gaps", clustered_gaps, (60,), RATE),
)
