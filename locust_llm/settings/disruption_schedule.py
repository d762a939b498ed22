"""Disruption schedule: what a ``--disrupt`` means: ``at 60s: COMMAND``, or ``every 2m: COMMAND``.

Times count as ``-t`` does: from the start of the profiling phase, behind the warmup.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from locust_llm.text.numbers import truncate_quoted_text

from .run_options import Settings

DISRUPT: Final = "--disrupt"
LEAST_PERIOD_S: Final = 1.0
ROUNDING_S: Final = 1e-6
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PLAN: Final = re.compile(
    r"(?P<schedule>(?P<how>at|every)\s+(?P<number>\d{1,9}(?:\.\d{1,3})?)(?P<unit>[smh]))\s*:"
    r"\s*(?P<command>\S.*)",
    re.DOTALL,
)


class DisruptionPlan(NamedTuple):
    """When a command is to run."""

    schedule: str
    """``at 60s`` or ``every 2m``."""
    first_s: float
    period_s: float | None
    """None: it runs once."""
    command: str

    def list_times(self, longest_s: float | None) -> Iterator[float]:
        """When it is due, in seconds of the profiling phase. A command that is repeated begins only
        while a whole period of a run of ``longest_s`` is left, so that the recovery can be seen."""
        yield self.first_s
        if self.period_s is None:
            return
        last_s = math.inf if longest_s is None else longest_s - self.period_s
        for number in itertools.count(1):
            due_s = self.first_s + number * self.period_s
            if due_s > last_s + ROUNDING_S:
                return
            yield due_s


def parse_disruption(text: str) -> DisruptionPlan:
    """Raises ValueError of one sentence, which shows no part of the command."""
    found = _PLAN.fullmatch(text.strip())
    if found is None:
        begin = truncate_quoted_text(text.strip().partition(":")[0], 20)
        raise ValueError(
            f"{DISRUPT} must be 'at 60s: COMMAND' or 'every 2m: COMMAND', got one that begins with "
            f"{begin!r}"
        )
    seconds = float(found["number"]) * _SECONDS[found["unit"]]
    period_s = seconds if found["how"] == "every" else None
    if period_s is not None and period_s < LEAST_PERIOD_S:
        raise ValueError(f"{DISRUPT} {found['schedule']}: the least period is {LEAST_PERIOD_S:g}s")
    schedule = " ".join(found["schedule"].split())
    return DisruptionPlan(schedule, seconds, period_s, found["command"])


def validate_plans(plans: Iterable[DisruptionPlan], settings: Settings) -> Iterator[str]:
    """Why this run cannot have these disruptions, a sentence each."""
    changing = {
        "a comparison of two servers": settings.compares,
        "--sweep": settings.staged is not None,
        "a comparison of prefill limits": bool(settings.swept_limits),
    }
    for plan in plans:
        for what, is_on in changing.items():
            if is_on:
                yield f"{DISRUPT} needs a run of one load: it cannot go with {what}"
                return
        if settings.longest_s is not None and plan.first_s >= settings.longest_s:
            yield f"{DISRUPT} {plan.schedule}: the run ends before (-t {settings.longest_s:g})"
