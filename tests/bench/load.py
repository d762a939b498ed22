"""Load: runs Locust as observed processes, with their CPU and memory over time, and their
records."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record

HERE = Path(__file__).parent
CHAT = HERE.parent.parent / "locustfiles" / "chat.py"
ONCE = HERE / "once.py"
LOOK_EACH_S = 0.1
COUNT_FILES_EACH = 50
"""Files are counted at every so many looks, since listing 10,000 descriptors takes 10 ms."""


@dataclass
class Seen:
    """Observes one process every LOOK_EACH_S. ``at`` is CLOCK_MONOTONIC, the clock of all
    stamps."""

    process: psutil.Process
    at: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory_kb: list[int] = field(default_factory=list)
    highest_file: int = 0

    def look(self) -> None:
        """Records nothing when the process is gone."""
        try:
            with self.process.oneshot():
                times = self.process.cpu_times()
                memory = self.process.memory_info()
            if len(self.at) % COUNT_FILES_EACH == COUNT_FILES_EACH - 1:
                files = os.listdir(f"/proc/{self.process.pid}/fd")
                self.highest_file = max(self.highest_file, 0, *map(int, files))
        except (psutil.Error, OSError):
            return
        if memory.rss:  # a zombie has none, and its times are those of its children too
            self.at.append(time.monotonic())
            self.cpu_s.append(times.user + times.system)
            self.memory_kb.append(memory.rss // 1024)

    def cpu_between(self, start: float, stop: float) -> float:
        """Returns the CPU seconds between two moments."""
        begin, end = np.interp([start, stop], self.at, self.cpu_s)
        return float(end - begin)


@dataclass
class Load:
    """Holds a finished run: the process that was started first (the only one, or the master), then
    its workers."""

    folder: Path
    processes: list[Seen]
    said: str
    """The console has these lines about the client verdict."""

    @property
    def senders(self) -> list[Seen]:
        return self.processes[1:] or self.processes

    @property
    def cpu_s(self) -> float:
        """Returns the CPU time of the sending processes, including start and end."""
        return sum(sender.cpu_s[-1] for sender in self.senders)

    @property
    def memory_kb(self) -> int:
        """Returns the sum of the peaks of all sending processes, which bounds their common peak."""
        return sum(max(sender.memory_kb) for sender in self.senders)

    def records(self) -> list[Record]:
        return [
            parse_record_line(line)
            for line in (self.folder / "profile_export.jsonl").read_bytes().splitlines()
        ]

    def verdict(self) -> tuple[str | None, str]:
        """Returns the level with its reasons as on the console, or None if the report failed."""
        conditions = json.loads((self.folder / "run.json").read_bytes()).get("conditions", {})
        return conditions.get("client_verdict"), self.said


def load(
    port: int, folder: Path, options: Sequence[str], *,
    processes: int = 1, certificate: Path | None = None, locustfile: Path = CHAT,
) -> Load:  # fmt: skip
    """Runs Locust to its end. ``certificate`` turns TLS on, and is trusted."""
    folder.mkdir()
    scheme = "http"
    environment = dict(os.environ)
    if certificate is not None:
        scheme = "https"
        environment["REQUESTS_CA_BUNDLE"] = str(certificate)
    command = [
        sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--host",
        f"{scheme}://127.0.0.1:{port}",
        "--no-probe", "--synthetic-input-tokens-mean", "50", "--report-dir", str(folder / "run"),
        "--selftest", "off",
        "--verbose", *options,
    ]  # fmt: skip
    if processes > 1:
        command += ["--processes", str(processes)]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        seen = [Seen(psutil.Process(process.pid))]
        while process.poll() is None:
            if processes > 1 and len(seen) == 1:
                workers = seen[0].process.children()
                seen += map(Seen, workers if len(workers) == processes else ())
            for each in seen:
                each.look()
            time.sleep(LOOK_EACH_S)
    if process.returncode:
        sys.exit(f"Locust ended with status {process.returncode}:\n{log.read_text()}")
    return Load(folder / "run", seen, verdict_lines(log.read_text()))


def verdict_lines(console: str) -> str:
    """Returns the text after ``client verdict`` with the indented lines after it, as one line."""
    found = re.search(r"^client verdict +(.*(?:\n +.*)*)", console, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""
