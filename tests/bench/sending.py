"""Sending: measures the cost and the delay of short requests, and how full the gate keeps the
server: ``make bench-sending``.

Requests of one chunk against the C server (first token after 10 ms): one after the other by 50
users, then at constant rates from one process; lateness is the send after its due time. Then
prefills of 100 ms through gates of several limits: a slot is in use at the server from the arrival
of a request, by the kernel's stamp, to the send of its first token. Prints tables, asserts nothing.
"""

import argparse
import tempfile
from itertools import count, product
from pathlib import Path

import numpy as np
from bench import machine
from load import Load, load
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

PREFILL_MS = 100


def short_requests(program: Program, folder: Path, ttft_ms: int, options: list[str]) -> Load:
    """Makes a run whose answers have one chunk."""
    folder.mkdir()
    with server(program, folder, ttft_ms=ttft_ms, gap_ms=0, tokens=1) as sent:
        return load(sent.port, folder / "r", [*options, "--output-tokens-mean", "1"])


def steady(run: Load, records: list[Record]) -> tuple[float, float, float]:
    """Returns (requests per second, share of a core, CPU in µs per request), from a second after
    the first send to the last."""
    sent = np.array([record.sent_at for record in records if record.sent_at is not None])
    begin = sent.min() + 1
    end = sent.max()
    share = run.processes[0].cpu_between(begin, end) / (end - begin)
    rate = np.count_nonzero((begin < sent) & (sent < end)) / (end - begin)
    return rate, share, share / rate * 1e6


def closed_loop(program: Program, folder: Path, users: int, seconds: int) -> list[str]:
    """Returns a row of the table of costs: each user sends when its last answer is over."""
    run = short_requests(
        program, folder, 0, ["-u", str(users), "-r", str(users), "-t", f"{seconds}s"]
    )
    return row(run, run.records(), f"{users} users")


def at_rate(program: Program, folder: Path, rate: int, seconds: int) -> list[str]:
    """Returns a row of the table of costs: requests are due at this constant rate."""
    users = max(100, rate // 10)
    options = ["-u", str(users), "-r", str(users), "--request-rate", str(rate), "--arrival-pattern",
        "constant",
               "-t", f"{seconds}s"]  # fmt: skip
    run = short_requests(program, folder, 10, options)
    records = run.records()
    late_ms = [
        (record.sent_at - record.due_at) * 1e3 for record in records if record.sent_at is not None
    ]
    return row(run, records, f"{rate:,}/s") + [
        f"{np.percentile(late_ms, q):.2f}" for q in (50, 99, 100)
    ]


def row(run: Load, records: list[Record], what: str) -> list[str]:
    """Returns the common cells."""
    rate, share, cost_us = steady(run, records)
    return [
        what,
        f"{rate:,.0f}",
        f"{share:.0%}",
        f"{cost_us:.0f}",
        str(sum(record.outcome != OK for record in records)),
    ]


def occupied(records: list[Record], sent: Sent, slots: int) -> float:
    """Returns the share of slots in use at the server, from full use to the last arrival."""
    spans = [sent.times[record.id][:2] for record in records if record.id in sent.times]
    begin = sorted(arrived for arrived, _ in spans)[slots - 1]
    end = max(arrived for arrived, _ in spans)
    used = sum(max(0.0, min(first, end) - max(arrived, begin)) for arrived, first in spans)
    return used / (slots * (end - begin))


def through_gate(program: Program, folder: Path, slots: int, users: int, seconds: int) -> list[str]:
    """Returns a row of the table of gates."""
    folder.mkdir()
    with server(program, folder, ttft_ms=PREFILL_MS, gap_ms=10, tokens=11) as sent:
        options = [
            "-u",
            str(users),
            "-r",
            str(users),
            "-t",
            f"{seconds}s",
            "--output-tokens-mean",
            "11",
        ]
        run = load(sent.port, folder / "r", [*options, "--prefill-concurrency", str(slots)])
    records = [record for record in run.records() if record.sent_at is not None and record.chunk_us]
    freed = sorted(record.freed_at or 0.0 for record in records)
    later = sorted(record.sent_at or 0.0 for record in records)[slots:]
    handed_ms = [(after - before) * 1e3 for before, after in zip(freed, later, strict=False)]
    noticed_ms = [
        ((record.freed_at or 0) - (record.sent_at or 0)) * 1e3 - record.chunk_us[0] / 1e3
        for record in records
    ]
    return [
        str(slots), str(users), str(len(records)), f"{occupied(records, sent, slots):.2%}",
        *(f"{np.percentile(ms, percent):.2f}" for ms, percent in product((noticed_ms, handed_ms), (50, 99))),
    ]  # fmt: skip


def show(rows: list[list[str]], columns: list[str]) -> None:
    if rows:
        print(
            tabulate(
                rows, headers=columns, disable_numparse=True, colalign=["right"] * len(columns)
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="50", help="of each row of a closed loop")
    parser.add_argument(
        "--rates", default="1000,2000,3500,5000", help="requests per second of each row"
    )
    parser.add_argument("--gates", default="3x60,10x60,30x120", help="limit x users of each row")
    parser.add_argument("--seconds", type=int, default=10, help="how long each run sends")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print(
                "no C compiler (cc): nothing is measured, as the server must be much cheaper than "
                "the load generator"
            )
            return
        folders, seconds = (Path(name) / str(number) for number in count()), options.seconds
        users, rates, gates = (
            filter(None, each.split(",")) for each in (options.users, options.rates, options.gates)
        )
        rows = [closed_loop(program, next(folders), int(each), seconds) for each in users]
        rows += [at_rate(program, next(folders), int(each), seconds) for each in rates]
        show(rows, ["load", "sent/s", "core", "CPU µs each", "lost", "late p50, ms", "p99", "max"])
        rows = [
            through_gate(program, next(folders), *map(int, gate.split("x")), seconds)
            for gate in gates
        ]
        show(rows, ["slots", "users", "requests", "in use at the server",
            "first chunk to free p50, ms", "p99",
                    "free to next send p50, ms", "p99"])  # fmt: skip


if __name__ == "__main__":
    main()
