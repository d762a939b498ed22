"""Bench: compares reported times with true ones, and measures the cost of the load generator:
``make bench``. Prints tables, asserts nothing.

A small C server (truth_server.c) sends tokens at set times and writes down when. CPU counts the
Locust process (its reporter is another one): a chunk costs what was spent from the end of the first
request of every user to the end, over the chunks of that time; with the start, all that was spent
less the CPU of an idle run, over all chunks. The machine's other load is in every figure; where the
server's own CPU a token moved between two runs of a row, the machine did.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from c_client import floor
from events import OTHERS
from events import options as events_of
from goals import FIGURES, Off, goals_met, offs, rule_kept
from load import Load, load
from numpy.typing import NDArray
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.records.record import Record

TTFT_MS, GAP_MS, TOKENS = 200, 20, 128
PERCENTILES = (50, 90, 99, 100)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """Holds one run with times in ms. The first of each pair was reported, the second is true."""

    streams: int
    tls: bool
    ttft: tuple[Floats, Floats]
    gaps: tuple[Floats, Floats]
    chunk_error: float
    read_lag: float
    chunks: int
    processes: int
    chunks_per_s: float
    merged: int
    lost: int
    cpu_us: float
    cpu_us_with_start: float
    server_cpu_us: float
    memory_mb: float
    first_cpu_share: float
    """The process that was started first, the only one or the master, used this share of a core
    while tokens came."""
    verdict: str | None
    reasons: str
    """The verdict has the console's text."""
    protocol: str

    @property
    def name(self) -> list[str]:
        """Returns the first columns of every table."""
        workers = f", {self.processes} workers" if self.processes > 1 else ""
        protocol = "" if self.protocol == "chat" else f", {self.protocol}"
        return [f"{self.streams:,}", ("TLS" if self.tls else "plain") + workers + protocol]

    @property
    def master(self) -> str:
        """Returns its share of a core while tokens came."""
        return f"{self.first_cpu_share:.1%}" if self.processes > 1 else "-"

    @property
    def offs(self) -> list[Off]:
        said, true = (
            (np.percentile(ttft, 50), np.percentile(ttft, 99), np.percentile(gaps, 99))
            for ttft, gaps in zip(self.ttft, self.gaps, strict=True)
        )
        return offs(self.streams, said, true)


def measure(
    program: Program,
    users: int,
    seconds: int,
    tls: bool,
    idle_s: float,
    processes: int = 1,
    protocol: str = "chat",
    more: Sequence[str] = (),
) -> Row:
    """``users`` is the number over all processes. ``more`` are further options of the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sends = {"ttft_ms": TTFT_MS, "gap_ms": GAP_MS, "tokens": TOKENS}
        words = events_of(protocol, TOKENS, folder)
        with server(program, folder, **sends, tls=tls, options=words) as sent:
            options = ["-u", str(users), "-t", f"{seconds}s", "--output-tokens-mean", str(TOKENS)]
            options += ["--endpoint-type", protocol, *more]
            run = load(
                sent.port,
                folder / "r",
                options,
                processes=processes,
                certificate=program.certificate if tls else None,
            )
        return compare(run, sent, users, tls, idle_s * processes, protocol)


def compare(run: Load, sent: Sent, users: int, tls: bool, idle_s: float, protocol: str) -> Row:
    records = run.records()
    got = [record for record in records if record.outcome == "ok"]
    true = [sent.times[record.id] for record in got]
    arrived = [(record.sent_at or 0) + np.array(record.chunk_us) / 1e6 for record in got]
    chunks = sum(len(record.chunk_us) for record in got)
    start = round_over_at(got)
    ended = max(record.closed_at for record in got)
    later = sum(int(np.count_nonzero(at > start)) for at in arrived)
    spent_s = sum(sender.cpu_between(start, sender.at[-1]) for sender in run.senders)
    return Row(
        streams=users,
        tls=tls,
        ttft=(
            np.array([r.chunk_us[0] / 1e3 for r in got]),
            np.array([(t[1] - t[0]) * 1e3 for t in true]),
        ),
        gaps=(
            np.concatenate([r.sharp_gaps_us for r in got]) / 1e3,
            np.concatenate([np.diff(t[1:]) for t in true]) * 1e3,
        ),
        chunk_error=float(
            np.percentile(
                np.concatenate([a - t[1:] for a, t in zip(arrived, true, strict=True)]), 99
            )
        )
        * 1e3,
        read_lag=float(np.percentile([record.read_lag_us for record in got], 99)) / 1e3,
        chunks=chunks,
        processes=len(run.senders),
        chunks_per_s=chunks / (ended - min(record.sent_at or 0 for record in got)),
        merged=sum(record.shared for record in got),
        lost=len(records) - len(got) + sent.dropped,
        cpu_us=spent_s / later * 1e6 if later > chunks / 4 else float("nan"),  # too short a run
        cpu_us_with_start=(run.cpu_s - idle_s) / chunks * 1e6,
        server_cpu_us=sent.cpu_us / sent.tokens,
        memory_mb=run.memory_kb / 1024,
        first_cpu_share=run.processes[0].cpu_between(start, ended) / (ended - start)
        if ended > start
        else float("nan"),
        verdict=run.verdict()[0],
        reasons=run.verdict()[1],
        protocol=protocol,
    )


def round_over_at(records: list[Record]) -> float:
    """Returns when every user had ended its first request."""
    first: dict[tuple[str, int], float] = {}
    for record in records:
        user = record.worker, record.user
        first[user] = min(record.closed_at, first.get(user, record.closed_at))
    return max(first.values())


def pairs(said: Floats, true: Floats) -> list[str]:
    return [f"{np.percentile(said, q):.2f} / {np.percentile(true, q):.2f}" for q in PERCENTILES]


def show(title: str, headers: list[str], rows: list[list[str]]) -> None:
    columns = ["streams", "wire", *headers]
    align = ["right", "left", *["right"] * len(headers)]
    print(
        f"\n{title}\n{tabulate(rows, headers=columns, disable_numparse=True, colalign=align if rows else None)}"
    )


def tables(rows: list[Row]) -> None:
    names = ["p50", "p90", "p99", "max"]
    show("TTFT, ms: reported / true", names, [[*row.name, *pairs(*row.ttft)] for row in rows])
    show(
        "gaps between chunks, ms: reported / true",
        names,
        [[*row.name, *pairs(*row.gaps)] for row in rows],
    )
    show(
        "what it cost", ["tokens/s", "lost", "merged", "CPU µs/chunk", "with start", "server's",
            "master", "MB", "verdict"],
        [
            [*row.name, f"{row.chunks_per_s:,.0f}", str(row.lost), f"{row.merged / row.chunks:.2%}",
                f"{row.cpu_us:.1f}",
             f"{row.cpu_us_with_start:.1f}", f"{row.server_cpu_us:.1f}", row.master,
             f"{row.memory_mb:.0f}",
             str(row.verdict)]
            for row in rows
        ],
    )  # fmt: skip
    show(
        "reported minus true, ms, of the limit of its goal",
        [*FIGURES, "chunk p99", "read lag p99", "goal", "verdict rule"],
        [
            [*row.name, *map(str, row.offs), f"{row.chunk_error:.2f}", f"{row.read_lag:.2f}",
             goals_met(row.streams, row.offs, row.verdict), rule_kept(row.offs, row.verdict)]
            for row in rows
        ],
    )  # fmt: skip
    for row in rows:
        if row.verdict != "OK":
            print(f"{' '.join(row.name)}: {row.reasons or 'no verdict: the report failed'}")
    broken = [" ".join(row.name) for row in rows if rule_kept(row.offs, row.verdict) != "kept"]
    breakers = f"; not in {', '.join(broken)}" if broken else ""
    print(f"\nverdict rule: kept in {len(rows) - len(broken)} of {len(rows)} rows{breakers}")


def one_chunk_requests(program: Program, users: int, seconds: int, idle_s: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(program, folder, ttft_ms=0, gap_ms=0, tokens=1) as sent:
            run = load(
                sent.port,
                folder / "r",
                ["-u", str(users), "-t", f"{seconds}s", "--output-tokens-mean", "1"],
            )
    return (
        f"requests of one chunk: {sent.tokens / seconds:,.0f} a second from one process with "
        f"{users} users, "
        f"{(run.cpu_s - idle_s) / sent.tokens * 1e6:.0f} µs of CPU each"
    )


def two_workers(program: Program, users: int, seconds: int, idle_s: float) -> str:
    """Measures two workers with ``users`` streams each, with runs of one worker before and after,
    as machines drift."""
    runs = [measure(program, n * users, seconds, False, idle_s, processes=n) for n in (1, 2, 1)]
    one = (runs[0].cpu_us + runs[2].cpu_us) / 2
    two = runs[1]
    return (
        f"two workers of {users} streams each: {two.cpu_us:.1f} µs of CPU a chunk, "
        f"{two.cpu_us / one - 1:+.0%} against one "
        f"({runs[0].cpu_us:.1f} before, {runs[2].cpu_us:.1f} after; goal: within 10 %); their "
        f"master "
        f"{two.first_cpu_share:.1%} of a core (goal: under 5 %); verdict {two.verdict}, {two.lost} "
        f"lost"
    )


def only_reading(program: Program, streams: list[int], tls: bool) -> str:
    costs = ", ".join(f"{floor(program, count, tls).cpu_us:.1f}" for count in streams)
    shown = ", ".join(map(str, streams))
    return (
        f"a client in C that only reads, {'over TLS' if tls else 'plain'}: {costs} µs of CPU a "
        f"chunk with {shown} streams"
    )


def machine() -> str:
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs ({platform.machine()}), Python "
        f"{platform.python_version()}, "
        f"server and load generator on the same machine; load average before: "
        f"{os.getloadavg()[0]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="50,200,800,1500", help="streams of each row")
    parser.add_argument(
        "--processes", default="1", help="over which each row's streams are sent, in turn"
    )
    parser.add_argument("--seconds", type=int, default=20, help="how long each run sends")
    parser.add_argument(
        "--tls", action=argparse.BooleanOptionalAction, default=True, help="rows with TLS too"
    )
    parser.add_argument("--protocols", action=argparse.BooleanOptionalAction, default=True,
                        help="rows of 200 streams of each other protocol, between two of chat")  # fmt: skip
    parser.add_argument("--extras", action=argparse.BooleanOptionalAction, default=True,
                        help="two workers against one, and requests of one chunk")  # fmt: skip
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
        if options.tls and program.certificate is None:
            print(f"no rows with TLS: {program.without_tls}")
        with server(program, Path(name), ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS) as sent:
            idle_s = load(sent.port, Path(name) / "idle", ["-u", "1", "-t", "5s"]).cpu_s
        print(f"an idle run costs {idle_s:.2f} s of CPU")
        wires = [False, True] if options.tls and program.certificate else [False]
        rows = []
        for tls in wires:
            for users, processes in product(options.users.split(","), options.processes.split(",")):
                rows.append(
                    measure(program, int(users), options.seconds, tls, idle_s, int(processes))
                )
                print(".", end="", flush=True)
        for protocol in ("chat", *OTHERS, "chat") if options.protocols else ():
            rows.append(measure(program, 200, options.seconds, False, idle_s, protocol=protocol))
            print(".", end="", flush=True)
        tables(rows)
        if options.extras:
            for tls in wires:
                print(
                    "\n"
                    + only_reading(program, [int(users) for users in options.users.split(",")], tls)
                )
            print(two_workers(program, 200, options.seconds, idle_s))
            print(one_chunk_requests(program, 50, options.seconds // 2, idle_s))


if __name__ == "__main__":
    main()
