"""Greenlets: one without which a run would have no end; when it fails, the run does.

A plain ``gevent.spawn`` is left where the end itself runs (a signal, the drain, the report, quit):
when that fails, there is no further end to begin. Elsewhere a comment has the reason.
"""

from collections.abc import Callable
from typing import Any

import gevent


def spawn_critical(
    fail: Callable[[str], object],
    after_s: float,
    run: Callable[..., object],
    *args: Any,
    sleep: Callable[[float], object] = gevent.sleep,
) -> gevent.Greenlet:
    """Begins in ``after_s``. ``fail(why)`` is called when an exception ends it; to be killed is no
    failure."""

    def later() -> None:
        if after_s:
            sleep(after_s)
        run(*args)

    greenlet = gevent.spawn(later)
    greenlet.link_exception(lambda dead: fail(f"{type(dead.exception).__name__}: {dead.exception}"))
    return greenlet
