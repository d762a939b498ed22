"""Scale: runs ten thousand streams in one worker, and fifteen thousand over two: ``make
bench-scale``. Prints, asserts nothing.

Each user sends one request, so all streams are open at once, with a token a second; CPU is counted
while all are. The server spreads first tokens over a second, as servers do. Streams of 300 tokens
would take five minutes (``--tokens 300`` does it), so these have fewer, and a third run shows
memory: 2,000 streams of 300 tokens at ten a second. Memory is the highest of a worker, less the
memory of a worker with one such stream, over its streams.
"""

import argparse
import tempfile
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench import machine
from load import ONCE, Load, load
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.records.record import Record

TTFT_MS, SPREAD_MS = 200, 1000


class Plan(NamedTuple):
    """One run has ``streams`` streams over all ``workers``."""

    streams: int
    workers: int
    tokens: int
    gap_ms: int
    gate: int | None = None
    """The prefill limit is over all workers."""

    def __str__(self) -> str:
        return f"{self.streams:,} streams, {self.workers} worker{'s' * (self.workers > 1)}"


def run(program: Program, folder: Path, plan: Plan, spawn_rate: int) -> tuple[Load, Sent]:
    folder.mkdir()
    spread = ["-s", str(SPREAD_MS * 1000)]
    run_s = plan.streams / spawn_rate + plan.tokens * plan.gap_ms / 1000 + 5
    options = ["-u", str(plan.streams), "-r", str(spawn_rate), "-t", f"{run_s:.0f}s"]
    if plan.gate is not None:
        options += ["--prefill-concurrency", str(min(plan.gate, plan.streams))]
    with server(
        program, folder, ttft_ms=TTFT_MS, gap_ms=plan.gap_ms, tokens=plan.tokens, options=spread
    ) as sent:
        done = load(
            sent.port,
            folder / "r",
            [*options, "--output-tokens-mean", str(plan.tokens)],
            processes=plan.workers,
            locustfile=ONCE,
        )
    return done, sent


def _peak_memory_kb(load: Load) -> int:
    return max(max(sender.memory_kb) for sender in load.senders)


def measure(program: Program, folder: Path, plan: Plan, spawn_rate: int) -> dict[str, str]:
    """Returns the figures of one run by name."""
    done, sent = run(program, folder / "all", plan, spawn_rate)
    idle, _ = run(
        program, folder / "one", plan._replace(streams=plan.workers, gap_ms=1), plan.workers
    )
    peak = _peak_memory_kb(done)
    least = _peak_memory_kb(idle)
    records = done.records()
    verdict, reasons = done.verdict()
    print(f"{plan}: {reasons}", flush=True)
    return {
        "tokens a stream, one each": f"{plan.tokens}, {plan.gap_ms} ms",
        **opened(plan, sent, records),
        **cost(done, sent, records),
        "worker memory at most, MB": f"{peak / 1024:.0f}",
        "above an idle one, kB a stream": f"{(peak - least) / (plan.streams / plan.workers):.1f}",
        "highest descriptor of a worker": f"{max(sender.highest_file for sender in done.senders):,}",
        "verdict": str(verdict),
    }


def opened(plan: Plan, sent: Sent, records: list[Record]) -> dict[str, str]:
    """Describes the streams as both ends observed them."""
    whole = sum(
        record.outcome == "ok" and len(record.chunk_us) == plan.tokens for record in records
    )
    asked = [record.asked_at for record in records]
    connects_ms = [record.connect_s * 1e3 for record in records if record.connect_s is not None]
    return {
        "requests at the server": f"{len(sent.times):,}",
        "on connections": f"{sent.connections:,}",
        "most open at once": f"{sent.most_open:,}",
        "streams lost": f"{plan.streams - whole:,}",
        "all asked within, s": f"{max(asked) - min(asked):.1f}",
        "connect p50 / max, ms": f"{np.median(connects_ms):.1f} / {max(connects_ms):.0f}",
    }


def cost(done: Load, sent: Sent, records: list[Record]) -> dict[str, str]:
    """Returns the CPU while all streams were open, and from then to the end, and the accuracy of
    the stamps."""
    times = [sent.times[record.id] for record in records if record.chunk_us]
    start = max(t[1] for t in times)
    stop = min(t[-1] for t in times)
    ended = max(record.closed_at for record in records)
    figures = {"all open for, s": f"{stop - start:.1f}"}
    for what, end in (("all open", stop), ("to the end", ended)):
        if end <= start:
            continue
        chunks = sum(
            int(np.searchsorted(t[1:], end) - np.searchsorted(t[1:], start)) for t in times
        )
        spent_s = sum(sender.cpu_between(start, end) for sender in done.senders)
        figures[f"{what}: chunks/s"] = f"{chunks / (end - start):,.0f}"
        figures[f"{what}: CPU µs/chunk"] = f"{spent_s / chunks * 1e6:.1f}"
        if done.processes[1:]:
            master = done.processes[0].cpu_between(start, end) / (end - start)
            figures[f"{what}: master, of a core"] = f"{master:.1%}"
    late_ms = np.concatenate(
        [(r.sent_at + np.array(r.chunk_us) / 1e6 - sent.times[r.id][1 : 1 + len(r.chunk_us)]) * 1e3
         for r in records if r.sent_at and r.chunk_us]
    )  # fmt: skip
    return figures | {
        "server's CPU µs/token": f"{sent.cpu_us / sent.tokens:.1f}",
        "merged": f"{sum(record.shared for record in records) / late_ms.size:.3%}",
        "chunk reported - true p50 / p99 / max, ms": " / ".join(
            f"{np.percentile(late_ms, q):.2f}" for q in (50, 99, 100)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000x1,15000x2", help="streams x workers of each run")
    parser.add_argument("--tokens", type=int, default=45, help="of each stream, one a second")
    parser.add_argument(
        "--memory",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="2,000 of 300 tokens too",
    )
    parser.add_argument(
        "--gate", type=int, help="the prefill limit over all workers; none by default"
    )
    parser.add_argument("--rate", type=int, default=1000, help="users spawned a second")
    options = parser.parse_args()
    plans = []
    for row in filter(None, options.rows.split(",")):
        streams, workers = map(int, row.split("x"))
        plans.append(Plan(streams, workers, options.tokens, 1000, options.gate))
    plans += [Plan(2000, 1, 300, 100)] if options.memory else []
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print(
                "no C compiler (cc): nothing is measured, as the server must be much cheaper than "
                "the load generator"
            )
            return
        columns = {}
        for number, plan in enumerate(plans):
            (folder := Path(name) / str(number)).mkdir()
            columns[str(plan)] = measure(program, folder, plan, options.rate)
    figures = dict.fromkeys(chain.from_iterable(columns.values()))
    table = []
    for figure in figures:
        table.append([figure, *(column.get(figure, "") for column in columns.values())])
    print(
        tabulate(
            table,
            headers=["", *columns],
            disable_numparse=True,
            colalign=["left", *["right"] * len(columns)],
        )
    )


if __name__ == "__main__":
    main()
