"""The alarm: nobody wakes early, all wake in order, and a greenlet that is killed in its sleep
harms nobody."""

import random
import time
from collections.abc import Iterator

import gevent
import pytest

from locust_llm.worker import precise_timer as module
from locust_llm.worker.precise_timer import Alarm


@pytest.fixture(params=[True, False], ids=["timerfd", "timer of the loop"])
def alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alarm]:
    monkeypatch.setattr(module, "has_timerfd", lambda: request.param)
    # else the time-outs below begin when the loop last ran, some test files ago
    gevent.get_hub().loop.update_now()
    alarm = Alarm()
    yield alarm
    alarm.close()


def sleepers(
    alarm: Alarm, moments: list[float]
) -> tuple[list[gevent.Greenlet], list[tuple[float, float]]]:
    """Greenlets that wait for these, begun in any order, and what they say when they wake: (moment,
    now)."""
    woken: list[tuple[float, float]] = []

    def sleeper(at: float) -> None:
        alarm.wait_until(at)
        woken.append((at, time.monotonic()))

    shuffled = random.Random(1).sample(moments, len(moments))
    return [gevent.spawn(sleeper, at) for at in shuffled], woken


def test_none_wakes_before_its_time(alarm: Alarm) -> None:
    began = time.monotonic() + 0.05
    jobs, woken = sleepers(alarm, [began + n / 2000 for n in range(200)])
    gevent.joinall(jobs, timeout=5)
    assert len(woken) == 200
    assert all(now >= at for at, now in woken)


def test_they_wake_in_the_order_of_their_moments(alarm: Alarm) -> None:
    # all sleep before the first one's time can come
    later = [time.monotonic() + 3600 + n for n in range(200)]
    jobs, woken = sleepers(alarm, later)
    gevent.sleep(0)
    alarm.wake_all()
    gevent.joinall(jobs, timeout=5)
    assert [at for at, _ in woken] == later


def test_what_is_over_is_not_waited_for(alarm: Alarm) -> None:
    turns = []
    gevent.spawn(turns.append, 1)
    alarm.wait_until(time.monotonic() - 1)
    assert turns == []  # not even a turn of the loop


def test_a_sleeper_that_is_killed_leaves_the_others_their_time(alarm: Alarm) -> None:
    at = time.monotonic() + 0.05
    doomed, other = gevent.spawn(alarm.wait_until, at), gevent.spawn(alarm.wait_until, at + 0.01)
    gevent.sleep(0)
    doomed.kill()
    other.join(5)
    assert other.successful()
    assert time.monotonic() >= at + 0.01


def test_everybody_can_be_woken(alarm: Alarm) -> None:
    sleepers = [gevent.spawn(alarm.wait_until, time.monotonic() + 3600 + n) for n in range(3)]
    gevent.sleep(0)
    alarm.wake_all()
    gevent.joinall(sleepers, timeout=5)
    assert all(sleeper.successful() for sleeper in sleepers)
    again = gevent.spawn(alarm.wait_until, time.monotonic() + 0.01)
    again.join(5)
    assert again.successful()
