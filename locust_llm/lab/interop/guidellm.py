"""guidellm: reads the JSON of ``guidellm benchmark``, with a load for each of its benchmarks.

Its ``time_per_output_token_ms`` includes the first token (latency / tokens). Its
``inter_token_latency_ms`` is called TPOT elsewhere, and weighted by tokens. It keeps the times of
the first and the last token of a request only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from locust_llm.lab.interop import imported_records
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_text,
    read_whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.tool_format import DocumentRequestsReader, FiguresReader, ToolFormat
from locust_llm.records.record import Record


def _is_result(document: object) -> bool:
    return nested_value(document, "benchmarks", 0, "metrics", "time_to_first_token_ms") is not None


def _read_figures(document: Document, path: Path) -> list[Figures]:
    return [
        _figures_of_load(document, benchmark)
        for benchmark in nested_value(document, "benchmarks")
        if nested_value(benchmark, "metrics") is not None
    ]


def _figures_of_load(document: Document, benchmark: object) -> Figures:
    strategy = nested_value(benchmark, "config", "strategy") or nested_value(
        benchmark, "args", "strategy"
    )
    kind = read_text(nested_value(strategy, "type_"))
    warnings = nested_value(benchmark, "warnings")
    places = read_whole(nested_value(strategy, "max_concurrency")) or read_whole(
        nested_value(strategy, "streams")
    )
    return Figures(
        tool="guidellm",
        version=read_text(nested_value(document, "metadata", "guidellm_version")),
        label=kind,
        model=read_text(nested_value(benchmark, "config", "backend", "model")),
        requests=read_whole(nested_value(benchmark, "metrics", "request_totals", "successful")),
        failed=read_whole(nested_value(benchmark, "metrics", "request_totals", "errored")) or 0,
        duration_s=read_finite_or_nan(nested_value(benchmark, "duration")),
        concurrency=places if kind == "concurrent" else None,
        rate_per_s=read_finite_or_nan(nested_value(strategy, "rate"))
        if kind in ("constant", "poisson")
        else None,
        most_in_flight=read_whole(
            nested_value(benchmark, "metrics", "request_concurrency", "successful", "max")
        ),
        requests_per_s=_read_mean(benchmark, "requests_per_second"),
        output_tokens_per_s=_read_mean(benchmark, "output_tokens_per_second"),
        total_tokens_per_s=_read_mean(benchmark, "tokens_per_second"),
        ttft=_read_distribution_of(benchmark, "time_to_first_token_ms", 1e-3),
        tpot=_read_distribution_of(benchmark, "inter_token_latency_ms", 1e-3),
        tpot_name="ITL",
        latency=_read_distribution_of(benchmark, "request_latency", 1.0),
        input_tokens=_read_distribution_of(benchmark, "prompt_token_count", 1.0),
        output_tokens=_read_distribution_of(benchmark, "output_token_count", 1.0),
        client=f"limited ({read_text(nested_value(warnings, 0, 'code'))})"
        if isinstance(warnings, list) and warnings
        else "",
    )


def _read_mean(benchmark: object, name: str) -> float | None:
    return read_finite_or_nan(nested_value(benchmark, "metrics", name, "successful", "mean"))


def _read_distribution_of(benchmark: object, name: str, scale: float) -> Distribution:
    values = nested_value(benchmark, "metrics", name, "successful")
    return (
        read_distribution(_list_named_values(values), scale)
        if isinstance(values, dict) and values.get("count") != 0
        else Distribution()
    )


def _list_named_values(values: Document) -> Iterator[tuple[str, object]]:
    """Yields names and values. ``p001`` is the 0.1st percentile, ``p99`` the 99th, ``p999`` the
    99.9th."""
    yield from (
        (name, value)
        for name, value in values.items()
        if name not in ("percentiles", "mode", "median")
    )
    percentiles = values.get("percentiles")
    for name, value in percentiles.items() if isinstance(percentiles, dict) else ():
        digits = str(name).removeprefix("p")
        if digits.isascii() and digits.isdigit():
            yield f"p{int(digits) / 10 ** (len(digits) - 2):g}", value


SCHEDULED: Final = ("constant", "poisson")
ENDS: Final = ("successful", "errored", "incomplete")


def _read_requests(document: Document, path: Path) -> list[ImportedRun]:
    """Reads the requests of each benchmark. Raises UnusableResult without requests."""
    return [
        _requests_of_load(document, benchmark) for benchmark in nested_value(document, "benchmarks")
    ]


def _requests_of_load(document: Document, benchmark: object) -> ImportedRun:
    strategy = nested_value(benchmark, "config", "strategy") or nested_value(
        benchmark, "args", "strategy"
    )
    kind = read_text(nested_value(strategy, "type_"))
    scheduled = kind in SCHEDULED
    if not any(isinstance(nested_value(benchmark, "requests", end), list) for end in ENDS):
        raise UnusableResult("it has no list of its requests (guidellm leaves it out of summaries)")
    records = list[Record]()
    unread = list[str]()
    for place, (end, request) in imported_records.number_requests(_list_requests(benchmark)):
        try:
            records.append(_make_record(request, end, place, scheduled))
        except UnusableResult as error:
            unread.append(f"request {place}: {error}")
    return ImportedRun(
        tool="guidellm",
        version=read_text(nested_value(document, "metadata", "guidellm_version")),
        model=read_text(nested_value(benchmark, "config", "backend", "model")),
        records=tuple(records),
        users=read_whole(nested_value(strategy, "max_concurrency"))
        or read_whole(nested_value(strategy, "streams"))
        if kind == "concurrent"
        else None,
        rate_per_s=read_finite_or_nan(nested_value(strategy, "rate")) if scheduled else None,
        arrivals=kind if scheduled else "",
        asked=read_whole(nested_value(benchmark, "metrics", "request_totals", "total")),
        unread=tuple(unread),
        lacks=imported_records.list_missing_data(records),
    )


def _list_requests(benchmark: object) -> Iterator[tuple[str, object]]:
    for end in ENDS:
        requests = nested_value(benchmark, "requests", end)
        yield from ((end, request) for request in requests) if isinstance(requests, list) else ()


def _make_record(request: object, end: str, place: int, scheduled: bool) -> Record:
    about = nested_value(request, "info", "timings")
    sent_s = imported_records.read_finite(nested_value(about, "request_start"), "start")
    closed_s = imported_records.read_finite(nested_value(about, "request_end"), "end")
    words = read_text(nested_value(request, "info", "error"))
    failure = imported_records.outcome_fields(None, words or "errored") if end == "errored" else {}
    failure = {"outcome": "cut"} if end == "incomplete" else failure
    first = nested_value(about, "first_token_iteration")
    last = nested_value(about, "last_token_iteration")
    stamps: tuple[int, ...] = ()
    complete = True
    if first is not None and last is not None:
        begins = imported_records.read_finite(first, "first token") - sent_s
        finishes = imported_records.read_finite(last, "last token") - sent_s
        if begins < 0:
            raise UnusableResult("its first token is before its start")
        stamps, complete = imported_records.first_and_last_chunk_us(begins, finishes)
        if read_whole(nested_value(about, "token_iterations")) == 1:
            stamps, complete = stamps[:1], True
    due = read_finite_or_nan(nested_value(about, "targeted_start")) if scheduled else None
    fields: dict[str, Any] = imported_records.token_fields(
        nested_value(request, "prompt_tokens"), nested_value(request, "output_tokens"), "usage"
    )
    return imported_records.make_imported_record(
        id=read_text(nested_value(request, "request_id")) or f"request-{place}", worker="guidellm",
        session=read_text(nested_value(request, "info", "conversation_id")),
        turn=imported_records.read_token_count(nested_value(request, "info", "turn_index")) or 0,
        cached_tokens=imported_records.read_token_count(nested_value(request, "cached_tokens")), base_s=0.0,
        sent_s=sent_s, closed_s=closed_s, stamps=stamps,
        whole=complete, due_s=due if due is not None and abs(due) < 1e11 else None, **fields,
        **failure,
    )  # fmt: skip


FORMAT: Final = ToolFormat(
    "guidellm",
    FiguresReader(_is_result, _read_figures),
    DocumentRequestsReader(_is_result, _read_requests),
)
