"""Ctrl-C: once it ends a run in order, as Locust has it; twice it cuts what is still open, and still reports."""

import signal
from collections.abc import Callable

import gevent


def listen(hurry: Callable[[], object]) -> None:
    """From here on the first SIGINT ends the run, each further one calls ``hurry``, in a greenlet of its own.

    Python's own handler raises KeyboardInterrupt wherever the process happens to be; a second one, in the middle of the
    drain, would leave a run without its last records and without a report.
    """
    pressed = False

    def interrupted() -> None:
        nonlocal pressed
        if pressed:
            hurry()
            return
        pressed = True
        gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())  # throws it into the main greenlet

    gevent.signal_handler(signal.SIGINT, interrupted)


def ignore() -> None:
    """A worker of ``--processes`` gets the terminal's Ctrl-C too: it leaves it to the master, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
