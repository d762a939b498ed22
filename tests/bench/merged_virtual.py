"""Merged chunks in virtual time: checks whether rules are decided correctly with them, like
merged.py, but without a clock: true times of chunks are drawn, and a reader that is held up now and
then reads them, with stamps as far off as the certificate's own. Limits lie 5 and 20 % off the true
percentile of the run. Prints what was decided, with and without what bounds the error, and what
wrongly."""

import argparse
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.records import a_run, answered

from locust_llm.records.histogram import Histogram
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.records.timing_accuracy import MeasurementAccuracy, compute_error_bounds
from locust_llm.report import judge_slo
from locust_llm.report.load_records import collect_columns
from locust_llm.report.slo_evidence.measurement_error import RuleError
from locust_llm.report.summarise_metrics import summarise_run

Floats = NDArray[np.float64]

REQUESTS, TOKENS = 400, 20
OFF = (0.8, 0.95, 1.05, 1.2)
FIGURES = list(product(("ttft", "request_latency", "itl", "icl"), (50, 95)))


class Judged(NamedTuple):
    """Holds one rule of one run."""

    figure: str
    off: float
    rule: str
    without: str
    status: str
    right: str
    """Returns the right status of a decided rule."""


def chunks_of(rng: np.random.Generator) -> Floats:
    """Draws the chunks of a request, in s after its send."""
    stalls = (rng.random(TOKENS - 1) < 0.02) * rng.uniform(0, 0.05, TOKENS - 1)
    gaps = rng.gamma(9, 0.012 / 9, TOKENS - 1) + stalls
    return rng.gamma(8, 0.02) + np.concatenate([[0], np.cumsum(gaps)])


def read(
    stamped: Floats, seen_at: Floats, look: Floats
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Returns (chunk_us, merged). ``seen_at`` is when the reader is free for each chunk. It then
    takes all available chunks, and there was none ``look`` s before the first of them came."""
    chunk_us: list[int] = []
    merged: list[tuple[int, int]] = []
    before_s, at = 0.0, 0
    while at < len(stamped):
        upto = int(np.searchsorted(stamped, seen_at[at], side="right"))
        upto = max(upto, at + 1)
        stamp = int(stamped[upto - 1] * 1e6)
        if upto - at > 1:
            since_s = max(before_s, stamped[at] - look[at])
            merged += [(i, max(0, min(int(since_s * 1e6), stamp))) for i in range(at, upto)]
        chunk_us += [stamp] * (upto - at)
        before_s, at = stamped[upto - 1], upto
    return tuple(chunk_us), tuple(merged)


def certificate(rng: np.random.Generator, noise_s: float) -> MeasurementAccuracy:
    """Makes a certificate of 60 sends and 500 gaps."""
    ttft = Histogram()
    gap = Histogram()
    for histogram, off_s in (
        (ttft, errors(rng, 60, noise_s)),
        (gap, errors(rng, 500, noise_s) + errors(rng, 500, noise_s)),
    ):
        for one in np.ceil(off_s * 1e6) + 1:
            histogram.add(int(one))
    return MeasurementAccuracy(
        streams=60, chunks=500, ttft=compute_error_bounds(ttft), gap=compute_error_bounds(gap)
    )


def errors(rng: np.random.Generator, count: int, noise_s: float) -> Floats:
    """Draws late errors of stamps, with a heavy tail."""
    return np.asarray(np.abs(rng.standard_t(2.5, count)) * noise_s)


def one_run(seed: int) -> tuple[str, float, list[Judged]]:
    """Returns (client verdict, merged share, its rules)."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.05, 0.5)
    hold_s = rng.uniform(0.01, 0.04)
    noise_s = float(rng.choice([5e-6, 5e-5, 3e-4]))
    held = np.sort(rng.uniform(9, 75, int(66 * share / hold_s)))
    free = np.maximum.accumulate(held + rng.exponential(hold_s, len(held)))
    records = list[Record]()
    times = list[Floats]()
    for at in 10 + np.sort(rng.uniform(0, 60, REQUESTS)):
        times.append(chunks_of(rng))
        stamped = np.maximum.accumulate(times[-1] + errors(rng, TOKENS, noise_s))
        hold = np.searchsorted(held, stamped + at, side="right") - 1
        seen_at = np.maximum(stamped, np.where(hold >= 0, free[hold], 0) - at)
        chunk_us, merged = read(stamped, seen_at, rng.exponential(0.004, TOKENS))
        record = answered(
            *[1.0] * TOKENS, sent_at=float(at), closed_at=float(at) + chunk_us[-1] / 1e6
        )
        records.append(replace(record, chunk_us=chunk_us, merged=merged))
    true = {
        "ttft": [each[0] for each in times], "request_latency": [each[-1] for each in times],
        "itl": [(each[-1] - each[0]) / (TOKENS - 1) for each in times],
        "icl": np.concatenate([*map(np.diff, times)]),
    }  # fmt: skip
    asked = []
    for (metric, percent), off in product(FIGURES, OFF):
        limit_ms = 1e3 * off * np.percentile(true[metric], percent)
        figure = f"{metric} p{percent}"
        asked.append((figure, off, f"{figure} < {limit_ms:.5f}ms"))
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1, certificate=certificate(rng, noise_s)
    )
    run = replace(a_run(slo=tuple(rule for *_, rule in asked)), health=(health,))
    columns = collect_columns(records)
    summary = summarise_run(columns, run, 0, records)
    with patch.object(judge_slo, "measure_rule_error", lambda *_: RuleError()):
        without = summarise_run(columns, run, 0, records)
    found = [
        Judged(figure, off, rule, before.status, after.status, "PASS" if off > 1 else "FAIL")
        for (figure, off, rule), before, after in zip(
            asked, without.slos, summary.slos, strict=True
        )
    ]
    assert summary.client is not None
    return summary.client.level, summary.counts.merged_chunks / summary.counts.chunks, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    counts: Counter[tuple[str, float, str]] = Counter()
    levels: Counter[str] = Counter()
    for seed in range(options.runs):
        level, merged, found = one_run(seed)
        levels[level] += 1
        for one in found:
            counts[one.figure, one.off, "runs"] += 1
            for what, status in (("without", one.without), ("with", one.status)):
                decided = status != "INCONCLUSIVE"
                counts[one.figure, one.off, what] += decided
                counts[one.figure, one.off, f"wrong {what}"] += decided and status != one.right
                if decided and status != one.right:
                    print(f"run {seed}, {merged:.1%} merged, {what}: {one.rule} {status}")
    print(dict(levels))
    heads = ("runs", "without", "with", "wrong without", "wrong with")
    keys = [(f"{metric} p{percent}", off) for (metric, percent), off in product(FIGURES, OFF)]
    rows = []
    for figure, off in keys:
        rows.append([figure, f"{off:g}", *(counts[figure, off, head] for head in heads)])
    print(tabulate(rows, headers=["rule", "limit / true", *heads]))


if __name__ == "__main__":
    main()
