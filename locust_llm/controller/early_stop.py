"""Early stop: the rules of a run held against what has come so far, to end a run that is certainly
broken.

A percentile, or a share such as the rate of failures, is a count: so many requests are beyond the
limit, so many may be. That more than these are must be ``SURE`` times as likely as that they are
not, by ``evidence``. Requests are correlated, so their effective sample size counts, by the
correlation of their values and of their being beyond the limit, with ROOM for how badly few of them
show it. Below MIN_EFFECTIVE_SIZE nothing is concluded. An average has a bound of the same
kind. A queue that fills is another matter: its values rise steadily, no correlation explains that,
and it will not get better; so there the requests count in full. So do failures where nearly all
requests fail, and where nothing has answered for DEAD_S and for longer than all the time before: a
dead server is no burst of failures that ends. Where nothing has answered for DEAD_S, a rule is broken
as well once the rest of the run could not bring it within its limit any more. A single value beyond
the limit decides a maximum or a minimum. In a closed loop the first request of each user, as they
find the server idle, is left out.

Of what is under way nobody knows what it becomes: each counts as one that is within the limit, but
for those that have been under way for longer than the limit of a latency is. So the evidence is at
most that of all requests that were sent, in the order of their sends, and fast failures are not
held against answers that are not over yet.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from locust_llm.records.outcomes import CANCELLED, CUT, DEAD_S, OK, RETRIED
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.rule_measures import meets_condition, read_measure
from locust_llm.records.run_facts import BrokenRule
from locust_llm.slo.binomial_intervals import TAIL, binomial_cdf, count_needed_values
from locust_llm.slo.correlation_time import CorrelationTime
from locust_llm.slo.metric_definitions import BY_WORD, POOLED, Metric
from locust_llm.slo.rules import ABORT, INPUT, Condition, Rule, make_predicates
from locust_llm.text.format import count_distinguishing_digits, format_brief

from .requests_in_flight import RequestsInFlight

SURE: Final = 1 / TAIL
ROOM: Final = 1.5
"""Requests are taken as more correlated than they show, by this factor."""
MIN_EFFECTIVE_SIZE: Final = 25
"""An effective sample size below this ends no run."""
MIN_SEEN: Final = 128
"""Fewer requests do not show how correlated they are."""
MIXED: Final = 50.0
"""The bound of an average is tightest at so many independent values."""
NEARLY_ALL: Final = 0.98
MIN_COUNTED: Final = 10
"""Fewer requests make no share."""
CERTAIN: Final = 1.5
"""A rule can no longer pass where so many times as many requests are over its limit as may be at
the end of the run."""
FASTER: Final = 3.0
"""The rest of a run has at most so many times the highest rate so far."""
OVERDUE: Final = ("ttft", "ttfo", "ttft_from_due", "request_latency")
"""The latencies that a request under way for long has passed; the last one only if it has no chunk
yet."""
MARGIN_S: Final = 1.0
"""The time until a first chunk is known."""


def exceedance_evidence(beyond_count: float, of: float, share: float) -> float:
    """How many times more likely ``beyond_count`` out of ``of`` is if the true share lies above
    ``share`` (anywhere, uniformly) than if it is that: a likelihood ratio, as a logarithm.

    If the true share is not above ``share``, it ever reaches log(x) with a probability of at most 1
    / x, however often one looks, as it is a supermartingale (Ville, Étude critique de la notion de
    collectif, 1939; Robbins, Statistical methods related to the law of the iterated logarithm,
    Annals of Mathematical Statistics 41, 1970).
    """
    if share <= 0:
        return math.inf if beyond_count else 0.0
    # the part above ``share`` of the Beta distribution that the counts make
    above = binomial_cdf(beyond_count, of + 1, share)
    if share >= 1 or above <= 0:
        return -math.inf
    likelihood = (
        math.lgamma(beyond_count + 1)
        + math.lgamma(of - beyond_count + 1)
        - math.lgamma(of + 2)
        + math.log(above)
    )
    return (
        likelihood
        - math.log1p(-share)
        - beyond_count * math.log(share)
        - (of - beyond_count) * math.log1p(-share)
    )


def certain_standard_errors(effective_size: float) -> float:
    """The standard errors by which a mean of so many independent values ever lies above the true
    one with a probability of TAIL, however often one looks.

    It is Robbins' normal mixture, one-sided. For means of any distribution: Waudby-Smith, Arbour,
    Sinha, Kennedy and Ramdas, Time-uniform central limit theory, Annals of Statistics 52, 2024.
    """
    return math.sqrt(
        2
        * (1 + MIXED / effective_size)
        * math.log(1 + math.sqrt(effective_size / MIXED + 1) / (2 * TAIL))
    )


OK_SO_FAR: Final = "OK so far"
AT_RISK: Final = "at risk"
"""The value so far is beyond the limit, and the rest of the run may still change that."""
BROKEN_SO_FAR: Final = "broken so far"
"""What came so far certainly breaks the rule. The rest of the run may still change its value."""
NO_VALUE: Final = "no value yet"


class ExceedanceCounts(NamedTuple):
    """How many requests are over the limit of a rule, and how many may be."""

    over: int
    done: int
    allowed: float
    """The share that may be over the limit."""
    what: str
    """``over the limit``, ``failed``, ``not good``."""
    running: int = 0
    running_over: int = 0
    """The running requests that are over the limit already."""

    @property
    def is_beyond_with_running(self) -> bool:
        """More are over the limit than may be, if what runs counts with its time so far."""
        over = self.over + self.running_over
        return over > self.allowed * (self.done + self.running)


class RuleProgress(NamedTuple):
    """What is known of a rule during the run."""

    state: str
    """OK_SO_FAR, AT_RISK, BROKEN_SO_FAR or NO_VALUE. There is no interval behind it but for
    BROKEN_SO_FAR."""
    counts: ExceedanceCounts | None = None
    """None: the rule is about an average, or has no value yet."""
    left_out: int = 0
    """The first requests of so many users are left out."""


class LoadLeft(NamedTuple):
    """What is left of the profiling phase: its time, or its number of requests. None: not known."""

    seconds: float | None = None
    requests: int | None = None


UNKNOWN_LEFT: Final = LoadLeft()


def is_over_at_the_end(over: float, allowed: float, at_the_end: float) -> bool:
    """Whether more of ``at_the_end`` requests are certainly over the limit than may be, if all that
    are still to come stay within it."""
    return over > CERTAIN * allowed * at_the_end


class RuleStanding(NamedTuple):
    """How many of the rules that decide are in which state."""

    broken: int
    """Their value so far breaks them."""
    known: int
    """They have a value so far."""
    later: int
    """They have none before the end, as rates."""
    all: int


class ShareMonitor:
    """Watches a share of requests beyond a limit. A share of them may be."""

    def __init__(self, may: float, at_least: int = 0, what: str = "beyond the limit") -> None:
        """``what`` names the counted requests."""
        self._may, self._at_least, self._what = may, at_least, what
        self._beyond = self._open = self._open_beyond = 0
        self._of_values = CorrelationTime()
        self._of_beyond = CorrelationTime()
        self.count = 0

    def add(self, beyond: bool, value: float | None = None) -> None:
        """``value`` lies beyond the limit or not; larger is worse. None: there is none, as for a
        failure."""
        self._beyond += beyond
        self.count += 1
        self._of_beyond.add(float(beyond))
        if value is not None:
            self._of_values.add(value)

    @property
    def holds(self) -> bool:
        return self._beyond <= self._may * self.count

    @property
    def counts(self) -> "ExceedanceCounts":
        """What was counted up to the last call of ``broken``."""
        return ExceedanceCounts(
            over=self._beyond, done=self.count, allowed=self._may, what=self._what,
            running=self._open, running_over=self._open_beyond,
        )  # fmt: skip

    def broken(
        self,
        open_: int = 0,
        beyond: int = 0,
        *,
        dead: bool = False,
        to_come: float | None = None,
    ) -> bool:
        """Whether the rule is certainly broken. ``open_`` requests are under way, and ``beyond`` of
        them are beyond the limit already. ``dead``: the server is. ``to_come``: where nothing
        answers, at most so many requests follow; None: it answers, or the number is not known."""
        self._open, self._open_beyond = open_, beyond
        exceeding = self._beyond + beyond
        total = self.count + open_
        if exceeding <= self._may * total or self.count + beyond < self._at_least:
            return False
        if to_come is not None and is_over_at_the_end(exceeding, self._may, total + to_come):
            return True
        all_fail = exceeding >= NEARLY_ALL * total and not self._of_values.count
        if not self._may or all_fail or dead:
            return exceedance_evidence(exceeding, total, self._may) >= math.log(SURE)
        if total < MIN_SEEN:
            return False
        effective: float = total
        if not self._of_values.rises:
            effective /= ROOM * max(self._of_values.requests, self._of_beyond.requests)
        if effective < MIN_EFFECTIVE_SIZE:
            return False
        evidence = exceedance_evidence(exceeding / total * effective, effective, self._may)
        return evidence >= math.log(SURE)

    def __str__(self) -> str:
        may = f"{100 * self._may:.3g}% allowed" if self._may else "none allowed"
        counted = f"{self._beyond} of {self.count} {self._what}; {may}"
        if not self._open:
            return counted
        late = f", {self._open_beyond} of them {self._what} already" if self._open_beyond else ""
        return f"{counted}; {self._open} in flight{late}"


class MeanMonitor:
    """Watches an average: the mean of how far each request is beyond the limit."""

    def __init__(self, limit: float, worse: float, unit: str, factor: float) -> None:
        """``worse``: 1 if larger values are worse, -1 if smaller ones are. ``factor`` converts an
        average to ``unit`` for messages."""
        self._limit, self._worse, self._unit, self._factor = limit, worse, unit, factor
        self._beyond = CorrelationTime()
        self._amount = self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        self._amount += amount
        self._weight += weight
        self._beyond.add(self._worse * (amount - self._limit * weight))

    @property
    def count(self) -> int:
        return self._beyond.count

    @property
    def value(self) -> float:
        return self._amount / self._weight if self._weight else math.nan

    @property
    def holds(self) -> bool:
        return self._beyond.mean <= 0

    def broken(
        self,
        open_: int = 0,
        beyond: int = 0,
        *,
        dead: bool = False,
        to_come: float | None = None,
    ) -> bool:
        """Whether the rule is certainly broken. Requests under way and failures are in no
        average."""
        if self.count < MIN_SEEN or self.holds:
            return False
        effective_size = self.count / (1 if self._beyond.rises else ROOM * self._beyond.requests)
        error = math.sqrt(self._beyond.variance / effective_size)
        return (
            effective_size >= MIN_EFFECTIVE_SIZE
            and self._beyond.mean > certain_standard_errors(effective_size) * error
        )

    def __str__(self) -> str:
        value = self.value * self._factor
        limit = self._limit * self._factor
        unit = self._unit
        if unit == "s" and value < 1:  # as in the report
            value = value * 1e3
            limit *= 1e3
            unit = "ms"
        written = format_brief(value, unit, count_distinguishing_digits(value, limit, digits=4))
        return f"over {self.count} requests it is {written}, and its interval lies beyond the limit"


class AnswerWatch:
    """How long the server has answered nothing but failures."""

    def __init__(self) -> None:
        self._first_sent_at = math.inf
        self._answered_at = -math.inf
        self._failed_at = -math.inf
        self._answers = 0

    def add(self, record: Record) -> None:
        ended_at = record.clock_offset_s + record.closed_at
        self._first_sent_at = min(self._first_sent_at, record.clock_offset_s + record.asked_at)
        if record.failed:
            self._failed_at = max(self._failed_at, ended_at)
        else:
            self._answered_at = max(self._answered_at, ended_at)
            self._answers += 1

    @property
    def silent_s(self) -> float:
        """The time from the last answer to the last failure."""
        return max(0.0, self._failed_at - self._answered_at)

    @property
    def _before_s(self) -> float:
        """The time from the first send to the last answer."""
        return self._answered_at - self._first_sent_at

    @property
    def dead(self) -> bool:
        """Nothing has answered for DEAD_S, and for longer than all the time before."""
        return self.silent_s >= max(self._before_s, DEAD_S)

    def count_to_come(self, left: LoadLeft) -> float | None:
        """How many requests may follow at most, if it answers again as it did. None: not known."""
        if left.requests is not None:
            return left.requests
        if left.seconds is None or not self._before_s > 0:
            return None
        return FASTER * self._answers / self._before_s * left.seconds


class RuleMonitor:
    """A rule, and what is known of it so far."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        measure = BY_WORD[rule.metric]
        down = rule.op.startswith("<")
        percentile, metric = rule.percentile, measure.metric
        self.counts_first_wave = rule.stat in ("min", "max")
        """One value decides: it is no question of how many there are."""
        self._predicates = tuple(make_predicates(rule.where))
        self._answers = AnswerWatch()
        self._known: set[str] = set()
        """Columns of the conditions that some successful request had."""
        self._add: Callable[[Record], None]
        self.tally: ShareMonitor | MeanMonitor
        if metric is None:
            usual = down == (rule.metric == "error_rate")
            what = measure.against if usual else "beyond the limit"
            self.tally = ShareMonitor(rule.limit if down else 1 - rule.limit, MIN_COUNTED, what)
            self._add = partial(self._share, self.tally, down)
        elif rule.stat == "avg":
            self.tally = MeanMonitor(
                rule.limit, 1.0 if down else -1.0, rule.unit, measure.units[rule.unit]
            )
            self._add = (
                partial(self._gaps, self.tally)
                if measure.tag == POOLED
                else partial(self._mean, self.tally, metric)
            )
        elif (
            measure.tag == POOLED and percentile is not None
        ):  # gaps are not independent: an average over requests
            least = percentile / 100 if down else 1 - percentile / 100
            self.tally = MeanMonitor(least, -1.0, "% of the gaps within the limit", 100.0)
            self._add = partial(self._gaps, self.tally)
        else:
            may, at_least = 0.0, 0
            if percentile is not None:
                may = 1 - percentile / 100 if down else percentile / 100
                at_least = count_needed_values(percentile)
            self.tally = ShareMonitor(may, at_least)
            self._add = partial(self._value, self.tally, metric)

    def add(self, record: Record, *, first_wave: bool = False) -> None:
        if not self._selects(record):
            return
        self._answers.add(record)
        if self.counts_first_wave or not first_wave:
            self._add(record)

    def _selects(self, record: Record) -> bool:
        return all(holds(read_selected_value(record, column)) for column, holds in self._predicates)

    @property
    def holds(self) -> bool | None:
        """Whether its value so far meets the limit. None: there is no value."""
        return self.tally.holds if self.tally.count and self._complete else None

    def broken(
        self,
        sends: RequestsInFlight,
        first_wave: int,
        left: LoadLeft = UNKNOWN_LEFT,
        silent_s: float = 0.0,
    ) -> bool:
        """Whether it is certainly broken. ``sends``: requests under way. ``first_wave``: how many
        of them are left out. ``left``: of the run. ``silent_s``: nothing has answered the run for so
        long."""
        overdue = max(0, self._overdue(sends) - first_wave)
        to_come = None
        if max(silent_s, self._answers.silent_s) >= DEAD_S:
            to_come = self._answers.count_to_come(left)
        return self._complete and self.tally.broken(
            sends.open, overdue, dead=self._answers.dead, to_come=to_come
        )

    @property
    def silent_s(self) -> float:
        """For how long its requests have had no answer but failures."""
        return self._answers.silent_s

    def _overdue(self, sends: RequestsInFlight) -> int:
        """How many requests under way are at least beyond the limit already."""
        if self.rule.where or self.rule.stat == "avg":
            return 0  # nobody knows which of them the rule is about
        if self.rule.percentile is not None or self.rule.stat == "max":
            return _older(sends, self.rule.metric, self.rule.op, self.rule.limit)
        if self.rule.metric == "attainment" and not self.rule.op.startswith("<"):
            return max((_older(sends, c.metric, c.op, c.limit) for c in self.rule.given), default=0)
        return 0

    @property
    def _complete(self) -> bool:
        """Every condition is about something that answers have."""
        return not self._known or all(
            condition.metric in self._known for condition in self.rule.given
        )

    def _share(self, tally: ShareMonitor, down: bool, record: Record) -> None:
        if self.rule.metric == "error_rate":
            tally.add(record.failed == down)
            return
        if flag := BY_WORD[self.rule.metric].flag:
            hit = getattr(record, flag) if record.outcome == OK else None
            if hit is not None:
                tally.add(hit == down)
            return
        if record.outcome == OK:
            self._known.add("")
            self._known.update(
                c.metric for c in self.rule.given if read_measure(record, c.metric) is not None
            )
        ok = record.outcome == OK
        value = limit_usage(record, self.rule.given) if ok else None
        tally.add(
            (ok and all(meets_condition(record, c) for c in self.rule.given)) == down,
            value if value is None or not down else -value,
        )

    def _value(self, tally: ShareMonitor, metric: Metric, record: Record) -> None:
        if metric.tag == POOLED:
            gaps_us = record.sharp_gaps_us if record.outcome == OK else ()
            if gaps_us:
                tally.add(
                    not all(
                        self.rule.holds(gap_us / 1e6) for gap_us in (min(gaps_us), max(gaps_us))
                    )
                )
        elif record.outcome == OK or metric.waits:
            value = read_measure(record, self.rule.metric)
            if value is not None:
                tally.add(
                    not self.rule.holds(value), value if self.rule.op.startswith("<") else -value
                )
        elif metric.censored:  # a failure never had its token
            tally.add(True)

    def _mean(self, tally: MeanMonitor, metric: Metric, record: Record) -> None:
        if record.outcome == OK or metric.waits:
            value = read_measure(record, self.rule.metric)
            if value is not None:
                tally.add(value, 1)

    def _gaps(self, tally: MeanMonitor, record: Record) -> None:
        if record.outcome == OK and (gaps_us := record.sharp_gaps_us):
            inside = self.rule.stat != "avg"
            amount = (
                sum(self.rule.holds(us / 1e6) for us in gaps_us) if inside else sum(gaps_us) / 1e6
            )
            tally.add(amount, len(gaps_us))


class EarlyStop:
    """Watches all rules whose value is known before the end."""

    def __init__(
        self,
        rules: Iterable[Rule],
        first_wave: int = 0,
        sends: RequestsInFlight | None = None,
        *,
        overdue: bool = True,
        find_left: Callable[[], LoadLeft] = LoadLeft,
        find_silent_s: Callable[[], float] = float,
    ) -> None:
        """``first_wave``: the first request of so many users is left out. ``sends``: requests under
        way, beside the added records. ``overdue``: count requests that are beyond a limit already.
        ``find_left``: what is left of the run now. ``find_silent_s``: for how long nothing has
        answered."""
        rules = tuple(rules)
        self._deciding = sum(rule.decides for rule in rules)
        self._watched = [RuleMonitor(rule) for rule in rules if rule.early]
        self._first_wave = first_wave
        self._sends = sends or RequestsInFlight()
        self._overdue = overdue
        self._find_left, self._find_silent_s = find_left, find_silent_s
        self._users: set[tuple[str, int]] = set()
        """The users whose first request is over."""

    def add(self, record: Record) -> None:
        """Add a finished request."""
        if record.phase != PROFILING or record.outcome in (CUT, CANCELLED, RETRIED):
            return
        user = record.worker, record.user
        first_wave = len(self._users) < self._first_wave and user not in self._users
        if first_wave:
            self._users.add(user)
        for watched in self._watched:
            watched.add(record, first_wave=first_wave)

    def broken(self) -> BrokenRule | None:
        """Why the run must end. None: it need not."""
        for watched in self._watched:
            if watched.rule.kind == ABORT and self._is_broken(watched):
                silence = _describe_silence(self._find_silent_s(), watched.silent_s)
                return BrokenRule(rule=str(watched.rule), why=f"{watched.tally}{silence}")
        return None

    def _is_broken(self, watched: RuleMonitor) -> bool:
        left_out = self._first_wave - len(self._users) if self._overdue else self._sends.open
        return watched.broken(self._sends, left_out, self._find_left(), self._find_silent_s())

    def standing(self) -> RuleStanding:
        deciding = [watched.holds for watched in self._watched if watched.rule.decides]
        known = len(deciding) - deciding.count(None)
        later = self._deciding - len(deciding)
        return RuleStanding(deciding.count(False), known, later, self._deciding)

    def progress(self) -> dict[str, RuleProgress]:
        """The progress of each rule, by its text."""
        return {str(watched.rule): self._progress_of(watched) for watched in self._watched}

    def _progress_of(self, watched: RuleMonitor) -> RuleProgress:
        holds, tally = watched.holds, watched.tally
        broken = self._is_broken(watched)  # notes what is running, for the counts
        left_out = 0 if watched.counts_first_wave else len(self._users)
        if broken:
            state = BROKEN_SO_FAR
        elif holds is None:
            state = NO_VALUE
        else:
            state = OK_SO_FAR if holds else AT_RISK
        counts = None
        if holds is not None and isinstance(tally, ShareMonitor):
            counts = tally.counts
            if state == OK_SO_FAR and counts.is_beyond_with_running:
                state = AT_RISK
        return RuleProgress(state, counts, left_out)


def _describe_silence(unanswered_s: float, failing_s: float) -> str:
    """``; no answer for 10 s``. Requests that all fail with a status of the server are answers."""
    if DEAD_S <= unanswered_s < math.inf:
        return f"; no answer for {unanswered_s:.0f} s"
    if DEAD_S <= failing_s < math.inf:
        return f"; no request succeeded for {failing_s:.0f} s"
    return ""


def _older(sends: RequestsInFlight, metric: str, op: str, limit_s: float) -> int:
    """How many requests under way are at least beyond this limit of a latency."""
    if metric not in OVERDUE or not op.startswith("<"):
        return 0
    return sends.older(limit_s + MARGIN_S, silent=metric != "request_latency")


def limit_usage(record: Record, given: Iterable[Condition]) -> float | None:
    """The largest share of a limit that the record takes. None: it has no value."""
    shares_used = [
        value / c.limit if c.op.startswith("<") else c.limit / value
        for c in given
        if (value := read_measure(record, c.metric)) and c.limit
    ]
    return max(shares_used, default=None)


def read_selected_value(record: Record, column: str) -> Any:
    """The value that a selector compares."""
    if column != INPUT:
        value = getattr(record, column)
        return math.nan if value is None else value
    tokens = record.asked_input_tokens if record.input_tokens is None else record.input_tokens
    return math.nan if tokens is None else tokens
