"""A watch on the event loop: how long it did not look at its timers and sockets."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent

HELD_S = 0.05
"""Longest that the loop may be held, of the processor's time: what others use of a busy machine is
not ours."""


@contextmanager
def loop_watched() -> Iterator[list[float]]:
    """What the loop did between two looks at its timers, in seconds of the processor. The objects
    of all tests before are left out of garbage collection: to walk them takes longer than what is
    watched."""
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
