"""guidellm: the requests in the JSON of ``guidellm benchmark``, a load for each of its benchmarks.
It keeps the first token and the last, not those between."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from locust_llm.lab.interop.imported import (
    Imported,
    Unusable,
    finite,
    first_and_last_chunk_us,
    lacking,
    number_requests,
    outcome,
    read_token_count,
    record,
    token_fields,
)
from locust_llm.lab.interop.json_fields import (
    Document,
    nested_value,
    read_finite_or_nan,
    read_text,
    whole,
)
from locust_llm.records.record import Record

SCHEDULED: Final = ("constant", "poisson")
ENDS: Final = ("successful", "errored", "incomplete")


def has_requests(document: Document) -> bool:
    return nested_value(document, "benchmarks", 0, "metrics", "time_to_first_token_ms") is not None


def read_tool_requests(document: Document, path: Path) -> list[Imported]:
    """Raises Unusable without requests."""
    return [_requests_of_load(document, one) for one in nested_value(document, "benchmarks")]


def _requests_of_load(document: Document, one: object) -> Imported:
    strategy = nested_value(one, "config", "strategy") or nested_value(one, "args", "strategy")
    kind = read_text(nested_value(strategy, "type_"))
    scheduled = kind in SCHEDULED
    if not any(isinstance(nested_value(one, "requests", end), list) for end in ENDS):
        raise Unusable("it has no list of its requests (guidellm leaves it out of summaries)")
    found = list[Record]()
    unread = list[str]()
    for place, (end, request) in number_requests(_requests(one)):
        try:
            found.append(_record(request, end, place, scheduled))
        except Unusable as error:
            unread.append(f"request {place}: {error}")
    return Imported(
        tool="guidellm",
        version=read_text(nested_value(document, "metadata", "guidellm_version")),
        model=read_text(nested_value(one, "config", "backend", "model")),
        records=tuple(found),
        users=whole(nested_value(strategy, "max_concurrency"))
        or whole(nested_value(strategy, "streams"))
        if kind == "concurrent"
        else None,
        rate_per_s=read_finite_or_nan(nested_value(strategy, "rate")) if scheduled else None,
        arrivals=kind if scheduled else "",
        asked=whole(nested_value(one, "metrics", "request_totals", "total")),
        unread=tuple(unread),
        lacks=lacking(found),
    )


def _requests(one: object) -> Iterator[tuple[str, object]]:
    for end in ENDS:
        some = nested_value(one, "requests", end)
        yield from ((end, request) for request in some) if isinstance(some, list) else ()


def _record(request: object, end: str, place: int, scheduled: bool) -> Record:
    about = nested_value(request, "info", "timings")
    sent_s = finite(nested_value(about, "request_start"), "start")
    closed_s = finite(nested_value(about, "request_end"), "end")
    words = read_text(nested_value(request, "info", "error"))
    failure = outcome(None, words or "errored") if end == "errored" else {}
    failure = {"outcome": "cut"} if end == "incomplete" else failure
    first = nested_value(about, "first_token_iteration")
    last = nested_value(about, "last_token_iteration")
    stamps: tuple[int, ...] = ()
    complete = True
    if first is not None and last is not None:
        begins = finite(first, "first token") - sent_s
        finishes = finite(last, "last token") - sent_s
        if begins < 0:
            raise Unusable("its first token is before its start")
        stamps, complete = first_and_last_chunk_us(begins, finishes)
        if whole(nested_value(about, "token_iterations")) == 1:
            stamps, complete = stamps[:1], True
    due = read_finite_or_nan(nested_value(about, "targeted_start")) if scheduled else None
    fields: dict[str, Any] = token_fields(
        nested_value(request, "prompt_tokens"), nested_value(request, "output_tokens"), "usage"
    )
    return record(
        id=read_text(nested_value(request, "request_id")) or f"request-{place}", worker="guidellm",
        session=read_text(nested_value(request, "info", "conversation_id")),
        turn=read_token_count(nested_value(request, "info", "turn_index")) or 0,
        cached_tokens=read_token_count(nested_value(request, "cached_tokens")), base_s=0.0,
        sent_s=sent_s, closed_s=closed_s, stamps=stamps,
        whole=complete, due_s=due if due is not None and abs(due) < 1e11 else None, **fields,
        **failure,
    )  # fmt: skip
