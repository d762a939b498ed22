"""Health of a process of the load generator: the lag of its event loop, its CPU share, its wait for
a core, the server under test and other busy programs on its machine."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import gevent
import psutil
from msgspec.structs import replace

from locust_llm.client.proxy_choice import is_loopback
from locust_llm.records.run_facts import ProcessHealth

STEP_S: Final = 0.05
"""The interval of the event loop's lag measurements."""
STANDSTILL_S: Final = 1.0
"""A lag from which on it is kept with its time."""
MOST_STANDSTILLS: Final = 20
PROC: Final = Path("/proc")
MOST_PROGRAMS: Final = 3
LEAST_CORES: Final = 0.05
"""The least average cores of a program that is named."""
MOST_ANCESTORS: Final = 64
THREADS: Final = Path("/proc/self/task")
"""The folder has a folder for each thread of this process."""


def read_cpu_waits_s(threads: Path = THREADS) -> dict[str, float]:
    """The seconds for which each living thread of this process was ready to run without a core, so
    far.

    Linux counts nanoseconds in the second number of ``schedstat``
    (Documentation/scheduler/sched-stats.rst). There is a file for each thread; the process's file
    describes its first thread alone. Empty where the kernel keeps no such count.
    """
    waits_s = {}
    for file in threads.glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = map(int, file.read_text().split())
        except (OSError, ValueError):  # the thread has ended
            continue
        if ran_ns:  # zero where the kernel does not count
            waits_s[file.parent.name] = waited_ns / 1e9
    return waits_s


# -- other programs --------------------------------------------------------------------------------


class ProgramUse(NamedTuple):
    """One process of this machine."""

    name: str
    parent: int
    cpu_s: float
    """The CPU seconds so far."""


def read_programs(proc: Path = PROC) -> dict[int, ProgramUse]:
    """All visible processes by their number (proc(5), ``stat``). Empty where there is no such
    folder."""
    ticks = os.sysconf("SC_CLK_TCK")
    programs = dict[int, ProgramUse]()
    for file in proc.glob("[0-9]*/stat"):
        try:
            before, _, after = file.read_text(errors="replace").rpartition(")")
            fields = after.split()
            cpu_s = (int(fields[11]) + int(fields[12])) / ticks
            name = before.partition("(")[2]
            programs[int(file.parent.name)] = ProgramUse(name, int(fields[1]), cpu_s)
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return programs


def read_core_seconds() -> tuple[float, float]:
    """(idle seconds of all cores of this machine, all their seconds) since it started."""
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # guest time is in user and nice too
    every_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return idle_s, every_s


def find_server_processes(hosts: Iterable[str]) -> set[int]:
    """Return the processes of this machine that listen on the port of a host that is this machine
    itself. The result is empty where the system does not show whose ports these are."""
    ports = set[int]()
    for host in hosts:
        parts = urlsplit(host)
        if is_loopback(parts.hostname or ""):
            ports.add(parts.port or (443 if parts.scheme == "https" else 80))
    if not ports:
        return set()
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return set()
    return {
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.pid is not None
        and connection.laddr.port in ports
    }


def measure_server_cores(
    before: Mapping[int, ProgramUse],
    now: Mapping[int, ProgramUse],
    servers: Collection[int],
    seconds: float,
) -> float | None:
    """Return how many cores the processes ``servers`` and all that they started used since
    ``before``, on average; None: there are none."""
    if not servers:
        return None
    spent_s = sum(
        _cpu_s_since(before, number, program)
        for number, program in now.items()
        if _descends(number, servers, now)
    )
    return round(spent_s / max(seconds, 1e-9), 2)


def find_other_programs(
    before: Mapping[int, ProgramUse],
    now: Mapping[int, ProgramUse],
    own: int,
    seconds: float,
    servers: Collection[int] = (),
) -> dict[str, float]:
    """The busiest programs beside the load generator and the server under test, with the cores that
    each used since ``before``.

    The load generator is this process and what it started. Under a master of the same name it is
    the master and all that it started.
    """
    root = own
    parent = now[own].parent if own in now else 0
    if parent in now and now[parent].name == now[own].name:
        root = parent
    used = defaultdict[str, float](float)
    for number, program in now.items():
        if not _descends(number, {root, *servers}, now):
            used[program.name] += _cpu_s_since(before, number, program) / max(seconds, 1e-9)
    busiest = sorted(used.items(), key=lambda pair: -pair[1])[:MOST_PROGRAMS]
    return {name: round(cores, 2) for name, cores in busiest if cores >= LEAST_CORES}


def _cpu_s_since(before: Mapping[int, ProgramUse], number: int, program: ProgramUse) -> float:
    earlier = before.get(number)
    return program.cpu_s - (earlier.cpu_s if earlier is not None else 0.0)


def _descends(number: int, roots: Collection[int], programs: Mapping[int, ProgramUse]) -> bool:
    """Whether the process is one of ``roots``, or was started by one, or by one that was."""
    for _ in range(MOST_ANCESTORS):
        if number in roots:
            return True
        if number not in programs:
            return False
        number = programs[number].parent
    return False


class HealthMonitor:
    """Measures from the run's start; ``stop`` returns the health. Its greenlet wakes up twenty
    times a second."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        cpu_waits_s: Callable[[], dict[str, float]] = read_cpu_waits_s,
        sleep: Callable[[float], object] = gevent.sleep,
        programs: Callable[[], dict[int, ProgramUse]] = read_programs,
        servers: Callable[[], Collection[int]] = tuple,
        unix: Callable[[], float] = time.time,
        core_seconds: Callable[[], tuple[float, float]] = read_core_seconds,
    ) -> None:
        self._unix = unix
        self._clock, self._cpu_clock, self._cpu_waits_s, self._sleep = (
            clock,
            cpu_clock,
            cpu_waits_s,
            sleep,
        )
        self._began = clock()
        self._cpu_began = cpu_clock()
        self._waits_began_s = cpu_waits_s()
        self._programs = programs
        self._programs_before = programs()
        self._servers = servers
        self._core_seconds = core_seconds
        self._cores_began_s = core_seconds()
        self._lags_s: list[float] = []
        self._standstills: list[tuple[float, float]] = []
        """(Unix seconds, seconds), the longest first."""
        # not guarded: without it the lags are of less time, no more
        self._greenlet = gevent.spawn(self._look)

    def _look(self) -> None:
        due = self._clock() + STEP_S
        while True:
            self._sleep(STEP_S)
            now = self._clock()
            lag_s = now - due
            self._lags_s.append(lag_s)
            if lag_s >= STANDSTILL_S:
                self._note_standstill(lag_s)
            due = now + STEP_S

    def _note_standstill(self, seconds: float) -> None:
        self._standstills.append((self._unix() - seconds, seconds))
        self._standstills.sort(key=lambda standstill: -standstill[1])
        del self._standstills[MOST_STANDSTILLS:]

    def stop(self, worker: str, stage: int = 0) -> ProcessHealth:
        self._greenlet.kill(block=False)
        elapsed_s = self._clock() - self._began
        before = self._programs_before
        now = self._programs()
        servers = self._servers()
        return replace(
            self.so_far(worker, stage),
            other_programs=find_other_programs(before, now, os.getpid(), elapsed_s, servers),
            server_cores=measure_server_cores(before, now, servers, elapsed_s),
            machine_busy=self._measure_busy_share(),
        )

    def _measure_busy_share(self) -> float | None:
        idle_s, every_s = (
            now_s - began_s
            for now_s, began_s in zip(self._core_seconds(), self._cores_began_s, strict=True)
        )
        return round(1 - max(0.0, idle_s) / every_s, 3) if every_s > 0 else None

    def so_far(self, worker: str, stage: int = 0, lags: int = 0) -> ProcessHealth:
        """``lags``: use only the last ones; 0: all. Sorting the lags of hours would make the loop
        late."""
        elapsed_s = max(1e-9, self._clock() - self._began)
        lags_s = sorted(self._lags_s[-lags:]) or [0.0]
        waits_s = [
            wait_s - self._waits_began_s.get(thread, 0.0)
            for thread, wait_s in self._cpu_waits_s().items()
        ]
        return ProcessHealth(
            worker=worker,
            stage=stage,
            cpu_share=(self._cpu_clock() - self._cpu_began) / elapsed_s,
            loop_lag_p99_ms=max(0.0, lags_s[int(0.99 * (len(lags_s) - 1))]) * 1000,
            standstills=tuple(self._standstills),
            cpu_wait_share=max(waits_s) / elapsed_s if waits_s else None,
        )
