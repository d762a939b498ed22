"""How often an SLO interval holds the truth, how often a verdict is wrong or missing: ``make
intervals``. Prints Markdown.

A cell is a process that makes latencies (independent, autoregressive, a queue, the simulator in
virtual time) and a number of requests; many runs of it are made, and the interval of each figure of
each run is held against the truth, which is that of all runs together. Limits are set at the truth,
3 % beside it (where a wrong verdict is one on the wrong side), 10, 20 and 40 % off it, where a
decision is wanted, and at 5 times the truth, where a PASS is. Beside it is how often an oracle
decides, who has a normal interval with the true standard error; and, of percentiles and shares, how
often the exact method for independent requests does, of as many as they are worth (order
statistics): it is right for any distribution, which the oracle is not. Two other methods are held
beside ours: order statistics and exact shares, which take requests as independent, and ten sections
with Student's t.

With ``--abort``: how often a run is ended by an ``abort:`` rule whose limit is the truth, and after
how many requests by one whose limit is half of it.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from multiprocessing import Pool
from random import Random
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from locust_llm.controller.early_stop import MeanMonitor, ShareMonitor
from locust_llm.report.compare.differences import difference_ends
from locust_llm.report.slo import intervals as correlation
from locust_llm.report.slo.intervals import ConfidenceInterval
from locust_llm.report.slo.observed import ObservedValue
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.policies import POLICIES
from locust_llm.simulator.scheduling.scheduler import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest
from locust_llm.slo.intervals import (
    TAIL,
    binomial_cdf,
    binomial_shares,
    count_needed_values,
    find_interval_ranks,
)

Runs = NDArray[np.float64]
"""(runs, requests): latencies in the order of their sends."""
Process = Callable[[np.random.Generator, int, int], Runs]
FIGURES: Final = ("p50", "p95", "p99", "mean", "share")
GOOD: Final = 0.9
"""``share``: of requests within the limit that so many are within in truth."""
OFF: Final = (0.1, 0.2, 0.4)
NEAR: Final = 0.03
FAR: Final = 5.0
SERVER: Final = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=128, kv_tokens=400_000)
SECTIONS: Final = 10
STUDENT: Final = 2.2621571628
"""97.5 % of Student's t with SECTIONS - 1 degrees of freedom."""
ABORTS: Final = 120
"""Runs of a cell that are held against ``abort:``, with a look every LOOKS requests."""
LOOKS: Final = 16
SMALL: Final = 100
"""Below so many effective requests a cell is listed and not held against the goals."""


# -- processes -------------------------------------------------------------------------------------


def independent(random: np.random.Generator, runs: int, count: int) -> Runs:
    return random.exponential(size=(runs, count))


def bimodal(random: np.random.Generator, runs: int, count: int) -> Runs:
    """One request of eight has a long prompt."""
    long = random.random((runs, count)) < 0.12
    return np.where(
        long, random.normal(5, 0.7, (runs, count)), random.normal(1, 0.2, (runs, count))
    )


def autoregressive(phi: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    noise = random.normal(size=(count, runs)) * math.sqrt(1 - phi * phi)
    noise[0] /= math.sqrt(1 - phi * phi)
    for i in range(1, count):
        noise[i] += phi * noise[i - 1]
    return np.exp(noise.T / 2)


def single(load: float, random: np.random.Generator, runs: int, count: int) -> Runs:
    """Sojourn times of M/M/1, from its steady state on: Lindley's recursion."""
    wait = np.where(random.random(runs) < load, random.exponential(1 / (1 - load), runs), 0.0)
    found = np.empty((count, runs))
    for i in range(count):
        found[i] = wait + random.exponential(size=runs)
        wait = np.maximum(found[i] - random.exponential(1 / load, runs), 0.0)
    return found.T


def many(load: float, random: np.random.Generator, runs: int, count: int, servers: int = 8) -> Runs:
    """Waits and a tenth of the service of M/G/8, after a long warmup."""
    free, now, every = np.zeros((runs, servers)), np.zeros(runs), np.arange(runs)
    warmup, found = int(min(20 / (1 - load) ** 2, 4000)), np.empty((count, runs))
    for i in range(-warmup, count):
        now += random.exponential(1 / (load * servers), runs)
        slot = free.argmin(axis=1)
        start, service = (
            np.maximum(free[every, slot], now),
            np.exp(random.normal(-0.125, 0.5, runs)),
        )
        free[every, slot] = start + service
        if i >= 0:
            found[i] = start - now + service / 10
    return found.T


def simulated(
    rate_per_s: float, users: int, random: np.random.Generator, runs: int, count: int
) -> Runs:
    """TTFT of a simulated H100 with an 8B model and chunked prefill; an open loop, or a closed one
    of so many users. A tenth of the requests is warmup."""
    return np.array(
        [
            _simulated(rate_per_s, users, int(seed), count)
            for seed in random.integers(1 << 40, size=runs)
        ]
    )


def _simulated(rate_per_s: float, users: int, seed: int, count: int) -> list[float]:
    random, clock = Random(seed), VirtualClock()
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


class Cell(NamedTuple):
    name: str
    process: Process
    count: int


CELLS: Final = (
    *(Cell("independent", independent, n) for n in (100, 400, 2000, 10_000)),
    *(Cell("bimodal", bimodal, n) for n in (400, 2000)),
    *(Cell("AR(1) 0.5", partial(autoregressive, 0.5), n) for n in (400, 2000)),
    *(Cell("AR(1) 0.9", partial(autoregressive, 0.9), n) for n in (400, 2000, 10_000)),
    Cell("AR(1) 0.98", partial(autoregressive, 0.98), 10_000),
    *(Cell("M/M/1 50 %", partial(single, 0.5), n) for n in (300, 1000, 5000)),
    *(Cell("M/M/1 70 %", partial(single, 0.7), n) for n in (2000, 10_000)),
    *(Cell("M/M/1 80 %", partial(single, 0.8), n) for n in (2000, 10_000)),
    Cell("M/M/1 95 %", partial(single, 0.95), 10_000),
    *(Cell("M/G/8 80 %", partial(many, 0.8), n) for n in (2000, 10_000)),
    *(Cell("simulator, open, 8/s", partial(simulated, 8.0, 0), n) for n in (300, 1500)),
    *(Cell("simulator, open, 14/s", partial(simulated, 14.0, 0), n) for n in (300, 1500)),
    Cell("simulator, open, 17/s", partial(simulated, 17.0, 0), 1500),
    *(Cell("simulator, 48 users", partial(simulated, 0.0, 48), n) for n in (300, 1500)),
)


# -- methods ---------------------------------------------------------------------------------------


def ours(figure: str, values: Runs) -> ConfidenceInterval:
    if figure == "mean":
        return correlation.estimate_mean_interval(values)
    return (
        correlation.estimate_share_interval(values)
        if figure == "share"
        else correlation.estimate_percentile_interval(values, float(figure[1:]))
    )


def as_independent(figure: str, values: Runs) -> ConfidenceInterval:
    if figure == "mean":
        return sections(figure, values)
    if figure == "share":
        return ConfidenceInterval(*binomial_shares(float(values.sum()), len(values), TAIL, TAIL))
    (low, high), ordered = find_interval_ranks(len(values), float(figure[1:])), np.sort(values)
    return ConfidenceInterval(
        float(ordered[low - 1]) if low else None,
        float(ordered[high - 1]) if high <= len(ordered) else None,
    )


def sections(figure: str, values: Runs) -> ConfidenceInterval:
    """Around the figure of the whole run (Asmussen and Glynn, Stochastic Simulation, 2007, section
    III.5)."""
    whole, each = (
        _point(figure, values),
        [_point(figure, some) for some in np.array_split(values, SECTIONS)],
    )
    reach = STUDENT * math.sqrt(sum((one - whole) ** 2 for one in each) / (SECTIONS - 1) / SECTIONS)
    return ConfidenceInterval(max(0.0, whole - reach), whole + reach)


METHODS: Final = {"ours": ours, "as if independent": as_independent, "ten sections": sections}


def _point(figure: str, values: Runs) -> float:
    return float(np.percentile(values, float(figure[1:])) if figure[0] == "p" else values.mean())


# -- a cell ----------------------------------------------------------------------------------------


class Result(NamedTuple):
    figure: str
    size: float
    """True effective sample size."""
    held: float
    wrong_pass: float
    wrong_fail: float
    near_pass: float
    """A limit NEAR below the truth passed, one NEAR above it failed."""
    near_fail: float
    decided: tuple[float, ...]
    """Of OFF, on both sides."""
    oracle: tuple[float, ...]
    best: tuple[float, ...]
    """What the exact binomial test of as many independent requests decides; of means NaN."""
    far: float
    """A limit of FAR times the truth passed."""
    short: float
    trend: float
    different: float
    """A/A: two runs of the same called different."""
    found: float
    """A/B: of 5 %."""
    oracle_found: float


def result(figure: str, runs: Runs, method: Callable[[str, Runs], ConfidenceInterval]) -> Result:
    everything = np.sort(runs, axis=None)
    if figure == "share":
        good_s = everything[int(GOOD * len(everything))]
        runs = (runs < good_s).astype(np.float64)
    truth = (
        float(runs.mean())
        if figure in ("mean", "share")
        else float(np.percentile(everything, float(figure[1:])))
    )
    points = np.array([_point(figure, run) for run in runs])
    error = float(points.std())
    if figure[0] == "p":
        below = (runs <= truth).mean(axis=1)
        size = float(below.mean() * (1 - below.mean()) / below.var())
    else:
        size = float(runs.var() / points.var())
    found = [method(figure, run) for run in runs]
    low = np.array([-math.inf if one.low is None else one.low for one in found])
    # as rules are judged (Found.decides)
    ends = (one.beyond if one.high is None else one.high for one in found)
    high = np.array([math.inf if end is None else end for end in ends])
    # 10 % more failures, not 10 % fewer successes
    scale = 1 - truth if figure == "share" else truth
    above = [
        float((high < truth + off * scale).mean() + (low > truth - off * scale).mean()) / 2
        for off in OFF
    ]
    normal = NormalDist()
    oracle = [1 - normal.cdf(normal.inv_cdf(0.975) - off * scale / error) for off in OFF]
    best = [_best(figure, truth, off, max(round(size), 1), everything) for off in OFF]
    return Result(
        figure, size, float(((low <= truth) & (truth <= high)).mean()),
        float((high < truth).mean()),
        float((low > truth).mean()), float((high < truth - NEAR * scale).mean()),
        float((low > truth + NEAR * scale).mean()), tuple(above), tuple(oracle), tuple(best),
        float((high < FAR * truth).mean()), float(np.mean([one.short for one in found])),
        float(np.mean([bool(correlation.detect_trend(run)) for run in runs])) if figure == "p50" else math.nan,
        *_pairs(points, found, error),
    )  # fmt: skip


def _best(figure: str, truth: float, off: float, size: int, everything: Runs) -> float:
    """Of limits on both sides: by the exact binomial test, of which order statistics are the
    interval."""
    if figure == "mean":
        return math.nan
    if figure == "share":
        bad = 1 - truth
        return (_few(size, bad * (1 + off), bad) + _few(size, 1 - bad * (1 - off), 1 - bad)) / 2
    beyond = 1 - float(figure[1:]) / 100
    above, below = (
        1 - float(np.searchsorted(everything, truth * (1 + sign * off), "right")) / everything.size
        for sign in (1, -1)
    )
    return (_few(size, beyond, above) + _few(size, 1 - beyond, 1 - below)) / 2


def _few(size: int, share: float, true: float) -> float:
    """How often it is found that fewer than ``share`` are of a kind of which ``true`` are."""
    some = next(k for k in range(size + 1) if binomial_cdf(k, size, share) > TAIL)
    return binomial_cdf(some - 1, size, true)


def _pairs(
    points: Runs, found: list[ConfidenceInterval], error: float
) -> tuple[float, float, float]:
    """(A/A, A/B of 5 %, what an oracle finds of that)."""
    half = len(points) // 2
    called = [0, 0]
    for i in range(half):
        for k, factor in enumerate((1.0, 1.05)):
            old, new = found[i], found[half + i]
            ends = None in (*old.ends, *new.ends)
            if ends or old.low is None or new.low is None or old.high is None or new.high is None:
                continue
            a = ObservedValue(points[i], old.ends)
            b = ObservedValue(points[half + i] * factor, (new.low * factor, new.high * factor))
            low, high = difference_ends(a, b)
            called[k] += low is not None and high is not None and not low <= 0 <= high
    normal = NormalDist()
    oracle = 1 - normal.cdf(
        normal.inv_cdf(0.975) - 0.05 * float(points.mean()) / (error * math.sqrt(2))
    )
    return called[0] / max(half, 1), called[1] / max(half, 1), oracle


def measured(cell: Cell, runs: int, methods: tuple[str, ...], seed: int) -> dict[str, list[Result]]:
    made = cell.process(
        np.random.default_rng([seed, *map(ord, cell.name), cell.count]), runs, cell.count
    )
    return {name: [result(figure, made, METHODS[name]) for figure in FIGURES] for name in methods}


# -- the page --------------------------------------------------------------------------------------


def rows(cell: Cell, results: list[Result]) -> Iterator[tuple[str, ...]]:
    for one in results:
        goals = [one.held >= 0.925, one.wrong_pass <= 0.035, one.wrong_fail <= 0.035]
        goals += [a >= 0.8 * b for a, b in zip(one.decided, one.oracle, strict=True)]
        goals += [
            a >= 0.8 * min(b, c) for a, b, c in zip(one.decided, one.oracle, one.best, strict=True)
        ]
        marks = "" if one.size < SMALL else " ".join("+" if goal else "-" for goal in goals)
        yield (
            cell.name, f"{cell.count:,}", one.figure, f"{one.size:,.0f}", f"{one.held:.1%}",
            f"{one.wrong_pass:.1%}",
            f"{one.wrong_fail:.1%}", f"{one.near_pass:.1%}", f"{one.near_fail:.1%}",
            *(_of(*each) for each in zip(one.decided, one.oracle, one.best, strict=True)),
            "" if one.figure == "share" else f"{one.far:.0%}", f"{one.short:.0%}",
            "" if math.isnan(one.trend) else f"{one.trend:.1%}", f"{one.different:.1%}",
            f"{one.found:.0%} of {one.oracle_found:.0%}", marks,
        )  # fmt: skip


def _of(decided: float, oracle: float, best: float) -> str:
    return f"{decided:.0%} of {oracle:.0%}" + ("" if math.isnan(best) else f" ({best:.0%})")


HEAD: Final = (
    "latencies", "n", "figure", "worth", "held", "PASS at it", "FAIL at it", "PASS 3 % off",
    "FAIL 3 % off",
    "10 % off", "20 %", "40 %", "PASS at 5 times", "short", "trend", "A/A", "A/B 5 %", "goals",
)  # fmt: skip


def page(results: list[tuple[Cell, dict[str, list[Result]]]], name: str) -> str:
    table = [row for cell, found in results for row in rows(cell, found[name])]
    return str(tabulate(table, HEAD, tablefmt="github", disable_numparse=True))


# -- abort -----------------------------------------------------------------------------------------


def ended(figure: str, values: Runs, limit: float) -> float:
    """After how many requests ``abort:`` ends this run; infinite if it does not."""
    if figure == "mean":
        mean = MeanMonitor(limit, 1.0, "", 1.0)
        add, broken = lambda value: mean.add(value, 1), mean.broken
    else:
        share = 1 - GOOD if figure == "share" else 1 - float(figure[1:]) / 100
        count = ShareMonitor(
            share, SECTIONS if figure == "share" else count_needed_values(float(figure[1:]))
        )
        add, broken = lambda value: count.add(value >= limit, value), count.broken
    for i, value in enumerate(values.tolist(), 1):
        add(value)
        if i % LOOKS == 0 and broken():
            return i
    return math.inf


def aborted(index: int, runs: int, seed: int) -> list[tuple[str, ...]]:
    """A row a figure."""
    cell, table = CELLS[index], []
    made = cell.process(
        np.random.default_rng([seed, *map(ord, cell.name), cell.count]), runs, cell.count
    )
    for figure in ("p50", "p95", "mean", "share"):
        at = (
            100 * GOOD if figure == "share" else float(figure[1:]) if figure[0] == "p" else math.nan
        )
        truth = float(made.mean()) if figure == "mean" else float(np.percentile(made, at))
        wrong, right = (
            np.array([ended(figure, run, limit) for run in made[:ABORTS]])
            for limit in (truth, truth / 2)
        )
        row = (
            f"{np.isfinite(wrong).mean():.0%}",
            f"{np.isfinite(right).mean():.0%}",
            f"{np.median(right):,.0f}",
        )
        table.append((cell.name, f"{cell.count:,}", figure, *row))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--cells", default="", help="only cells whose name has this")
    parser.add_argument("--methods", default="ours", help=f"with commas: {', '.join(METHODS)}")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--abort", action="store_true", help=f"how abort: does, of {ABORTS} runs a cell"
    )
    given = parser.parse_args()
    began, methods = time.monotonic(), tuple(given.methods.split(","))
    cells = [cell for cell in CELLS if given.cells in cell.name]
    with Pool(given.processes) as pool:
        if given.abort:
            found = [
                pool.apply_async(aborted, (CELLS.index(cell), given.runs, given.seed))
                for cell in cells
            ]
            head = (
                "latencies",
                "n",
                "figure",
                "ended, limit at the truth",
                "at half of it",
                "after",
            )
            print(
                tabulate(
                    [row for job in found for row in job.get()],
                    head,
                    tablefmt="github",
                    disable_numparse=True,
                )
            )
            return
        jobs = [
            pool.apply_async(_measured, (CELLS.index(cell), given.runs, methods, given.seed))
            for cell in cells
        ]
        results = [(cell, job.get()) for cell, job in zip(cells, jobs, strict=True)]
    for name in methods:
        print(f"## {name}\n\n{page(results, name)}\n")
    print(f"{given.runs} runs a cell, {time.monotonic() - began:.0f} s.")


def _measured(
    index: int, runs: int, methods: tuple[str, ...], seed: int
) -> dict[str, list[Result]]:
    return measured(CELLS[index], runs, methods, seed)


if __name__ == "__main__":
    main()
