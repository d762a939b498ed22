"""Join spans: spans meet the requests of a run by trace id, whichever of the two comes first."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from locust_llm.records.server_times import ServerTimes

from .span import Span, extract_server_times
from .span_counts import SpanCounts
from .span_times import SpanLine as SpanLine
from .trace_ids import PART, make_request_part

MOST_OPEN: Final = 2**20
"""So many requests without a span, and spans without a request, are kept: some 200 MB. The oldest
is dropped."""
MISTAKE: Final = 200
"""The characters of a fault."""


class SortedSpans(msgspec.Struct, omit_defaults=True):
    """The spans of one export: the run's own by the request's part of their trace id, and a count
    of the rest."""

    times: list[tuple[int, ServerTimes]] = []
    counts: dict[str, int] = {}
    mistake: str = ""


def sort_spans(spans: Iterable[Span], run: str) -> SortedSpans:
    """``run`` is ``Run.trace``, with which the trace ids of its requests begin."""
    times = list[tuple[int, ServerTimes]]()
    counts = Counter[str]()
    mistake = ""
    for span in spans:
        counts["received"] += 1
        part = _part(span.trace_id, run)
        if part is None:
            counts["other_traces"] += 1
            continue
        try:
            span_times = extract_server_times(span)
        except ValueError as error:
            counts["impossible"] += 1
            mistake = mistake or str(error)[:MISTAKE]
            continue
        if span_times is None:
            counts["without_times"] += 1
        else:
            times.append((part, span_times))
    return SortedSpans(times, dict(counts), mistake)


def _part(trace_id: str, run: str) -> int | None:
    """None: the trace id belongs to another run."""
    if len(trace_id) != 2 * PART or not run or not trace_id.startswith(run):
        return None
    try:
        return int(trace_id[PART:], 16)
    except ValueError:
        return None


class SpanJoin:
    """Joins the spans of one run."""

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self.late = False
        """The run is over: what comes from now on is late."""
        self._counts = Counter[str]()
        self._mistake = ""
        self._most = most_open
        self._requests: dict[int, tuple[str, bool]] = {}
        """Requests without a span so far: (id, whether it succeeded)."""
        self._spans: dict[int, ServerTimes] = {}
        """Times without a request so far."""
        self._done = set[int]()
        self._missing = 0

    def request(self, request_id: str, *, ok: bool) -> SpanLine | None:
        """A request is over. Returns its line if its span is there. ``ok``: a span is expected."""
        part = int(make_request_part(request_id), 16)
        self._counts["requests"] += ok
        self._missing += ok
        if (times := self._spans.pop(part, None)) is not None:
            return self._line(part, request_id, ok, times)
        self._requests[part] = request_id, ok
        if len(self._requests) > self._most:
            self._requests.pop(next(iter(self._requests)))
        return None

    def spans(self, sorted_spans: SortedSpans) -> Iterator[SpanLine]:
        """The lines of the spans whose request is over."""
        self._counts.update(sorted_spans.counts)
        self._mistake = self._mistake or sorted_spans.mistake
        for part, times in sorted_spans.times:
            if part in self._done or part in self._spans:
                self._counts["twice"] += 1
            elif (request := self._requests.pop(part, None)) is not None:
                yield self._line(part, *request, times)
            elif len(self._spans) < self._most:
                self._spans[part] = times
            else:
                self._counts["dropped"] += 1

    def _line(self, part: int, request_id: str, ok: bool, times: ServerTimes) -> SpanLine:
        self._done.add(part)
        self._missing -= ok
        self._counts["joined" if ok else "joined_others"] += 1
        self._counts["late"] += self.late
        return SpanLine(id=request_id, **msgspec.structs.asdict(times))

    @property
    def missing(self) -> int:
        """The successful requests without a span so far."""
        return self._missing

    @property
    def counts(self) -> SpanCounts:
        return SpanCounts(**self._counts, unknown=len(self._spans), mistake=self._mistake)
