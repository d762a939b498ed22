"""Forked workers: the workers of ``--processes``. A master waits neither for dead workers nor for
workers that will not end."""

import atexit
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from locust.runners import STATE_INIT

import gevent
import psutil

from locust_llm.exit_status import ExitStatus, end_with_parent
from locust_llm.wire.critical_greenlets import spawn_critical

logger = logging.getLogger("locust_llm")

LOOK_S: Final = 0.5
"""The interval between two checks whether they live."""
END_S: Final = 8.0
"""The longest wait for their end at the end of their master. Then they are killed."""


_awaits_forks = False
"""The processes that are forked from now on are workers."""


def tie_forks_to_this_process() -> None:
    """Forked workers end with this process, however it ends, until it watches them.

    A worker without a master would try to reach it for minutes. This works on Linux; on other
    systems workers wait that long.
    """
    global _awaits_forks
    if _awaits_forks or not hasattr(ctypes.CDLL(None), "prctl"):
        return
    _awaits_forks = True
    master = os.getpid()
    os.register_at_fork(after_in_child=lambda: _tie_to(master))


def _tie_to(master: int) -> None:
    """Tie this forked process to its master."""
    global _awaits_forks
    if not _awaits_forks:
        return
    _awaits_forks = False  # what it forks itself is no worker
    end_with_parent(signal.SIGKILL)
    if os.getppid() != master:  # it has ended in between
        os._exit(ExitStatus.BROKEN)


def outlive_master() -> None:
    """This worker is connected: it ends in order when its master is lost."""
    end_with_parent(0)


def attend_children(
    runner: Any, forked: int, give_up: Callable[[], object], *, needs_all: bool
) -> gevent.Greenlet:
    """Watch the ``forked`` workers of this process. Returns the watching greenlet.

    ``give_up()``: the run cannot begin, as too many have ended. ``needs_all``: Locust begins it
    when all of them are there, else when a user asks for it.
    """
    global _awaits_forks
    _awaits_forks = False
    children = psutil.Process().children()
    looking = spawn_critical(
        lambda why: give_up(), 0.0, _await, runner, children, forked, give_up, needs_all
    )
    # before Locust's own, which waits for them without an end
    atexit.register(end_children, children)
    return looking


def _await(
    runner: Any,
    children: Sequence[psutil.Process],
    forked: int,
    give_up: Callable[[], object],
    needs_all: bool,
) -> None:
    # gevent reaps a worker that has ended, so one that ended early is no child any more
    forked = max(forked, len(children))
    while runner.state == STATE_INIT if needs_all else not len(runner.clients):
        ended = forked - sum(map(_lives, children))
        if ended == forked or (needs_all and ended):
            before = "the run began" if needs_all else "any of them had connected"
            logger.error(f"{ended} of {forked} worker processes ended before {before}")
            give_up()
            return
        gevent.sleep(LOOK_S)


def end_children(
    children: Iterable[psutil.Process], sleep: Callable[[float], object] = time.sleep
) -> None:
    """Ask them to end, then kill them. Locust collects their exit statuses after that."""
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
