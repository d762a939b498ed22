"""Alerts: what goes wrong in a run, as sentences with a count, a reason and since when; the worst
first.

Each watch takes values with their time, in seconds since the start of the run, and returns its
alert. Nothing here has a clock.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from locust_llm.controller.run_progress import LostWorker, ProcessState
from locust_llm.records.answer_fault import REPRODUCE_COMMAND
from locust_llm.records.outcomes import CANCELLED, CUT, RETRIED
from locust_llm.records.record import Record
from locust_llm.slo.load_generator_health import INVALID, ClientVerdict
from locust_llm.slo.load_generator_health import OK as CLIENT_OK
from locust_llm.text.format import format_brief, format_clock, format_count, truncate_text

BAD, WARN, PAST = "bad", "warn", "past"
LEVELS: Final = (BAD, WARN, PAST)
RUN_ENDS, LEAK, SERVER, FAILURES, WORKER, RULE, CLIENT, HOLE = (
    "run", "leak", "server", "failures", "worker", "rule", "client", "hole",
)  # fmt: skip
KINDS: Final = (RUN_ENDS, LEAK, SERVER, FAILURES, WORKER, RULE, CLIENT, HOLE)
"""The kinds of alerts of one level, the worst first."""
CALM_S: Final = 10.0
"""So long after its last failure a series of failures is over."""
MIN_FAILURES: Final = 3
"""A series with fewer failures is no outage, and has no mark."""
WORKER_SILENT_S: Final = 2.0
"""The longest time between two messages of a healthy worker, with room for a busy machine."""
MAX_MESSAGE_CHARS: Final = 160
BEFORE_S: Final = 20.0
"""A change so long before a rule went wrong is named with it."""
NO_REQUESTS: Final = (CUT, CANCELLED, RETRIED)
"""The outcomes that count neither as answered nor as failed."""

AddMark = Callable[[float, str], None]
"""Takes the time and the short text of a mark in the charts."""


class Alert(msgspec.Struct, frozen=True):
    kind: str
    level: str
    text: str
    since: float | None = None
    """Where the charts show it, in seconds since the start. None: nowhere."""


def order_alerts(alerts: Iterable[Alert]) -> list[Alert]:
    """The worst first."""
    return sorted(alerts, key=lambda one: (LEVELS.index(one.level), KINDS.index(one.kind)))


def format_seconds(seconds: float) -> str:
    """``4 s``, ``2 min 5 s``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


class FailureWatch:
    """Watches failed requests. A series of failures lasts until ``CALM_S`` pass without one."""

    def __init__(self, add_mark: AddMark) -> None:
        self._add_mark = add_mark
        self.message = ""
        """Why the last request failed."""
        self.messages: dict[str, str] = {}
        """The last message by the class of failure."""
        self._since = self._last_at = 0.0
        self._ended = self._failed = 0
        """The requests that ended in this series, and the failed ones."""

    def add(self, at: float, record: Record) -> None:
        """Add a request that ended at ``at``."""
        if record.outcome in NO_REQUESTS:
            return
        if self._failed and at - self._last_at > CALM_S:
            if not record.failed:
                return
            self._ended = self._failed = 0
        if record.failed:
            message = truncate_text(record.error or record.outcome, MAX_MESSAGE_CHARS)
            self.message = self.messages[record.outcome] = message
            if not self._failed:
                self._since = at
            self._last_at = max(at, self._last_at)
            self._failed += 1
            if self._failed == MIN_FAILURES:
                self._add_mark(self._since, "failures")
        if self._failed:
            self._ended += 1

    def alert(self, now: float) -> Alert | None:
        if not self._failed:
            return None
        over = now - self._last_at > CALM_S
        outage = self._failed >= MIN_FAILURES and 2 * self._failed >= self._ended
        level = WARN
        if over:
            level = PAST
        elif outage:
            level = BAD
        until = f" to {format_clock(self._last_at)}" if over else ""
        when = f"{'from' if over else 'since'} {format_clock(self._since)}{until}"
        which = "" if over else "the last "
        return Alert(
            FAILURES,
            level,
            f"{self._failed:,} of {which}{self._ended:,} requests failed {when}: {self.message}",
            round(self._since, 2),
        )


class SilenceWatch:
    """Watches for a server that answers no request."""

    def __init__(self, add_mark: AddMark) -> None:
        self._add_mark = add_mark
        self._since: float | None = None
        self._waiting = 0

    def look(self, now: float, waiting: int, silent_s: float) -> None:
        """``waiting``: requests that the server has. ``silent_s``: see RunProgress."""
        self._waiting = waiting
        if not silent_s:
            self._since = None
        elif self._since is None:
            self._since = max(0.0, now - silent_s)
            self._add_mark(self._since, "server silent")

    def alert(self, now: float) -> Alert | None:
        if self._since is None:
            return None
        # all may be refused at once, so that none waits
        waiting = ""
        if self._waiting:
            requests = format_count(self._waiting, "request")
            waiting = f": {requests} {_is(self._waiting, 'wait')} for the server"
        return Alert(
            SERVER,
            BAD,
            f"No answer for {format_seconds(now - self._since)}, since "
            f"{format_clock(self._since)}{waiting}",
            round(self._since, 2),
        )


def _is(count: int, verb: str) -> str:
    """The verb as ``count`` requires it."""
    return f"{verb}s" if count == 1 else verb


def describe_leak_alert(leaks: int, first_s: float, *, has_evidence: bool) -> Alert:
    """``first_s``: when the first answer with a leak ended, in seconds since the start.
    ``has_evidence``: it can be replayed after the run."""
    verb = "contains" if leaks == 1 else "contain"
    advice = f". Reproduce a leak after the run: {REPRODUCE_COMMAND}" if has_evidence else ""
    return Alert(
        LEAK,
        BAD,
        f"{format_count(leaks, 'answer')} {verb} the session marker of another session, since "
        f"{format_clock(first_s)}{advice}",
        round(first_s, 2),
    )


def describe_lost_worker(loss: LostWorker, started_at: float) -> Alert:
    """``started_at``: Unix seconds."""
    at = max(0.0, loss.at - started_at)
    gone = "no record is missing"
    if loss.missing:
        gone = f"{format_count(loss.missing, 'record')} gone"
    return Alert(
        WORKER, BAD, f"Worker {loss.number} of {loss.of} lost at {format_clock(at)}: {gone}", at
    )


def describe_silent_worker(process: ProcessState, of: int, now: float) -> Alert | None:
    """A process that has reported nothing for a while, and is not given up yet."""
    if process.silent_s < WORKER_SILENT_S:
        return None
    return Alert(
        WORKER,
        BAD,
        f"Worker {process.number} of {of} has reported nothing for "
        f"{format_seconds(process.silent_s)}",
        max(0.0, now - process.silent_s),
    )


def describe_client(verdict: ClientVerdict | None, since: float | None) -> Alert | None:
    """``since``: when the verdict got worse than OK."""
    if verdict is None or verdict.level == CLIENT_OK:
        return None
    level = BAD if verdict.level == INVALID else WARN
    when = "" if since is None else f" since {format_clock(since)}"
    reasons = "; ".join(verdict.reasons)
    return Alert(CLIENT, level, f"Measurement {verdict.level}{when}: {reasons}", since)


def describe_hole(began: float, ended: float) -> Alert:
    """The load generator stood still: nothing was read in this time."""
    return Alert(
        HOLE,
        PAST,
        f"The load generator stood still for {format_seconds(ended - began)}, from "
        f"{format_clock(began)} to {format_clock(ended)}, so there are no readings of that time",
        began,
    )


class LiveMark(msgspec.Struct, frozen=True, array_like=True):
    """A mark in the charts."""

    at: float
    """Seconds since the start of the run."""
    text: str
    kind: str = "phase"
    """``phase``, ``gate``, ``users``, ``rate``, ``disruption`` or ``trouble``."""
    sentence: str = ""
    """``users went from 24 to 40``. Empty: nothing was changed."""


def find_change_before(changes: Sequence[LiveMark], at: float) -> LiveMark | None:
    """The last change of the load shortly before a moment."""
    near = [change for change in changes if change.sentence and at - BEFORE_S <= change.at <= at]
    return near[-1] if near else None


def describe_failing_rule(
    what: str, value: str, limit: str, counts: str, since: float | None, cause: LiveMark | None
) -> Alert:
    """``what``: ``ITL p95 can no longer pass``. ``value`` and ``limit`` have their units. ``counts``
    may be empty. ``since``: when the value got beyond the limit."""
    facts = "; ".join(filter(None, [f"{value} against {limit}" if value else "", counts]))
    sentence = f"{what}{': ' * bool(facts)}{facts}"
    if since is not None:
        after = f", after {cause.sentence}" if cause is not None else ""
        sentence = f"{sentence}. Beyond the limit since {format_clock(since)}{after}"
    return Alert(RULE, BAD, sentence, since)


def format_percent(share: float) -> str:
    """``5%``"""
    return format_brief(100 * share, "%", 3)
