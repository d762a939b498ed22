"""Guarded: a greenlet without which a run would have no end; when it fails, the run does."""

from collections.abc import Callable
from typing import Any

import gevent


def guarded(fails: Callable[[str], object], after_s: float, run: Callable[..., object], *args: Any) -> gevent.Greenlet:
    """Begins in ``after_s``. ``fails(why)`` is called when an exception ends it; to be killed is no failure."""
    greenlet = gevent.spawn_later(after_s, run, *args) if after_s else gevent.spawn(run, *args)
    greenlet.link_exception(lambda dead: fails(f"{type(dead.exception).__name__}: {dead.exception}"))
    return greenlet
