"""Stop and quit: ``runner.stop()`` and ``runner.quit()`` work from any greenlet, as the end of a
run has its own greenlet.

Locust ends a run in the greenlet that asks for it. A user, or a greenlet of the runner (which calls
the locustfile's listeners), would be killed on the way. Its end would come before the drain and the
report were over.
"""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakSet

from locust import User, runners
from locust.env import Environment
from locust.event import EventHook
from locust.exception import StopTest
from locust.runners import (
    STATE_INIT,
    STATE_RUNNING,
    STATE_SPAWNING,
    STATE_STOPPING,
    MasterRunner,
    WorkerRunner,
)

import gevent
from gevent.lock import RLock

logger = logging.getLogger("locust_llm")

AFTER_STOP_S: Final = 1.0
"""The time from the stop of an unattended run to the end of the process, unless another run has
begun."""
_ends_the_run: WeakSet[Callable[[User], object]] = WeakSet()


def detach_end(
    runner: Any,
    *,
    unattended: bool = False,
    leave: Callable[[], None] = lambda: None,
    ends: Callable[[], bool] = lambda: False,
) -> None:
    """Detach the end of the runner from its caller.

    ``unattended``: there is no page from which another run could start. ``leave`` is called first
    where a user of a worker ends it. ``ends`` tells whether the end of the present run was asked
    for.
    """
    ending = _DetachedEnd(runner, unattended, leave, ends)
    runner.stop, runner.quit = ending.stop, ending.quit
    runner.stop_users = ending.stop_users
    # Locust searches the files of all modules for the caller of its stop, for a line of level DEBUG.
    # That would hold the event loop for 60 ms, so it finds no caller.
    runners.inspect = SimpleNamespace(**{**vars(inspect), "stack": list})  # type: ignore[attr-defined, assignment]
    for hook in (runner.environment.events.test_stopping, runner.environment.events.test_stop):
        hook.fire = partial(_fire, hook)
    environment = runner.environment
    for users in {*environment.user_classes, *(environment.available_user_classes or {}).values()}:
        users.on_stop = _ending_the_run(users.on_stop)
    if isinstance(runner, MasterRunner):
        ending.locusts_start, runner.start = runner.start, ending.start  # type: ignore[method-assign]
        ending.locusts_check, runner.check_stopped = runner.check_stopped, ending.check_stopped  # type: ignore[method-assign]


def end_test(environment: Environment) -> None:
    """End the test as Locust does for its own ``StopTest``."""
    runner, options = environment.runner, environment.parsed_options
    assert runner is not None
    if isinstance(runner, WorkerRunner) or options is None or options.headless:
        runner.quit()
    else:
        runner.stop()


def _ending_the_run(on_stop: Callable[[User], object]) -> Callable[[User], object]:
    """The end of a user, which also ends the run where ``StopTest`` has ended the user. Locust ends
    this user only, against its own documentation."""
    if on_stop in _ends_the_run:  # inherited from a class that was changed before
        return on_stop

    @wraps(on_stop)
    def stop(user: User) -> None:
        why = sys.exception()
        try:
            on_stop(user)
        except StopTest as now:
            why = now
        finally:
            if isinstance(why, StopTest):
                logger.error(why)
                end_test(user.environment)

    _ends_the_run.add(stop)
    return stop


def _fire(hook: Any, **kw: Any) -> None:
    """Fire as Locust does. But a ``StopTest`` from a listener, which the end of a run calls, does
    not stop that end."""
    reverse = kw.pop("reverse", False)
    listeners = tuple(reversed(hook._handlers) if reverse else hook._handlers)
    for listener in listeners:
        alone = EventHook()
        alone.add_listener(listener)
        try:
            alone.fire(**kw)
        except StopTest as why:
            logger.error(why)


class _DetachedEnd:
    def __init__(
        self,
        runner: Any,
        unattended: bool,
        leave: Callable[[], None],
        ends: Callable[[], bool],
    ) -> None:
        self._runner, self._unattended, self._leave = runner, unattended, leave
        self._ends = ends
        self._stop, self._quit = runner.stop, runner.quit
        self._stop_users = runner.stop_users
        self.locusts_start: Callable[..., None] = lambda: None
        """Locust's start of a master. A local runner starts in a greenlet that its stop kills."""
        self.locusts_check: Callable[[], None] = lambda: None
        """Locust's look whether the run of a master has stopped."""
        self._starting: gevent.Greenlet | None = None
        """The greenlet in which a run of the master starts: it spreads the users."""
        self._ending: gevent.Greenlet | None = None
        """The greenlet in which the run ends."""
        self._stopping = False
        """The end has reached its first event."""
        self._one_at_a_time = RLock()

    # -- what replaces Locust's own ----------------------------------------------------------------

    def start(self, *args: Any, **kw: Any) -> None:
        """Locust also starts a run that is on, to give the users of a worker that left to others.
        A run that ends would begin again so, and Locust would wait a minute for its users."""
        is_on = self._runner.state in (STATE_SPAWNING, STATE_RUNNING, STATE_STOPPING)
        if is_on and self._ends():
            return
        before = self._starting
        self._starting = gevent.getcurrent()
        try:
            self.locusts_start(*args, **kw)
        except StopTest as why:
            logger.error(why)
            end_test(self._runner.environment)
        finally:
            self._starting = before

    def check_stopped(self) -> None:
        """Set the state if the run has stopped."""
        if not self._waits_for_workers():
            self.locusts_check()

    def stop(self, *args: Any, **kw: Any) -> None:
        if self._waits_for_workers():
            return
        # Locust's quit, which stops first
        if gevent.getcurrent() is self._ending and not self._stopping:
            self._stop_now(*args, **kw)
        else:
            self._detach(self._stop_detached, *args, **kw)

    def quit(self) -> None:
        if not self._waits_for_workers():
            self._detach(self._quit_detached)

    def stop_users(self, counts: dict[str, int]) -> None:
        """Locust takes a user that ended in this turn of the event loop for a fault, as it is still
        in Locust's group."""
        users = self._runner.user_greenlets
        for user in [user for user in users if user.dead]:
            users.discard(user)
        self._stop_users(counts)

    # -- the end -----------------------------------------------------------------------------------

    def _detach(self, end: Callable[..., None], *args: Any, **kw: Any) -> None:
        caller = gevent.getcurrent()
        if isinstance(self._runner, WorkerRunner) and not self._is_user(caller):
            end(*args, **kw)  # the master asks for it, and is answered when it is over
            return
        ending = gevent.spawn(self._run, end, args, kw)
        if not self._would_be_killed(caller):
            ending.get()
            return
        # the end has begun when this returns: Locust looks at the state of the run next
        gevent.sleep(0)
        if caller is self._starting:
            # as the local runner's: users of a run that ends are not dealt out
            raise gevent.GreenletExit

    def _run(self, end: Callable[..., None], args: Any, kw: Any) -> None:
        with self._one_at_a_time:
            self._ending = gevent.getcurrent()
            try:
                self._leave()
                end(*args, **kw)
            finally:
                self._ending = None

    def _stop_now(self, *args: Any, **kw: Any) -> None:
        self._stopping = True
        try:
            self._stop(*args, **kw)
        finally:
            self._stopping = False

    def _stop_detached(self, *args: Any, **kw: Any) -> None:
        self._stop_now(*args, **kw)
        if isinstance(self._runner, MasterRunner):
            # else only the next message of a worker does, and there may be none
            self._runner.check_stopped()
        wait_s = self._autoquit_s
        if self._unattended or wait_s is not None:
            gevent.spawn_later(AFTER_STOP_S if wait_s is None else wait_s, self._quit_if_over)

    def _quit_detached(self) -> None:
        self._quit()
        if (wait_s := self._autoquit_s) is not None:
            gevent.spawn_later(wait_s, self._quit_if_over)

    @property
    def _autoquit_s(self) -> float | None:
        """The process ends so long after the end of a run, though there is a page. None: it goes
        on.

        Locust waits for the end of its ``--run-time``, and a locustfile may end the run before.
        """
        options = self._runner.environment.parsed_options
        seconds: float = getattr(options, "autoquit", -1)
        return None if seconds == -1 or self._runner.environment.web_ui is None else seconds

    def _quit_if_over(self) -> None:
        if self._runner.state in (STATE_INIT, STATE_SPAWNING, STATE_RUNNING):
            return
        self._detach(self._quit)
        page = self._runner.environment.web_ui
        if page is not None and self._autoquit_s is not None:
            page.stop()

    def _waits_for_workers(self) -> bool:
        """Whether Locust asks before any run, as the last worker is gone. A master that did what it
        asks for would hear no other worker."""
        return (
            isinstance(self._runner, MasterRunner)
            and self._runner.state == STATE_INIT
            and gevent.getcurrent() in self._runner.greenlet
        )

    # -- who asks for it ---------------------------------------------------------------------------

    def _would_be_killed(self, caller: Any) -> bool:
        """Whether the end would kill its caller, or the caller could not finish before that."""
        members = self._runner.greenlet
        return (
            caller in (self._ending, self._starting) or caller in members or self._is_user(caller)
        )

    def _is_user(self, caller: Any) -> bool:
        """Whether it is a user, or a greenlet that a user started and may wait for."""
        users = self._runner.user_greenlets
        return any(frame in users for frame in _ancestry(caller))


def _ancestry(greenlet: Any) -> Iterator[Any]:
    """A greenlet, the one that started it, and so on."""
    while greenlet is not None:
        yield greenlet
        parent = getattr(greenlet, "spawning_greenlet", None)
        greenlet = parent() if parent is not None else None
