"""Event loop: does one event loop inflate TTFT as an M/G/1 queue does: ``make bench-event-loop``.
Prints tables, asserts nothing.

A tool sends requests at random moments (Poisson) at rising rates to the C truth server
(truth_server.c). What a request and a chunk cost the tool is its own CPU, measured at one rate with
short and with long answers. From these two costs alone, the Pollaczek-Khinchine formula
predicts by how much the mean TTFT that the tool reports grows with the rate. (arXiv 2605.24217
models such a client as an M/G/1 queue.) The true TTFT is the server's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from bench import machine
from peer_tools import MODEL, TOOLS, Tool, install, tokenizer
from peers import its_own
from tabulate import tabulate
from truth import Program, Sent, build, server

from locust_llm.lab.interop.read_foreign_results import read_figures

TTFT_MS: Final = 100
GAP_MS: Final = 10
CHUNKS: Final = 16
LONG_CHUNKS: Final = 128
"""The costs come from answers of CHUNKS and of LONG_CHUNKS chunks."""
COST_RATE: Final = 100.0
"""The costs are measured at this rate. At lower rates they are higher, as the caches are cold."""
SECONDS: Final = 20
"""A run lasts this long."""
LIMIT_S: Final = 120
LOOK_EACH_S: Final = 0.05


@dataclass(frozen=True)
class Costs:
    """Holds the seconds that a tool computes for a request without its chunks, and for a chunk."""

    request_s: float
    chunk_s: float


def predict_busy_share(costs: Costs, requests_per_s: float, chunks: int) -> float:
    """Returns the share of time in which the event loop is busy: rho."""
    return requests_per_s * (costs.request_s + chunks * costs.chunk_s)


def predict_mean_wait_s(costs: Costs, requests_per_s: float, chunks: int) -> float:
    """Returns the mean wait for the event loop in seconds, by Pollaczek and Khinchine: the rate of
    the jobs times the mean square of their lengths, over twice the free share. A job is either a
    request or a chunk, and each kind has one length. Infinite from a busy share of 1."""
    free = 1.0 - predict_busy_share(costs, requests_per_s, chunks)
    if free <= 0:
        return float("inf")
    squares = costs.request_s**2 + chunks * costs.chunk_s**2
    return requests_per_s * squares / (2 * free)


def solve_costs(short_s: float, short: int, long_s: float, long: int) -> Costs:
    """Returns the costs of two runs, whose requests of ``short`` and ``long`` chunks took this
    much CPU each."""
    chunk_s = (long_s - short_s) / (long - short)
    return Costs(request_s=short_s - short * chunk_s, chunk_s=chunk_s)


# -- the tools at a rate ---------------------------------------------------------------------------

Call = Callable[[Tool, Path, int, float, int, Path], list[str]]


def call_ours(tool: Tool, home: Path, port: int, rate: float, chunks: int, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "locust_llm", "run", "--headless", "--host", f"127.0.0.1:{port}",
        "--request-rate", str(rate), "--request-count", str(round(rate * SECONDS)),
        "--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(chunks), "--no-probe",
        "--report-dir", str(out / "run"),
    ]  # fmt: skip


def call_vllm(tool: Tool, home: Path, port: int, rate: float, chunks: int, out: Path) -> list[str]:
    """Python's client and the one in Rust have the same options."""
    venv = tool.venv(home)
    program = "vllm-rs" if tool.name == "vllm-rs" else "bin/vllm"
    return [
        f"{venv}/{program}", "bench", "serve", "--backend", "openai-chat", "--base-url",
        f"http://127.0.0.1:{port}", "--endpoint", "/v1/chat/completions", "--model", MODEL,
        "--tokenizer", tokenizer(venv), "--dataset-name", "random", "--random-input-len", "50",
        "--random-output-len", str(chunks), "--num-prompts", str(round(rate * SECONDS)),
        "--request-rate", str(rate), "--ready-check-timeout-sec", "0", "--disable-tqdm",
        "--save-result", "--result-dir", str(out), "--result-filename", "result.json",
    ]  # fmt: skip


CALLS: Final[dict[str, Call]] = {
    "vllm": call_vllm,
    "vllm-rs": call_vllm,
    "locust-llm": call_ours,
}


@dataclass(frozen=True)
class Measured:
    """Holds one run. Times are in ms."""

    requests: int
    cpu_s: float
    """The tool computed this long between the first arrival and the last chunk."""
    mean_off_ms: float
    """The mean TTFT that the tool reports less the true mean."""
    p99_off_ms: float
    true_p99_ms: float
    loaded_s: float


class CpuWatch:
    """Notes the CPU time of all processes below this one, with the moment, until it is stopped."""

    def __init__(self, ours: set[int]) -> None:
        self.ours = ours
        self.noted: list[tuple[float, float]] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._note, daemon=True)
        self.thread.start()

    def _note(self) -> None:
        while not self.stopped.wait(LOOK_EACH_S):
            used = 0.0
            for process in its_own(self.ours):
                try:
                    times = process.cpu_times()
                except psutil.Error:
                    continue
                used += times.user + times.system
            self.noted.append((time.monotonic(), used))

    def measure_between(self, first_s: float, last_s: float) -> float:
        """Returns the CPU seconds between two moments of the monotonic clock."""
        moments, used = np.array(self.noted).T
        at_first, at_last = np.interp([first_s, last_s], moments, used)
        return float(at_last - at_first)


def measure(program: Program, tool: Tool, home: Path, rate: float, chunks: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "out"
        out.mkdir()
        with server(program, folder, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=chunks) as sent:
            ours = {child.pid for child in psutil.Process().children()}
            command = CALLS[tool.name](tool, home, sent.port, rate, chunks, out)
            watch = CpuWatch(ours)
            with (folder / "log").open("wb") as log:
                subprocess.run(
                    command, cwd=folder, env=tool.environment(home), stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=True,
                )  # fmt: skip
            watch.stopped.set()
            watch.thread.join()
        return compare(tool, out, sent, chunks, watch)


def compare(tool: Tool, out: Path, sent: Sent, chunks: int, watch: CpuWatch) -> Measured:
    figures = read_figures(tool.result(out))[0]
    whole = [times for times in sent.times.values() if len(times) == chunks + 1]
    ttft_ms = np.array([times[1] - times[0] for times in whole]) * 1e3
    first_s = min(float(times[0]) for times in whole)
    last_s = max(float(times[-1]) for times in whole)
    reported_mean = figures.ttft.avg
    reported_p99 = figures.ttft.percentiles.get(99)
    if reported_mean is None or reported_p99 is None:
        raise ValueError(f"{tool.name} reports no mean or no p99 of TTFT")
    return Measured(
        requests=len(whole),
        cpu_s=watch.measure_between(first_s, last_s),
        mean_off_ms=reported_mean * 1e3 - float(ttft_ms.mean()),
        p99_off_ms=reported_p99 * 1e3 - float(np.percentile(ttft_ms, 99)),
        true_p99_ms=float(np.percentile(ttft_ms, 99)),
        loaded_s=last_s - first_s,
    )


# -- the command -----------------------------------------------------------------------------------

HEAD: Final = (
    "tool", "requests/s", "chunks/s", "loop busy, predicted", "CPU of the tool, cores",
    "mean TTFT: reported - true, ms", "predicted, ms", "p99: reported - true (true), ms",
)  # fmt: skip


def measure_tool(program: Program, tool: Tool, home: Path, rates: list[float]) -> list[list[str]]:
    short = measure(program, tool, home, COST_RATE, CHUNKS)
    long = measure(program, tool, home, COST_RATE, LONG_CHUNKS)
    costs = solve_costs(
        short.cpu_s / short.requests, CHUNKS, long.cpu_s / long.requests, LONG_CHUNKS
    )
    print(
        f"{tool.name} {tool.version(home)}: a request costs {costs.request_s * 1e3:.2f} ms of CPU, "
        f"a chunk {costs.chunk_s * 1e6:.0f} µs",
        flush=True,
    )
    without_waits_ms = short.mean_off_ms - predict_mean_wait_s(costs, COST_RATE, CHUNKS) * 1e3
    rows = []
    for rate in rates:
        done = short if rate == COST_RATE else measure(program, tool, home, rate, CHUNKS)
        wait_ms = predict_mean_wait_s(costs, rate, CHUNKS) * 1e3
        rows.append(
            [
                tool.name, f"{rate:g}", f"{done.requests * CHUNKS / done.loaded_s:,.0f}",
                f"{predict_busy_share(costs, rate, CHUNKS):.0%}",
                f"{done.cpu_s / done.loaded_s:.2f}", f"{done.mean_off_ms:+.2f}",
                f"{without_waits_ms + wait_ms:+.2f}", f"{done.p99_off_ms:+.2f} ({done.true_p99_ms:.1f})",
            ]
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="50,100,200,300,400,500", help="requests per second")
    parser.add_argument("--tools", default=",".join(CALLS))
    parser.add_argument("--home", type=Path, default=Path(".peers"), help="venvs of the tools")
    options = parser.parse_args()
    home = options.home.absolute()
    rates = [float(rate) for rate in options.rates.split(",")]
    print(machine(), os.getloadavg()[0], flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            raise SystemExit("no C compiler (cc): nothing is measured")
        for word in options.tools.split(","):
            tool = TOOLS[word]
            refused = install(tool, home)
            if refused:
                print(f"{tool.name}: not installed: {refused}", flush=True)
                continue
            try:
                rows += measure_tool(program, tool, home, rates)
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                print(f"{tool.name}: stopped: {error}", flush=True)
    print(tabulate(rows, headers=HEAD, disable_numparse=True, tablefmt="github"))


if __name__ == "__main__":
    main()
