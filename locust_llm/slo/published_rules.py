"""Published rules: when a run counts by a benchmark's own rules, as the table [published] of a
scenario has them."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from .binomial_intervals import binomial_cdf

WARNS: Final = "warn"
FAILS: Final = "fail"
MODES: Final = (WARNS, FAILS)
"""The effect of a run that breaks these rules."""
CONFIDENCE: Final = 0.99
"""The confidence of MLPerf's early stopping, a constant of its LoadGen."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Whole = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Percentile = Annotated[float, msgspec.Meta(ge=50, lt=100)]


class PublishedRules(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """What a benchmark requires of a run, and of the points of its curve. A missing rule is not
    checked."""

    rules: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    """The name and the version."""
    note: str = ""
    """What a run that meets them still is not."""
    unchecked: tuple[str, ...] = ()
    """Further requirements that nothing here can check."""
    free: tuple[str, ...] = ()
    """The options of the scenario that the rules leave open. Another value of any other option
    breaks the rules."""
    loop: Annotated[str, msgspec.Meta(pattern="^(closed|open|)$")] = ""
    """closed: a fixed number of requests in flight. open: a schedule."""
    streaming: bool = False
    seconds: tuple[tuple[Whole, Positive], ...] = ()
    """(users from which on it holds, least measured seconds of a point), in rising order."""
    requests: Whole | None = None
    """The least number of answered requests of a point."""
    requests_per_user: Positive | None = None
    warmup_per_user: Positive | None = None
    """The least number of requests that end before a point is measured, for each of its users."""
    dataset_pass: bool = False
    """Each point answers at least as many requests as the dataset has."""
    percentiles: tuple[Percentile, ...] = ()
    """The percentiles for which a point needs enough samples: see ``least_samples``."""
    points: tuple[Whole, Whole] | None = None
    """(least, most) points of a curve."""
    levels: tuple[Whole, ...] = ()
    """The users of the points that a curve begins with, up to its highest one."""
    regions: bool = False
    """Each region of concurrency needs a point (MLPerf Endpoints)."""
    until_flat: bool = False
    """A curve goes on until more users bring no more tokens."""
    client_ok: bool = False
    """The client verdict of each point is OK. This rule is ours, and no benchmark's."""

    def least_seconds(self, users: float) -> float | None:
        """The seconds that a point with so many users needs. None: there is no rule."""
        held = [seconds for since, seconds in self.seconds if users >= since]
        return held[-1] if held else None


def parse_published_rules(table: Mapping[str, Any]) -> PublishedRules:
    """Read a table. Raises ValueError of one sentence, which begins with the key where it is
    known."""
    try:
        rules = msgspec.convert(table, PublishedRules)
    except msgspec.ValidationError as error:
        what, _, where = " ".join(str(error).split()).partition(" - at `$")
        key = re.match(r"\.([\w-]+)", where) or re.search("field `(.+?)`", what)
        raise ValueError(f"{f'{key[1]}: ' if key else ''}{what[0].lower()}{what[1:]}") from None
    if [*rules.seconds] != sorted(rules.seconds):
        raise ValueError("seconds: the numbers of users must rise")
    if rules.points is not None and rules.points[0] > rules.points[1]:
        raise ValueError("points: least and most, in this order")
    return rules


def least_samples(percentile: float, over: int = 1, confidence: float = CONFIDENCE) -> int:
    """How many independent requests it takes to say with ``confidence`` that a percentile is within
    its limit although ``over`` of them are beyond: 64 for p90, 130 for p95, 662 for p99, 6,636 for
    p99.9 where one is.

    The least n with P(X <= over) <= 1 - confidence, X binomial of n and 1 - percentile / 100: were
    the percentile beyond its limit, so few requests would be by such a chance only. The test of
    early stopping of MLPerf's LoadGen (tolerance 0).
    """
    beyond = 1 - percentile / 100
    low = over
    high = 2 + over
    while binomial_cdf(over, high, beyond) > 1 - confidence:
        low = high
        high = 2 * high
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        low, high = (
            (middle, high) if binomial_cdf(over, middle, beyond) > 1 - confidence else (low, middle)
        )
    return high
