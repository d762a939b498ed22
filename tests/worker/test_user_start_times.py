"""Start times: users of a phase start one after the other, over all processes together."""

from locust_llm.worker.user_start_times import LOOK_S, StartTimes


class Time:
    """Virtual: whoever waits is there at once."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def wait_until(self, at: float) -> None:
        self.now = max(self.now, at)


class Process:
    """Users of one process start in the order of their numbers."""

    def __init__(self, place: int = 0, processes: int = 1) -> None:
        self.time = Time()
        self.times = StartTimes(place, processes, self.time.clock)
        self.first_token_s = 0.0
        """After the send of each."""
        self._sent_at = 0.0

    def awaiting(self) -> int:
        return int(self.time.now < self._sent_at + self.first_token_s)

    def start(self, user: int, phase: str = "p") -> float:
        if not self.times.has_started(user, phase):
            self.times.wait(user, self.time.wait_until, self.awaiting)
        self._sent_at = self.time.now
        return self.time.now

    def starts(self, users: int, phase: str = "p") -> list[float]:
        return [self.start(user, phase) for user in range(1, users + 1)]


def test_users_of_one_process_start_evenly() -> None:
    process = Process()
    process.times.spread("p", 0.5, 2.0)
    assert process.starts(4) == [100.0, 100.5, 101.0, 101.5]


def test_two_processes_take_turns() -> None:
    first, second = Process(0, 2), Process(1, 2)
    for process in (first, second):
        process.times.spread("p", 0.5, 0.5)
    assert first.starts(2) == [100.0, 101.0]
    assert second.starts(2) == [100.5, 101.5]


def test_a_process_that_joined_later_takes_the_turns_of_one_that_there_was() -> None:
    third = Process(2, 2)
    third.times.spread("p", 0.5, 0.5)
    assert third.starts(1) == [100.0]


def test_the_next_user_starts_when_no_request_awaits_its_first_token() -> None:
    process = Process()
    process.first_token_s = 0.8
    process.times.spread("p", 0.5, 2.0)
    first, second, third = process.starts(3)
    assert 0.8 <= second - first <= 0.8 + LOOK_S
    assert 0.8 <= third - second <= 0.8 + LOOK_S


def test_at_a_server_that_is_slow_it_starts_after_the_longest_spacing() -> None:
    process = Process()
    process.first_token_s = 60.0
    process.times.spread("p", 0.5, 2.0)
    assert process.starts(3) == [100.0, 102.0, 104.0]


def test_a_user_starts_once_in_a_phase() -> None:
    process = Process()
    process.times.spread("p", 0.5, 0.5)
    process.starts(2)
    assert process.start(1) == 100.5
    process.times.spread("q", 2.0, 2.0)
    assert process.starts(2, "q") == [100.5, 102.5]


def test_a_user_that_comes_after_its_turn_does_not_wait() -> None:
    process = Process()
    process.times.spread("p", 0.5, 0.5)
    process.start(1)
    process.time.now = 130.0
    assert process.start(2) == 130.0


def test_a_session_that_goes_on_does_not_wait() -> None:
    process = Process()
    process.times.spread("p", 0.5, 0.5)
    process.start(1)
    process.times.note_start(2, "p")
    assert process.start(2) == 100.0


def test_in_a_phase_without_a_spread_users_start_at_once() -> None:
    process = Process()
    process.times.spread("p", 0.5, 0.5)
    assert process.starts(3, "other") == [100.0] * 3
