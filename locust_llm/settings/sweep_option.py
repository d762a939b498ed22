"""Sweep: the values of its stages, and when a stage is long enough; without a clock. Which stages
a search for the capacity runs (``--find-max``) is in slo/capacity_search.py.

concurrency=1,2,4      these values
concurrency=1..256     from 1 by doubling, 256 being the last
concurrency=8..64+8    from 8 in steps of 8
"""

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from locust_llm.slo.best_prefill_limit import NO_LIMIT
from locust_llm.text.numbers import SECONDS, read_number, truncate_quoted_text

CONCURRENCY: Final = "concurrency"
RATE: Final = "request-rate"
PREFILL: Final = "prefill-concurrency"
INPUT: Final = "input-tokens"
REPEAT: Final = "repeat"
"""The axis of ``--repeats``: the same load again."""
AXES: Final = {CONCURRENCY: "users", RATE: "requests/s", PREFILL: "slots", INPUT: "tokens"}
"""What a sweep can change, and its unit."""
LOADS: Final = (CONCURRENCY, RATE)
"""The axes along which the load rises. Beyond saturation, throughput stays flat."""
MAX_STAGES: Final = 100
"""The most stages of a sweep."""
MIN_GAIN: Final = 0.05
"""Throughput is flat if it gains less than this share from one stage to the next."""
ALL_RAN: Final = "all stages ran"
"""The end of a sweep that nothing stopped."""
STATIONARY: Final = "stationary"
OVERLOADED: Final = "overloaded"
TIME_UP: Final = "time"
COUNT: Final = "count"
RUN_STOPPED: Final = "the run was stopped"
"""Why a sweep ended that somebody stopped."""
STOPPED: Final = "stopped"
ENDED: Final = {
    STATIONARY: "it was steady", OVERLOADED: "it was overloaded", TIME_UP: "its time was up",
    COUNT: "it had enough requests",
    STOPPED: "the run ended",
}  # fmt: skip
"""Why a stage ended, in words."""
"""Why a stage ended."""
WAVE_SHARE: Final = 0.25
"""Where all the time of a stage is bounded, the first and the last wave take at most this share of
it, as long as requests end in it."""
MAX_RESIDUAL: Final = 0.05
"""A stage further from Little's law is not stationary."""


class Sweep(NamedTuple):
    """What changes, and its values."""

    axis: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.axis}={','.join(f'{value:g}' for value in self.values)}"


def parse_sweep(text: str) -> Sweep:
    """The sweep of ``--sweep``, values in rising order. Raises ValueError of one sentence."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if axis not in AXES or not equals:
        raise ValueError(
            f"--sweep {text[:200]!r}: write AXIS=VALUES with one of {', '.join(AXES)}, such as "
            f"concurrency=1..64"
        )
    if axis == PREFILL:  # no limit is always among them, whether it is named or not
        parts = (part.strip() for part in values.split(","))
        values = ",".join(part for part in parts if part != NO_LIMIT)
    try:
        values_read = parse_sweep_values(values)
    except ValueError as error:
        raise ValueError(f"--sweep {text[:200]!r}: {error}") from None
    if axis != RATE and any(value != int(value) for value in values_read):
        raise ValueError(f"--sweep {text[:200]!r}: {axis} takes whole numbers")
    if len(values_read) > MAX_STAGES:
        raise ValueError(
            f"--sweep {text[:200]!r}: {len(values_read)} stages are too many: the maximum is "
            f"{MAX_STAGES}"
        )
    return Sweep(axis, tuple(values_read))


def parse_sweep_values(text: str) -> list[float]:
    """The values in rising order. Raises ValueError of one clause."""
    values: set[float] = set()
    for part in text.split(","):
        values.update(_values(part.strip()))
    return sorted(values)


def _values(part: str) -> Iterator[float]:
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"{number}(?:\.\.{number}(?:\+{number})?)?", part)
    if not match:
        raise ValueError(
            f"{part!r} is not a valid value: write 4, 1..64 (doubling) or 8..64+8 (steps of 8)"
        )
    low = float(match[1])
    high = low if match[2] is None else float(match[2])
    step = None if match[3] is None else float(match[3])
    if math.inf in (low, high, step):
        raise ValueError(f"{truncate_quoted_text(part)!r} is too large")
    if not 0 < low <= high or step == 0:
        raise ValueError(f"{part!r} must rise and start above 0")
    at, count = low, 0
    while at < high and count <= MAX_STAGES:
        yield at
        count += 1
        at = low * 2**count if step is None else low + step * count
    yield high


def choose_next_stage(asked: Sweep, done: int) -> float | str:
    """The value of the stage after ``done``, or why the sweep ends."""
    return asked.values[done] if done < len(asked.values) else ALL_RAN


def littles_law_residual(inside: float, completed: int, seconds: float, latency_s: float) -> float:
    """|L - lambda W| / L: how far a stretch is from Little's law, L = lambda W.

    L is the mean number ``inside`` the system, lambda the completed requests a second, W their mean
    time inside. It is 0 for a stationary stretch, and infinite without requests.
    """
    if not inside > 0 or not seconds > 0:
        return math.inf
    return abs(inside - completed / seconds * latency_s) / inside


class RunningStage:
    """One stage of a sweep while it runs: first wave, measured requests, last wave. Times are Unix
    seconds.

    The first wave, which finds the server idle, ends when as many requests have ended as can be in
    flight; there may be several such waves, as some published rules ask. In an open loop it ends
    also where nothing is answered for long, as the server is then far beyond its capacity. Requests
    sent from then on are measured, until the stage is stationary with enough of them, or its time
    is up. The load stays on for one more wave while these end: else the last ones would find a
    server with less load.
    """

    def __init__(
        self,
        began_at: float,
        users: int | None,
        *,
        at_least_s: float,
        at_most_s: float,
        requests: int,
        waves: int = 1,
        whole_s: float = math.inf,
    ) -> None:
        """``users``: of a closed loop. ``requests``: so many successful ones are enough. ``waves``:
        they end before it is measured. ``whole_s``: all its time, the first and the last wave
        included."""
        self.began_at = began_at
        self.measured_at: float | None = None
        self.ended_at: float | None = None
        self.why = ""
        """Why the measurement ended: stationary, overloaded or time."""
        self.warmup = 0
        """The requests that had ended when the measurement began."""
        self._users, self._waves = users, waves
        self._at_least_s, self._at_most_s, self._requests = at_least_s, at_most_s, requests
        self._whole_s = whole_s
        self._wave = 0
        """The requests that have ended in this wave."""
        self._wave_size = 0
        self._inside = 0
        self._inside_first = 0
        self._area = 0.0
        self._looked_at = began_at
        self._completed = 0
        self._latencies_s = 0.0
        self._samples = 0

    def ended(self, due_at: float, sent_at: float | None, closed_at: float, *, ok: bool) -> bool:
        """A request of this stage has ended. Returns whether it is measured."""
        self._wave += 1
        if self.measured_at is None:
            return False
        if self.ended_at is None:
            self._completed += 1
            self._latencies_s += closed_at - due_at
        tried_at = due_at if sent_at is None else sent_at
        measured = tried_at >= self.measured_at and (
            self.ended_at is None or tried_at <= self.ended_at
        )
        self._samples += measured and ok
        return measured

    def look(self, now: float, inside: int) -> bool:
        """Whether the stage is over. ``inside``: due requests that have not ended."""
        if self.measured_at is None:
            if self._first_wave(now, inside):
                return True
        elif self.ended_at is None:
            self._area += (self._inside + inside) / 2 * (now - self._looked_at)
            if why := self._enough(now, inside):
                self.why, self.ended_at = why, now
                self._wave, self._wave_size = 0, inside
        else:
            self._inside, self._looked_at = inside, now
            return (
                self._wave >= self._wave_size
                or now - self.ended_at >= self._at_most_s
                or now - self.began_at >= self._whole_s
            )
        self._inside, self._looked_at = inside, now
        return False

    @property
    def residual(self) -> float | None:
        """The residual of Little's law over what was measured so far. None: nothing was."""
        if self.measured_at is None or not self._completed:
            return None
        seconds = (
            self._looked_at - self.measured_at
            if self.ended_at is None
            else self.ended_at - self.measured_at
        )
        if not seconds > 0 or not self._area > 0:
            return None
        return littles_law_residual(
            self._area / seconds, self._completed, seconds, self._latencies_s / self._completed
        )

    def _first_wave(self, now: float, inside: int) -> bool:
        """Whether no request of a closed loop ends, so that the stage ends without a
        measurement."""
        size = self._waves * (self._users or max(1, inside))
        seconds = now - self.began_at
        late_s = self._at_most_s if self._users else self._at_least_s
        late = seconds >= min(late_s, self._whole_s / 2)
        # an open loop that is too much for the server never turns over, and sends on all the same
        endless = not self._users and seconds >= min(self._at_most_s, self._whole_s / 2)
        if self._wave >= size or (late and self._wave) or endless:
            self.measured_at, self._inside_first, self.warmup = now, inside, self._wave
        elif seconds >= min(2 * self._at_most_s, self._whole_s):
            self.why, self.ended_at = TIME_UP, now
        return self.ended_at is not None

    def _enough(self, now: float, inside: int) -> str:
        assert self.measured_at is not None
        self._looked_at = now
        seconds = now - self.measured_at
        # the last wave takes about as long as the first one
        wave_s = min(self.measured_at - self.began_at, WAVE_SHARE * self._whole_s)
        if seconds >= self._at_most_s or now - self.began_at >= self._whole_s - wave_s:
            return TIME_UP
        if seconds < self._at_least_s or not self._completed:
            return ""
        grown = inside - self._inside_first
        arrived = self._completed + grown
        # of random arrivals: the number inside varies by about its root
        chance = 4 * math.sqrt(max(1, inside))
        if (
            self._users is None
            and seconds >= 2 * self._at_least_s
            and grown > max(MAX_RESIDUAL * arrived, chance)
        ):
            return OVERLOADED
        rest = self.residual
        if self._samples >= self._requests and rest is not None and rest < MAX_RESIDUAL:
            return STATIONARY
        return ""


def parse_duration_range(text: str) -> tuple[float, float]:
    """(least, most) seconds of ``10..120``; ``30`` gives both. Raises ValueError of one
    sentence."""
    low, dots, high = text.partition("..")
    try:
        at_least_s = read_number(float, low)
        at_most_s = read_number(float, high if dots else low)
    except ValueError:
        at_least_s = at_most_s = 0.0
    if not 0 < at_least_s <= at_most_s <= SECONDS:
        raise ValueError(
            f"--stage-duration {truncate_quoted_text(text)!r}: write 10..120 (minimum and maximum "
            "seconds) or one number"
        )
    return at_least_s, at_most_s
