"""AIPerf: reads the metrics of ``profile_export_aiperf.json`` and the requests of
``profile_export.jsonl``.

The second file has a line for each request. locust-llm writes both files too, and marks them as its
own.
"""

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.lab.interop import imported_records
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.json_fields import (
    S_PER,
    Document,
    nested_value,
    read_distribution,
    read_finite_or_nan,
    read_json_document,
    read_text,
    read_whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.result_file import ResultFile
from locust_llm.lab.interop.tool_format import FiguresReader, RequestsReader, ToolFormat
from locust_llm.records.record import Record

TTFT: Final = "time_to_first_token"
LATENCY: Final = "request_latency"


def _has_figures(document: Document) -> bool:
    return (
        isinstance(nested_value(document, LATENCY), dict)
        and nested_value(document, LATENCY, "unit") is not None
    )


def _read_figures(document: Document, path: Path) -> list[Figures]:
    config = nested_value(document, "input_config")
    load = nested_value(config, "loadgen") or nested_value(config, "phases", -1) or {}
    ours = nested_value(document, "locust_llm")
    imported_from = read_text(nested_value(ours, "imported"))
    conditions = nested_value(ours, "conditions") or {}
    counted = read_whole(nested_value(document, "request_count", "avg"))
    failed = read_whole(nested_value(document, "error_request_count", "avg")) or 0
    rate = (
        read_finite_or_nan(nested_value(load, "request_rate"))
        or read_finite_or_nan(nested_value(load, "rate"))
        or read_finite_or_nan(nested_value(conditions, "rate_per_s"))
    )
    return [
        Figures(
            tool=imported_from or ("locust-llm" if ours else "AIPerf"),
            version=read_text(nested_value(document, "aiperf_version"))
            or read_text(nested_value(conditions, "versions", "locust-llm")),
            model=read_text(nested_value(config, "endpoint", "model_names", 0))
            or read_text(nested_value(config, "models", "items", 0, "name")),
            started_at=_parse_time(read_text(nested_value(document, "start_time"))),
            requests=counted,
            failed=failed,
            in_blocks=bool(nested_value(ours, "in_blocks")),
            goes_on_from_warmup=bool(nested_value(ours, "goes_on_from_warmup")),
            unfinished=read_whole(nested_value(conditions, "cut")) or 0,
            asked_requests=read_whole(nested_value(load, "request_count"))
            or read_whole(nested_value(load, "requests")),
            duration_s=read_finite_or_nan(nested_value(document, "benchmark_duration", "avg")),
            concurrency=read_whole(nested_value(load, "concurrency"))
            or read_whole(nested_value(conditions, "users")),
            prefill_concurrency=read_whole(nested_value(load, "prefill_concurrency")),
            rate_per_s=rate,
            requests_per_s=read_finite_or_nan(nested_value(document, "request_throughput", "avg")),
            goodput_per_s=read_finite_or_nan(nested_value(document, "goodput", "avg")),
            output_tokens_per_s=read_finite_or_nan(
                nested_value(document, "output_token_throughput", "avg")
            ),
            total_tokens_per_s=read_finite_or_nan(
                nested_value(document, "total_token_throughput", "avg")
            ),
            ttft=_read_distribution_of(document, TTFT),
            tpot=_read_distribution_of(document, "inter_token_latency"),
            itl=_read_distribution_of(document, "inter_chunk_latency"),
            tpot_name="ITL",
            itl_name="ICL",
            latency=_read_distribution_of(document, LATENCY),
            input_tokens=_read_distribution_of(document, "input_sequence_length"),
            output_tokens=_read_distribution_of(document, "output_sequence_length"),
            server_output_tokens=None
            if ours
            else read_finite_or_nan(nested_value(document, "usage_completion_tokens", "avg")),
            asked_output_tokens=_read_requested_output(config),
            client=read_text(nested_value(conditions, "client_verdict")),
        )
    ]


def _read_distribution_of(document: Document, name: str) -> Distribution:
    """AIPerf's inter-chunk latency is a mean per request, so its count is of requests, as for all
    others."""
    values = nested_value(document, name)
    if not isinstance(values, dict):
        return Distribution()
    return read_distribution(values.items(), S_PER.get(read_text(values.get("unit")), 1.0))


def _parse_time(written: str) -> float | None:
    """Parses an ISO 8601 time, UTC without a zone. Returns None for other texts."""
    try:
        time = datetime.fromisoformat(written)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    unix_s = time.timestamp()
    return unix_s if unix_s >= 0 else None


def _read_requested_output(config: object) -> float | None:
    return read_finite_or_nan(
        nested_value(config, "input", "prompt", "output_tokens", "mean")
    ) or read_finite_or_nan(nested_value(config, "datasets", 0, "prompts", "osl", "mean"))


FILE: Final = "profile_export.jsonl"
SUMMARY: Final = "profile_export_aiperf.json"
MAX_REASONS: Final = 1000


def _has_requests(file: ResultFile) -> bool:
    """Recognises the file by its first line, which may be cut."""
    head = file.head.lstrip()[:4096].partition(b"\n")[0]
    return (
        head.startswith(b"{")
        and b'"metadata"' in head
        and (b'"session_num"' in head or b'"request_start_ns"' in head)
    )


def _read_requests(file: ResultFile) -> list[ImportedRun]:
    """Reads one record per line. Raises UnusableResult for a run of locust-llm."""
    records = list[Record]()
    unread = list[str]()
    base_ns: int | None = None
    for place, numbered_line in imported_records.number_requests(io.BytesIO(file.raw)):
        if not numbered_line.strip():
            continue
        try:
            document = msgspec.json.decode(numbered_line)
            if nested_value(document, "record") is not None:
                raise UnusableResult(
                    "it is a run of locust-llm: give its folder to report, compare or audit"
                )
            start_ns = whole_ns(nested_value(document, "metadata", "request_start_ns"))
            base_ns = start_ns if base_ns is None else base_ns
            records.append(_make_record(document, place, base_ns))
        except UnusableResult as error:
            if "run of locust-llm" in str(error):
                raise
            unread.append(f"line {place}: {error}")
        except (ValueError, RecursionError):
            unread.append(f"line {place}: it is not JSON, or cut")
    return [_make_imported_run(records, unread[:MAX_REASONS], file.path)]


def _make_imported_run(records: list[Record], unread: list[str], path: Path) -> ImportedRun:
    document = read_json_document(path.with_name(SUMMARY))
    config = nested_value(document, "input_config")
    load = nested_value(config, "loadgen") or nested_value(config, "phases", -1) or {}
    rate = read_finite_or_nan(nested_value(load, "request_rate")) or read_finite_or_nan(
        nested_value(load, "rate")
    )
    requested = sum(
        read_whole(nested_value(document, name, "avg")) or 0
        for name in ("request_count", "error_request_count")
    )
    return ImportedRun(
        tool="AIPerf",
        version=read_text(nested_value(document, "aiperf_version")),
        model=read_text(nested_value(config, "endpoint", "model_names", 0))
        or read_text(nested_value(config, "models", "items", 0, "name")),
        records=tuple(records),
        users=read_whole(nested_value(load, "concurrency")),
        prefills=read_whole(nested_value(load, "prefill_concurrency")),
        rate_per_s=rate,
        arrivals=read_text(nested_value(load, "arrival_pattern"))
        or read_text(nested_value(load, "type"))
        if rate
        else "",
        asked=requested or None,
        unread=tuple(unread),
        lacks=imported_records.list_missing_data(records),
    )


def whole_ns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**20:
        raise UnusableResult("its request_start_ns is not a time")
    return value


def _make_record(document: object, place: int, base_ns: int) -> Record:
    about = nested_value(document, "metadata")
    metrics = nested_value(document, "metrics")
    start_ns = whole_ns(nested_value(about, "request_start_ns"))
    end_ns = whole_ns(nested_value(about, "request_end_ns"))
    ack = nested_value(about, "request_ack_ns")
    error = nested_value(document, "error")
    words = (
        read_text(nested_value(error, "message"))
        or read_text(nested_value(error, "type"))
        or ("failed" if error else "")
    )
    failure = imported_records.outcome_fields(
        nested_value(error, "code"), words, nested_value(about, "was_cancelled") is True
    )
    usage = imported_records.read_token_count(
        nested_value(metrics, "usage_completion_tokens", "value")
    )
    read = imported_records.read_token_count(nested_value(metrics, "usage_prompt_tokens", "value"))
    if read is None:
        read = imported_records.read_token_count(
            nested_value(metrics, "input_sequence_length", "value")
        )
    written = nested_value(metrics, "output_sequence_length", "value") if usage is None else usage
    stamps, complete = _read_stamps(metrics)
    more: dict[str, Any] = {
        **failure,
        **imported_records.token_fields(read, written, "tokenizer" if usage is None else "usage"),
        "cached_tokens": imported_records.read_token_count(
            nested_value(metrics, "usage_prompt_cache_read_tokens", "value")
        ),
        "reasoning_tokens": imported_records.read_token_count(
            nested_value(metrics, "reasoning_token_count", "value")
        ),
        "headers_at": (ack - base_ns) / 1e9
        if isinstance(ack, int) and start_ns <= ack <= end_ns
        else None,
    }
    return imported_records.make_imported_record(
        id=read_text(nested_value(about, "x_request_id")) or f"request-{place}",
        worker=read_text(nested_value(about, "worker_id")) or "AIPerf",
        session=read_text(nested_value(about, "conversation_id")),
        turn=imported_records.read_token_count(nested_value(about, "turn_index")) or 0,
        phase="warmup" if nested_value(about, "benchmark_phase") == "warmup" else "profiling",
        base_s=base_ns / 1e9,
        sent_s=(start_ns - base_ns) / 1e9,
        closed_s=(end_ns - base_ns) / 1e9,
        stamps=stamps,
        whole=complete,
        **more,
    )


def _read_stamps(metrics: object) -> tuple[tuple[int, ...], bool]:
    """Returns the chunk stamps in microseconds, and whether these are all. An answer that was not
    streamed has none."""
    first = _read_seconds(metrics, "time_to_first_token")
    latency = _read_seconds(metrics, "request_latency")
    if first is None:
        return (), True
    gaps = nested_value(metrics, "inter_chunk_latency", "value")
    unit = read_text(nested_value(metrics, "inter_chunk_latency", "unit"))
    if not isinstance(gaps, list):
        last = first if latency is None else latency
        return (
            ((round(first * 1e6),), True)
            if last == first
            else imported_records.first_and_last_chunk_us(first, last)
        )
    scale = S_PER.get(unit, 1e-3)
    numbers = map(read_finite_or_nan, gaps)
    gaps_s = [None if number is None else number * scale for number in numbers]
    return imported_records.stamp_chunks(first, gaps_s, latency)


def _read_seconds(metrics: object, name: str) -> float | None:
    """Returns a duration in seconds, or None if it is missing."""
    value = nested_value(metrics, name, "value")
    if value is None:
        return None
    return imported_records.read_duration(value, name) * S_PER.get(
        read_text(nested_value(metrics, name, "unit")), 1e-3
    )


FORMAT: Final = ToolFormat(
    "AIPerf",
    FiguresReader(_has_figures, _read_figures, SUMMARY),
    RequestsReader(_has_requests, _read_requests, FILE, SUMMARY),
)
