"""How one process of the load generator is: how late its event loop runs, and how much of a core it takes."""

import time
from collections.abc import Callable
from typing import Final

import gevent

from .run import Health

STEP_S: Final = 0.05


class Watch:
    """Started with the run; ``stop`` gives what it saw. Its greenlet costs twenty wake-ups a second."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._began, self._cpu_began = clock(), cpu_clock()
        self._lags_s: list[float] = []
        self._greenlet = gevent.spawn(self._look)

    def _look(self) -> None:
        due = self._clock() + STEP_S
        while True:
            gevent.sleep(STEP_S)
            now = self._clock()
            self._lags_s.append(now - due)
            due = now + STEP_S

    def stop(self, worker: str) -> Health:
        self._greenlet.kill(block=False)
        elapsed_s = max(1e-9, self._clock() - self._began)
        lags_s = sorted(self._lags_s) or [0.0]
        return Health(
            worker=worker,
            cpu_share=(self._cpu_clock() - self._cpu_began) / elapsed_s,
            loop_lag_p99_ms=max(0.0, lags_s[int(0.99 * (len(lags_s) - 1))]) * 1000,
        )
