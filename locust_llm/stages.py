"""Stages: the steps of a sweep, what follows on those that are done, and when one has lasted long enough; without a clock.

concurrency=1,2,4      these values
concurrency=1..256     from 1 by doubling, 256 being the last
concurrency=8..64+8    from 8 in steps of 8
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from .slo import FAIL, PASS

CONCURRENCY: Final = "concurrency"
RATE: Final = "request-rate"
PREFILL: Final = "prefill-concurrency"
INPUT: Final = "input-tokens"
REPEAT: Final = "repeat"
"""The same load again: ``--repeats``."""
AXES: Final = {CONCURRENCY: "users", RATE: "requests/s", PREFILL: "slots", INPUT: "tokens"}
"""What a sweep can change, and its unit."""
LOADS: Final = (CONCURRENCY, RATE)
"""With these more load is offered from stage to stage: past saturation throughput stays where it is."""
MOST: Final = 100
"""Stages of one sweep."""
GAIN: Final = 0.05
"""From one stage to the next; below it throughput counts as flat."""
PRECISION: Final = 0.05
"""How close ``--find-max`` comes, as a share of the value."""
RESIDUAL: Final = 0.05
"""From this difference of Little's law on a stage is not stationary."""


class Sweep(NamedTuple):
    """What changes, and through which values."""

    axis: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.axis}={','.join(f'{value:g}' for value in self.values)}"


class Done(NamedTuple):
    """What decides how a sweep goes on, of a stage that is over."""

    value: float
    status: str | None
    """Of the SLO rules; None without any."""
    throughput: float | None
    """Output tokens a second, else requests a second."""
    client: str | None
    """The client verdict."""


def sweep(text: str) -> Sweep:
    """What was asked for, in rising order. Raises ValueError of one sentence."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if axis not in AXES or not equals:
        raise ValueError(
            f"--sweep {text[:200]!r}: write AXIS=VALUES with one of {', '.join(AXES)}, as concurrency=1..64"
        )
    try:
        found = sorted({value for part in values.split(",") for value in _values(part.strip())})
    except ValueError as error:
        raise ValueError(f"--sweep {text[:200]!r}: {error}") from None
    if axis != RATE and any(value != int(value) for value in found):
        raise ValueError(f"--sweep {text[:200]!r}: {axis} takes whole numbers")
    if len(found) > MOST:
        raise ValueError(f"--sweep {text[:200]!r}: {len(found)} stages, at most {MOST} can be")
    return Sweep(axis, tuple(found))


def _values(part: str) -> Iterator[float]:
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"{number}(?:\.\.{number}(?:\+{number})?)?", part)
    if not match:
        raise ValueError(f"{part!r} is no value: write 4, or 1..64 (by doubling), or 8..64+8 (in steps of 8)")
    low = float(match[1])
    high = low if match[2] is None else float(match[2])
    step = None if match[3] is None else float(match[3])
    if not 0 < low <= high or step == 0:
        raise ValueError(f"{part!r} does not rise from a value above 0")
    at, count = low, 0
    while at < high and count <= MOST:
        yield at
        count += 1
        at = low * 2**count if step is None else low + step * count
    yield high


def following(asked: Sweep, done: Sequence[Done], *, find_max: bool = False) -> float | str:
    """The value of the next stage, or why there is none: one sentence.

    The values in their order, until rules are broken or throughput stays flat twice in a row; then, with ``find_max``, the
    middle between the highest that passed and the lowest above it that did not, until these are close.
    """
    climbed = [stage for i, stage in enumerate(done) if i < len(asked.values) and stage.value == asked.values[i]]
    stopped = _stopped(asked, climbed)
    if not stopped and len(climbed) < len(asked.values):
        return asked.values[len(climbed)]
    stopped = stopped or "all stages are done"
    if not find_max:
        return stopped
    passed, broken = bracket(done)
    if passed is None:
        return f"{stopped}; no stage passed, so there is no highest to find"
    if broken is None:
        return f"{stopped}; the highest stage passed, so the highest that can be lies above it"
    whole = asked.axis != RATE
    if broken - passed <= max(1.0 if whole else 0.0, PRECISION * passed) or len(done) >= MOST:
        return f"{stopped}, and the highest that passes is found"
    middle = (passed + broken) / 2
    return float(math.floor(middle)) if whole else float(f"{middle:.4g}")


def bracket(done: Sequence[Done]) -> tuple[float | None, float | None]:
    """The highest value that passed below the lowest that did not, and that one."""
    broken = min((stage.value for stage in done if stage.status != PASS), default=None)
    passed = [stage.value for stage in done if stage.status == PASS and (broken is None or stage.value < broken)]
    return max(passed, default=None), broken


def _stopped(asked: Sweep, done: Sequence[Done]) -> str:
    """Why the stages after these need not be; empty if they shall."""
    if len(done) < 2:
        return ""
    last = done[-2:]
    if all(stage.status == FAIL for stage in last):
        return "the SLO was broken twice in a row"
    if all(stage.client not in (None, "OK") for stage in last):
        return "the load generator was not up to two stages in a row"
    if asked.axis in LOADS and len(done) > 2:
        best = max(stage.throughput or 0.0 for stage in done[:-2])
        if best and all((stage.throughput or 0.0) < best * (1 + GAIN) for stage in last):
            return f"throughput gained less than {GAIN:.0%} twice in a row"
    return ""


def residual(inside: float, completed: int, seconds: float, latency_s: float) -> float:
    """How far a stretch is from Little's law, L = lambda W: |L - lambda W| / L, where L is the mean number ``inside`` the
    system, lambda what was completed a second, W its mean time inside. 0 for a stationary one, infinite of nothing."""
    if not inside > 0 or not seconds > 0:
        return math.inf
    return abs(inside - completed / seconds * latency_s) / inside
