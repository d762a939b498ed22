"""vLLM: reads the JSON of ``vllm bench serve --save-result``.

With ``--save-detailed`` the file has lists with a value per request, and times in seconds on the
clock of a process.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from locust_llm.lab.interop import imported_records
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.json_fields import (
    Document,
    read_distribution,
    read_finite_or_nan,
    read_text,
    read_whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.tool_format import DocumentRequestsReader, FiguresReader, ToolFormat
from locust_llm.records.record import Record


def _is_result(document: object) -> bool:
    return (
        isinstance(document, dict)
        and "mean_ttft_ms" in document
        and "request_throughput" in document
    )


def _read_figures(document: Document, path: Path) -> list[Figures]:
    completed = read_whole(document.get("completed"))
    out = read_finite_or_nan(document.get("total_output_tokens"))
    read_tokens = read_finite_or_nan(document.get("total_input_tokens"))
    rate = read_finite_or_nan(document.get("request_rate"))
    return [
        Figures(
            tool="vllm bench",
            model=read_text(document.get("model_id")),
            requests=completed,
            failed=read_whole(document.get("failed")) or 0,
            asked_requests=read_whole(document.get("num_prompts")),
            duration_s=read_finite_or_nan(document.get("duration")),
            concurrency=read_whole(document.get("max_concurrency")),
            rate_per_s=None if rate is None or rate == float("inf") else rate,
            requests_per_s=read_finite_or_nan(document.get("request_throughput")),
            goodput_per_s=read_finite_or_nan(document.get("request_goodput")),
            output_tokens_per_s=read_finite_or_nan(document.get("output_throughput")),
            total_tokens_per_s=read_finite_or_nan(document.get("total_token_throughput")),
            ttft=_read_distribution_of(document, "ttft"),
            tpot=_read_distribution_of(document, "tpot"),
            itl=_read_distribution_of(document, "itl"),
            latency=_read_distribution_of(document, "e2el"),
            output_tokens=_mean(out, completed),
            input_tokens=_mean(read_tokens, completed),
        )
    ]


def _read_distribution_of(document: Document, name: str) -> Distribution:
    end = f"_{name}_ms"
    fields = (
        (key.removesuffix(end), value) for key, value in document.items() if key.endswith(end)
    )
    return read_distribution(fields, 1e-3)


def _mean(total: float | None, count: int | None) -> Distribution:
    return Distribution(avg=total / count) if total is not None and count else Distribution()


LISTS: Final = ("ttfts", "itls", "start_times", "input_lens", "output_lens", "errors")


def _read_requests(document: Document, path: Path) -> list[ImportedRun]:
    """Reads the requests. Raises UnusableResult without their lists."""
    lists = {name: document.get(name) for name in (*LISTS, "latencies")}
    if not all(isinstance(lists[name], list) for name in ("ttfts", "itls", "output_lens")):
        raise UnusableResult(
            "it has no list of its requests (vllm bench serve writes one with --save-detailed)"
        )
    if not isinstance(lists["start_times"], list):
        raise UnusableResult(
            "its requests have no start times: an older version of vllm bench wrote it"
        )
    rate = read_finite_or_nan(document.get("request_rate"))
    burstiness = read_finite_or_nan(document.get("burstiness"))
    open_loop = rate is not None and 0 < rate < float("inf")
    records, unread = _make_records(lists, read_text(document.get("date")), path)
    requested = (read_whole(document.get("completed")) or 0) + (
        read_whole(document.get("failed")) or 0
    )
    return [
        ImportedRun(
            tool="vllm bench",
            model=read_text(document.get("model_id")),
            records=tuple(records),
            users=read_whole(document.get("max_concurrency")),
            rate_per_s=rate if open_loop else None,
            arrivals=_name_arrivals(burstiness) if open_loop else "",
            asked=requested or None,
            own=document.get("label") == imported_records.OWN_LABEL,
            simulated=document.get("simulated") is True,
            unread=tuple(unread),
            lacks=imported_records.list_missing_data(records, imported_records.NO_DATE),
        )
    ]


def _name_arrivals(burstiness: float | None) -> str:
    """Names the distribution of an open loop's arrivals. Empty: unknown."""
    if burstiness is None:
        return ""
    return "poisson" if burstiness == 1 else f"gamma (smoothness {burstiness:g})"


def _make_records(
    lists: Mapping[str, Any], date: str, path: Path
) -> tuple[list[Record], list[str]]:
    records = list[Record]()
    unread = list[str]()
    starts = [
        value
        for start_time in lists["start_times"]
        if (value := read_finite_or_nan(start_time)) is not None and abs(value) < 1e11
    ]
    ended_s = max(starts, default=0.0)
    base_s = _read_written_time(date, path) - ended_s
    for place, _ in imported_records.number_requests(lists["start_times"]):
        try:
            request = {name: _nth(values, place - 1) for name, values in lists.items()}
            records.append(_make_record(request, place, base_s))
        except UnusableResult as error:
            unread.append(f"request {place}: {error}")
    return records, unread


def _nth(values: object, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _read_written_time(date: str, path: Path) -> float:
    """Returns the Unix time of the file. Its date has no time zone, and counts as UTC."""
    with suppress(ValueError, OverflowError):
        return float(time.mktime(time.strptime(date, "%Y%m%d-%H%M%S")) - time.timezone)
    return path.stat().st_mtime


def _make_record(request: Mapping[str, Any], place: int, base_s: float) -> Record:
    """The first event may carry the role only, and the tool's TTFT ends there."""
    sent_s = imported_records.read_finite(request["start_times"], "start time")
    words = request["errors"] if isinstance(request["errors"], str) else ""
    failure = imported_records.outcome_fields(None, words)
    fields = {
        "id": f"request-{place}",
        "worker": "vllm bench",
        "base_s": base_s,
        "sent_s": sent_s,
        **failure,
    }
    fields |= imported_records.token_fields(
        request["input_lens"], request["output_lens"] if not failure else None, "usage"
    )
    latency = (
        None
        if request["latencies"] is None
        else imported_records.read_duration(request["latencies"], "latency")
    )
    if failure:
        return imported_records.make_imported_record(
            **fields, closed_s=sent_s + (latency or 0.0), stamps=(), whole=True
        )
    if not isinstance(request["itls"], list):
        raise UnusableResult("its list of gaps is missing")
    stamps, complete = imported_records.stamp_chunks(
        imported_records.read_duration(request["ttfts"], "TTFT"), request["itls"], latency
    )
    return imported_records.make_imported_record(
        **fields, closed_s=sent_s + stamps[-1] / 1e6, stamps=stamps, whole=complete
    )


FORMAT: Final = ToolFormat(
    "vllm bench",
    FiguresReader(_is_result, _read_figures),
    DocumentRequestsReader(_is_result, _read_requests),
)
