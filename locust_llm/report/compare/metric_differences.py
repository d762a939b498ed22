"""Metric differences: the same figure of two runs, and the interval of its difference.

The interval of each run's own figure widens by the correlation of its requests
(report/slo_evidence/confidence_intervals.py); that of the difference, and of the ratio, is made of both by
adding the squares of their reaches (Zou and Donner, Construction of confidence limits about effect
measures, Statistics in Medicine 27, 2008). A change is stated with one interval, which holds both
(``change_ends``): in the figure's unit, or in percent of the base's value as it was measured. Two
runs one after the other see different weather: what changed on the machines between them is in no
interval.
"""

import math
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.report.compare.condition_differences import find_condition_differences
from locust_llm.report.slo_evidence.confidence_intervals import RISES
from locust_llm.report.slo_evidence.observed_rule_values import (
    Evaluation,
    ObservedValue,
    compute_rule_value,
    explain_missing_end,
    find_seconds_for_rate,
)
from locust_llm.slo.binomial_intervals import Ends
from locust_llm.slo.metric_definitions import BY_WORD, RATE, SHARE, TIME
from locust_llm.slo.rules import Rule
from locust_llm.text.format import (
    count_distinguishing_digits,
    format_brief,
    format_duration_rounded_up,
)

BETTER: Final = "better"
WORSE: Final = "worse"
SAME: Final = "no significant difference"
FEW: Final = "too few to tell"
HARDLY: Final = 0.01
"""A certain difference below this share of the base's value is called hardly one."""
KNOWN_WELL: Final = 0.5
"""A base whose interval goes further down than to this share of it has no ratio worth an interval:
its upper end would be as good as infinite."""


class MetricChange(NamedTuple):
    """The change from one run to another, in seconds, a share of 1, or a number a second."""

    base: ObservedValue
    here: ObservedValue
    difference: float | None = None
    """None: there is nothing to compare, and ``note`` has the reason."""
    ends: Ends | None = (None, None)
    """The ends of its 95 % interval. None: a fact of the runs, which has none."""
    ratio: float | None = None
    """here / base. Infinite: only the base's value is 0."""
    ratio_ends: Ends | None = (None, None)
    """The ends of the same interval (``change_ends``)."""
    note: str = ""

    def word(self, rule: Rule) -> str:
        """Whether the rule's value became better or worse, as far as it is known."""
        if self.difference is None:
            return "-"
        low, high = (self.difference, self.difference) if self.ends is None else self.ends
        if low is None or high is None:
            return FEW
        if low <= 0 <= high:
            return SAME
        hardly = (
            self.ratio is not None
            and abs(self.ratio - 1) < HARDLY
            and BY_WORD[rule.metric].units is not SHARE
        )
        return "hardly " * hardly + (WORSE if (low > 0) == rule.less_is_better else BETTER)


def measure_change(rule: Rule, base: Evaluation, here: Evaluation) -> MetricChange:
    """The change of a rule's value. Its limit plays no part."""
    rule = replace(rule, op="<=" if rule.less_is_better else ">=")
    old = compute_rule_value(rule, base)
    new = compute_rule_value(rule, here)
    if old.value is None or new.value is None:
        return MetricChange(
            old,
            new,
            note=f"in the base, {old.note}" if new.value is not None else f"here, {new.note}",
        )
    known = MetricChange(old, new, _minus(new.value, old.value), ratio=_over(new.value, old.value))
    if old.ends is None or new.ends is None:
        return known._replace(ends=None, ratio_ends=None)
    if few := "; ".join(filter(None, (_few(rule, old, "in the base"), _few(rule, new, "here")))):
        return known._replace(note=few)
    ends, of_ratio = change_ends(old, new, rule)
    if BY_WORD[rule.metric].units is RATE and _says_nothing(ends, old):
        return known._replace(note=_describe_short_runs(base, here))
    return known._replace(ends=ends, ratio_ends=of_ratio, note=_unsettled(old, new))


def _says_nothing(ends: Ends, old: ObservedValue) -> bool:
    """The other rate may be 0, and may be no lower than the base's."""
    low, high = ends
    return low is not None and high is not None and low <= -_known(old) < 0 <= high


def _describe_short_runs(base: Evaluation, here: Evaluation) -> str:
    """``too short for a rate: 10 s in the base, 10 s here; at least 20 s``"""
    base_s, here_s = (f"{seen.time.seconds:.0f} s" for seen in (base, here))
    needed_s = [s for s in map(find_seconds_for_rate, (base, here)) if s is not None]
    least = f"; at least {format_duration_rounded_up(max(needed_s))}" if needed_s else ""
    return f"too short for a rate: {base_s} in the base, {here_s} here{least}"


def change_ends(old: ObservedValue, new: ObservedValue, rule: Rule) -> tuple[Ends, Ends]:
    """One interval of a change, in two units: (its ends as ``new`` minus ``old``, the same as
    ``new`` over ``old``), each the other beside the base's value as it was measured. It holds the
    interval of the difference and, where the base is known well enough for one, that of the
    ratio."""
    base = _known(old)
    of_ratio = ratio_ends(old, new)
    if not 0 < base < math.inf:  # nothing is a percentage of it
        return difference_ends(old, new), of_ratio
    low, high = possible_ends(difference_ends(old, new), base, rule)
    if BY_WORD[rule.metric].units is not SHARE and _reach(old)[0] > KNOWN_WELL * base:
        low = min(low, base * (of_ratio[0] - 1))
        high = max(high, base * (of_ratio[1] - 1))
    return (low, high), (1 + low / base, 1 + high / base)


def difference_ends(old: ObservedValue, new: ObservedValue) -> tuple[float, float]:
    """The ends of ``new`` minus ``old``. For two rates they hold both the difference with the
    load's start and end, and the one without."""
    if old.settled is None or new.settled is None:
        return _difference_ends(old, new)
    low, high = _difference_ends(old.settled, new.settled)
    beside = _known(new) - _known(old) - (_known(new.settled) - _known(old.settled))
    return min(low, low + beside), max(high, high + beside)


def _difference_ends(old: ObservedValue, new: ObservedValue) -> tuple[float, float]:
    """The ends of ``new`` minus ``old``. Where cut requests leave a value open, they go from the
    least to the most possible."""
    old_low, old_least, old_most, old_high = _reach(old)
    low, least, most, high = _reach(new)
    if not all(map(math.isfinite, (old_low, old_high, low, high))):
        return _minus(low, old_high), _minus(high, old_low)
    return (
        least - old_most - math.hypot(least - low, old_high - old_most),
        most - old_least + math.hypot(high - most, old_least - old_low),
    )


def possible_ends(ends: tuple[float, float], base: float, rule: Rule) -> tuple[float, float]:
    """The ends beside a base's value: no end takes the other value below 0, or a share above 1."""
    low = max(ends[0], -base)
    if BY_WORD[rule.metric].units is SHARE:
        return low, min(ends[1], 1.0 - base)
    return low, ends[1]


def ratio_ends(old: ObservedValue, new: ObservedValue) -> tuple[float, float]:
    """The ends of ``new`` over ``old``; for two rates as in ``difference_ends``."""
    if old.settled is None or new.settled is None:
        return _ratio_ends(old, new)
    low, high = _ratio_ends(old.settled, new.settled)
    own = _over(_known(new.settled), _known(old.settled))
    if not 0 < own < math.inf:
        return _ratio_ends(old, new)
    beside = _over(_known(new), _known(old)) / own
    return min(low, low * beside), max(high, high * beside)


def _ratio_ends(old: ObservedValue, new: ObservedValue) -> tuple[float, float]:
    """The ends of ``new`` over ``old``, on a logarithmic scale."""
    old_low, old_least, old_most, old_high = _reach(old)
    low, least, most, high = _reach(new)
    if not all(
        0 < value < math.inf
        for value in (old_low, old_least, old_most, old_high, low, least, most, high)
    ):
        return _over(low, old_high), _over(high, old_low)
    return (
        least
        / old_most
        * math.exp(-math.hypot(math.log(least / low), math.log(old_high / old_most))),
        most
        / old_least
        * math.exp(math.hypot(math.log(high / most), math.log(old_least / old_low))),
    )


def _known(observed: ObservedValue) -> float:
    """The value of one with ends."""
    assert observed.value is not None
    return observed.value


def _reach(observed: ObservedValue) -> tuple[float, float, float, float]:
    """(lower end, least possible value, most possible value, upper end)."""
    assert observed.value is not None
    assert observed.ends is not None
    least, most = sorted(
        (observed.value, observed.value if observed.worst is None else observed.worst)
    )
    low, high = observed.ends
    assert low is not None
    assert high is not None
    return max(low, 0.0), least, most, high


def measure_worsening(rule: Rule, base: Evaluation, here: Evaluation) -> ObservedValue:
    """How much worse a rule's value is than its base's: a share of the base, or in the value's
    unit; negative if it is better. Nothing where the runs differ in a relevant condition."""
    if decisive := [
        f"{d.what} ({d.base} in {rule.base}, {d.here} here)"
        for d in find_condition_differences(base, here)
        if d.decisive
    ]:
        return ObservedValue(None, note=f"the runs differ in {'; '.join(decisive)}")
    metric_change = measure_change(rule, base, here)
    base_is, here_is = metric_change.base.value, metric_change.here.value
    if (
        metric_change.difference is None
        or metric_change.ratio is None
        or base_is is None
        or here_is is None
    ):
        return ObservedValue(None, note=metric_change.note)
    if rule.unit == "%" and math.isinf(metric_change.ratio) and not base_is:
        return ObservedValue(
            None,
            note=(
                f"it is 0 in {rule.base}, and a percentage of 0 has no meaning: use another unit "
                "for the tolerance"
            ),
        )
    value, reach, nothing = (
        (metric_change.ratio, metric_change.ratio_ends, 1.0)
        if rule.unit == "%"
        else (metric_change.difference, metric_change.ends, 0.0)
    )
    sign = 1 if rule.less_is_better else -1
    if reach is not None and reach[0] is not None and reach[1] is not None:
        low, high = sorted((sign * (reach[0] - nothing), sign * (reach[1] - nothing)))
        reach = low, high
    measure = BY_WORD[rule.metric]
    unit = "ms" if measure.units is TIME else next(iter(measure.units))
    digits = count_distinguishing_digits(here_is, base_is, digits=4)
    here_shown, base_shown = (
        format_brief(value * measure.units[unit], unit, digits) for value in (here_is, base_is)
    )
    decisive = [f"{here_shown} here, {base_shown} in {rule.base}", metric_change.note]
    trend = (
        RISES
        if metric_change.here.trend and (metric_change.here.trend == RISES) == rule.less_is_better
        else ""
    )
    return ObservedValue(
        sign * (value - nothing),
        reach,
        metric_change.here.count,
        "; ".join(filter(None, decisive)),
        trend=trend,
    )


def _few(rule: Rule, observed: ObservedValue, where: str) -> str:
    """Why there is no interval, if there are too few values."""
    if observed.ends is None or None not in observed.ends:
        return ""
    if observed.note:
        return f"{where}, {observed.note}"
    return f"{where}, {explain_missing_end(observed)}"


def _unsettled(old: ObservedValue, new: ObservedValue) -> str:
    """Why either value is not a steady run's."""
    sides = [
        f"{observed.trend} over the run {where}"
        for observed, where in ((old, "in the base"), (new, "here"))
        if observed.trend
    ]
    return "; ".join(filter(None, (f"it {', and '.join(sides)}" if sides else "", _cut(old, new))))


def _cut(old: ObservedValue, new: ObservedValue) -> str:
    """Which of two values cut requests leave open."""
    sides = [
        f"{observed.cut} {where}"
        for observed, where in ((old, "in the base"), (new, "here"))
        if observed.worst is not None
    ]
    return (
        f"requests were unfinished ({', '.join(sides)}) and count with their best and worst case"
        if sides
        else ""
    )


def _minus(this: float, that: float) -> float:
    """Equal values differ by 0, also if both are at a failure."""
    return 0.0 if this == that else this - that


def _over(this: float, that: float) -> float:
    """1 where both are equal, also at 0."""
    if this == that:
        return 1.0
    if not that:
        return math.inf
    return 0.0 if math.isinf(that) else max(this, 0.0) / that
