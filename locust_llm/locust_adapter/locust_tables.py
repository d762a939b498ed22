"""Locust tables: Locust's own tables with three digits instead of two, percentiles as in
records/histogram.py, a row for each kind of failure."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import locust.stats

from locust_llm.records.failure_kinds import generalise_failure_message
from locust_llm.records.histogram import histogram_percentiles, round_to_three_digits
from locust_llm.records.outcomes import CANCELLED, CUT, RETRIED
from locust_llm.text.format import clean_line, format_count, format_duration, truncate_text

ROWS: Final = ("TTFT", "ITL", "gate wait")
"""The rows for the latencies of our requests, beside their own row."""
MAX_LINE: Final = 200


def disable_locust_tables() -> None:
    """Locust prints no tables at its end, as the run's own end has their numbers."""
    logging.getLogger("locust.stats_logger").addFilter(lambda line: False)


def describe_other_requests(stats: locust.stats.RequestStats, ours: Collection[str]) -> str:
    """A line on requests that are not ours, such as ``self.client``'s. Empty: there are none.
    ``ours`` has the names of our requests."""
    rows = [
        row for (name, kind), row in stats.entries.items()
        if row.num_requests and kind not in (*ROWS,
            RETRIED) and not (kind == "POST" and name in ours)
    ]  # fmt: skip
    if not rows:
        return ""
    times_ms: Counter[float] = Counter()
    for row in rows:
        times_ms.update(row.response_times)
    p95 = (
        f", p95 {format_duration(histogram_percentiles(times_ms, (95,))[0] / 1e3)}"
        if times_ms
        else ""
    )
    count = sum(row.num_requests for row in rows)
    failed = sum(row.num_failures for row in rows)
    names = {(row.name, row.method) for row in rows}
    errors = [error for error in stats.errors.values() if (error.name, error.method) in names]
    first = max(errors, key=lambda error: error.occurrences, default=None)
    why = "" if first is None else f" (most often {first.method} {first.name}: {first.error})"
    sentence = (
        f"Other requests than LLM requests (self.client): {format_count(count, 'request')}{p95}, "
        f"{failed} failed{why}"
    )
    return f"{truncate_text(clean_line(sentence), MAX_LINE)}; --verbose prints Locust's tables"


def describe_count_difference(counts: Counter[str], profiled: int) -> str:
    """A sentence where Locust's own files count other requests or failures than the report. Empty:
    they do not.

    ``counts`` has our requests by outcome; ``profiled`` has the profiling phase's.
    """
    others = counts.total() - profiled
    given_up = counts[CUT] + counts[CANCELLED]
    parts = []
    if others:
        parts.append(f"{format_count(others, 'request')} of the warmup or of other phases")
    if given_up:
        parts.append(f"{format_count(given_up, 'cut or cancelled request')}, as failures")
    if not parts:
        return ""
    return (
        f"Locust's own files (--csv, --html) also include {' and '.join(parts)}. The report leaves "
        "them out."
    )


def keep_writing_csv() -> None:
    """Locust writes its ``--csv`` files once a second, and closes them without what came after
    that. This writes the rest."""
    close = locust.stats.StatsCSVFileWriter.close_files

    def close_with_last_rows(self: locust.stats.StatsCSVFileWriter) -> None:
        for file, write, writer in (
            (self.requests_csv_filehandle, self.requests_csv, self.requests_csv_writer),
            (self.failures_csv_filehandle, self.failures_csv, self.failures_csv_writer),
            (self.exceptions_csv_filehandle, self.exceptions_csv, self.exceptions_csv_writer),
        ):
            file.seek(0)
            write(writer)
            file.truncate()
        close(self)

    if close.__name__ != close_with_last_rows.__name__:
        locust.stats.StatsCSVFileWriter.close_files = close_with_last_rows  # type: ignore[method-assign]


def keep_rows_after_json() -> None:
    """Locust resets each row that it prints for ``--json`` or saves for ``--json-file``. What is
    written afterwards, such as the last rows of ``--csv``, needs them."""
    for name in ("print_stats_json", "save_stats_json"):
        write = getattr(locust.stats, name)
        if not isinstance(write, _WriterOfKeptRows):
            setattr(locust.stats, name, _WriterOfKeptRows(write))


class _WriterOfKeptRows:
    """Calls ``write`` with rows that it cannot reset."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write

    def __call__(self, stats: locust.stats.RequestStats, *where: str) -> None:
        self._write(_KeptRows(stats), *where)


class _KeptRows:
    """The rows of ``stats``, as Locust asks for them."""

    def __init__(self, stats: locust.stats.RequestStats) -> None:
        self._stats = stats

    def serialize_stats(self) -> list[Any]:
        rows = self._stats.entries.values()
        return [row.serialize() for row in rows if row.num_requests or row.num_failures]


def three_digits_in_locust() -> None:
    """Let Locust keep three digits in this process from now on."""
    locust.stats.bucket_response_time = _rounded_ms  # type: ignore[assignment]
    locust.stats.calculate_response_time_percentile = _percentile_ms  # type: ignore[assignment]


def keep_no_copies_of_rows() -> None:
    """Drop the copies of response times. Locust keeps the last twenty states for each row, for
    ``--csv-full-history`` alone. With our digits they took 18 MB after seven minutes. The page
    needs the total's."""
    begin = locust.stats.StatsEntry.__init__

    def begin_without_copies(
        self: Any, stats: Any, name: str, method: str, use_response_times_cache: bool = False
    ) -> None:
        begin(self, stats, name, method, use_response_times_cache and name == "Aggregated")

    if begin.__name__ != begin_without_copies.__name__:
        locust.stats.StatsEntry.__init__ = begin_without_copies  # type: ignore[method-assign]


def _rounded_ms(response_time: float) -> float:
    return round_to_three_digits(round(response_time * 1000)) / 1000


def _percentile_ms(response_times: dict[float, int], num_requests: int, percent: float) -> float:
    """``percent`` is from 0 to 1, as in Locust. Its page shows all digits, and there are many
    between two values."""
    return (
        _rounded_ms(histogram_percentiles(response_times, (percent * 100,))[0])
        if response_times
        else 0.0
    )


def align_errors_to_rows(
    stats: locust.stats.RequestStats, reported: Mapping[str, Any]
) -> dict[str, Any]:
    """The ``errors`` in a worker's report, with the names of their kinds in the master's ``stats``.
    Each process names a kind by the first message that it has seen."""
    names = {
        (row.method, row.name, generalise_failure_message(str(row.error))): str(row.error)
        for row in stats.errors.values()
    }
    errors_by_row = {}
    for key, row in reported.items():
        name = row["error"]
        # of LLMUser; others may mean something by their numbers
        if name.startswith("RequestFailed("):
            name = names.get((row["method"], row["name"], generalise_failure_message(name)), name)
        new = (
            key
            if name == row["error"]
            else locust.stats.StatsError.create_key(row["method"], row["name"], name)
        )
        errors_by_row[new] = row | {"error": name}
    return errors_by_row
