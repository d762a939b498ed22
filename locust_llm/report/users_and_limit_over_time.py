"""Users and limit over time: the number of users and the prefill limit over the time of a run,
instead of at its start."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.run_facts import Run
from locust_llm.text.format import format_brief, format_count

MAX_STEPS: Final = 4
"""So many values are named each. Of more, the least, the greatest and the mean are named."""
MIN_SHARE: Final = 0.95
"""A number of users that held for this share of the time is the number of users, as users take a
moment to be there."""
Span = tuple[float, float]


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A number that changes over time in steps."""

    least: int
    most: int
    mean: float
    """The mean over the time in which there was a number."""
    changes: int
    """The changes within the stretch."""
    steps: tuple[tuple[float, int | None], ...] = ()
    """(seconds after the first send of the run, value from then on), the first one at the begin of
    the stretch. None: no gate. Empty: there are more than MAX_STEPS."""
    without_s: float = 0.0
    """Seconds without a gate."""


def make_step_series(
    changes: Sequence[tuple[float, int | None]], span: Span, started_at: float | None = None
) -> StepSeries | None:
    """``changes``: (Unix seconds, value from then on) in order. The first value also holds before.
    ``started_at``: of the run; by default the begin of the stretch. None: there are no changes, or
    there was no number."""
    start, end = span
    origin = start if started_at is None else started_at
    held: list[tuple[float, int | None]] = []
    for at, value in changes:
        if at >= end > start and held:
            break
        if not held or at <= start:
            held = [(start, value)]
        elif value != held[-1][1]:
            held.append((at, value))
    lasted = [
        (value, until - at)
        for (at, value), (until, _) in pairwise([*held, (max(start, end), None)])
    ]
    known = [(value, seconds) for value, seconds in lasted if value is not None]
    if not known:
        return None
    values = [value for value, _ in known]
    total_s = sum(seconds for _, seconds in known)
    area = sum(value * seconds for value, seconds in known)
    return StepSeries(
        least=min(values),
        most=max(values),
        mean=area / total_s if total_s > 0 else float(values[-1]),
        changes=len(held) - 1,
        steps=tuple((at - origin, value) for at, value in held) if len(held) <= MAX_STEPS else (),
        without_s=sum(seconds for value, seconds in lasted if value is None),
    )


def find_profiled_span(run: Run) -> Span:
    """(begin of profiling, or of a stage's measured part; the stop)."""
    return run.profiling_at, run.stopping_at or run.ended_at or run.profiling_at


def find_users_in_force(run: Run) -> StepSeries | None:
    """None: an older version, or a number that was to follow from the load. That the last users
    have left is the end of the load, and no number of users."""
    changes = [(change.at, change.users) for change in run.users]
    start, end = find_profiled_span(run)
    if len(changes) > 1 and changes[-1][1] == 0:
        end = max(start, min(end, changes.pop()[0]))
    return make_step_series(changes, (start, end))


def find_limit_in_force(run: Run) -> StepSeries | None:
    """None: there is no gate."""
    changes = [(change.at, change.limit) for change in run.limits if change.phase == PROFILING]
    span = find_profiled_span(run)
    if changes and run.settings.prefill_concurrency is None and changes[0][0] > span[0]:
        changes.insert(0, (span[0], None))  # somebody set a limit while the run went on
    return make_step_series(changes, span, run.started_at)


def describe_users(asked: int | None, series: StepSeries | None) -> str:
    """``6 users``; ``2 to 6 users (4.1 on average)`` where a load shape or a person changed
    them."""
    if series is None or (series.most == asked and series.mean >= MIN_SHARE * series.most):
        return format_count(asked, "user")
    if series.least == series.most:
        return format_count(series.most, "user")
    return (
        f"{series.least} to {series.most} users ({format_brief(series.mean, digits=2)} on average)"
    )


def describe_limit(asked: int | None, ramp_s: float | None, series: StepSeries | None) -> str:
    """``8, ramp from 1 over 30 s`` as requested; ``1, 3 from 12.4 s on`` where somebody changed it.
    Empty: there is no gate."""
    if asked is not None and (series is None or (ramp_s and _as_asked(asked, series))):
        return f"{asked}" + (f", ramp from 1 over {ramp_s:g} s" if ramp_s else "")
    if series is None:
        return ""
    if not series.changes:
        return f"{series.most}"
    if series.steps:
        (_, first), *later = series.steps
        return ", ".join(
            [_limit(first), *(f"{_limit(value)} from {at:.1f} s on" for at, value in later)]
        )
    without = f", without a limit for {series.without_s:.1f} s" if series.without_s else ""
    return (
        f"{series.least} to {series.most} ({format_brief(series.mean, digits=2)} on average, "
        f"{series.changes} changes{without})"
    )


def follows_ramp(run: Run) -> bool:
    """Whether the limit rose by ones, as a ramp of the run makes it rise. Else somebody changed
    it."""
    settings = run.settings
    ramp_s = settings.prefill_concurrency_ramp_duration
    if settings.warmup_goes_on:  # with its ramp
        ramp_s = settings.warmup_ramp_s
    limits = [change.limit for change in run.limits if change.phase == PROFILING]
    by_ones = all(
        before is not None and limit is not None and limit - before in (0, 1)
        for before, limit in pairwise(limits)
    )
    return bool(ramp_s) and by_ones


def describe_arm_limits(run: Run) -> str:
    """``base none, candidate 4`` or ``none, 1, 2 and 4 in turn``: prefill limits that differ on
    purpose. Empty: there is one, or none."""
    settings = run.settings
    if run.limit_blocks:
        limits = [f"{limit}" for limit in settings.swept_limits if limit is not None]
        return f"{', '.join(['none', *limits[:-1]])} and {limits[-1]} in turn"
    if not settings.compares or settings.changes.prefill_concurrency is None:
        return ""
    base = "none" if settings.prefill_concurrency is None else f"{settings.prefill_concurrency}"
    return f"base {base}, candidate {settings.changes.prefill_concurrency}"


def format_limit_range(series: StepSeries | None) -> str:
    """``3``, ``1 to 3``. Empty: there is no gate."""
    if series is None:
        return ""
    return f"{series.most}" if series.least == series.most else f"{series.least} to {series.most}"


def _as_asked(asked: int, series: StepSeries) -> bool:
    """Whether it goes by ones from 1 to the requested limit, and no further."""
    rising = (
        not series.without_s and series.most == asked and series.changes == asked - series.least
    )
    return rising and (not series.steps or series.steps[-1][1] == asked)


def _limit(value: int | None) -> str:
    return "no limit" if value is None else f"{value}"
