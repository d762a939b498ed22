"""Imported records: makes records of another load tester's requests. Missing data is marked."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Final, TypeVar

import msgspec

from locust_llm.lab.interop.json_fields import read_finite_or_nan
from locust_llm.records.outcomes import CANCELLED, OK, UNNAMED
from locust_llm.records.profile_export_jsonl import format_record_line, parse_record_line
from locust_llm.records.record import MOST_CHUNKS, Record
from locust_llm.records.ttft_itl_latency import DUE, GAPS

MAX_ERROR: Final = 4096
MAX_REQUESTS: Final = 10**6
"""A result has at most this many requests."""
MAX_S: Final = 1e7
"""No request takes longer than this time, 115 days."""
OFF_S: Final = 1e-3
"""The sum of the gaps may differ from the latency by this time. Tools round, and some stamp the end
after the last chunk."""
OWN_LABEL: Final = "locust-llm"
"""The label of a file that ``locust-llm export`` wrote."""
NO_DUE: Final = "due times of requests: no Schedule Delay, no TTFT from Due"
NO_GATE: Final = "waits for a prefill slot, read lags, merged chunks: no client verdict"
NO_GAPS: Final = (
    "the chunks between the first and the last: no Inter Chunk Latency, no stalls, "
    "two dots in the timeline"
)
NO_DATE: Final = "the time of day: the run is dated by the file"


T = TypeVar("T")


class UnusableResult(ValueError):
    """No record can be made. The message is one sentence without a full stop."""


def number_requests(requests: Iterable[T]) -> Iterator[tuple[int, T]]:
    """Yields each request with its place, from 1. Raises UnusableResult for too many, as a few
    bytes may be a request."""
    too_many = UnusableResult(f"it has more than {MAX_REQUESTS:,} requests")
    if isinstance(requests, Sized) and len(requests) > MAX_REQUESTS:
        raise too_many
    for place, request in enumerate(requests, 1):
        if place > MAX_REQUESTS:
            raise too_many
        yield place, request


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one load of another tool's result."""

    tool: str
    version: str = ""
    model: str = ""
    records: tuple[Record, ...]
    users: int | None = None
    """At most this many requests are in flight. None: no limit, or unknown."""
    prefills: int | None = None
    """At most this many requests await their first token, counted like ``users``."""
    rate_per_s: float | None = None
    """None: the load is a closed loop, or the rate is unknown."""
    arrivals: str = ""
    """This names the distribution of the arrivals. Empty: unknown."""
    own: bool = False
    """True: locust-llm measured it, and exported it to the format of ``tool``."""
    simulated: bool = False
    """True: the results come from a simulator."""
    asked: int | None = None
    """The result counts this many requests. None: unknown."""
    cut: str = ""
    """This names the later result of the file that was cut off. Empty: none."""
    unread: tuple[str, ...] = ()
    """Each text explains why a request of the file is no record."""
    lacks: tuple[str, ...] = ()
    """Each text names data that the tool does not keep, and what the report lacks because of it."""

    @property
    def title(self) -> str:
        return f"{self.tool} {self.version}".strip()

    @property
    def measured_by(self) -> str:
        """The load tester that measured it."""
        return f"{OWN_LABEL}, in the format of {self.title}" if self.own else self.title


def read_finite(value: object, what: str) -> float:
    """Reads a finite number. Raises UnusableResult."""
    number = read_finite_or_nan(value)
    if number is None or not abs(number) < 1e11:
        shown = "missing" if value is None else f"{value!r:.40}"
        raise UnusableResult(f"its {what} is {shown}")
    return number


def read_duration(value: object, what: str) -> float:
    """Reads a duration in seconds. Raises UnusableResult."""
    if not 0 <= (seconds := read_finite(value, what)) <= MAX_S:
        raise UnusableResult(f"its {what} is {seconds:g} s")
    return seconds


def read_token_count(value: object) -> int | None:
    """Reads a count of tokens, or None if it is no whole number from 0 on."""
    number = read_finite_or_nan(value)
    return None if number is None or not 0 <= number <= 2**53 else round(number)


def stamp_chunks(
    first_s: float, gaps_s: Sequence[object], latency_s: float | None
) -> tuple[tuple[int, ...], bool]:
    """Returns chunk stamps in microseconds after the send, and whether these are all. Gaps must
    lead from the first chunk to the end, and be at most as many as an answer can have. Otherwise
    only the first and the last chunk have stamps."""
    stamps_s = [first_s] if len(gaps_s) < MOST_CHUNKS else []
    for gap in gaps_s if stamps_s else ():
        value = read_finite_or_nan(gap)
        if value is None or not 0 <= value <= MAX_S:
            stamps_s = []
            break
        stamps_s.append(stamps_s[-1] + value)
    if stamps_s and (
        latency_s is None or abs(stamps_s[-1] - latency_s) <= max(OFF_S, 0.01 * latency_s)
    ):
        return tuple(round(stamp_s * 1e6) for stamp_s in stamps_s), True
    return first_and_last_chunk_us(first_s, first_s if latency_s is None else latency_s)


def first_and_last_chunk_us(first_s: float, last_s: float) -> tuple[tuple[int, ...], bool]:
    """Returns the stamps of the first and the last chunk, as ``stamp_chunks`` does. Raises
    UnusableResult if they contradict each other."""
    if not 0 <= first_s <= last_s <= MAX_S:
        raise UnusableResult("its end is before its first token, or months after")
    return (round(first_s * 1e6), round(last_s * 1e6)), False


def make_imported_record(
    *, base_s: float, sent_s: float, closed_s: float, stamps: tuple[int, ...], whole: bool,
    due_s: float | None = None,
    **more: Any,
) -> Record:  # fmt: skip
    """``base_s`` is the Unix time of 0 on the clock of ``sent_s``, ``closed_s`` and ``due_s``.
    ``stamps`` and ``whole`` come from ``stamp_chunks``. Raises UnusableResult for a record that
    contradicts itself."""
    more = {"outcome": OK, **more}
    if closed_s < sent_s:
        raise UnusableResult("its end is before its start")
    begins = sent_s if due_s is None else due_s
    made = Record(
        clock_offset_s=base_s,
        due_at=begins,
        asked_at=begins,
        sent_at=sent_s,
        closed_at=closed_s,
        chunk_us=stamps,
        first_output=0 if stamps else None,
        streamed=bool(stamps) or more["outcome"] != OK,
        clock="tool",
        read_lag_us=None,
        lacks=(*((DUE,) if due_s is None else ()), *(() if whole else (GAPS,))),
        **more,
    )
    try:
        return parse_record_line(format_record_line(made))  # bounds of all numbers
    except (ValueError, OverflowError) as error:
        raise UnusableResult(str(error)[:200]) from None


def outcome_fields(code: object, words: str, cancelled: bool = False) -> dict[str, Any]:
    """Returns the record fields of a failure, by HTTP status or message. Empty: no failure."""
    status = read_token_count(code)
    status = status if status is not None and 100 <= status <= 599 else None
    if cancelled:
        return {"outcome": CANCELLED, "status": status}
    if not words and (status is None or status < 400):
        return {}
    unnamed = "timeout" if "timeout" in words.lower() else UNNAMED
    known = {429: "rate_limited", 503: "unavailable"}
    named = unnamed if status is None or status < 400 else known.get(status, "http_status")
    return {
        "outcome": named,
        "status": status,
        "error": words.strip().splitlines()[-1][:MAX_ERROR] if words.strip() else "",
    }


def token_fields(read: object, written: object, by: str) -> dict[str, Any]:
    """Returns the token fields of a record. ``by`` names the source of the output count."""
    out = read_token_count(written)
    return {
        "input_tokens": read_token_count(read),
        "output_tokens": out,
        "tokens_from": "" if out is None else by,
    }


def list_missing_data(records: Iterable[Record], *more: str) -> tuple[str, ...]:
    """Names the data that the records lack."""
    lacks = set[str]()
    for record in records:
        lacks.update(record.lacks)
    texts = []
    if DUE in lacks:
        texts.append(NO_DUE)
    if GAPS in lacks:
        texts.append(NO_GAPS)
    return (*texts, NO_GATE, *more)
