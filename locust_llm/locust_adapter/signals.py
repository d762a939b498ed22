"""Signals: SIGINT, SIGTERM and SIGHUP end a run. The first ends it in order, each further one
hurries. Without a run the process ends at once, and after a run's report nothing heeds them."""

import math
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import gevent

from locust_llm.exit_status import ENDING_SIGNALS, report_early_end, signal_exit_status

AT_ONCE_S: Final = 0.5
EXIT_S: Final = 10.0
"""A second signal does not interrupt the end of a process without a run for so long."""


_came = 0
"""The signal that came before ``listen_for_signals``."""
_came_at = -math.inf
_listening = False
_process = 0
"""The process that says why it ends. Its forks get the same signal."""


def end_at_once() -> None:
    """Until ``listen_for_signals``, a signal ends the process with the shell's status, one line and
    no traceback. Ignored signals stay ignored (nohup; SIGINT of a background job)."""
    global _process
    _process = os.getpid()
    for number in () if _listening else ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    global _came, _came_at
    if time.monotonic() - _came_at < EXIT_S:
        return  # the process ends: what interrupts that leaves a traceback, or workers behind
    _came = number
    _came_at = time.monotonic()
    if os.getpid() == _process:
        report_early_end(number)
    raise SystemExit(signal_exit_status(number))


def listen_for_signals(end: Callable[[int], object], hurry: Callable[[], object]) -> None:
    """From here on the first signal calls ``end`` with its number and each further one ``hurry``,
    in their own greenlets.

    Two at once are one, as a terminal sends the signal to all its processes and some of them pass
    it on. Python's own handler raises KeyboardInterrupt anywhere. A second one, in the middle of
    the drain, would leave a run without its last records and its report.

    Raises SystemExit for a signal that came before and was lost. An exception in a callback of a
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


def ignore_signals() -> None:
    """From here on to the end of the process, no signal changes its exit status. Python gives up its
    own handlers before it ends, and a signal without one would end the process; an ignored one
    stays ignored."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _nothing() -> None: ...


def interrupt_main() -> None:
    """Interrupt the main greenlet as Python's own Ctrl-C does: Locust then ends in order."""
    gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


def leave_process(status: int) -> None:
    """Let the main greenlet end the process, as there is no run."""
    gevent.get_hub().handle_system_error(SystemExit, SystemExit(status))
