"""Live ghost tokens: an upper bound of the tokens that the server generated after cancellations, for
the live page.

Tokens of answers that still run were generated but are in no record yet, so the difference of both
counts is an upper bound. The count of records is a little older than the server's count.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from locust_llm.controller.answer_tally import LivePageRow
from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import EngineHistory, counter_increase
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.text.format import format_brief, format_count

LOOKS: Final = 10
"""So many moments are remembered. One of them is older than the last reading of the server."""


class LiveGhostTokens:
    """The counts of one run."""

    def __init__(self) -> None:
        self._received = self._cancelled = 0
        self._first = dict[str, EngineSample]()
        self._last = dict[str, EngineSample]()
        self._generated = dict[str, float]()
        """The tokens of each server from its first reading to its last one."""
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS)
        """(Unix seconds, tokens received until then)."""

    def add(self, record: Record) -> None:
        self._received += record.output_tokens or 0
        self._cancelled += record.outcome == CANCELLED

    def look(self, at: float, history: EngineHistory) -> None:
        """Once a second."""
        self._looks.append((at, self._received))
        for name in history.engines:
            last = history.by_name[name][-1]
            if not last.failure and last.generated_tokens is not None:
                self._add_sample(name, last)

    def _add_sample(self, name: str, sample: EngineSample) -> None:
        counted = EngineSample(
            at=sample.at, engine=sample.engine, generated=sample.generated_tokens
        )
        before = self._last.setdefault(name, counted)
        self._first.setdefault(name, counted)
        grown = counter_increase([before, counted], "generated") or 0.0
        self._generated[name] = self._generated.get(name, 0.0) + grown
        self._last[name] = counted

    def find_most(self, first_sent_at: float) -> float | None:
        """The most ghost tokens for each cancelled request. None: nobody knows."""
        if not self._cancelled or not self._last:
            return None
        read_at = min(sample.at for sample in self._last.values())
        received = [tokens for at, tokens in self._looks if at <= read_at]
        begins_late = any(sample.at > first_sent_at for sample in self._first.values())
        if begins_late or not received:
            return None
        return max(sum(self._generated.values()) - received[-1], 0.0) / self._cancelled

    def list_rows(self, first_sent_at: float) -> Iterator[LivePageRow]:
        yield LivePageRow("Cancelled", format_count(self._cancelled, "request"))
        most = self.find_most(first_sent_at)
        known = "unknown yet" if most is None else f"at most {format_brief(most, digits=3)} each"
        yield LivePageRow("Ghost tokens", known)
