"""Critical greenlets: those without which a run would have no end. When one fails,
the run fails.

A plain ``gevent.spawn`` remains where the end itself runs (a signal, the drain, the report, quit).
If it fails there, no further end can begin. Elsewhere a comment has the reason.
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
    """Start ``run`` in ``after_s`` seconds. ``fail(why)`` is called when an exception ends it. A
    kill is no failure."""

    def later() -> None:
        if after_s:
            sleep(after_s)
        run(*args)

    greenlet = gevent.spawn(later)
    greenlet.link_exception(lambda dead: fail(f"{type(dead.exception).__name__}: {dead.exception}"))
    return greenlet
