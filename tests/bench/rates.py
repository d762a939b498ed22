"""Rates of runs that begin and end: how wide their intervals are and how often these hold what is
true; prints Markdown. ``python tests/bench/rates.py [runs]``

A run begins with an idle server and ends when the last answer is back, so its rate is lower than
that of the server under load. Two truths are held against each interval: the mean rate of all runs
of this kind (*run*), and the rate between the start and the end of the load (*load*). *without* is
the interval made of the whole run, its start and its end too.
"""

import heapq
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

import numpy as np
from tabulate import tabulate

from locust_llm.records.outcomes import OK
from locust_llm.records.run_facts import BY_RATE, BY_RESPONSE_TIME, Run, UserStart
from locust_llm.report.measurement_window import RateWindow, find_settled_window
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable, TextColumn
from locust_llm.report.slo_evidence.observed_rule_values import (
    Evaluation,
    ObservedValue,
    compute_rule_value,
)
from locust_llm.settings.run_options import Settings
from locust_llm.slo.rules import parse_rule

SEED: Final = 4001
RULE: Final = parse_rule("requests_per_s >= 0.001")
LONGER: Final = 20.0
"""So many times as long a run is whose middle shows the rate under load."""
OFF: Final = 0.2

Request = tuple[float, float, float]
"""When it was asked, sent and over, seconds from the start of the load."""
Latency = Callable[[Random, float], float]
"""Of a request that is sent at this moment."""


class Load(NamedTuple):
    """A kind of run."""

    name: str
    make: Callable[[Random, float], list[Request]]
    """In so many seconds."""
    seconds: float
    users: int = 0
    start_s: float = 0.0
    """From the first user to the last."""
    steady: bool = True
    """Its rate under load does not change."""


# -- latencies -------------------------------------------------------------------------------------


def even(mean_s: float, spread: float, random: Random, at: float) -> float:
    return mean_s * (1 + spread * (2 * random.random() - 1))


def exponential(mean_s: float, random: Random, at: float) -> float:
    return random.expovariate(1 / mean_s)


def lognormal(median_s: float, sigma: float, random: Random, at: float) -> float:
    return random.lognormvariate(0.0, sigma) * median_s


def slowing(mean_s: float, by: float, over_s: float, random: Random, at: float) -> float:
    """A server that is ``1 + by`` times as slow after ``over_s``."""
    return even(mean_s * (1 + by * min(at / over_s, 1.0)), 0.1, random, at)


def wandering(mean_s: float, random: Random, at: float) -> float:
    """Slower and faster by a fifth, each 20 s."""
    return even(mean_s * (1 + 0.2 * np.sin(at * 2 * np.pi / 20)), 0.1, random, at)


# -- loads -----------------------------------------------------------------------------------------


def closed_loop(
    users: int, start_s: float, latency: Latency, servers: int, random: Random, seconds: float
) -> list[Request]:
    """``servers``: so many requests are answered at a time, the others wait; 0: all of them."""
    turns = [(start_s * user / max(users - 1, 1), user) for user in range(users)]
    heapq.heapify(turns)
    free = [0.0] * servers
    requests = list[Request]()
    while turns:
        at, user = heapq.heappop(turns)
        if at >= seconds:
            continue
        begun = max(at, heapq.heappop(free)) if servers else at
        over = begun + latency(random, at)
        if servers:
            heapq.heappush(free, over)
        requests.append((at, at, over))
        heapq.heappush(turns, (over, user))
    return requests


def open_loop(
    gaps: Callable[[Random], Iterator[float]],
    latency: Latency,
    servers: int,
    random: Random,
    seconds: float,
) -> list[Request]:
    free = [0.0] * servers
    requests = list[Request]()
    for at in accumulate(gaps(random)):
        if at >= seconds:
            return requests
        begun = max(at, heapq.heappop(free)) if servers else at
        over = begun + latency(random, at)
        if servers:
            heapq.heappush(free, over)
        requests.append((at, at, over))
    return requests


def poisson(per_s: float, random: Random) -> Iterator[float]:
    while True:
        yield random.expovariate(per_s)


def constant(per_s: float, random: Random) -> Iterator[float]:
    while True:
        yield 1 / per_s


def users_load(
    name: str, users: int, latency: Latency, seconds: float, start_s: float,
    servers: int = 0, *, steady: bool = True,
) -> Load:  # fmt: skip
    make = partial(closed_loop, users, start_s, latency, servers)
    return Load(name, make, seconds, users, start_s, steady)


def rate_load(
    name: str, gaps: Callable[[Random], Iterator[float]], latency: Latency, seconds: float,
    servers: int = 0,
) -> Load:  # fmt: skip
    return Load(name, partial(open_loop, gaps, latency, servers), seconds)


LOADS: Final = (
    users_load("20 users, 0.8 s each, 30 s", 20, partial(even, 0.8, 0.1), 30.0, 0.8),
    users_load("the same, all at once", 20, partial(even, 0.8, 0.1), 30.0, 0.0),
    users_load("12 users, 1.2 s, 20 s", 12, partial(even, 1.2, 0.2), 20.0, 1.2),
    users_load("16 users, exponential 2 s, 60 s", 16, partial(exponential, 2.0), 60.0, 2.0),
    users_load("16 users, lognormal, 60 s", 16, partial(lognormal, 1.0, 1.2), 60.0, 2.0),
    users_load("16 users, 4 servers, 60 s", 16, partial(exponential, 0.5), 60.0, 2.0, 4),
    users_load("10 users, 6 s each, 60 s", 10, partial(even, 6.0, 0.2), 60.0, 6.0),
    users_load("20 users, -r 1, 30 s", 20, partial(even, 0.8, 0.1), 30.0, 19.0),
    users_load("20 users, -r 1, 60 s", 20, partial(exponential, 0.8), 60.0, 19.0),
    rate_load("Poisson 5/s, 2 s, 30 s", partial(poisson, 5.0), partial(even, 2.0, 0.3), 30.0),
    rate_load("Poisson 5/s, lognormal, 60 s", partial(poisson, 5.0),
        partial(lognormal, 1.0, 1.2), 60.0),
    rate_load("Poisson 6/s, 4 servers at 75 %, 120 s", partial(poisson, 6.0),
        partial(exponential, 0.5), 120.0, 4),
    rate_load("constant 5/s, 2 s, 30 s", partial(constant, 5.0), partial(even, 2.0, 0.3), 30.0),
    rate_load("constant 5/s, exponential 2 s, 30 s", partial(constant, 5.0),
        partial(exponential, 2.0), 30.0),
    users_load("2 users, 5 s each, 30 s", 2, partial(even, 5.0, 0.2), 30.0, 3.0),
    users_load("4 users, 5 s each, 30 s", 4, partial(exponential, 5.0), 30.0, 3.0),
    rate_load("Poisson 0.8/s, 2 s, 30 s", partial(poisson, 0.8), partial(even, 2.0, 0.3), 30.0),
    users_load("20 users, wanders by a fifth, 60 s", 20, partial(wandering, 0.8), 60.0, 0.8),
    users_load("20 users, slows down by half, 60 s", 20, partial(slowing, 0.8, 0.5, 60.0), 60.0,
        0.8, steady=False),
)  # fmt: skip


# -- intervals -------------------------------------------------------------------------------------


def evaluate(load: Load, requests: list[Request], *, settles: bool) -> ObservedValue:
    asked, sent, over = np.array(requests).T
    table = RequestTable(
        {
            "outcome": TextColumn(np.zeros(len(sent), np.int8), [OK]),
            "asked_at": asked, "sent_at": sent, "closed_at": over, "last_chunk_at": over,
        }
    )  # fmt: skip
    start = UserStart(
        users=load.users, over_s=load.start_s, took_s=load.start_s,
        by=BY_RATE if load.start_s > 5 else BY_RESPONSE_TIME,
    )  # fmt: skip
    run = Run(
        name="bench", settings=Settings(), started_at=0.0, profiling_at=0.0,
        starts=(start,) if load.users > 1 else (),
    )  # fmt: skip
    part = RequestSelection(table, np.ones(len(table), np.bool_))
    time = RateWindow(part.span())
    settled = find_settled_window(part, time, run) if settles else None
    return compute_rule_value(
        RULE, Evaluation(part, run, None, None, (), part, time, settled=settled)
    )


def find_load_rate(load: Load, random: Random) -> float:
    """Of the middle of a long run."""
    seconds = LONGER * load.seconds
    over = np.array([over for _, _, over in load.make(random, seconds)])
    low = load.start_s + 0.1 * seconds
    high = 0.95 * seconds
    return float(((over > low) & (over < high)).sum() / (high - low))


def describe(found: list[ObservedValue], run: float, load: float | None) -> list[str]:
    """(median reaches, how often it holds the two truths, how often limits OFF both are
    decided)."""
    ends = [(0.0, np.inf) if one.ends is None else one.ends for one in found]
    low = np.array([0.0 if one[0] is None else one[0] for one in ends])
    high = np.array([np.inf if one[1] is None else one[1] for one in ends])
    value = np.array([one.value for one in found])
    shown = [f"-{np.median(1 - low / value):.0%} +{np.median(high / value - 1):.0%}"]
    for truth in (run, load):
        shown.append("" if truth is None else f"{((low <= truth) & (truth <= high)).mean():.1%}")
    least = min(run, load or run)
    most = max(run, load or run)
    decided = ((low > (1 - OFF) * least) & (high < (1 + OFF) * most)).mean()
    return [*shown, f"{decided:.0%}"]


def measure_load(load: Load, count: int) -> list[str]:
    random = Random(f"{SEED}/{load.name}")
    runs = [load.make(random, load.seconds) for _ in range(count)]
    without = [evaluate(load, run, settles=False) for run in runs]
    found = [evaluate(load, run, settles=True) for run in runs]
    truth = float(np.mean([one.value for one in found]))
    under_load = find_load_rate(load, random) if load.steady else None
    requests = f"{np.median([len(run) for run in runs]):.0f}"
    rates = f"{truth:.3g}" if under_load is None else f"{truth:.3g} / {under_load:.3g}"
    return [
        load.name, requests, rates, *describe(without, truth, under_load),
        *describe(found, truth, under_load),
    ]  # fmt: skip


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rows = [measure_load(load, count) for load in LOADS]
    named = ["reach", "run", "load", f"{OFF:.0%} off"]
    names = ["runs", "requests", "run / load", *(f"{name}, without" for name in named), *named]
    print(tabulate(rows, names, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
