"""What a short request costs and how late it leaves, and how full the gate keeps the server: ``make bench-sending``.

Requests of one chunk against the C server (first token after 10 ms): one after the other by 50 users, then at constant
rates from one process; lateness is the send after its due time. Then prefills of 100 ms through gates of several limits:
a slot is in use at the server from the arrival of a request, by the kernel's stamp, to the send of its first token.
Prints tables, asserts nothing.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from bench import machine
from load import Load, load
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.core.record import OK, Record

PREFILL_MS = 100
IDLE_S = 5


def short_requests(program: Program, folder: Path, ttft_ms: int, options: list[str]) -> tuple[Load, Sent]:
    """A run whose answers have one chunk."""
    folder.mkdir()
    with server(program, folder, ttft_ms=ttft_ms, gap_ms=0, tokens=1) as sent:
        return load(sent.port, folder / "r", [*options, "--output-tokens-mean", "1"]), sent


def cost_us(run: Load, idle_s: float) -> float:
    """CPU of the process that sends, for each request, without that of an idle run."""
    return (run.cpu_s - idle_s) / max(1, len(run.records())) * 1e6


def at_rate(program: Program, folder: Path, rate: int, seconds: int, idle_s: float) -> list[str]:
    """A row of the table of constant rates."""
    users = max(100, rate // 10)
    options = ["-u", str(users), "-r", str(users), "--request-rate", str(rate), "--arrival-pattern", "constant",
               "-t", f"{seconds}s"]  # fmt: skip
    run, _ = short_requests(program, folder, 10, options)
    records = run.records()
    late_ms = [(record.sent_at - record.due_at) * 1e3 for record in records if record.sent_at is not None]
    begin, end = min(record.due_at for record in records) + 1, max(record.due_at for record in records)
    share = run.processes[0].cpu_between(begin, end) / (end - begin)
    middle = sum(begin < (record.sent_at or 0) < end for record in records)
    return [
        f"{rate:,}", f"{middle / (end - begin):,.0f}", f"{cost_us(run, idle_s):.0f}",
        f"{share * (end - begin) / max(1, middle) * 1e6:.0f}", f"{share:.0%}",
        *(f"{np.percentile(late_ms, q):.2f}" for q in (50, 99, 100)),
        str(sum(record.outcome != OK for record in records)),
    ]  # fmt: skip


def occupied(records: list[Record], sent: Sent, slots: int) -> float:
    """Share of the slots that are in use at the server, from when all are to the last arrival."""
    spans = [sent.times[record.id][:2] for record in records if record.id in sent.times]
    begin, end = sorted(arrived for arrived, _ in spans)[slots - 1], max(arrived for arrived, _ in spans)
    used = sum(max(0.0, min(first, end) - max(arrived, begin)) for arrived, first in spans)
    return used / (slots * (end - begin))


def through_gate(program: Program, folder: Path, slots: int, users: int, seconds: int) -> list[str]:
    """A row of the table of gates."""
    folder.mkdir()
    with server(program, folder, ttft_ms=PREFILL_MS, gap_ms=10, tokens=11) as sent:
        options = ["-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--output-tokens-mean", "11"]
        run = load(sent.port, folder / "r", [*options, "--prefill-concurrency", str(slots)])
    records = [record for record in run.records() if record.sent_at is not None and record.chunk_us]
    freed = sorted(record.freed_at or 0.0 for record in records)
    later = sorted(record.sent_at or 0.0 for record in records)[slots:]
    handed_ms = [(after - before) * 1e3 for before, after in zip(freed, later, strict=False)]
    noticed_ms = [((record.freed_at or 0) - (record.sent_at or 0)) * 1e3 - record.chunk_us[0] / 1e3 for record in records]
    return [
        str(slots), str(users), str(len(records)), f"{occupied(records, sent, slots):.2%}",
        *(f"{np.percentile(ms, q):.2f}" for ms in (noticed_ms, handed_ms) for q in (50, 99)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="1000,2000,3500,5000", help="requests per second of each row")
    parser.add_argument("--gates", default="3x60,10x60,30x120", help="limit x users of each row")
    parser.add_argument("--seconds", type=int, default=10, help="how long each run sends")
    parser.add_argument("--times", type=int, default=1, help="runs of each row")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        if program is None:
            print("no C compiler (cc): nothing is measured, as the server must be much cheaper than the load generator")
            return
        runs = iter(range(1000))
        rates = [int(rate) for rate in options.rates.split(",") if rate]
        rows = []
        if rates:
            idle_s = short_requests(program, folder / "idle", 1000, ["-u", "1", "-t", f"{IDLE_S}s"])[0].cpu_s
            for _ in range(options.times):
                run, _ = short_requests(program, folder / str(next(runs)), 0, ["-u", "50", "-r", "50", "-t", f"{options.seconds}s"])
                count = len(run.records())
                print(f"closed loop of 50 users: {count / options.seconds:,.0f} a second, {cost_us(run, idle_s):.0f} µs of CPU each")
        for rate in rates:
            rows += [at_rate(program, folder / str(next(runs)), rate, options.seconds, idle_s) for _ in range(options.times)]
        if rows:
            columns = ["rate", "sent/s", "CPU µs each", "without start", "core", "late p50, ms", "p99", "max", "lost"]
            print(tabulate(rows, headers=columns, disable_numparse=True, colalign=["right"] * len(columns)))
        gates = [tuple(map(int, gate.split("x"))) for gate in options.gates.split(",") if gate]
        rows = [through_gate(program, folder / str(next(runs)), *gate, options.seconds) for gate in gates for _ in range(options.times)]
        if rows:
            columns = ["slots", "users", "requests", "in use at the server", "first chunk to free p50, ms", "p99",
                       "free to next send p50", "p99"]  # fmt: skip
            print(tabulate(rows, headers=columns, disable_numparse=True, colalign=["right"] * len(columns)))


if __name__ == "__main__":
    main()
