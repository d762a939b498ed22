"""Start times: users of a phase start one after the other, over all processes together."""

from locust_llm.worker.start_times import StartTimes


def starts(times: StartTimes, users: int, *, phase: str = "p", now: float = 100.0) -> list[float]:
    return [times.assign(user, phase, now) for user in range(1, users + 1)]


def test_users_of_one_process_start_evenly() -> None:
    times = StartTimes()
    times.spread("p", 0.5)
    assert starts(times, 4) == [100.0, 100.5, 101.0, 101.5]


def test_two_processes_take_turns() -> None:
    first, second = StartTimes(0, 2), StartTimes(1, 2)
    for times in (first, second):
        times.spread("p", 0.5)
    assert starts(first, 2) == [100.0, 101.0]
    assert starts(second, 2) == [100.5, 101.5]


def test_a_process_that_joined_later_takes_the_turns_of_one_that_there_was() -> None:
    third = StartTimes(2, 2)
    third.spread("p", 0.5)
    assert starts(third, 1) == [100.0]


def test_a_user_starts_once_in_a_phase() -> None:
    times = StartTimes()
    times.spread("p", 0.5)
    starts(times, 2)
    assert times.assign(1, "p", 100.2) == 100.2
    times.spread("q", 2.0)
    assert starts(times, 2, phase="q", now=200.0) == [200.0, 202.0]


def test_a_user_that_comes_after_its_turn_does_not_wait() -> None:
    times = StartTimes()
    times.spread("p", 0.5)
    assert times.assign(1, "p", 100.0) == 100.0
    assert times.assign(2, "p", 130.0) <= 130.0


def test_in_a_phase_without_a_spread_users_start_at_once() -> None:
    times = StartTimes()
    times.spread("p", 0.5)
    assert starts(times, 3, phase="other") == [100.0] * 3
