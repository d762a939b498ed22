"""vLLM: the JSON of ``vllm bench serve --save-result``."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from locust_llm.lab.interop.imported import (
    NO_DATE,
    Imported,
    Unusable,
    chunks,
    finite,
    lacking,
    number_requests,
    outcome,
    read_duration,
    record,
    token_fields,
)
from locust_llm.lab.interop.json_fields import (
    Document,
    read_distribution,
    read_finite_or_nan,
    read_text,
    whole,
)
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.measured import Floats, MeasuredRun, NotExported, sent_s
from locust_llm.records.record import Record


def has_figures(document: Document) -> bool:
    return "mean_ttft_ms" in document and "request_throughput" in document


def read_tool_figures(document: Document) -> list[Figures]:
    completed = whole(document.get("completed"))
    out = read_finite_or_nan(document.get("total_output_tokens"))
    read_tokens = read_finite_or_nan(document.get("total_input_tokens"))
    rate = read_finite_or_nan(document.get("request_rate"))
    return [
        Figures(
            tool="vllm bench",
            model=read_text(document.get("model_id")),
            requests=completed,
            failed=whole(document.get("failed")) or 0,
            asked_requests=whole(document.get("num_prompts")),
            duration_s=read_finite_or_nan(document.get("duration")),
            concurrency=whole(document.get("max_concurrency")),
            rate_per_s=None if rate is None or rate == float("inf") else rate,
            requests_per_s=read_finite_or_nan(document.get("request_throughput")),
            goodput_per_s=read_finite_or_nan(document.get("request_goodput")),
            output_tokens_per_s=read_finite_or_nan(document.get("output_throughput")),
            total_tokens_per_s=read_finite_or_nan(document.get("total_token_throughput")),
            ttft=_of(document, "ttft"),
            tpot=_of(document, "tpot"),
            itl=_of(document, "itl"),
            latency=_of(document, "e2el"),
            output_tokens=_mean(out, completed),
            input_tokens=_mean(read_tokens, completed),
        )
    ]


def _of(document: Document, name: str) -> Distribution:
    end = f"_{name}_ms"
    found = ((key.removesuffix(end), value) for key, value in document.items() if key.endswith(end))
    return read_distribution(found, 1e-3)


def _mean(total: float | None, count: int | None) -> Distribution:
    return Distribution(avg=total / count) if total is not None and count else Distribution()


LISTS: Final = ("ttfts", "itls", "start_times", "input_lens", "output_lens", "errors")


def has_requests(document: Document) -> bool:
    return "mean_ttft_ms" in document and "request_throughput" in document


def read_tool_requests(document: Document, path: Path) -> list[Imported]:
    """Raises Unusable without what each request had."""
    lists = {name: document.get(name) for name in (*LISTS, "latencies")}
    if not all(isinstance(lists[name], list) for name in ("ttfts", "itls", "output_lens")):
        raise Unusable(
            "it has no list of its requests (vllm bench serve writes one with --save-detailed)"
        )
    if not isinstance(lists["start_times"], list):
        raise Unusable("its requests have no start times, as older versions of vllm bench wrote it")
    rate = read_finite_or_nan(document.get("request_rate"))
    burstiness = read_finite_or_nan(document.get("burstiness"))
    open_loop = rate is not None and 0 < rate < float("inf")
    found, unread = _records(lists, read_text(document.get("date")), path)
    asked = (whole(document.get("completed")) or 0) + (whole(document.get("failed")) or 0)
    return [
        Imported(
            tool="vllm bench",
            model=read_text(document.get("model_id")),
            records=tuple(found),
            users=whole(document.get("max_concurrency")),
            rate_per_s=rate if open_loop else None,
            arrivals="" if not open_loop or burstiness is None
            else "poisson" if burstiness == 1 else f"gamma (smoothness {burstiness:g})",
            asked=asked or None,
            unread=tuple(unread),
            lacks=lacking(found, NO_DATE),
        )
    ]  # fmt: skip


def _records(lists: Mapping[str, Any], date: str, path: Path) -> tuple[list[Record], list[str]]:
    found = list[Record]()
    unread = list[str]()
    starts = [
        value
        for one in lists["start_times"]
        if (value := read_finite_or_nan(one)) is not None and abs(value) < 1e11
    ]
    ended_s = max(starts, default=0.0)
    base_s = _unix(date, path) - ended_s
    for place, _ in number_requests(lists["start_times"]):
        try:
            found.append(
                _record({name: _nth(lists[name], place - 1) for name in lists}, place, base_s)
            )
        except Unusable as error:
            unread.append(f"request {place}: {error}")
    return found, unread


def _nth(values: object, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _unix(date: str, path: Path) -> float:
    """When the tool wrote the file: its date, which has no time zone, as UTC."""
    with suppress(ValueError, OverflowError):
        return float(time.mktime(time.strptime(date, "%Y%m%d-%H%M%S")) - time.timezone)
    return path.stat().st_mtime


def _record(one: Mapping[str, Any], place: int, base_s: float) -> Record:
    """The first event may carry nothing but the role: so does its TTFT."""
    sent_s = finite(one["start_times"], "start time")
    words = one["errors"] if isinstance(one["errors"], str) else ""
    failure = outcome(None, words)
    fields = {
        "id": f"request-{place}",
        "worker": "vllm bench",
        "base_s": base_s,
        "sent_s": sent_s,
        **failure,
    }
    fields |= token_fields(one["input_lens"], one["output_lens"] if not failure else None, "usage")
    latency = None if one["latencies"] is None else read_duration(one["latencies"], "latency")
    if failure:
        return record(**fields, closed_s=sent_s + (latency or 0.0), stamps=(), whole=True)
    if not isinstance(one["itls"], list):
        raise Unusable("its list of gaps is missing")
    stamps, complete = chunks(read_duration(one["ttfts"], "TTFT"), one["itls"], latency)
    return record(**fields, closed_s=sent_s + stamps[-1] / 1e6, stamps=stamps, whole=complete)


PERCENTILES: Final = (50, 90, 95, 99)
OF_PYTORCH: Final = tuple(
    f"{point}_{name}_ms"
    for name in ("ttft", "tpot", "itl")
    for point in ("mean", "median", "std", "p99")
)
"""The metrics that vLLM itself puts there."""
BACKENDS: Final = {"chat": "openai-chat", "completions": "openai"}
PATTERNS: Final = {"poisson": 1.0}


def build_vllm_bench_result(
    found: MeasuredRun, more: Mapping[str, object], *, detailed: bool = False
) -> dict[str, Any]:
    """``more``: fields as of ``--metadata``; ``detailed``: the lists of ``--save-detailed`` too,
    but for the texts. Raises NotExported for an API that it has not."""
    s, run = found.run.settings, found.run
    if s.endpoint_type not in BACKENDS:
        raise NotExported(f"vllm bench has no figures of the endpoint type {s.endpoint_type}")
    n = len(found.ok)
    backend = BACKENDS[s.endpoint_type]
    rate = (s.request_rate or s.user_centric_rate) if s.open_loop else None
    burstiness = PATTERNS.get(s.arrival_pattern, s.arrival_smoothness) if s.open_loop else None
    try:
        date = datetime.fromtimestamp(run.ended_at or found.ended_s, UTC).strftime("%Y%m%d-%H%M%S")
    except (ValueError, OverflowError) as error:
        raise NotExported(f"its date cannot be written: {error}") from None
    whole: dict[str, Any] = {
        "date": date,
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": run.model or s.model or None,
        "tokenizer_id": None,
        "num_prompts": n + len(found.failed),
        **more,
        "request_rate": rate if s.open_loop else "inf",
        "burstiness": burstiness,
        "max_concurrency": None if s.open_loop else s.users,
        "duration": found.duration_s,
        "completed": n,
        "failed": len(found.failed),
        **_rates(found),
        **(_lists(found) if detailed else {}),
        **dict(_latencies(found)),
    }
    empty = ("burstiness", *(("request_rate",) if s.open_loop else ()))
    return {name: value for name, value in whole.items() if value is not None or name not in empty}


def _rates(found: MeasuredRun) -> dict[str, float | None]:
    """Those that need tokens only where all requests have them. Goodput is None there without a
    rule; ours may be of other rules, so it is None here."""
    n = len(found.ok)
    lasted_s = found.duration_s
    if lasted_s <= 0:
        return {"request_goodput": None}
    rates: dict[str, float | None] = {"request_throughput": n / lasted_s, "request_goodput": None}
    if found.tokens is not None:
        read, written = map(sum, found.tokens)
        rates |= {
            "total_input_tokens": read,
            "total_output_tokens": written,
            "output_throughput": written / lasted_s,
            "total_token_throughput": (read + written) / lasted_s,
        }
    if found.gaps_known:
        rates["max_output_tokens_per_s"] = fullest_second(found)
    rates["max_concurrent_requests"] = most_at_once(found)
    return rates | {"rtfx": sum(one.audio_s or 0.0 for one in found.ok) / lasted_s}


def fullest_second(found: MeasuredRun) -> float:
    """Chunks in the fullest whole second after the first send."""
    first = sent_s(found.ok[0])
    at = np.concatenate(
        [np.array(one.known_us, np.float64) / 1e6 + (sent_s(one) - first) for one in found.ok]
    )
    _, counts = np.unique(at.astype(np.int64), return_counts=True)
    return float(counts.max(initial=0))


def most_at_once(found: MeasuredRun) -> int:
    """Requests that touch the fullest whole second: more than are in flight at a time."""
    first = sent_s(found.ok[0])
    began = np.array([sent_s(one) - first for one in found.ok])
    ended = began + np.array([one.latency_s or 0.0 for one in found.ok])
    seconds = np.concatenate([began.astype(np.int64), ended.astype(np.int64) + 1])
    changes = np.repeat([1, -1], len(found.ok))
    # only those in which something changes: a run may have years
    second, at = np.unique(seconds, return_inverse=True)
    return int(np.cumsum(np.bincount(at, changes, len(second))).max())


def _lists(found: MeasuredRun) -> dict[str, list[Any]]:
    """A value for each request. Texts are not kept."""
    every = sorted((*found.ok, *found.failed), key=sent_s)
    lists: dict[str, list[Any]] = {
        "ttfts": [one.ttft_s or 0.0 for one in every],
        "latencies": [one.latency_s or 0.0 for one in every],
        "start_times": [sent_s(one) for one in every],
        "errors": ["" if not one.failed else one.error or one.outcome for one in every],
    }
    if found.gaps_known:
        lists["itls"] = [[gap / 1e6 for gap in one.gaps_us] for one in every]
    if found.tokens is not None:
        lists["input_lens"] = [one.input_tokens or 0 for one in every]
        lists["output_lens"] = [0 if one.failed else one.output_tokens or 0 for one in every]
    return lists


def _latencies(found: MeasuredRun) -> Iterator[tuple[str, float]]:
    yield from _stats("ttft", found.ttft_s)
    if found.tokens is not None:
        yield from _stats("tpot", found.tpot_s)
    if found.gaps_known:
        yield from _stats("itl", found.gaps_s)
    yield from _stats("e2el", found.latency_s)


def _stats(name: str, values_s: Floats) -> Iterator[tuple[str, float]]:
    if not len(values_s):
        return
    ms = values_s * 1e3
    points = {"mean": ms.mean(), "median": np.median(ms), "std": ms.std()}
    points |= {f"p{p}": np.percentile(ms, p) for p in PERCENTILES}
    yield from (
        (f"{point}_{name}_ms", float(value))
        for point, value in points.items()
        if math.isfinite(value)
    )


def pytorch(found: MeasuredRun, more: Mapping[str, object]) -> list[dict[str, Any]]:
    """A record for each metric; of the arguments of a command line those that a run of ours has."""
    whole = build_vllm_bench_result(found, more)
    arguments = (
        "backend",
        "model_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
    )
    args = {
        "model" if name == "model_id" else name: whole[name]
        for name in arguments
        if whole.get(name) is not None
    }
    rest = {name: value for name, value in whole.items() if name not in OF_PYTORCH}
    return [
        {
            "benchmark": {"name": "vLLM benchmark", "extra_info": {"args": {**args, **more}}},
            "model": {"name": whole["model_id"]},
            "metric": {"name": name, "benchmark_values": [whole[name]], "extra_info": rest},
        }
        for name in OF_PYTORCH
        if name in whole
    ]
