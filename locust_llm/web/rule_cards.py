"""Rule cards: the rules during a run: the value of the last seconds and of the run so far, the
limit, how many requests are over it, and what is likely to come of it."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from locust_llm.controller.early_stop import (
    AT_RISK,
    BROKEN_SO_FAR,
    FASTER,
    NO_VALUE,
    OK_SO_FAR,
    UNKNOWN_LEFT,
    ExceedanceCounts,
    LoadLeft,
    RuleProgress,
    is_over_at_the_end,
    read_selected_value,
)
from locust_llm.controller.run_progress import WINDOW_S, RunProgress
from locust_llm.records.histogram import Histogram, SlidingHistogram, histogram_percentiles
from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.rule_measures import meets_condition, read_measure
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    ERROR_RATE,
    OF_RUN,
    POOLED,
    RATE,
    SHARE,
    TIME,
    TTFT,
    TTFT_FROM_DUE,
)
from locust_llm.slo.rule_name import format_rule_name
from locust_llm.slo.rules import FAIL, PASS, Rule, make_predicates
from locust_llm.text.format import format_brief, format_duration

from .alerts import (
    NO_REQUESTS,
    Alert,
    LiveMark,
    describe_failing_rule,
    find_change_before,
    format_percent,
)

AT_THE_END: Final = "checked at the end"
CANNOT_PASS: Final = "cannot pass"
"""Nothing that may still come can bring its value within the limit."""
BAD_STATES: Final = (BROKEN_SO_FAR, CANNOT_PASS)
PASSED: Final = "passed"
FAILED: Final = "failed"
TOO_MANY_FAILED: Final = "no value"
"""The value of a percentile that lies on a failure."""
UNIT: Final = re.compile(r"(\d)(ms|s|us)\b")
RATE_WINDOW_S: Final = 10.0
"""The seconds behind the highest rate so far, which bounds what may still come."""
FAILURE: Final = 10**15
"""The time in a histogram that stands for a failure, which is beyond every limit."""
MICRO: Final = 1e6
SETTLED_S: Final = 5.0
"""A rate of fewer seconds says nothing."""


class RuleCard(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as the page shows it. Values have the unit of ``unit``."""

    rule: str
    """The rule as it was written."""
    name: str
    """``ITL p95 < 60 ms``"""
    state: str
    now: str = ""
    """The value of the last seconds. Empty: there is none."""
    so_far: str = ""
    limit: str = ""
    share: float | None = None
    """How much of what the rule allows is used up: 1 is all of it."""
    counts: str = ""
    """``121 of 171 over the limit, 5% allowed``"""
    left_out: int = 0
    """The counts leave out the first requests of so many users."""
    since: float | None = None
    """When its value got over the limit, in seconds since the start. None: it is not."""
    reason: str = ""


class RuleGauge:
    """The value of one rule in the last seconds and so far. ``clock``: seconds."""

    def __init__(
        self,
        rule: Rule,
        clock: Callable[[], float],
        stats: RunProgress | None = None,
        has_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stats``: the first tokens of the last seconds. None: only ended requests are known.
        ``has_waits``: whether requests wait before they are sent."""
        self._rule, self._clock, self._stats = rule, clock, stats
        self._has_waits = has_waits
        self._measure = BY_WORD[rule.metric]
        self._predicates = tuple(make_predicates(rule.where))
        self._recent = SlidingHistogram(WINDOW_S, clock)
        self._whole = Histogram()
        self._began_at: float | None = None

    def add(self, record: Record) -> None:
        if record.phase != PROFILING or record.outcome in NO_REQUESTS:
            return
        if self._began_at is None:
            self._began_at = self._clock()
        if all(holds(read_selected_value(record, column)) for column, holds in self._predicates):
            values = self._values_of(record)
            self._recent.add(values)
            self._whole.add(*values)

    def _values_of(self, record: Record) -> Sequence[int]:
        """Whole microunits of a metric; 0 and 1 of a share; amounts of a rate."""
        measure, rule = self._measure, self._rule
        ok = record.outcome == OK
        if measure.metric is not None:
            return self._metric_of(record)
        if measure.units is RATE:
            return self._amount_of(record) if ok else ()
        if measure.word == ERROR_RATE:
            return (int(record.failed),)
        if measure.flag:
            flag = getattr(record, measure.flag) if ok else None
            return () if flag is None else (int(flag),)
        return (int(ok and all(meets_condition(record, one) for one in rule.given)),)

    def _metric_of(self, record: Record) -> Sequence[int]:
        metric = self._measure.metric
        assert metric is not None
        if record.outcome != OK and not metric.waits:
            return (FAILURE,) if metric.censored and self._rule.stat != "avg" else ()
        if self._measure.tag == POOLED:
            return record.sharp_gaps_us
        value = read_measure(record, self._rule.metric)
        return () if value is None else (round(value * MICRO),)

    def _amount_of(self, record: Record) -> Sequence[int]:
        rule, sums = self._rule, self._measure.sums
        if not sums:
            return (int(all(meets_condition(record, one) for one in rule.given)),)
        return (sum(getattr(record, column) or 0 for column in sums),)

    def recent(self) -> float | None:
        """The value of the last seconds in the unit of ``Rule.limit``. None: there is none."""
        counts = self._recent.histogram().counts
        if self._is_of_first_tokens:
            return self._read_first_tokens(counts.get(FAILURE, 0))
        if self._measure.units is RATE:
            age_s = self._age_s
            present = self._clock() % 1.0
            return _per_second(counts, min(age_s, WINDOW_S - 1 + present))
        return self._read(counts)

    @property
    def _is_of_first_tokens(self) -> bool:
        """The value is a percentile of first tokens, which come before requests end."""
        rule = self._rule
        is_ttft = rule.metric in (TTFT.word, TTFT_FROM_DUE.word)
        return is_ttft and rule.percentile is not None and not rule.where and bool(self._stats)

    def _read_first_tokens(self, failed: int) -> float | None:
        """The percentile of the first tokens that came, as in the chart, and of the longer waits of
        requests that still wait. ``failed``: so many requests failed, each of which counts as a
        wait without an end."""
        assert self._stats is not None
        percent = self._rule.percentile or 0.0
        endless = {FAILURE: failed} if failed else {}
        from_due = self._rule.metric == TTFT_FROM_DUE.word
        if from_due or not self._has_waits():
            found_ms = self._stats.first_token_ms(percent, from_due=from_due, endless=endless)
        else:  # the waits so far are from due, and no part of TTFT
            found_ms = self._stats.recent_ttft.percentiles_ms(percent, waiting=endless)
        if found_ms is None:
            return None
        return math.inf if found_ms[0] > FAILURE / 1e6 else found_ms[0] / 1e3

    def so_far(self) -> float | None:
        if self._measure.units is RATE:
            return _per_second(self._whole.counts, self._age_s)
        return self._read(self._whole.counts)

    @property
    def _age_s(self) -> float:
        return 0.0 if self._began_at is None else self._clock() - self._began_at

    def _read(self, counts: Mapping[int, int]) -> float | None:
        if not counts:
            return None
        if self._measure.metric is None:
            return _mean(counts)
        if (percentile := self._rule.percentile) is not None:
            found = histogram_percentiles(counts, [percentile])[0]
        elif self._rule.stat == "avg":
            found = _mean(counts)
        else:
            found = min(counts) if self._rule.stat == "min" else max(counts)
        return math.inf if found > FAILURE / 1e3 else found / MICRO


def _mean(counts: Mapping[int, int]) -> float:
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def _per_second(counts: Mapping[int, int], seconds: float) -> float | None:
    if seconds < SETTLED_S:
        return None
    return sum(value * count for value, count in counts.items()) / seconds


class RuleBoard:
    """The cards of the rules of a run, or of a stage."""

    def __init__(
        self,
        rules: Iterable[Rule],
        clock: Callable[[], float],
        stats: RunProgress | None = None,
        where: str = "",
        has_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """``where``: `` in this stage``. Empty: in the run."""
        self._rules = tuple(rules)
        self._where = where
        self._gauges = {
            str(rule): RuleGauge(rule, clock, stats, has_waits)
            for rule in self._rules
            if _has_value(rule)
        }
        self._since: dict[str, float] = {}
        self._cards: tuple[RuleCard, ...] = ()
        self._counted: deque[tuple[float, int]] = deque()
        """(when, requests that were counted) in the last seconds."""
        self._most_per_s: float | None = None
        """The highest rate so far. None: the run is too young."""
        self._done = 0
        self._failing: set[str] = set()
        """The rules that were named by ``newly_failing``."""

    def add(self, record: Record) -> None:
        self._done += 1
        for gauge in self._gauges.values():
            gauge.add(record)

    def look(
        self,
        now: float,
        progress: Mapping[str, RuleProgress],
        left: LoadLeft = UNKNOWN_LEFT,
    ) -> None:
        """Make the cards. ``now``: seconds since the start. ``progress``: see EarlyStop."""
        self._note_rate(now)
        count = left.requests
        if count is None and left.seconds is not None and self._most_per_s is not None:
            count = math.ceil(FASTER * self._most_per_s * left.seconds)
        self._cards = tuple(self._make_card(rule, now, progress, count) for rule in self._rules)

    def _note_rate(self, now: float) -> None:
        self._counted.append((now, self._done))
        while now - self._counted[0][0] > RATE_WINDOW_S:
            self._counted.popleft()
        since, before = self._counted[0]
        if now - since >= RATE_WINDOW_S / 2:
            self._most_per_s = max(self._most_per_s or 0.0, (self._done - before) / (now - since))

    def cards(self) -> tuple[RuleCard, ...]:
        return self._cards

    def newly_failing(self) -> list[RuleCard]:
        """The rules that are certainly broken so far, or can no longer pass, each once."""
        new = [
            card
            for card in self._cards
            if card.state in BAD_STATES and card.rule not in self._failing
        ]
        self._failing.update(card.rule for card in new)
        return new

    def _make_card(
        self, rule: Rule, now: float, progress: Mapping[str, RuleProgress], left: int | None
    ) -> RuleCard:
        text = str(rule)
        gauge = self._gauges.get(text)
        known = progress.get(text)
        recent = None if gauge is None else gauge.recent()
        so_far = None if gauge is None else gauge.so_far()
        state = judge_progress(rule, known, so_far)
        if known is not None and can_no_longer_pass(known.counts, left, known.left_out):
            state = CANNOT_PASS
        if state in (AT_RISK, *BAD_STATES):
            self._since.setdefault(text, now)
        else:
            self._since.pop(text, None)
        counts = None if known is None else known.counts
        return RuleCard(
            rule=text,
            name=format_rule_name(rule),
            state=state,
            now=format_rule_value(rule, recent),
            so_far=format_rule_value(rule, so_far),
            limit=format_rule_value(rule, rule.limit),
            share=share_used(counts),
            counts="" if counts is None else describe_counts(counts),
            left_out=0 if known is None else known.left_out,
            since=self._since.get(text),
        )

    def alerts(self, changes: Sequence[LiveMark]) -> list[Alert]:
        """The rules that are certainly broken so far, or can no longer pass, of those that
        decide."""
        decides = {str(rule): rule.decides for rule in self._rules}
        alerts = []
        for card in self._cards:
            if card.state not in BAD_STATES or not decides[card.rule]:
                continue
            cause = None if card.since is None else find_change_before(changes, card.since)
            name = card.name.partition(" <")[0].partition(" >")[0]
            how = "is clearly beyond its limit"
            if card.state == CANNOT_PASS:
                how = "can no longer pass"
            what = f"{name} {how}{self._where}"
            alerts.append(
                describe_failing_rule(what, card.so_far, card.limit, card.counts, card.since, cause)
            )
        return alerts


def _has_value(rule: Rule) -> bool:
    """Its value is known before the report."""
    return not (rule.base or rule.felt or rule.metric in OF_RUN)


def judge_progress(rule: Rule, progress: RuleProgress | None, so_far: float | None) -> str:
    """The state of a rule. ``progress``: None where it cannot be broken before the end, such as a
    rate; there the value so far decides."""
    if progress is not None and progress.state in (BROKEN_SO_FAR, AT_RISK):
        return progress.state
    if so_far is not None and not rule.holds(so_far):
        return AT_RISK
    if progress is not None:
        return progress.state
    if not _has_value(rule):
        return AT_THE_END
    return NO_VALUE if so_far is None else OK_SO_FAR


def can_no_longer_pass(
    counts: ExceedanceCounts | None, left: int | None, left_out: int = 0
) -> bool:
    """Whether more requests are over the limit than may be at the end, if all that are still to
    come stay within it. ``left``: at most so many of them; None: not known. ``left_out``: so many
    are in no count here, and in the report."""
    if counts is None or not counts.allowed:
        return counts is not None and counts.over > 0
    if left is None:
        return False
    at_the_end = counts.done + counts.running + left + left_out
    return is_over_at_the_end(counts.over, counts.allowed, at_the_end)


def share_used(counts: ExceedanceCounts | None) -> float | None:
    """The part that is used up of the requests that may be over the limit. None: none may be."""
    if counts is None or not counts.done or not counts.allowed:
        return None
    return round(counts.over / (counts.allowed * counts.done), 3)


def describe_counts(counts: ExceedanceCounts) -> str:
    """``121 of 171 over the limit, 5% allowed; 24 running``"""
    what = "over the limit" if counts.what == "beyond the limit" else counts.what
    allowed = f"{format_percent(counts.allowed)} allowed" if counts.allowed else "none allowed"
    parts = [f"{counts.over:,} of {counts.done:,} {what}, {allowed}"]
    if counts.running:
        late = f", {counts.running_over:,} of them {what} already" if counts.running_over else ""
        parts.append(f"{counts.running:,} running{late}")
    return "; ".join(parts)


def format_rule_value(rule: Rule, value: float | None) -> str:
    """A value or a limit with its unit. Empty: there is none."""
    if value is None or rule.base:
        return ""
    units = BY_WORD[rule.metric].units
    if math.isinf(value):
        return TOO_MANY_FAILED
    if units is TIME:
        return format_duration(value)
    if units is SHARE:
        return format_percent(value)
    return format_brief(value, rule.unit, digits=3)


def make_final_card(
    rule: Rule | None, text: str, status: str, observed: str, reason: str
) -> RuleCard:
    """The card of a rule in the report. One that holds needs no reason."""
    state = {PASS: PASSED, FAIL: FAILED}.get(status, status.lower())
    return RuleCard(
        rule=text,
        name=text if rule is None else format_rule_name(rule),
        state=state,
        now=UNIT.sub(r"\1 \2", observed),
        limit="" if rule is None else format_rule_value(rule, rule.limit),
        reason="" if status == PASS else UNIT.sub(r"\1 \2", reason),
    )
