"""Process cost: CPU seconds and memory of the gateway's process and its children, from /proc."""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from locust_llm.server.process_tree import PROC, list_process_tree, read_process_stat

ENGINES: Final = ("docker", "podman")
ASK_S: Final = 10.0
KIB: Final = 1024
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""The kernel counts CPU in these."""
MIN_TICKS: Final = 10
"""Of fewer ticks, one more or less would change the figure by over a tenth."""
COUNTERS: Final = 2
"""A process has its user and its system time, each without the tick that has begun."""


class ProcessUse(NamedTuple):
    """What a process and its descendants have used so far, and hold now."""

    cpu_s: float
    memory_mb: float
    """Each shared page counts once (PSS) where the kernel reports that."""
    processes: int = 1


class UseOfBlocks:
    """What a process used in several blocks of time."""

    def __init__(self) -> None:
        self.cpu_s: float | None = 0.0
        """None: it is unknown of one block."""
        self._unseen_ticks = 0
        """At most so many more than were counted: in each block one of each counter."""
        self.memory_mb: float | None = None
        """The most at the end of a block. None: it is unknown."""

    def add(self, before: ProcessUse | None, after: ProcessUse | None) -> None:
        """Adds one block, from what was used at its begin and at its end."""
        if before is None or after is None or self.cpu_s is None:
            self.cpu_s = None
        else:
            self.cpu_s += after.cpu_s - before.cpu_s
            self._unseen_ticks += COUNTERS * after.processes
        if after is not None:
            self.memory_mb = max(self.memory_mb or 0.0, after.memory_mb)

    @property
    def most_cpu_s(self) -> float | None:
        """The most that it may have used, where the kernel counted too few ticks for a figure.
        None: it did not, or nothing is known."""
        if self.cpu_s is None or round(self.cpu_s * TICKS_PER_S) >= MIN_TICKS:
            return None
        return self.cpu_s + self._unseen_ticks / TICKS_PER_S


def read_process_use(
    pid: int, proc: Path = PROC, ticks_per_s: float = TICKS_PER_S
) -> ProcessUse | None:
    """None: there is no such process, or this user may not look at it."""
    cpu_s = 0.0
    memory_mb = 0.0
    processes = 0
    for each in list_process_tree(pid, proc):
        with suppress(OSError, ValueError, IndexError):
            fields = read_process_stat(proc / str(each))
            cpu_s += (int(fields[11]) + int(fields[12])) / ticks_per_s
            memory_mb += _read_memory_mb(proc / str(each))
            processes += 1
    return ProcessUse(cpu_s, memory_mb, processes) if processes else None


def _read_memory_mb(folder: Path) -> float:
    with suppress(OSError):
        return _find_kib(folder / "smaps_rollup", "Pss:") / KIB
    return _find_kib(folder / "status", "VmRSS:") / KIB


def _find_kib(path: Path, name: str) -> int:
    """Raises OSError, also where the line is missing."""
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise OSError(f"no {name} in {path}")


def find_container_pid(
    name: str, run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run
) -> int:
    """The process of a container's begin, asked of Docker or Podman. Raises ValueError with a
    sentence."""
    for engine in ENGINES:
        command = [engine, "inspect", "--format", "{{.State.Pid}}", name]
        with suppress(OSError, subprocess.TimeoutExpired, ValueError):
            asked = run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
            if asked.returncode == 0 and int(asked.stdout) > 0:
                return int(asked.stdout)
    raise ValueError(
        f"--container {name}: neither {' nor '.join(ENGINES)} reports a running container of this "
        f"name; give its process with --pid"
    )
