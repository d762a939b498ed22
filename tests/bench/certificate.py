"""Certificate: checks whether true values lie within the measurement error, in runs against the C
truth server: quiet, beside burning programs, and over TLS. It also measures the cost of the
reference streams. Prints a line per run, then a table, and asserts nothing.

Each run: ``-u STREAMS`` on a server whose send times are known; the run's own report gives the
plus-minus. CPU counts the load generator's process and its truth server.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench import GAP_MS, TOKENS, TTFT_MS, machine
from load import load
from tabulate import tabulate
from truth import Program, Sent, build, server

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.burners import burners

from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.records.timing_accuracy import MeasurementAccuracy

PERCENTILES = (50, 90, 95, 99)
TAGS = {
    "time_to_first_token": "TTFT", "request_latency": "latency", "inter_token_latency": "ITL",
    "inter_chunk_latency": "gaps",
}  # fmt: skip


class Measured(NamedTuple):
    """Holds one run, and the truth of its server."""

    records: list[Record]
    sent: Sent
    ends: dict[str, dict[str, tuple[float | None, float | None]]]
    """The measurement error is keyed by tag and percentile. None: it has no bound."""
    verdict: str
    """The verdict has its reasons."""
    cpu_s: float
    server_cpu_s: float | None
    """The truth server beside the load used this CPU time."""
    missing: str
    """This explains why there is no certificate."""

    @property
    def figures(self) -> "Figures":
        """Returns the figures, or none without a certificate."""
        got = [record for record in self.records if record.outcome == "ok"]
        times = [(self.sent.times[record.id], self.sent.after[record.id]) for record in got]
        values = {
            "time_to_first_token": (
                [record.chunk_us[0] / 1e3 for record in got],
                [(before[1] - before[0]) * 1e3 for before, _ in times],
                [(after[1] - after[0]) * 1e3 for _, after in times],
            ),
            "request_latency": (
                [record.chunk_us[-1] / 1e3 for record in got],
                [(before[-1] - before[0]) * 1e3 for before, _ in times],
                [(after[-1] - after[0]) * 1e3 for _, after in times],
            ),
            "inter_token_latency": (
                [_mean_gap_ms(record) for record in got],
                [(before[-1] - after[1]) * 1e3 / (len(before) - 2) for before, after in times],
                [(after[-1] - before[1]) * 1e3 / (len(before) - 2) for before, after in times],
            ),
            "inter_chunk_latency": (
                np.concatenate([record.sharp_gaps_us for record in got]) / 1e3,
                np.concatenate([before[2:] - after[1:-1] for before, after in times]) * 1e3,
                np.concatenate([after[2:] - before[1:-1] for before, after in times]) * 1e3,
            ),
        }
        found = {}
        for tag, some in values.items():
            for p in PERCENTILES:
                pair = self.ends.get(tag, {}).get(f"{p}.0")
                if pair is not None:
                    low, high = (float("inf") if end is None else end for end in pair)
                    found[TAGS[tag], p] = Figure(
                        *(float(np.percentile(each, p)) for each in some), low, high
                    )
        return found


def _mean_gap_ms(record: Record) -> float:
    return (record.chunk_us[-1] - record.chunk_us[0]) / 1e3 / (len(record.chunk_us) - 1)


class Figure(NamedTuple):
    """Holds a percentile in ms, the bounds of its true value, and the errors allowed below and
    above the reported one."""

    reported: float
    least: float
    most: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.reported:.2f} -{self.low:.2f} +{self.high:.2f}, true {self.least:.2f} to "
            f"{self.most:.2f}"
        )

    @property
    def inside(self) -> bool:
        return self.reported - self.low <= self.most and self.least <= self.reported + self.high

    @property
    def off(self) -> float:
        return max(self.least - self.reported, self.reported - self.most, 0.0)


Figures = dict[tuple[str, int], Figure]


def one_run(
    program: Program, streams: int, seconds: int, condition: str, selftest: str
) -> Measured:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tls = condition == "TLS"
        sent = stack.enter_context(
            server(program, folder, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, tls=tls)
        )
        if condition == "burning":
            stack.enter_context(burners(4))
        options = [
            "-u",
            str(streams),
            "-t",
            f"{seconds}s",
            "--output-tokens-mean",
            str(TOKENS),
            "--selftest",
            selftest,
        ]
        run = load(
            sent.port, folder / "r", options, certificate=program.certificate if tls else None
        )
        stack.close()  # the server writes down what it knows
        said = json.loads((run.folder / "run.json").read_bytes())
        certificate = read_run(run.folder).health[0].certificate or MeasurementAccuracy(
            missing="its process was lost"
        )
        return Measured(
            run.records(), sent, said.get("plus_minus", {}), " ".join(map(str, run.verdict())),
            run.cpu_s,
            certificate.server_cpu_s, certificate.missing,
        )  # fmt: skip


def line(name: str, run: Measured) -> str:
    figures = run.figures
    missed = [f"{kind} p{p} {f} is NOT inside" for (kind, p), f in figures.items() if not f.inside]
    shown = [f"{kind} p{p} {f}" for (kind, p), f in figures.items() if p in (50, 99)]
    truth = "" if run.server_cpu_s is None else f", truth server {run.server_cpu_s:.2f} s"
    found = "; ".join([*(missed or ["all inside"]), *shown] if figures else [run.missing])
    return (
        f"{name}: {run.verdict}, CPU {run.cpu_s:.2f} s{truth}, load {os.getloadavg()[0]:.1f}; "
        f"{found}"
    )


def row(condition: str, streams: int, kind: str, p: int, some: list[Figure]) -> list[str]:
    off = [f.off for f in some]
    return [
        condition, str(streams), kind, f"p{p}", f"{sum(f.inside for f in some)} of {len(some)}",
        f"{np.median(off):.3f}", f"{max(off):.3f}",
        f"{np.median([f.low for f in some]):.3f}", f"{np.median([f.high for f in some]):.3f}",
    ]  # fmt: skip


def cost(program: Program, streams: int, seconds: int, pairs: int) -> str:
    """Measures the cost of reference streams, with and without them in turn, as machines drift."""
    spent: dict[str, list[float]] = {"auto": [], "off": []}
    server_s = []
    for i in range(pairs):
        for how in ("auto", "off") if i % 2 else ("off", "auto"):
            run = one_run(program, streams, seconds, "quiet", how)
            spent[how].append(run.cpu_s / sum(len(r.chunk_us) for r in run.records) * 1e6)
            server_s += [] if run.server_cpu_s is None else [run.server_cpu_s]
    on = np.median(spent["auto"])
    off = np.median(spent["off"])
    more = np.log(np.array(spent["auto"]) / spent["off"])
    half = 1.96 * more.std(ddof=1) / math.sqrt(pairs)
    each = "; ".join(f"{how} {np.round(some, 1)}" for how, some in spent.items())
    return (
        f"cost, {streams} streams: {off:.1f} µs of CPU a chunk without sentinels, {on:.1f} with "
        f"({on / off - 1:+.1%}; in "
        f"pairs {math.expm1(more.mean()):+.1%}, 95 % interval "
        f"{math.expm1(more.mean() - half):+.1%} to "
        f"{math.expm1(more.mean() + half):+.1%}; {each}); their server {np.median(server_s):.3f} s "
        f"a run"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="50,200,800")
    parser.add_argument("--conditions", default="quiet,burning,TLS")
    parser.add_argument("--runs", type=int, default=10, help="of each cell")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument(
        "--cost", type=int, default=0, help="pairs of runs with and without sentinels: 2 or more"
    )
    options = parser.parse_args()
    print(machine())
    levels = [int(streams) for streams in options.streams.split(",")]
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print("no C compiler (cc): nothing is measured")
            return
        cells: defaultdict[tuple[str, int, str, int], list[Figure]] = defaultdict(list)
        for _ in range(options.runs):
            for condition in options.conditions.split(","):
                for streams in levels:
                    run = one_run(program, streams, options.seconds, condition, "auto")
                    for (kind, p), figure in run.figures.items():
                        cells[condition, streams, kind, p].append(figure)
                    print(line(f"{condition} {streams}", run), flush=True)
        head = [
            "",
            "streams",
            "",
            "",
            "true inside",
            "off, median ms",
            "off, most",
            "lower end, median",
            "upper end",
        ]
        print(
            tabulate(
                [row(*cell, some) for cell, some in sorted(cells.items())],
                headers=head,
                disable_numparse=True,
            )
        )
        for streams in levels if options.cost else ():
            print(cost(program, streams, options.seconds, options.cost), flush=True)


if __name__ == "__main__":
    main()
