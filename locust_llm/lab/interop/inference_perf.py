"""inference-perf: reads the metrics of one stage, ``stage_0_lifecycle_metrics.json``, or of all
stages.

Its ``output_len`` counts tokens by its own tokenizer, and its rates and times per token use them.
Its ``output_tokens`` are the server's. ``per_request_lifecycle_metrics.json`` has its requests,
with the time of each token on the clock of a process.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.lab.interop import imported_records
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_json_document,
    read_text,
    read_whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.tool_format import DocumentRequestsReader, FiguresReader, ToolFormat
from locust_llm.records.record import Record


def _has_figures(document: Document) -> bool:
    return nested_value(document, "successes", "latency", "time_to_first_token") is not None


def _read_figures(document: Document, path: Path) -> list[Figures]:
    load = document.get("load_summary")
    successes = document.get("successes")
    places = read_whole(nested_value(load, "concurrency"))

    def read(*path: str) -> Distribution:
        values = nested_value(successes, *path)
        return read_distribution(values.items()) if isinstance(values, dict) else Distribution()

    return [
        Figures(
            tool="inference-perf",
            requests=read_whole(nested_value(successes, "count")),
            failed=read_whole(nested_value(document, "failures", "count")) or 0,
            asked_requests=read_whole(nested_value(load, "count")),
            duration_s=read_finite_or_nan(document.get("benchmark_time_seconds")),
            concurrency=places,
            rate_per_s=None if places else read_finite_or_nan(nested_value(load, "requested_rate")),
            requests_per_s=read_finite_or_nan(
                nested_value(successes, "throughput", "requests_per_sec")
            ),
            output_tokens_per_s=read_finite_or_nan(
                nested_value(successes, "throughput", "output_tokens_per_sec")
            ),
            total_tokens_per_s=read_finite_or_nan(
                nested_value(successes, "throughput", "total_tokens_per_sec")
            ),
            ttft=read("latency", "time_to_first_token"),
            tpot=read("latency", "time_per_output_token"),
            itl=read("latency", "inter_token_latency"),
            latency=read("latency", "request_latency"),
            input_tokens=read("prompt_tokens"),
            output_tokens=read("output_len"),
            server_output_tokens=read_finite_or_nan(
                nested_value(successes, "output_tokens", "mean")
            ),
        )
    ]


FILE: Final = "per_request_lifecycle_metrics.json"
STAGE: Final = "stage_0_lifecycle_metrics.json"


def _has_requests(document: object) -> bool:
    """Recognises a list whose first entry has the times of a request."""
    if not isinstance(document, list):
        return False
    return nested_value(document, 0, "info", "response_metrics") is not None or (
        nested_value(document, 0, "start_time") is not None
        and nested_value(document, 0, "end_time") is not None
    )


def _read_requests(document: Sequence[object], path: Path) -> list[ImportedRun]:
    """A file of several stages gets no load, as only the first stage has its load beside it."""
    records = list[Record]()
    unread = list[str]()
    ended_s = max(
        (
            end
            for request in document
            if (end := read_finite_or_nan(nested_value(request, "end_time"))) and abs(end) < 1e11
        ),
        default=0.0,
    )
    base_s = path.stat().st_mtime - ended_s
    for place, request in imported_records.number_requests(document):
        try:
            records.append(_make_record(request, place, base_s))
        except UnusableResult as error:
            unread.append(f"request {place}: {error}")
    stage = (
        {}
        if path.with_name("stage_1_lifecycle_metrics.json").exists()
        else read_json_document(path.with_name(STAGE))
    )
    load = nested_value(stage, "load_summary")
    places = read_whole(nested_value(load, "concurrency"))
    requested = (read_whole(nested_value(stage, "successes", "count")) or 0) + (
        read_whole(nested_value(stage, "failures", "count")) or 0
    )
    return [
        ImportedRun(
            tool="inference-perf",
            model=_read_model(document),
            records=tuple(records),
            users=places,
            rate_per_s=None if places else read_finite_or_nan(nested_value(load, "requested_rate")),
            asked=requested or None,
            unread=tuple(unread),
            lacks=imported_records.list_missing_data(records, imported_records.NO_DATE),
        )
    ]


def _read_model(document: Sequence[object]) -> str:
    """Returns the model in the body of the first request."""
    body = str(nested_value(document, 0, "request"))
    try:
        return read_text(nested_value(msgspec.json.decode(body.encode()), "model"))
    except (ValueError, RecursionError):  # the body is cut
        return body.partition('"model": "')[2].partition('"')[0][:200]


def _make_record(request: object, place: int, base_s: float) -> Record:
    """Tokens of one chunk share one time."""
    sent_s = imported_records.read_finite(nested_value(request, "start_time"), "start")
    closed_s = imported_records.read_finite(nested_value(request, "end_time"), "end")
    error = nested_value(request, "error")
    words = (
        read_text(error)
        or read_text(nested_value(error, "error_msg"))
        or read_text(nested_value(error, "error_type"))
        or ("failed" if error else "")
    )
    answer = nested_value(request, "info", "response_metrics")
    used = imported_records.read_token_count(
        nested_value(answer, "server_usage", "completion_tokens")
    )
    read = imported_records.read_token_count(nested_value(answer, "server_usage", "prompt_tokens"))
    fields: dict[str, Any] = imported_records.token_fields(
        nested_value(request, "info", "input_tokens") if read is None else read,
        nested_value(answer, "output_tokens") if used is None else used,
        "tokenizer" if used is None else "usage",
    )
    times = nested_value(answer, "output_token_times") or nested_value(answer, "chunk_times")
    return imported_records.make_imported_record(
        id=f"request-{place}", worker="inference-perf", base_s=base_s, sent_s=sent_s,
        closed_s=closed_s,
        cached_tokens=imported_records.read_token_count(nested_value(answer, "server_usage", "prompt_tokens_details",
            "cached_tokens")),
        stamps=_read_stamps(times, sent_s) if isinstance(times, list) else (), whole=True, **fields,
        **imported_records.outcome_fields(None, words),
    )  # fmt: skip


def _read_stamps(times: list[object], sent_s: float) -> tuple[int, ...]:
    moments_s = [read_finite_or_nan(moment) for moment in times]
    if any(
        stamp_s is None or not math.isfinite(stamp_s) or abs(stamp_s - sent_s) > 1e7
        for stamp_s in moments_s
    ):
        raise UnusableResult("the time of a token is not a number")
    stamps_us = [
        round((stamp_s - sent_s) * 1e6)
        for stamp_s in dict.fromkeys(moments_s)
        if stamp_s is not None
    ]
    if stamps_us and (stamps_us[0] < 0 or sorted(stamps_us) != stamps_us):
        raise UnusableResult("the times of its tokens fall, or begin before the request")
    return tuple(stamps_us)


FORMAT: Final = ToolFormat(
    "inference-perf",
    FiguresReader(_has_figures, _read_figures),
    DocumentRequestsReader(_has_requests, _read_requests, FILE, STAGE, is_list=True),
)
