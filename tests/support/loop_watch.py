"""Loop watch: measures how long the event loop ignores its timers and sockets, and how long
something takes, without the time of other programs."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gevent

HELD_S = 0.05
"""The loop may be blocked for at most this processor time. Time of other programs does not
count."""


class OwnTime:
    """Is a stopwatch that leaves out the seconds in which threads of this process waited for a
    processor, so a busy machine makes nothing longer."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited_s = _list_waits_s()

    @property
    def seconds(self) -> float:
        waited_s = [
            wait_s - self._waited_s.get(thread, 0.0) for thread, wait_s in _list_waits_s().items()
        ]
        return time.monotonic() - self._began - sum(waited_s)


def _list_waits_s() -> dict[str, float]:
    """How long each thread has waited for a processor so far, by its number."""
    waits_s = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has just ended
            waits_s[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return waits_s


@contextmanager
def garbage_frozen() -> Iterator[None]:
    """Freezes the objects of earlier tests: to look through them as garbage would take longer than
    what is measured."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def loop_watched() -> Iterator[list[float]]:
    """Yields the processor times between two looks at its timers, in seconds."""
    held = list[float]()

    def tick() -> None:
        before = time.thread_time()
        while True:
            gevent.sleep(0.001)
            now = time.thread_time()
            held.append(now - before)
            before = now

    with garbage_frozen():
        ticking = gevent.spawn(tick)
        gevent.sleep(0.01)
        held.clear()
        try:
            yield held
            gevent.sleep(0.002)
        finally:
            ticking.kill()
