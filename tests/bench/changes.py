"""Changes: checks a history on known truth for false alarms, planted changes, delays and
thresholds.

tests/bench/changes.py scores                    the table of thresholds, by random orders (numpy;
minutes) tests/bench/changes.py planted [--seeds 50]      a year of 200 runs with three changes of 5
to 20 % tests/bench/changes.py alarms [--years 1000]     a year of 200 runs without one: independent
and correlated noise tests/bench/changes.py daily [--years 100]       the same, looked at after
every run tests/bench/changes.py delay                     runs until a change is marked
tests/bench/changes.py index [--folders 5000]    seconds for the index of so many runs, the
example's files each
"""

import argparse
import math
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.history.history_index import index_runs
from locust_llm.trends.change_points import (
    ALARMS,
    SCORES,
    SIDE,
    find_level_changes,
    seeded_intervals,
)

FloatRows = NDArray[np.float64]
EXAMPLE: Final = Path(__file__).parents[2] / "reports" / "example"
RUNS: Final = 200
NEAR: Final = 10
"""A change counts as found within this many runs of its true place."""
LENGTHS: Final = tuple(SCORES)


def largest(orders: FloatRows) -> FloatRows:
    """Returns the largest score of each row of ranks, like ``best_split`` for all rows at once."""
    count = orders.shape[1]
    zero = np.zeros((len(orders), 1))
    sums = np.concatenate([zero, np.cumsum(orders, axis=1)], axis=1)
    squares = np.concatenate([zero, np.cumsum(orders.astype(float) ** 2, axis=1)], axis=1)
    found = np.zeros(len(orders))
    for begin, end in seeded_intervals(count):
        length = end - begin
        total = sums[:, end] - sums[:, begin]
        spread = (squares[:, end] - squares[:, begin]) * length - total**2
        k = np.arange(SIDE, length - SIDE + 1)
        part = sums[:, begin + SIDE : end - SIDE + 1] - sums[:, [begin]]
        excess = ((length * part - k * total[:, None]) ** 2 / (k * (length - k))).max(axis=1)
        np.maximum(found, excess * (length - 1) / spread, out=found)
    return np.sqrt(found)


def scores(orders: int) -> None:
    rng = np.random.default_rng(1)
    for count in LENGTHS:
        many = orders if count <= 300 else orders // 2
        step = max(1, 400_000 // count)
        rows = [
            largest(
                rng.permuted(np.tile(np.arange(1.0, count + 1), (min(step, many - i), 1)), axis=1)
            )
            for i in range(0, many, step)
        ]
        values = np.sort(np.concatenate(rows))
        cut = values[-1 - int(ALARMS * many)]
        print(f"{count}: {math.ceil(cut * 100) / 100:.2f},", flush=True)


def noise(
    random: Random, count: int, sigma: float, outliers: float = 0.02, phi: float = 0.0
) -> list[float]:
    """Draws factors: lognormal, with one outlier in 50. ``phi`` is the correlation of
    neighbours."""
    found = list[float]()
    last = random.gauss(0, sigma)
    for _ in range(count):
        last = phi * last + random.gauss(0, sigma * math.sqrt(1 - phi * phi))
        factor = random.uniform(1.3, 3) if random.random() < outliers else 1.0
        found.append(math.exp(last) * factor)
    return found


def year(seed: int, phi: float = 0.0) -> tuple[list[float], dict[int, float]]:
    """Makes a year of runs with three changes up or down, at least 25 runs apart. Returns (values,
    shift by place)."""
    random = Random(seed)
    values = [v * 300 for v in noise(random, RUNS, random.uniform(0.02, 0.05), phi=phi)]
    while True:
        places = sorted(random.sample(range(25, RUNS - 24), 3))
        if all(b - a >= 25 for a, b in pairwise(places)):
            break
    planted = {}
    for at in places:
        size = random.uniform(0.05, 0.20) * random.choice((-1, 1))
        planted[at] = size
        values[at:] = [v * (1 + size) for v in values[at:]]
    return values, planted


def planted(seeds: int, phi: float = 0.0) -> dict[str, float]:
    """Measures planted changes: how many are found, how far off, the false alarms, and whether
    intervals hold the true shift."""
    hits = 0
    total = 0
    alarms = 0
    apart = list[int]()
    held = 0
    small = [0, 0]
    for seed in range(seeds):
        values, truth = year(seed, phi)
        found = find_level_changes(values)
        left = {change.at: change for change in found}
        for at, size in truth.items():
            total += 1
            weak = abs(size) < 0.08
            small[1] += weak
            near = min(
                (place for place in left if abs(place - at) <= NEAR),
                key=lambda p: abs(p - at),
                default=None,
            )
            if near is None:
                continue
            change = left.pop(near)
            hits += 1
            small[0] += weak
            apart.append(abs(near - at))
            level = change.before
            held += change.low <= size * level <= change.high
        alarms += len(left)
    apart.sort()
    return {
        "found": hits / total, "of_weak": small[0] / max(1, small[1]),
        "alarms_a_year": alarms / seeds,
        "exact": sum(a == 0 for a in apart) / len(apart),
        "within_3": sum(a <= 3 for a in apart) / len(apart),
        "held": held / hits,
    }  # fmt: skip


def alarms(years: int, phi: float, count: int = RUNS) -> tuple[float, float]:
    """Returns (share of years with an alarm, alarms per year)."""
    found = [len(find_level_changes(noise(Random(i), count, 0.03, phi=phi))) for i in range(years)]
    return sum(map(bool, found)) / years, sum(found) / years


def daily(years: int, phi: float = 0.0) -> float:
    """Returns the share of years in which a check after some run, of this year and the one before,
    found a change."""
    with_one = 0
    for i in range(years):
        values = noise(Random(i), 2 * RUNS, 0.03, phi=phi)
        with_one += any(find_level_changes(values[n - RUNS : n]) for n in range(RUNS, 2 * RUNS))
    return with_one / years


def _is_marked(values: list[float], runs: int) -> bool:
    changes = find_level_changes(values[: 100 + runs])
    return any(abs(change.at - 100) <= NEAR for change in changes)


def delay(size: float, sigma: float, seeds: int = 50) -> list[int]:
    """Returns the sorted numbers of runs until the change is first marked. 60: not within 60."""
    found = []
    for seed in range(seeds):
        values = noise(Random(seed), 160, sigma)
        values[100:] = [v * (1 + size) for v in values[100:]]
        found.append(next((runs for runs in range(1, 60) if _is_marked(values, runs)), 60))
    return sorted(found)


def index(folders: int) -> None:
    run, figures = (
        (EXAMPLE / name).read_bytes() for name in ("run.json", "profile_export_aiperf.json")
    )
    with TemporaryDirectory() as below:
        root = Path(below)
        for i in range(folders):
            (folder := root / f"run-{i:05}").mkdir()
            (folder / "run.json").write_bytes(
                run.replace(b'"request_rate": 2.5', b'"request_rate": %d.5' % (i % 25))
            )
            (folder / "profile_export_aiperf.json").write_bytes(figures)
        for what in ("first", "again", "after ten have changed"):
            if what.startswith("after"):
                for i in range(10):
                    os.utime(root / f"run-{i:05}" / "run.json")
            began = time.perf_counter()
            cpu = time.process_time()
            found = index_runs(root)
            took = f"{time.perf_counter() - began:.2f} s, {time.process_time() - cpu:.2f} s of CPU"
            print(f"{what}: {len(found.entries)} runs, {took}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("scores", "planted", "alarms", "daily", "delay", "index"))
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--years", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=5000)
    options = parser.parse_args()
    if options.what == "scores":
        scores(options.orders)
    elif options.what == "planted":
        for phi in (0.0, 0.4):
            said = {name: round(value, 3) for name, value in planted(options.seeds, phi).items()}
            print(f"correlation of neighbours {phi}: {said}", flush=True)
    elif options.what == "index":
        index(options.folders)
    elif options.what == "delay":
        for size in (0.05, 0.1, 0.2, 1.0):
            for sigma in (0.02, 0.05):
                runs = delay(size, sigma)
                print(
                    f"{size:.0%} at noise {sigma:.0%}: median {runs[25]} runs, 9 of 10 within "
                    f"{runs[44]}",
                    flush=True,
                )
    else:
        for phi in (0.0, 0.2, 0.4, 0.6):
            said = (
                alarms(options.years, phi)
                if options.what == "alarms"
                else daily(options.years, phi)
            )
            print(f"correlation of neighbours {phi}: {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
