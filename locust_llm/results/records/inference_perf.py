"""inference-perf: ``per_request_lifecycle_metrics.json``, with the time of each token on the clock of a process; the load
stands in ``stage_0_lifecycle_metrics.json`` beside it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.core.record import Record
from locust_llm.core.storage import MAX_JSON_BYTES
from locust_llm.files import read_regular
from locust_llm.results.formats.fields import Document, at, number, text, whole

from .imported import NO_DATE, Imported, Unusable, count, finite, lacking, outcome, record, tokens

FILE: Final = "per_request_lifecycle_metrics.json"
STAGE: Final = "stage_0_lifecycle_metrics.json"


def is_one(document: object) -> bool:
    return at(document, 0, "info", "response_metrics") is not None or (
        at(document, 0, "start_time") is not None and at(document, 0, "end_time") is not None
    )


def read(document: Sequence[object], path: Path) -> list[Imported]:
    """Of several stages only the first has its load beside it, so they have none."""
    found, unread = list[Record](), list[str]()
    ended_s = max((end for one in document if (end := number(at(one, "end_time"))) and abs(end) < 1e11), default=0.0)
    base_s = path.stat().st_mtime - ended_s
    for place, one in enumerate(document, 1):
        try:
            found.append(_record(one, place, base_s))
        except Unusable as error:
            unread.append(f"request {place}: {error}")
    stage = {} if path.with_name("stage_1_lifecycle_metrics.json").exists() else _stage(path.with_name(STAGE))
    load = at(stage, "load_summary")
    places = whole(at(load, "concurrency"))
    asked = (whole(at(stage, "successes", "count")) or 0) + (whole(at(stage, "failures", "count")) or 0)
    return [
        Imported(
            tool="inference-perf",
            model=_model(document),
            records=tuple(found),
            users=places,
            rate_per_s=None if places else number(at(load, "requested_rate")),
            asked=asked or None,
            unread=tuple(unread),
            lacks=lacking(found, NO_DATE),
        )
    ]


def _stage(path: Path) -> Document:
    try:
        document = msgspec.json.decode(read_regular(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _model(document: Sequence[object]) -> str:
    """As the first request asked for it."""
    try:
        return text(at(msgspec.json.decode(str(at(document, 0, "request")).encode()), "model"))
    except (ValueError, RecursionError):
        words = str(at(document, 0, "request"))
        return words.partition('"model": "')[2].partition('"')[0][:200]  # a cut one


def _record(one: object, place: int, base_s: float) -> Record:
    """One chunk may hold several tokens: they have one time."""
    sent_s, closed_s = finite(at(one, "start_time"), "start"), finite(at(one, "end_time"), "end")
    error = at(one, "error")
    words = text(error) or text(at(error, "error_msg")) or text(at(error, "error_type")) or ("failed" if error else "")
    answer = at(one, "info", "response_metrics")
    used = count(at(answer, "server_usage", "completion_tokens"))
    read = count(at(answer, "server_usage", "prompt_tokens"))
    fields: dict[str, Any] = tokens(
        at(one, "info", "input_tokens") if read is None else read,
        at(answer, "output_tokens") if used is None else used,
        "tokenizer" if used is None else "usage",
    )
    times = at(answer, "output_token_times") or at(answer, "chunk_times")
    return record(
        id=f"request-{place}", worker="inference-perf", base_s=base_s, sent_s=sent_s, closed_s=closed_s,
        cached_tokens=count(at(answer, "server_usage", "prompt_tokens_details", "cached_tokens")),
        stamps=_stamps(times, sent_s) if isinstance(times, list) else (), whole=True, **fields, **outcome(None, words),
    )  # fmt: skip


def _stamps(times: list[object], sent_s: float) -> tuple[int, ...]:
    at_s = [number(one) for one in times]
    if any(one is None or not math.isfinite(one) or abs(one - sent_s) > 1e7 for one in at_s):
        raise Unusable("the time of a token is no number")
    us = [round((one - sent_s) * 1e6) for one in dict.fromkeys(at_s) if one is not None]
    if us and (us[0] < 0 or sorted(us) != us):
        raise Unusable("the times of its tokens fall, or begin before the request")
    return tuple(us)
