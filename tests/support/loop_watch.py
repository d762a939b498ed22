"""Loop watch: measures how long the event loop ignores its timers and sockets."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent

HELD_S = 0.05
"""The loop may be blocked for at most this processor time. Time of other programs does not
count."""


@contextmanager
def loop_watched() -> Iterator[list[float]]:
    """Yields the processor times between two looks at its timers, in seconds. Objects of earlier
    tests are frozen, as garbage collection would take longer than the watched code."""
    held = list[float]()

    def tick() -> None:
        before = time.thread_time()
        while True:
            gevent.sleep(0.001)
            now = time.thread_time()
            held.append(now - before)
            before = now

    gc.collect()
    gc.freeze()
    ticking = gevent.spawn(tick)
    gevent.sleep(0.01)
    held.clear()
    try:
        yield held
        gevent.sleep(0.002)
    finally:
        ticking.kill()
        gc.unfreeze()
