"""The alarm: nobody wakes early, all wake in order, and a greenlet that is killed in its sleep harms nobody."""

import random
import time
from collections.abc import Iterator

import gevent
import pytest

from locust_llm.pacer import Alarm


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm()
    yield alarm
    alarm.close()


def test_all_wake_in_their_order_and_none_before_its_time(alarm: Alarm) -> None:
    woken: list[tuple[float, float]] = []

    def sleeper(at: float) -> None:
        alarm.wait_until(at)
        woken.append((at, time.monotonic()))

    began = time.monotonic() + 0.05
    moments = [began + n / 2000 for n in range(200)]
    random.Random(1).shuffle(moments)
    gevent.joinall([gevent.spawn(sleeper, at) for at in moments], timeout=5)
    assert [at for at, _ in woken] == sorted(moments)
    assert all(now >= at for at, now in woken)


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
