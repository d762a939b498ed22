"""Readers: compares both readers with a client in C that only reads, in turn, several times: ``make
bench-readers``. Prints tables, asserts nothing.

The C client has no threads, no parser and no records; each round has its own, as machines drift.
Medians of the rounds, with the least and the most.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from bench import Row, machine, measure
from c_client import Floor, floor
from tabulate import tabulate
from truth import build

READERS = ("native", "python")
Round = dict[str, Row]


def spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def line(
    streams: int, tls: bool, reader: str, floors: Sequence[Floor], rows: Sequence[Row]
) -> list[str]:
    ttft = [float(np.percentile(row.ttft[0], 99) - np.percentile(row.ttft[1], 99)) for row in rows]
    gaps = [float(np.percentile(row.gaps[0], 99) - np.percentile(row.gaps[1], 99)) for row in rows]
    verdicts = {row.verdict or "none" for row in rows}
    return [
        f"{streams:,}", "TLS" if tls else "plain", reader, spread([one.cpu_us for one in floors]),
        spread([row.cpu_us for row in rows]),
        spread([row.cpu_us / one.cpu_us for row, one in zip(rows, floors, strict=True)], 2),
        spread([one.ttft_off_ms for one in floors], 2), spread(ttft, 2), spread(gaps, 2),
        spread([row.merged / row.chunks * 100 for row in rows], 2), ", ".join(sorted(verdicts)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="200,800", help="streams of each row")
    parser.add_argument("--times", type=int, default=7, help="rounds")
    parser.add_argument("--seconds", type=int, default=12, help="how long each run sends")
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--wires", default="plain,tls")
    options = parser.parse_args()
    readers = options.readers.split(",")
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None or ("tls" in options.wires and program.certificate is None):
            print("it takes a C compiler, and for TLS OpenSSL 3 and its command")
            return
        lines = []
        for wire, streams in product(options.wires.split(","), map(int, options.users.split(","))):
            floors = list[Floor]()
            rounds = list[Round]()
            for _ in range(options.times):
                floors.append(floor(program, streams, wire == "tls"))
                rounds.append({})
                for reader in readers:
                    os.environ["LOCUST_LLM_READER"] = reader
                    rounds[-1][reader] = measure(
                        program, streams, options.seconds, wire == "tls", 0.0
                    )
                print(".", end="", flush=True)
            for reader in readers:
                of_reader = [one[reader] for one in rounds]
                lines.append(line(streams, wire == "tls", reader, floors, of_reader))
    head = ["streams", "wire", "reader", "C client, µs", "ours, µs", "times as much",
        "C client TTFT p99 off, ms",
            "TTFT p99 off, ms", "gap p99 off, ms", "merged, %", "verdict"]  # fmt: skip
    print(f"\n{tabulate(lines, head, tablefmt='github', disable_numparse=True)}")


if __name__ == "__main__":
    main()
