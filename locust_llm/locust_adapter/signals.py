"""Signals that end a run (SIGINT, SIGTERM, SIGHUP): the first ends it in order, each further one
hurries; where there is no run yet, the process ends at once."""

import math
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import gevent

from locust_llm.exit_status import ENDING_SIGNALS, signal_exit_status

AT_ONCE_S: Final = 0.5
EXIT_S: Final = 10.0
"""For so long a second signal does not interrupt the end of a process that has no run."""


_came = 0
"""The signal that came before ``listen``."""
_came_at = -math.inf
_listening = False


def end_at_once() -> None:
    """Until ``listen``: with the shell's status of a process that was ended by a signal, and
    without a traceback. What is ignored stays ignored (nohup; SIGINT of a background job)."""
    for number in () if _listening else ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    global _came, _came_at
    if time.monotonic() - _came_at < EXIT_S:
        return  # the process ends: what interrupts that leaves a traceback, or workers behind
    _came = number
    _came_at = time.monotonic()
    raise SystemExit(signal_exit_status(number))


def listen_for_signals(end: Callable[[int], object], hurry: Callable[[], object]) -> None:
    """From here on the first signal calls ``end`` with its number, each further one ``hurry``, in
    greenlets of their own. Two at once are one: a terminal sends it to all its processes, and some
    of those pass it on.

    Python's own handler raises KeyboardInterrupt wherever the process happens to be; a second one,
    in the middle of the drain, would leave a run without its last records and without a report.
    Raises SystemExit for a signal that came before and was lost: what is raised in a callback of a
    fork, or in a destructor, goes nowhere.
    """
    global _listening
    _listening = True
    if _came:
        raise SystemExit(signal_exit_status(_came))
    last_at = -math.inf

    def interrupted(number: int) -> None:
        nonlocal last_at
        before = last_at
        last_at = time.monotonic()
        if before == -math.inf:
            gevent.spawn(end, number)
        elif last_at - before > AT_ONCE_S:
            gevent.spawn(hurry)

    loop = gevent.get_hub().loop
    for number in ENDING_SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN:
            continue
        # Locust adds a watcher of its own for SIGTERM later, which would run beside this one. The
        # event loop takes a signal from the kernel with its first watcher only: that is this one,
        # and then the signal is taken from the loop
        gevent.signal_handler(number, _nothing)
        signal.signal(
            number, lambda number, frame: loop.run_callback_threadsafe(interrupted, number)
        )


def _nothing() -> None: ...


def interrupt_main() -> None:
    """The main greenlet is interrupted, as by Python's own Ctrl-C: Locust ends in order then."""
    gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


def leave_process(status: int) -> None:
    """The main greenlet ends the process: there is no run."""
    gevent.get_hub().handle_system_error(SystemExit, SystemExit(status))
