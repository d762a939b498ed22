"""Answer tally: what the checks of answers have found so far in a run, for the people who watch it.
The report counts again, from the records."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from locust_llm.answers.compare_answers import ComparedAnswer, IdleAnswers
from locust_llm.answers.fault_names import FOREIGN_MARKER
from locust_llm.answers.reference_answer import IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.records.record import Record
from locust_llm.report.answer_results import (
    LEAST_SENSITIVITY,
    AnswerIsolation,
    IsolationCounts,
    order_faults,
)
from locust_llm.text.format import format_brief, format_clock, format_count

logger = logging.getLogger("locust_llm")

MAX_IDS: Final = 100_000
"""A duplicate response id is found among so many answers, which take some 10 MB."""
MIN_ASKED: Final = 10
"""Of fewer answers that were asked for their marker, nothing follows from one that lacks it."""


class ComparedCounts(msgspec.Struct):
    """The reference answers of one kind that were compared with the idle ones."""

    answers: int = 0
    mismatches: int = 0
    near_ties: int = 0


class LivePageRow(msgspec.Struct, frozen=True):
    """One line of the live page."""

    label: str
    value: str
    is_fault: bool = False


class AnswerTally:
    """The checks of one run."""

    def __init__(self, started_at: Callable[[], float]) -> None:
        """``started_at``: Unix seconds of the first send, as they are known now."""
        self._started_at = started_at
        self._counts = IsolationCounts(most_ids=MAX_IDS)
        self._idle = IdleAnswers()
        self._idle_repeats = ComparedCounts()
        self._loaded = ComparedCounts()
        self._reference_faults = Counter[str]()
        self.first_leak_s: float | None = None
        """When the first answer with a leak ended, in seconds since the start. None: there is no
        leak."""

    def add(self, record: Record) -> None:
        checks = record.answer
        if checks is None:
            return
        self._counts.add(checks)
        if checks.foreign:
            self._note_leak(record.closed_unix_s)

    def add_reference(self, answer: ReferenceAnswer) -> None:
        faults = set(answer.faults)
        compared = None if self._idle.add(answer) else self._idle.compare(answer)
        if compared is not None:
            faults.update(compared.list_faults())
            self._count_comparison(compared)
        self._reference_faults.update(faults)
        if FOREIGN_MARKER in faults:
            self._note_leak(answer.ended_at)

    def _count_comparison(self, compared: ComparedAnswer) -> None:
        counts = {IDLE: self._idle_repeats, UNDER_LOAD: self._loaded}.get(compared.answer.asked)
        if counts is None:
            return
        counts.answers += 1
        if compared.difference is not None:
            counts.mismatches += compared.difference.is_mismatch
            counts.near_ties += not compared.difference.is_mismatch

    def _note_leak(self, ended_at: float) -> None:
        """Log the first one as soon as it is known. A record of another worker, which comes later,
        may be earlier."""
        leak_s = max(0.0, ended_at - self._started_at())
        if self.first_leak_s is None:
            self.first_leak_s = leak_s
            logger.warning(
                "LEAK: an answer contains the session marker of another session, "
                f"{leak_s:.1f} s after the start"
            )
        self.first_leak_s = min(self.first_leak_s, leak_s)

    @property
    def isolation(self) -> AnswerIsolation:
        return self._counts.summarise(self._reference_faults[FOREIGN_MARKER])

    def list_rows(self) -> list[LivePageRow]:
        """What was found so far, leaks before other faults."""
        isolation = self.isolation
        return [
            LivePageRow("Searched", f"{isolation.answers:,}"),
            LivePageRow("Own marker repeated", _describe_sensitivity(isolation)),
            LivePageRow("Leaks", self._describe_leaks(isolation), bool(isolation.all_leaks)),
            LivePageRow("Differ under load", self._describe_mismatches(), self._differs_under_load),
            *self._list_faults(isolation),
        ]

    def _describe_leaks(self, isolation: AnswerIsolation) -> str:
        if not isolation.all_leaks:
            return "none"
        first = "the first" if isolation.all_leaks > 1 else "it ended"
        return f"{isolation.all_leaks:,}, {first} at {format_clock(self.first_leak_s)}"

    @property
    def _differs_under_load(self) -> bool:
        """Of a server that also differs from itself when idle, only the report can tell."""
        return bool(self._loaded.mismatches) and not self._idle_repeats.mismatches

    def _describe_mismatches(self) -> str:
        loaded, idle = self._loaded, self._idle_repeats
        if not loaded.answers:
            return "not compared yet"
        parts = [f"{loaded.mismatches:,} of {loaded.answers:,}"]
        if loaded.near_ties:
            parts.append(format_count(loaded.near_ties, "near tie"))
        if idle.answers:
            parts.append(f"idle {idle.mismatches:,} of {idle.answers:,}")
        return ", ".join(parts)

    def _list_faults(self, isolation: AnswerIsolation) -> Iterator[LivePageRow]:
        """A row for each fault of answers of the load and of reference answers."""
        both = Counter(isolation.faults) + self._reference_faults
        del both[FOREIGN_MARKER]
        for name, count in order_faults(both).items():
            yield LivePageRow(name, f"{count:,}", is_fault=True)


def _describe_sensitivity(isolation: AnswerIsolation) -> str:
    if isolation.answers and not isolation.marked:
        return "no prompt has a marker"
    share = format_brief(100 * isolation.sensitivity, "%", 2) if isolation.answers else "-"
    is_blind = isolation.sensitivity < LEAST_SENSITIVITY and isolation.asked >= MIN_ASKED
    return f"{share}: leaks could hardly be seen" if is_blind else f"in {share} of answers"
