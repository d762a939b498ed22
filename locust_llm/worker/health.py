"""Health of one process of the load generator: lag of its event loop, CPU share, and its wait for a
core."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import gevent

from locust_llm.records.run import ProcessHealth

STEP_S: Final = 0.05
"""Between two looks at the lag of the event loop."""
THREADS: Final = Path("/proc/self/task")
"""A folder for each thread of this process."""


def read_cpu_waits_s(threads: Path = THREADS) -> dict[str, float]:
    """For how many seconds each living thread of this process has been ready to run without a core
    to run on, so far.

    Linux counts it in nanoseconds, the second number of ``schedstat``
    (Documentation/scheduler/sched-stats.rst). A file a thread: that of the process itself is about
    its first thread alone. Empty where the kernel keeps no such count.
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


class HealthMonitor:
    """Started with the run; ``stop`` returns the health. Its greenlet costs twenty wake-ups a
    second."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        cpu_waits_s: Callable[[], dict[str, float]] = read_cpu_waits_s,
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        self._clock, self._cpu_clock, self._cpu_waits_s, self._sleep = (
            clock,
            cpu_clock,
            cpu_waits_s,
            sleep,
        )
        self._began = clock()
        self._cpu_began = cpu_clock()
        self._waits_began_s = cpu_waits_s()
        self._lags_s: list[float] = []
        # not guarded: without it the lags are of less time, no more
        self._greenlet = gevent.spawn(self._look)

    def _look(self) -> None:
        due = self._clock() + STEP_S
        while True:
            self._sleep(STEP_S)
            now = self._clock()
            self._lags_s.append(now - due)
            due = now + STEP_S

    def stop(self, worker: str, stage: int = 0) -> ProcessHealth:
        self._greenlet.kill(block=False)
        return self.so_far(worker, stage)

    def so_far(self, worker: str, stage: int = 0, lags: int = 0) -> ProcessHealth:
        """``lags``: only so many, the last ones; 0: all. To sort those of hours would make the loop
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
            cpu_wait_share=max(waits_s) / elapsed_s if waits_s else None,
        )
