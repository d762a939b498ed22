"""Merged chunks: checks whether rules are decided correctly with them. Runs against the C truth
server beside burning programs, with limits 5 and 20 % off the true percentile on both sides. Prints
a line a run, then how many rules were decided with what bounds the error, how many without it, and
how many wrongly. Asserts nothing."""

import argparse
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
from bench import machine
from load import load
from msgspec.structs import replace
from tabulate import tabulate
from truth import Program, build, server

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.burners import burners

from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.report import judge_slo
from locust_llm.report.load_records import collect_columns
from locust_llm.report.slo_evidence.measurement_error import RuleError
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.load_generator_health import ClientVerdict

TTFT_MS, STAGGER_MS, GAP_MS, TOKENS = 200, 100, 10, 40
OFF = (0.8, 0.95, 1.05, 1.2)
FIGURES = {
    f"{metric} p{percent}": (metric, percent)
    for metric, percent in product(("ttft", "request_latency", "itl", "icl"), (50, 90, 95))
}
CONDITIONS = ((20, 0), (50, 0), (100, 0), (20, 1))
"""Each condition has (streams, burning programs)."""


def true_ms(records: list[Record], times: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns true values of the profiling phase by metric, from the moments of the sends."""
    sent = [
        times[record.id]
        for record in records
        if record.outcome == "ok" and record.phase == "profiling"
    ]
    return {
        "ttft": np.array([each[1] - each[0] for each in sent]) * 1e3,
        "request_latency": np.array([each[-1] - each[0] for each in sent]) * 1e3,
        "itl": np.array([(each[-1] - each[1]) / (len(each) - 2) for each in sent]) * 1e3,
        "icl": np.concatenate([np.diff(each[1:]) for each in sent]) * 1e3,
    }


def one_run(
    program: Program, streams: int, burning: int, seconds: int
) -> tuple[ClientVerdict | None, float, list[tuple[str, float, str, str, bool]]]:
    """Returns the verdict, the share of merged chunks, and for each rule: figure, how far off,
    status without the bounds, status with them, and whether it holds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        stagger = ("-s", str(STAGGER_MS * 1000))
        sent = stack.enter_context(
            server(program, folder, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, options=stagger)
        )
        stack.enter_context(burners(burning))
        options = [
            "-u",
            str(streams),
            "-t",
            f"{seconds}s",
            "--output-tokens-mean",
            str(TOKENS),
            "--selftest",
            "auto",
        ]
        load_run = load(sent.port, folder / "r", options)
        stack.close()
        run = read_run(load_run.folder)
        records = load_run.records()
    true = true_ms(records, sent.times)
    asked = []
    for figure, (metric, percent) in FIGURES.items():
        value = float(np.percentile(true[metric], percent))
        for off in OFF:
            limit = value * off
            asked.append((figure, off, limit > value, f"{figure} < {limit:.4f}ms"))
    run = replace(run, settings=replace(run.settings, slo=tuple(rule for *_, rule in asked)))
    columns = collect_columns(records)
    after = summarise_run(columns, run, 0, records)
    with patch.object(judge_slo, "measure_rule_error", lambda *_: RuleError()):
        before = summarise_run(columns, run, 0, records)
    merged = after.counts.merged_chunks / max(after.counts.chunks, 1)
    statuses = zip(asked, before.slos, after.slos, strict=True)
    return (
        after.client,
        merged,
        [(figure, off, b.status, a.status, holds) for (figure, off, holds, _), b, a in statuses],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=6)
    options = parser.parse_args()
    print(machine())
    counts: Counter[tuple[str, float, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print("no C compiler (cc): nothing is measured")
            return
        for i in range(options.runs):
            streams, burning = CONDITIONS[i % len(CONDITIONS)]
            try:
                verdict, merged, found = one_run(program, streams, burning, options.seconds)
            except Exception as error:
                print(f"{streams} streams beside {burning}: {error!r}", flush=True)
                continue
            level = "-" if verdict is None else f"{verdict.level} {dict(verdict.signals)}"
            without_bounds = sum(one[2] != "INCONCLUSIVE" for one in found)
            with_bounds = sum(one[3] != "INCONCLUSIVE" for one in found)
            sides = [without_bounds, with_bounds]
            wrong = [f for f in found if f[3] != "INCONCLUSIVE" and (f[3] == "PASS") != f[4]]
            print(
                f"{streams} streams beside {burning}: {level}, {merged:.1%} merged, load "
                    f"{os.getloadavg()[0]:.1f}; decided "
                f"{sides[0]} without, {sides[1]} with the bounds, of {len(found)}; wrong: {wrong}",
                flush=True,
            )  # fmt: skip
            for figure, off, before, after, holds in found:
                level = "OK" if verdict is None else verdict.level
                counts[figure, off, f"{level} runs"] += 1
                for what, status in (("without", before), ("with", after)):
                    decided = status != "INCONCLUSIVE"
                    counts[figure, off, f"{level} {what}"] += decided
                    counts[figure, off, f"{level} wrong {what}"] += (
                        decided and (status == "PASS") != holds
                    )
    for level in ("OK", "DEGRADED", "INVALID"):
        heads = [
            f"{level} {what}" for what in ("runs", "without", "with", "wrong without", "wrong with")
        ]
        rows = []
        for figure, off in product(FIGURES, OFF):
            rows.append([figure, f"{off:g}", *(counts[figure, off, head] for head in heads)])
        print(tabulate(rows, headers=["rule", "limit / true", *heads]))


if __name__ == "__main__":
    main()
