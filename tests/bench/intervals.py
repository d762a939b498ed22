"""Intervals: measures how often an SLO interval holds the truth, and how often a verdict is wrong
or missing: ``make intervals``. Prints Markdown.

A cell is a load that makes latencies, failures or rates (interval_loads.py) and a number of
requests or seconds. Many runs of it are made, and the interval of each figure of each run is held
against the truth, from TRUTH times as many runs. Limits are set at the truth, where each decision
is a wrong one, and 10 to 40 % above and below it, where a decision is wanted, and at two and three
times it and a half and a third of it, where nobody would wait for one. (Of a share of good requests
that is so many more or fewer bad ones.) Beside it is how often an oracle decides, who
knows how the figure varies from run to run (``decide_by_oracle``) and has to find out nothing but
the truth.

TUNED and BURSTS are the loads and seeds that the rule was chosen on, SEEN, SEEN_LATER, HELD_OUT and
LOOKED_AT_ONCE those that earlier rules were tested on. LOOKED_AT_LATER was evaluated after the last
change of the rule (``--which``). With ``--abort``: how often a run is ended by an ``abort:`` rule
whose limit is the truth, and after how many requests by one whose limit is half of it.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from multiprocessing import Pool
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from interval_loads import BURSTS, HELD_OUT, SEEN, SEEN_LATER, TUNED, Cell, Runs
from looked_at_later import LOOKED_AT_LATER
from looked_at_once import LOOKED_AT_ONCE
from tabulate import tabulate

from locust_llm.controller.early_stop import MeanMonitor, ShareMonitor
from locust_llm.report.slo_evidence.confidence_intervals import (
    ConfidenceInterval,
    estimate_mean_interval,
    estimate_percentile_interval,
    estimate_rate_interval,
    estimate_share_interval,
)
from locust_llm.slo.binomial_intervals import TAIL, count_needed_values

GOOD: Final = 0.9
"""``share`` is the share of requests within a limit that truly holds for this share."""
OFF: Final = (0.1, 0.2, 0.3, 0.4)
CLEAR: Final = OFF.index(0.3)
FAR: Final = (2.0, 3.0)
"""The limit is so many times the truth, or the truth so many times the limit."""
DECIDED: Final = 0.95
"""The goal is a decision in this share of the runs."""
LONG_ENOUGH: Final = 500
"""p99 of so many requests is asked for a decision."""
CATALOGUES: Final = {
    "tuned": (TUNED, 1),
    "bursts": (BURSTS, 77),
    "seen": (SEEN, 1001),
    "seen-later": (SEEN_LATER, 2001),
    "held-out": (HELD_OUT, 3001),
    "looked-at-once": (LOOKED_AT_ONCE, 5001),
    "looked-at-later": (LOOKED_AT_LATER, 6001),
}
"""Each catalogue has cells and their seed."""
TRUTH: Final = 2
"""There are this many times as many runs as evaluated ones. The others show the truth."""
ABORTS: Final = 120
"""This many runs of a cell are checked against ``abort:``, every LOOKS requests."""
LOOKS: Final = 16
SECTIONS: Final = 10
LEAST_SPREAD: Final = 0.0005
"""A value that varies less from run to run has no width worth a number."""
NORMAL: Final = NormalDist().inv_cdf(1 - TAIL)


def make_runs(cell: Cell, runs: int, seed: int) -> Runs:
    return cell.process(
        np.random.default_rng([seed, *map(ord, cell.name), cell.count]), runs, cell.count
    )


# -- a cell ----------------------------------------------------------------------------------------


class Result(NamedTuple):
    figure: str
    spread: float
    """This is the figure's standard deviation over runs, as a share of the truth."""
    held: float
    wrong_pass: float
    """The rule whose limit is the truth passes."""
    wrong_fail: float
    wrong: float
    """A limit 30 % off is decided wrongly, on the worse side."""
    below: tuple[float, ...]
    """The limit is OFF above the truth, and the interval lies below it."""
    above: tuple[float, ...]
    """The limit is OFF below the truth, and the interval lies above it."""
    far_below: tuple[float, ...]
    """The limit is FAR times the truth, and the interval lies below it."""
    far_above: tuple[float, ...]
    """The truth is FAR times the limit, and the interval lies above it."""
    oracle: tuple[float, float]
    """An oracle decides a limit 30 % above the truth, and one 30 % below it."""
    reach_down: float
    reach_up: float
    """This is the median distance of an end from the figure, over 1.96 true standard errors."""

    @property
    def decided(self) -> float:
        """A limit 30 % off is decided rightly, on the worse side."""
        return min(self.below[CLEAR], self.above[CLEAR])

    @property
    def possible(self) -> bool:
        """Returns whether the oracle decides both limits 30 % off in 95 % of the runs."""
        return min(self.oracle) >= DECIDED


def decide_by_oracle(figures: Runs, truth: float, off: float) -> tuple[float, float]:
    """Returns how often somebody decides a limit ``off`` above the truth, and one as much below it,
    who knows the distribution of ``figures`` over their truth.

    Were the truth at the limit, one run in forty would have a figure below ``lowest`` of the limit,
    and one in forty above ``highest`` of it. So a lower figure passes, and a higher one fails.
    """
    ratios = figures / truth
    lowest, highest = np.percentile(ratios, [100 * TAIL, 100 * (1 - TAIL)])
    passed = float((ratios < (1 + off) * lowest).mean())
    failed = float((ratios > (1 - off) * highest).mean())
    return passed, failed


def estimate_interval(figure: str, values: Runs, latencies: Runs) -> ConfidenceInterval:
    if figure == "mean":
        return estimate_mean_interval(values)
    if figure == "rate":
        return estimate_rate_interval(values)
    if figure == "share":
        return estimate_share_interval(values, margins=latencies)
    if figure == "error_rate":
        return estimate_share_interval(values)
    return estimate_percentile_interval(values, float(figure[1:]))


def evaluate_figure(figure: str, latencies: Runs, judged: int) -> Result:
    runs = latencies
    if figure == "share":
        latencies = latencies / np.percentile(latencies, 100 * GOOD)
        runs = (latencies <= 1).astype(np.float64)
    truth = float(runs.mean() if figure[0] != "p" else np.percentile(runs, float(figure[1:])))
    points = np.array(
        [run.mean() if figure[0] != "p" else np.percentile(run, float(figure[1:])) for run in runs]
    )
    scale = (
        1 - truth if figure == "share" else truth
    )  # 10 % more failures, not 10 % fewer successes
    error = max(float(points.std()), 1e-12)
    pairs = zip(runs[:judged], latencies[:judged], strict=True)
    found = [estimate_interval(figure, *pair) for pair in pairs]
    low = np.array([-math.inf if one.low is None else one.low for one in found])
    high = np.array([math.inf if one.high is None else one.high for one in found])
    varying = 1 - points if figure == "share" else points
    clear = OFF[CLEAR] * scale
    own = points[:judged]
    least, most, rate = (low, high, truth)
    if figure == "share":  # of good requests: it is better above
        least, most, rate = (1 - high, 1 - low, 1 - truth)
    return Result(
        figure,
        error / scale,
        float(((low <= truth) & (truth <= high)).mean()),
        float((most < rate).mean()),
        float((least > rate).mean()),
        max(float((high < truth - clear).mean()), float((low > truth + clear).mean())),
        tuple(float((high < truth + off * scale).mean()) for off in OFF),
        tuple(float((low > truth - off * scale).mean()) for off in OFF),
        tuple(float((most < rate * times).mean()) for times in FAR),
        tuple(float((least > rate / times).mean()) for times in FAR),
        decide_by_oracle(varying, scale, OFF[CLEAR]),
        float(np.median(own - low)) / (NORMAL * error),
        float(np.median(high - own)) / (NORMAL * error),
    )


def evaluate_cell(cell: Cell, runs: int, seed: int) -> list[Result]:
    made = make_runs(cell, TRUTH * runs, seed)
    return [evaluate_figure(figure, made, runs) for figure in cell.figures]


# -- the page --------------------------------------------------------------------------------------

HEAD: Final = (
    "load, requests or seconds", "value", "spread", "width", "held", "wrong PASS / FAIL", "wrong, 30 % off",
    "limit above by 10, 20, 30, 40 %", "below", "two, three times", "half, third", "an oracle decides", "",
)  # fmt: skip


def is_asked(cell: Cell, figure: str) -> bool:
    """Returns whether a run of this length is long enough for a decision of this figure."""
    return cell.count >= LONG_ENOUGH if figure == "p99" else figure != "share"


def _format_shares(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def make_rows(cell: Cell, results: list[Result]) -> Iterator[tuple[str, ...]]:
    for one in results:
        width = f"{one.reach_down:.1f}, {one.reach_up:.1f}"
        if one.spread < LEAST_SPREAD:
            width = ""
        mark = "-" if one.possible else ""
        if one.decided >= DECIDED:
            mark = "+"
        yield (
            f"{cell.name}, {cell.count:,}", one.figure, f"{one.spread:.1%}", width, f"{one.held:.1%}",
            f"{one.wrong_pass:.1%} / {one.wrong_fail:.1%}", f"{one.wrong:.1%}",
            *map(_format_shares, (one.below, one.above, one.far_below, one.far_above, one.oracle)), mark,
        )  # fmt: skip


def summarise(results: list[Result]) -> str:
    possible = [one for one in results if one.possible]
    open_ = [one for one in results if one.decided < DECIDED]
    left = [one for one in open_ if one.possible]
    at_truth = [max(one.wrong_pass, one.wrong_fail) for one in results]
    lines = [
        f"{len(results)} values: held in 95 % of runs or more {sum(one.held >= 0.95 for one in results)}, in 90 to 95 % "
        f"{sum(0.9 <= one.held < 0.95 for one in results)}, in fewer {sum(one.held < 0.9 for one in results)}; "
        f"a limit 30 % off decided wrongly in more than 1 %: {sum(one.wrong > 0.01 for one in results)}. Of all runs "
        f"{np.mean([one.wrong_pass for one in results]):.1%} pass wrongly at the truth and {np.mean([one.wrong_fail for one in results]):.1%} fail wrongly.",
        f"A limit at the truth is decided in at most 2.5 % on each side for {sum(one <= 0.025 for one in at_truth)}, in 2.5 "
        f"to 5 % for {sum(0.025 < one <= 0.05 for one in at_truth)}, in more for {sum(one > 0.05 for one in at_truth)}. "
        f"Width, median over all: down {np.median([one.reach_down for one in results]):.2f}, up "
        f"{np.median([one.reach_up for one in results]):.2f}; of loads below, up {np.median([one.reach_up for one in possible]):.2f}.",
        f"A limit 30 % off is decided rightly in 95 % of the runs, on both sides, for "
        f"{len(results) - len(open_)} of them. Of the other {len(open_)} the oracle does not reach that either for "
        f"{len(open_) - len(left)}. He does for {len(left)}, of which the rule decides 80 to 95 % for "
        f"{sum(one.decided >= 0.8 for one in left)}, fewer for {sum(one.decided < 0.8 for one in left)}.",
        f"A limit of two and three times the truth is decided in 95 % of the runs for {_count_decided([one.far_below for one in results])}, "
        f"of a half and a third for {_count_decided([one.far_above for one in results])}.",
    ]
    return "\n\n".join(lines)


def _count_decided(shares: list[tuple[float, ...]]) -> str:
    counts = [sum(share >= DECIDED for share in column) for column in zip(*shares, strict=True)]
    return " and ".join(map(str, counts))


# -- abort -----------------------------------------------------------------------------------------


def count_until_abort(figure: str, values: Runs, limit: float) -> float:
    """Returns after how many requests ``abort:`` ends this run, or infinity."""
    add: Callable[[float], None]
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


def evaluate_abort(cell: Cell, seed: int) -> list[tuple[str, ...]]:
    """Returns a row per figure."""
    table = []
    made = make_runs(cell, 4 * ABORTS, seed)
    for figure in ("p50", "p95", "mean", "share"):
        at = math.nan
        if figure == "share":
            at = 100 * GOOD
        elif figure[0] == "p":
            at = float(figure[1:])
        truth = float(made.mean()) if figure == "mean" else float(np.percentile(made, at))
        judged = made[:ABORTS]
        wrong = np.array([count_until_abort(figure, run, truth) for run in judged])
        right = np.array([count_until_abort(figure, run, truth / 2) for run in judged])
        row = (
            f"{np.isfinite(wrong).mean():.0%}",
            f"{np.isfinite(right).mean():.0%}",
            f"{np.median(right):,.0f}",
        )
        table.append((cell.name, f"{cell.count:,}", figure, *row))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=250, help="that are judged of a cell")
    parser.add_argument("--cells", default="", help="only cells whose name has this")
    parser.add_argument("--which", choices=CATALOGUES, default="tuned")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, help="replaces the seed of the loads")
    parser.add_argument(
        "--abort", action="store_true", help=f"how abort: does, of {ABORTS} runs a cell"
    )
    given = parser.parse_args()
    began = time.monotonic()
    catalogue, seed = CATALOGUES[given.which]
    seed = seed if given.seed is None else given.seed
    chosen = [cell for cell in catalogue if given.cells in cell.name]
    with Pool(given.processes) as pool:
        if given.abort:
            latencies = [cell for cell in chosen if "p95" in cell.figures]
            aborts = [pool.apply_async(evaluate_abort, (cell, seed)) for cell in latencies]
            head = (
                "latencies",
                "n",
                "figure",
                "ended, limit at the truth",
                "at half of it",
                "after",
            )
            rows = list(chain.from_iterable(job.get() for job in aborts))
            print(tabulate(rows, head, tablefmt="github", disable_numparse=True))
            return
        jobs = [pool.apply_async(evaluate_cell, (cell, given.runs, seed)) for cell in chosen]
        results = [job.get() for job in jobs]
    table = list(chain.from_iterable(map(make_rows, chosen, results)))
    print(tabulate(table, HEAD, tablefmt="github", disable_numparse=True))
    print(f"\nAll values. {summarise(list(chain.from_iterable(results)))}")
    asked = [
        one
        for cell, found in zip(chosen, results, strict=True)
        for one in found
        if is_asked(cell, one.figure)
    ]
    print(f"\nThose asked for a decision. {summarise(asked)}")
    print(f"\n{given.runs} runs a cell, seed {seed}, {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
