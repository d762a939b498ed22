"""What the load generator says against what was true, and what it costs: ``make bench``. Prints tables, asserts nothing.

A small C server (truth_server.c) sends tokens at set times and writes down when. The CPU time is that of the whole Locust
process, its start and its report included, less that of an idle run; the machine's other load is in every figure.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tabulate import tabulate

from locust_llm.jsonl import parse_line
from locust_llm.record import Record

HERE = Path(__file__).parent
CHAT = HERE.parent.parent / "locustfiles" / "chat.py"
TTFT_MS, GAP_MS, TOKENS = 200, 20, 128


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def build(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("make bench needs a C compiler (cc): its server must be cheaper than the load generator")
    program = folder / "truth_server"
    subprocess.run([compiler, "-O2", "-o", str(program), str(HERE / "truth_server.c")], check=True)
    return program


@contextmanager
def server(program: Path, folder: Path, ttft_us: int, gap_us: int, tokens: int) -> Iterator[tuple[int, Path]]:
    port, truth = free_port(), folder / "truth.txt"
    process = subprocess.Popen(
        [str(program), str(port), str(ttft_us), str(gap_us), str(tokens), str(truth)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield port, truth
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def load(port: int, folder: Path, users: int, seconds: int) -> tuple[float, int]:
    """Run Locust; (CPU seconds, peak memory in kB) of its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locust", "-f", str(CHAT), "--headless", "--host", f"127.0.0.1:{port}", "-u", str(users),
         "-t", f"{seconds}s", "--no-probe", "--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(TOKENS),
         "--report-dir", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    cpu_s, memory_kb = 0.0, 0
    while process.poll() is None:  # its own, without the reporter that it starts at the end
        try:
            words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            cpu_s = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            memory_kb = max(memory_kb, int(words[21]) * os.sysconf("SC_PAGE_SIZE") // 1024)
        except (OSError, IndexError):
            break
        time.sleep(0.1)
    if process.wait():
        assert process.stderr is not None
        sys.exit(process.stderr.read())
    return cpu_s, memory_kb


def records(folder: Path) -> list[Record]:
    return [parse_line(line) for line in (folder / "profile_export.jsonl").read_bytes().splitlines()]


def true_times(path: Path) -> dict[str, np.ndarray]:
    """By request id: arrival and sends, in seconds."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: np.array(row[1:], dtype=np.int64) / 1e9 for row in rows}


def pair(said: Sequence[float] | np.ndarray, true: Sequence[float] | np.ndarray, q: float) -> str:
    return f"{np.percentile(said, q) * 1e3:.2f} / {np.percentile(true, q) * 1e3:.2f}"


def streams(program: Path, users: int, seconds: int, idle_s: float) -> list[object]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(program, folder, TTFT_MS * 1000, GAP_MS * 1000, TOKENS) as (port, truth):
            cpu_s, memory_kb = load(port, folder / "r", users, seconds)
        true = true_times(truth)
        got = [record for record in records(folder / "r") if record.outcome == "ok"]
        said_ttft = [record.chunk_us[0] / 1e6 for record in got]
        true_ttft = [true[record.id][1] - true[record.id][0] for record in got]
        said_gaps = np.concatenate([record.sharp_gaps_us for record in got]) / 1e6
        true_gaps = np.concatenate([np.diff(true[record.id][1:]) for record in got])
        # each chunk's own error: when it was said to have come, less when it was sent
        late = np.concatenate(
            [record.sent_at + np.array(record.chunk_us) / 1e6 - true[record.id][1:] for record in got]
        )
        chunks = sum(len(record.chunk_us) for record in got)
        merged = sum(record.shared for record in got)
        verdict = json.loads((folder / "r" / "run.json").read_text())["conditions"]["client_verdict"]
        lag = np.percentile([record.read_lag_us for record in got], 99) / 1e3
    return [
        users, f"{chunks / seconds:,.0f}", pair(said_ttft, true_ttft, 50), pair(said_ttft, true_ttft, 99),
        pair(said_gaps, true_gaps, 50), pair(said_gaps, true_gaps, 99), f"{np.percentile(late, 99) * 1e3:.2f}",
        f"{lag:.1f}", f"{merged / chunks:.2%}", f"{(cpu_s - idle_s) / chunks * 1e6:.1f}", f"{memory_kb / 1024:.0f}", verdict,
    ]  # fmt: skip


def one_chunk_requests(program: Path, users: int, seconds: int, idle_s: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(program, folder, 0, 0, 1) as (port, _):
            cpu_s, _ = load(port, folder / "r", users, seconds)
        count = sum(1 for line in (folder / "r" / "profile_export.jsonl").open("rb") if line)
    return (
        f"{count / seconds:,.0f} requests of one chunk a second from one process with {users} users, "
        f"{(cpu_s - idle_s) / count * 1e6:.0f} µs of CPU a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="50,200,800,1500", help="streams of each row")
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}, "
          f"server and load generator on the same machine; load average before: {os.getloadavg()[0]:.2f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        with server(program, Path(name), TTFT_MS * 1000, GAP_MS * 1000, TOKENS) as (port, _):
            idle_s, _ = load(port, Path(name) / "idle", 1, 5)
        print(f"an idle run costs {idle_s:.2f} s of CPU; it is taken off\n")
        rows = [streams(program, int(users), options.seconds, idle_s) for users in options.users.split(",")]
        print(tabulate(rows, headers=[
            "streams", "tokens/s", "TTFT p50 said / true ms", "TTFT p99", "gap p50", "gap p99", "chunk error p99 ms",
            "read lag p99 ms", "merged", "CPU µs/chunk", "memory MB", "verdict",
        ], disable_numparse=True))  # fmt: skip
        print("\n" + one_chunk_requests(program, 50, options.seconds // 2, idle_s))


if __name__ == "__main__":
    main()
