"""The workers that ``--processes`` has forked: a master waits neither for dead ones nor for those
that will not end."""

import atexit
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import gevent
import psutil

from locust_llm.wire.greenlets import spawn_critical

logger = logging.getLogger("locust_llm")

LOOK_S: Final = 0.5
"""Between two checks whether they live."""
END_S: Final = 8.0
"""Longest wait for their end at the end of their master; then they are killed."""


def attend_children(runner: Any, give_up: Callable[[], object]) -> None:
    """Of this process. ``give_up()``: all have ended before any of them was there."""
    children = psutil.Process().children()
    spawn_critical(lambda why: give_up(), 0.0, _await, runner, children, give_up)
    # before Locust's own, which waits for them without an end
    atexit.register(end_children, children)


def _await(runner: Any, children: Iterable[psutil.Process], give_up: Callable[[], object]) -> None:
    while not len(runner.clients):
        if not any(map(_lives, children)):
            logger.error("All worker processes ended before they had connected")
            give_up()
            return
        gevent.sleep(LOOK_S)


def end_children(
    children: Iterable[psutil.Process], sleep: Callable[[float], object] = time.sleep
) -> None:
    """They are asked to end, then killed. Locust gathers their exit statuses after that."""
    until = time.monotonic() + END_S
    asked = False
    while any(map(_lives, children)) and time.monotonic() < until:
        if not asked and until - time.monotonic() < END_S / 2:
            _signal(children, signal.SIGTERM)
            asked = True
        sleep(0.05)
    _signal(children, signal.SIGKILL)


def _signal(children: Iterable[psutil.Process], number: int) -> None:
    for child in children:
        with suppress(OSError):
            if _lives(child):
                os.kill(child.pid, number)


def _lives(child: psutil.Process) -> bool:
    try:
        return bool(child.is_running() and child.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
