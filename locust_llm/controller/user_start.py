"""User start: how fast the users of a phase of a closed loop begin to send.

With -r they start at that rate. Otherwise they start evenly over one response time, or more slowly
while requests await their first token. Users that start at once wait together, at a server whose
queue is never as long again.
"""

import math
from typing import Final

from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import WARMUP, label_phase, stage_of_phase
from locust_llm.records.record import Record
from locust_llm.records.run_facts import (
    BY_EARLIER_PHASE,
    BY_RATE,
    BY_RESPONSE_TIME,
    BY_RUN_TIME,
    BY_WARMUP,
    UNMEASURED,
    ResponseTime,
    UserStart,
)
from locust_llm.settings.run_options import START_SHARE, Settings

SLOWER: Final = 4.0
"""The start may take so many times as long where more users make the server slower."""
UNMEASURED_S: Final = 1.0
"""Users start over so many seconds where no response time is known."""


class ResponseTimes:
    """The response times of the answers in one phase."""

    def __init__(self) -> None:
        self._count, self._sum_s = 0, 0.0

    def add(self, record: Record) -> None:
        if record.outcome == OK and record.sent_at is not None:
            self._count += 1
            self._sum_s += record.closed_at - record.sent_at

    def end_phase(self) -> float | None:
        """The mean of the ended phase. None: there was no answer. The next phase counts from here
        on."""
        mean_s = self._sum_s / self._count if self._count else None
        self._count, self._sum_s = 0, 0.0
        return mean_s


class FirstRequestTimes:
    """The first requests of a phase's users."""

    def __init__(self, users: int) -> None:
        self._left = users
        self._known = set[tuple[str, int]]()
        self._first_at, self._last_at = math.inf, -math.inf

    def add(self, record: Record) -> float | None:
        """Seconds from the first user's first request to the last one's, when that is over. None:
        it is not, or it was returned."""
        user = record.worker, record.user
        if not self._left or user in self._known:
            return None
        self._known.add(user)
        at = record.asked_unix_s
        self._first_at = min(self._first_at, at)
        self._last_at = max(self._last_at, at)
        self._left -= 1
        return None if self._left else self._last_at - self._first_at


def find_longest_start_s(settings: Settings, start: UserStart) -> float:
    """Users start more slowly while requests await their first token: the response time under load
    may be several times the response time of a request alone. An answer in one piece has no first
    token."""
    if not settings.streaming:
        return start.over_s
    return max(start.over_s, min(SLOWER * start.over_s, _longest_start_s(settings, start.phase)))


def _longest_start_s(settings: Settings, label: str) -> float:
    ends_first = label == WARMUP and not settings.warmup_goes_on
    if ends_first and settings.warmup_duration is not None:
        return START_SHARE * settings.warmup_duration
    return math.inf if settings.longest_start_s is None else settings.longest_start_s


def plan_user_start(
    settings: Settings,
    phase: str,
    users: int,
    before_load: ResponseTime | None,
    earlier_s: float | None,
) -> UserStart:
    """``before_load`` is the response time measured then. ``earlier_s`` is the mean response time
    of the phase before; None in the first one."""
    label = label_phase(phase)
    stage = stage_of_phase(phase)
    if settings.spawn_rate is not None and (earlier_s is None or settings.spawn_rate >= users):
        over_s = _locust_start_s(users, settings.spawn_rate)
        return UserStart(
            phase=label, stage=stage, users=users, over_s=over_s, by=BY_RATE,
            rate_per_s=settings.spawn_rate,
        )  # fmt: skip
    over_s, by = _known_response_time(before_load, earlier_s)
    longest_s = _longest_start_s(settings, label)
    if over_s > longest_s:
        over_s = longest_s
        by = by if by == UNMEASURED else BY_RUN_TIME
    if by == BY_RUN_TIME and settings.warmup_goes_on:
        by = BY_WARMUP
    return UserStart(phase=label, stage=stage, users=users, over_s=over_s, by=by)


def _known_response_time(
    before_load: ResponseTime | None, earlier_s: float | None
) -> tuple[float, str]:
    if earlier_s is not None:
        return earlier_s, BY_EARLIER_PHASE
    if before_load is None:
        return UNMEASURED_S, UNMEASURED
    return before_load.seconds, BY_RUN_TIME if before_load.cut else BY_RESPONSE_TIME


def _locust_start_s(users: int, rate_per_s: float) -> float:
    """Locust starts the users of a second at once, at least one, then waits."""
    at_once = max(1, math.floor(rate_per_s))
    waits = math.ceil(users / at_once) - 1
    return waits * at_once / rate_per_s
