"""Peers: compares other load testers on the same server, and their costs: ``make peers``. Prints
tables, asserts nothing.

A row is a load, in which each tool has its turn on the C truth server (truth_server.c). The figures
of a tool are read from its own file, by the readers of ``locust-llm compare``. True TTFT: from when
the kernel had the request to just before the first send. CPU counts all processes of a tool,
memory the sum of what they have resident at a time. Each tool is a venv of its own in ``--home``.
What was measured is kept in ``--keep``, a line each, and not measured again.
"""

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from bench import machine
from peer_tools import TITLES, TOOLS, Load, Tool, install
from peers_chart import Bar, draw_chart
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.read_foreign_results import UnknownFormat, read_figures

LIMIT_S: Final = 110
"""A tool fails after this time on one row."""
LOOK_EACH_S: Final = 0.25
ROUNDS: Final = {1: 20, 10: 8, 50: 5, 100: 5, 200: 4}
"""Each stream sends this many requests, or 3 with more streams."""
_SUBREAPER: Final = 36
"""This is PR_SET_CHILD_SUBREAPER of prctl(2): processes without a parent become ours, so their CPU
counts."""


@dataclass
class Measured:
    """Holds one tool on one load, with times in ms. The first of each pair was reported, the second
    is true."""

    tool: str
    load: str
    why: str = ""
    """This explains a failure."""
    version: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    tokens: int = 0
    """The server sent this many tokens."""
    lost: int | None = None
    """The tool did not count this many of them. None: unknown."""
    most_open: int = 0
    server_cpu_us: float = 0.0
    ttft_p50: tuple[float | None, float] = (None, 0.0)
    ttft_p99: tuple[float | None, float] = (None, 0.0)
    gap_mean: tuple[float | None, float] = (None, 0.0)
    gap_p99: tuple[float | None, float] = (None, 0.0)


def measure(program: Program, tool: Tool, load: Load, home: Path) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(
            program, folder, ttft_ms=load.ttft_ms, gap_ms=load.gap_ms, tokens=load.tokens
        ) as sent:
            (out := folder / "out").mkdir()
            done = Measured(tool.name, load.name)
            done.why = run(
                tool.command(home, sent.port, load, out), tool.environment(home), out, done
            )
        done.version = tool.version(home)
        done.tokens, done.most_open = sent.tokens, sent.most_open
        done.server_cpu_us = sent.cpu_us / max(1, sent.tokens)
        if not done.why:
            try:
                said = read_figures(tool.result(out))[0]
            except (OSError, UnknownFormat, StopIteration) as error:
                done.why = f"no result: {error}"
            else:
                compare(said, sent, load, done)
    return done


def run(command: Sequence[str], environment: dict[str, str], folder: Path, done: Measured) -> str:
    """Runs the tool to its end, and returns the reason of a failure. ``done`` gets its CPU and
    memory."""
    ours = {child.pid for child in psutil.Process().children()}
    before = cpu_of_children_s()
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    why = ""
    while process.poll() is None:
        done.memory_mb = max(done.memory_mb, resident_mb(its_own(ours)))
        if time.monotonic() > began + LIMIT_S:
            why = f"not done after {LIMIT_S} s"
            break
        time.sleep(LOOK_EACH_S)
    done.wall_s = time.monotonic() - began
    end(its_own(ours), process)
    done.cpu_s = cpu_of_children_s() - before
    if process.returncode and not why:
        last = [
            line.strip()
            for line in (folder / "log").read_text(errors="replace").splitlines()
            if line.strip()
        ]
        why = f"status {process.returncode}: {' / '.join(last[-3:])}"
    return why


def cpu_of_children_s() -> float:
    """Returns the CPU time of ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def its_own(ours: set[int]) -> list[psutil.Process]:
    """Returns the tool's processes: all below this one except ``ours``."""
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in ours]


def resident_mb(processes: Iterable[psutil.Process]) -> float:
    total = 0
    for one in processes:
        with suppress(psutil.Error):
            total += one.memory_info().rss
    return total / 2**20


def end(processes: list[psutil.Process], first: "subprocess.Popen[bytes]") -> None:
    """Ends processes that the tool has left behind, so that their CPU counts."""
    for one in processes:
        with suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)
    first.wait()
    for one in processes:
        with suppress(ChildProcessError):
            os.waitpid(one.pid, 0)


def compare(said: Figures, sent: Sent, load: Load, done: Measured) -> None:
    """Compares requests that were answered to their end, as the tools count no others."""
    whole = [times for times in sent.times.values() if len(times) == load.tokens + 1]
    ttft = np.array([times[1] - times[0] for times in whole]) * 1e3
    gaps = np.concatenate([np.diff(times[1:]) for times in whole]) * 1e3
    done.ttft_p50 = (percentile(said.ttft, 50), float(np.percentile(ttft, 50)))
    done.ttft_p99 = (percentile(said.ttft, 99), float(np.percentile(ttft, 99)))
    mean = said.itl.avg if said.itl.avg is not None else said.tpot.avg
    done.gap_mean = (None if mean is None else mean * 1e3, float(gaps.mean()))
    done.gap_p99 = (percentile(said.itl, 99), float(np.percentile(gaps, 99)))
    if said.requests is not None and said.output_tokens.avg is not None:
        done.lost = sent.tokens - round(said.requests * said.output_tokens.avg)


def percentile(some: Distribution, p: float) -> float | None:
    value = some.percentiles.get(p)
    return None if value is None else value * 1e3


# -- tables ----------------------------------------------------------------------------------------

HEAD: Final = (
    "load", "tool", "CPU µs a token", "less its start", "MB", "TTFT p50: reported - true, ms",
    "p99: reported - true (true)",
    "gap, mean", "gap p99", "tokens lost", "s",
)  # fmt: skip


def row(done: Measured, start_s: float | None) -> list[str]:
    if done.why:
        return [done.load, done.tool, f"failed: {done.why[:100]}", *[""] * (len(HEAD) - 3)]
    beyond = "" if start_s is None else f"{max(0.0, done.cpu_s - start_s) / done.tokens * 1e6:.1f}"
    return [
        done.load, done.tool, f"{done.cpu_s / done.tokens * 1e6:.1f}", beyond,
        f"{done.memory_mb:.0f}",
        off(done.ttft_p50), f"{off(done.ttft_p99)} ({done.ttft_p99[1]:.1f})", off(done.gap_mean),
        off(done.gap_p99),
        "-" if done.lost is None else str(done.lost), f"{done.wall_s:.0f}",
    ]  # fmt: skip


def off(pair: Sequence[float | None]) -> str:
    said, true = pair
    return "-" if said is None or true is None else f"{said - true:+.2f}"


def table(rows: list[Measured]) -> str:
    starts = {one.tool: one.cpu_s for one in rows if one.load == START.name and not one.why}
    lines = [row(one, starts.get(one.tool)) for one in rows if one.load != START.name]
    return tabulate(lines, headers=HEAD, disable_numparse=True, tablefmt="github")


CHARTED: Final = "200 streams, 200 + 20 ms"


def chart(rows: list[Measured]) -> str:
    starts = {one.tool: one.cpu_s for one in rows if one.load == START.name and not one.why}
    bars = []
    for one in rows:
        reported, true = one.ttft_p99
        if one.load != CHARTED or one.why or reported is None or one.tool not in starts:
            continue
        cpu_us = (one.cpu_s - starts[one.tool]) / one.tokens * 1e6
        bars.append(Bar(TITLES.get(one.tool, one.tool), reported - true, cpu_us))
    return draw_chart(bars, "200 streams at once: reported TTFT p99 less the true one, and CPU")


# -- the command -----------------------------------------------------------------------------------

START: Final = Load(1, 1, 200, 20, 128)
"""A tool takes this time for one request: start, end, report."""
START_RUNS: Final = 3
"""The median counts: the first run of a new version compiles its modules, which takes seconds."""


def loads(rows: str, matrix: str) -> list[Load]:
    def of(streams: int, ttft_ms: int, gap_ms: int) -> Load:
        return Load(streams, streams * ROUNDS.get(streams, 3), ttft_ms, gap_ms, 128)

    here = [of(int(streams), 200, 20) for streams in filter(None, rows.split(","))]
    return [
        START,
        *here,
        *(of(int(streams), 50, 10) for streams in filter(None, matrix.split(","))),
    ]


def kept(file: Path) -> list[Measured]:
    return (
        [Measured(**json.loads(line)) for line in file.read_text().splitlines()]
        if file.exists()
        else []
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", default="50,200,800", help="streams at 20 ms a token, first token after 200 ms"
    )
    parser.add_argument(
        "--matrix",
        default="1,10,100,1000",
        help="streams at 10 ms a token, first token after 50 ms",
    )
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument(
        "--home", type=Path, default=Path(".peers"), help="where each tool has its venv"
    )
    parser.add_argument("--keep", type=Path, default=Path(".peers/measured.jsonl"))
    parser.add_argument("--chart", type=Path, help="file for a chart of the 200 streams (SVG)")
    options = parser.parse_args()
    home = options.home.absolute()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            sys.exit("no C compiler (cc): nothing is measured")
        tools = [TOOLS[word] for word in options.tools.split(",")]
        refused = {tool.name: why for tool in tools if (why := install(tool, home))}
        for tool in refused:
            print(f"{tool}: not installed: {refused[tool]}", flush=True)
        there = {(one.tool, one.load) for one in kept(options.keep)}
        for load in loads(options.rows, options.matrix):
            for tool in tools:
                if (tool.name, load.name) in there or tool.name in refused:
                    continue
                runs = START_RUNS if load is START else 1
                measured = [measure(program, tool, load, home) for _ in range(runs)]
                done = sorted(measured, key=lambda one: one.cpu_s)[runs // 2]
                with options.keep.open("a") as file:
                    file.write(json.dumps(asdict(done)) + "\n")
                print("  ".join(row(done, None)), flush=True)
    rows = kept(options.keep)
    print(table(rows))
    if options.chart:
        options.chart.write_text(chart(rows), encoding="utf-8")
    print("\n".join(sorted({f"{one.tool}: {one.version}" for one in rows})))


if __name__ == "__main__":
    main()
