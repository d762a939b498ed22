"""A run that its own users and listeners end, with Locust's real runner: the end comes to its end,
however long it takes."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from locust import User, constant, runners, task
from locust.env import Environment
from locust.event import Events
from locust.exception import StopTest, StopUser
from locust.rpc.protocol import Message
from locust.runners import (
    STATE_INIT,
    STATE_RUNNING,
    STATE_SPAWNING,
    STATE_STOPPED,
    STATE_STOPPING,
    MasterRunner,
    WorkerNode,
)

import gevent
import gevent.event
import pytest

from locust_llm.locust_adapter import stop_and_quit
from locust_llm.locust_adapter.stop_and_quit import detach_end, end_test

DRAIN_S = 0.05
LIMIT_S = 10.0


class Run:
    """Three users; ``over`` grows by one when the listeners of an end have all returned, which
    takes them a while."""

    def __init__(
        self,
        act: Callable[[Any], object],
        *,
        unattended: bool = False,
        users: tuple[type[User], ...] = (),
    ) -> None:
        run = self
        self.asked = 0
        self.over = 0
        self.act = act

        class Asking(User):
            wait_time = constant(0)  # type: ignore[no-untyped-call]

            @task
            def ask(self) -> None:
                gevent.sleep(0.001)
                run.asked += 1
                if run.asked == 5:
                    run.act(self.environment)
                self.environment.events.request.fire(
                    request_type="A",
                    name="a",
                    response_time=1,
                    response_length=0,
                    exception=None,
                    context={},
                )

        self.environment = Environment(
            user_classes=[Asking, *users], events=Events(), stop_timeout=LIMIT_S
        )
        self.events = self.environment.events
        self.events.test_stopping.add_listener(lambda **kw: gevent.sleep(DRAIN_S))
        self.events.test_stop.add_listener(self._report)
        self.runner: Any = self.environment.create_local_runner()
        detach_end(self.runner, unattended=unattended)

    def _report(self, **kw: Any) -> None:
        gevent.sleep(DRAIN_S)
        self.over += 1

    def start(self) -> None:
        self.runner.start(3, spawn_rate=100)

    def wait(self, over: int = 1) -> None:
        with gevent.Timeout(LIMIT_S):
            while self.over < over or self.runner.state != STATE_STOPPED or self.runner.user_count:
                gevent.sleep(0.01)


@pytest.fixture
def runs() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(act: Callable[[Any], object] = lambda environment: None, **how: Any) -> Run:
        made.append(Run(act, **how))
        return made[-1]

    yield make
    for run in made:
        run.runner.quit()


WAYS: dict[str, Callable[[Any], object]] = {
    "quit": lambda environment: environment.runner.quit(),
    "stop": lambda environment: environment.runner.stop(),
    "a greenlet that the user waits for": lambda environment: gevent.spawn(
        environment.runner.quit
    ).join(),
    "quit twice": lambda environment: [environment.runner.quit(), environment.runner.quit()],
    "StopTest": end_test,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_task_may_end_the_run(runs: Any, way: str) -> None:
    run = runs(WAYS[way])
    run.start()
    run.wait()
    assert run.over == 1
    assert run.runner.user_count == 0


@pytest.mark.parametrize("where", ["task", "on_start", "wait_time", "on_stop", "on_stop of a base"])
def test_a_stop_test_of_any_user_ends_the_run(runs: Any, where: str) -> None:
    """As Locust's documentation has it; Locust itself ends that user alone."""

    def stop(place: str) -> None:
        if place == where:
            raise StopTest("enough")

    class Plain(User):
        def on_start(self) -> None:
            stop("on_start")

        def on_stop(self) -> None:
            stop("on_stop of a base")

        def wait_time(self) -> float:
            stop("wait_time")
            return 0.0

        @task
        def work(self) -> None:
            gevent.sleep(0.001)
            stop("task")
            if "on_stop" in where:
                raise StopUser

    class Other(Plain):
        def on_stop(self) -> None:
            super().on_stop()
            stop("on_stop")

    run = runs(users=(Other,))
    run.start()
    run.wait()
    assert (run.over, run.runner.user_count) == (1, 0)


@pytest.mark.parametrize("event", ["request", "spawning_complete", "usage_monitor"])
def test_so_may_a_listener(runs: Any, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locust.runners.CPU_MONITOR_INTERVAL", 0.05)
    run = runs()
    getattr(run.events, event).add_listener(lambda **kw: run.runner.quit())
    run.start()
    run.wait()
    assert run.over == 1


@pytest.mark.parametrize("event", ["test_stopping", "test_stop"])
@pytest.mark.parametrize("how", ["stop", "quit"])
def test_so_may_one_of_the_end_itself(runs: Any, event: str, how: str) -> None:
    run = runs(lambda environment: environment.runner.stop())
    getattr(run.events, event).add_listener(lambda **kw: getattr(run.runner, how)())
    run.start()
    run.wait()
    assert run.over == 1


@pytest.mark.parametrize("event", ["test_stopping", "test_stop"])
def test_a_stop_test_of_a_listener_of_the_end_does_not_stop_the_end(runs: Any, event: str) -> None:
    run = runs(lambda environment: environment.runner.stop())
    called: list[str] = []

    def fail(**kw: Any) -> None:
        raise StopTest("enough")

    hook = getattr(run.events, event)
    hook.add_listener(fail)
    hook.add_listener(lambda **kw: called.append(event))
    run.start()
    run.wait()
    assert (run.over, called) == (1, [event])


def test_others_wait_until_it_is_over_whoever_began_it(runs: Any) -> None:
    run = runs(lambda environment: environment.runner.stop())
    run.start()
    with gevent.Timeout(LIMIT_S):
        while run.asked < 5:
            gevent.sleep(0.001)
        run.runner.stop()
    assert (run.over, run.runner.state) == (1, STATE_STOPPED)


def test_a_kill_of_who_waits_leaves_the_end_alone(runs: Any) -> None:
    run = runs()
    run.start()
    gevent.sleep(0.05)
    waiting = gevent.spawn(run.runner.quit)
    gevent.sleep(DRAIN_S / 2)
    waiting.kill()
    run.wait()
    assert run.over == 1


def test_another_run_can_begin_after_it(runs: Any) -> None:
    run = runs(lambda environment: environment.runner.stop())
    run.start()
    run.wait()
    run.asked = 0
    run.start()
    run.wait(2)
    assert run.over == 2


def test_where_nobody_could_begin_another_one_a_stop_is_the_end(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_and_quit, "AFTER_STOP_S", 0.1)
    run = runs(lambda environment: environment.runner.stop(), unattended=True)
    run.start()
    with gevent.Timeout(LIMIT_S):
        run.runner.greenlet.join()  # as Locust's main greenlet does
    assert run.over == 1


def test_unless_the_locustfile_has_begun_one(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_and_quit, "AFTER_STOP_S", 0.1)
    run = runs(unattended=True)
    run.start()
    gevent.sleep(0.02)
    run.runner.stop()
    run.start()
    gevent.sleep(0.3)
    assert run.runner.user_count == 3


def test_what_the_end_raises_comes_to_who_waits(runs: Any) -> None:
    run = runs()
    run.runner.stop_users = lambda count: 1 // 0
    run.start()
    gevent.sleep(0.02)
    with pytest.raises(ZeroDivisionError):
        run.runner.stop()
    del run.runner.stop_users


def test_the_end_does_not_search_all_modules_for_its_caller(
    runs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Locust would, for a line that few see; the loop would stand still meanwhile."""
    caplog.set_level("DEBUG", "locust.runners")
    run = runs()
    run.start()
    run.runner.stop()
    assert "couldn't determine where stop() was called from" in caplog.text


def test_users_that_end_by_themselves_beside_the_stop_are_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As those of an open loop, of which all but one wait for a request that never comes."""
    over = gevent.event.Event()
    users = 50
    began = []
    in_group_when_ended = []

    class Waiting(User):
        @task
        def wait_for_work(self) -> None:
            began.append(self)
            if len(began) == users:
                gevent.sleep(LIMIT_S)
            over.wait()
            raise StopUser

    def close(**kw: Any) -> None:
        over.set()
        while sum(user.dead for user in runner.user_greenlets) < users - 1:
            gevent.sleep(0)
        # their group hears of it in the next turn
        in_group_when_ended.append(len(runner.user_greenlets))

    environment = Environment(user_classes=[Waiting], events=Events(), stop_timeout=0)
    environment.events.test_stopping.add_listener(close)
    runner: Any = environment.create_local_runner()
    detach_end(runner)
    runner.start(users, spawn_rate=100)
    with gevent.Timeout(LIMIT_S):
        while len(began) < users:
            gevent.sleep(0.01)
        runner.stop()
    assert in_group_when_ended == [users]
    assert not [record for record in caplog.records if "proper args" in record.getMessage()]
    assert runner.user_count == 0


def test_a_run_that_ends_gets_no_users_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Locust gives the users of a worker that has left to the others, whatever the run does."""
    started: list[str] = []
    monkeypatch.setattr(
        MasterRunner, "start", lambda runner, *args, **kw: started.append(runner.state)
    )
    asked = False
    runner = Environment(user_classes=[], events=Events()).create_master_runner("127.0.0.1", 0)
    try:
        detach_end(runner, ends=lambda: asked)
        for state in (STATE_INIT, STATE_RUNNING, STATE_STOPPED):
            runner.state = state
            runner.start(1, 1)
        asked = True
        for state in (STATE_SPAWNING, STATE_RUNNING, STATE_STOPPING):
            runner.state = state
            runner.start(1, 1)
        runner.state = STATE_STOPPED  # another run begins
        runner.start(1, 1)
    finally:
        runner.greenlet.kill(block=False)
        runner.server.close(linger=0)
    assert started == [STATE_INIT, STATE_RUNNING, STATE_STOPPED, STATE_STOPPED]


@pytest.mark.parametrize("how", ["silent", "quit"])
def test_a_master_that_waits_for_workers_loses_its_only_one_and_hears_the_next(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Locust would stop, or quit, though no run has begun, and no worker could join then."""
    monkeypatch.setattr(runners, "HEARTBEAT_INTERVAL", 0.01)
    monkeypatch.setattr(stop_and_quit, "AFTER_STOP_S", 0.01)
    environment = Environment(
        user_classes=[], events=Events(), parsed_options=SimpleNamespace(headless=True)
    )
    runner = environment.create_master_runner("127.0.0.1", 0)
    listeners = set(runner.greenlet)
    try:
        detach_end(runner, unattended=True)
        runner.clients["w"] = WorkerNode("w", heartbeat_liveness=-1 if how == "silent" else 999)
        if how == "quit":
            quit_message = Message("quit", None, "w")
            runner.greenlet.spawn(runner.handle_message, "w", quit_message).join()
        gevent.sleep(0.1)
        assert runner.worker_count == 0
        assert runner.state == STATE_INIT
        assert listeners <= set(runner.greenlet)
    finally:
        runner.greenlet.kill(block=False)
        runner.server.close(linger=0)
