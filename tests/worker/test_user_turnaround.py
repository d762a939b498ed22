"""User turnaround: what of the time between two requests of a user was asked for, by a clock that
is set by hand."""

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.records import answered, failed

from locust_llm.client.request_bytes import PreviousAnswer
from locust_llm.worker.user_turnaround import UserTurnaround, is_paced_wait


class Clock:
    """Shows the time that it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_turnaround() -> tuple[UserTurnaround, Clock]:
    """Makes one whose last answer ended at second 10, and was noticed at 10.5."""
    clock = Clock()
    turnaround = UserTurnaround(clock)
    turnaround.answered(answered(100, sent_at=9.9), "profiling")
    clock.now = 10.5
    turnaround.leave()
    return turnaround, clock


def test_code_of_the_locustfile_is_a_pause() -> None:
    turnaround, clock = make_turnaround()
    clock.now = 12.5
    turnaround.enter()
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 2.0)


def test_a_wait_that_lasts_too_long_is_a_pause_as_long_as_it_was_asked_for() -> None:
    """0.25 s of code, 1 s asked for, 3 s waited, 0.5 s of code."""
    turnaround, clock = make_turnaround()
    clock.now = 10.75
    turnaround.begin_wait()
    turnaround.ask_wait(1.0)
    clock.now = 13.75
    turnaround.end_wait()
    clock.now = 14.25
    turnaround.enter()
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 0.25 + 1.0 + 0.5)


@pytest.mark.parametrize(
    ("name", "values", "is_paced"),
    [
        ("constant_pacing", (2,), True),
        ("constant_throughput", (0.5,), True),
        ("constant", (2,), False),
        ("between", (1, 2), False),
    ],
)
def test_locusts_paced_waits_are_known(
    name: str, values: tuple[float, ...], is_paced: bool
) -> None:
    import locust  # not before unpatched_locust

    user = type("Reader", (), {"wait_time": getattr(locust, name)(*values)})()
    assert is_paced_wait(user.wait_time) == is_paced
    assert not is_paced_wait(lambda: 2.0)


def test_a_paced_wait_makes_up_for_what_came_late_before_it() -> None:
    """It is asked for 0.5 s after the answer, ends 0.25 s too late, and the next one is as much
    shorter. Only the 0.125 s from its end to the request are the load generator's."""
    turnaround, clock = make_turnaround()
    turnaround.begin_wait()
    turnaround.ask_wait(2.0, is_paced=True)
    clock.now = 12.75
    turnaround.end_wait()
    turnaround.enter()
    clock.now = 12.875
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 2.75)


def test_a_pace_that_cannot_be_kept_makes_up_for_nothing() -> None:
    turnaround, clock = make_turnaround()
    turnaround.begin_wait()
    turnaround.ask_wait(0.0, is_paced=True)
    clock.now = 10.75
    turnaround.end_wait()
    turnaround.enter()
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 0.0)


def test_a_wait_below_zero_is_none() -> None:
    """``wait_time = lambda self: target - elapsed`` may ask for it, and a record takes no pause below 0."""
    turnaround, clock = make_turnaround()
    turnaround.begin_wait()
    turnaround.ask_wait(-1.0)
    clock.now = 10.75
    turnaround.end_wait()
    turnaround.enter()
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 0.0)


def test_a_wait_of_unknown_length_is_a_pause() -> None:
    turnaround, clock = make_turnaround()
    turnaround.begin_wait()
    clock.now = 13.5
    turnaround.end_wait()
    turnaround.enter()
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 3.0)


def test_a_turn_that_was_to_wait_pauses_for_so_long() -> None:
    turnaround, _ = make_turnaround()
    turnaround.enter()
    turnaround.pause(2.0)
    assert turnaround.before("profiling") == PreviousAnswer(10.0, 2.0)


def test_the_first_request_of_a_phase_and_after_a_failure_follows_on_nothing() -> None:
    turnaround, _ = make_turnaround()
    assert turnaround.before("warmup") is None
    turnaround.answered(failed(), "profiling")
    assert turnaround.before("profiling") is None
    turnaround.answered(answered(100), "profiling")
    turnaround.forget()
    assert turnaround.before("profiling") is None
