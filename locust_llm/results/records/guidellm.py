"""guidellm: the requests in the JSON of ``guidellm benchmark``, a load for each of its benchmarks. It keeps the first token
and the last, not those between."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from locust_llm.core.record import Record
from locust_llm.results.formats.fields import Document, at, number, text, whole

from .imported import Imported, Unusable, count, ends, finite, lacking, outcome, record, tokens

SCHEDULED: Final = ("constant", "poisson")
ENDS: Final = ("successful", "errored", "incomplete")


def is_one(document: Document) -> bool:
    return at(document, "benchmarks", 0, "metrics", "time_to_first_token_ms") is not None


def read(document: Document, path: Path) -> list[Imported]:
    """Raises Unusable without requests."""
    return [_load(document, one) for one in at(document, "benchmarks")]


def _load(document: Document, one: object) -> Imported:
    strategy = at(one, "config", "strategy") or at(one, "args", "strategy")
    kind = text(at(strategy, "type_"))
    scheduled = kind in SCHEDULED
    if not any(isinstance(at(one, "requests", end), list) for end in ENDS):
        raise Unusable("it has no list of its requests (guidellm leaves it out of summaries)")
    found, unread = list[Record](), list[str]()
    for place, (end, request) in enumerate(_requests(one), 1):
        try:
            found.append(_record(request, end, place, scheduled))
        except Unusable as error:
            unread.append(f"request {place}: {error}")
    return Imported(
        tool="guidellm",
        version=text(at(document, "metadata", "guidellm_version")),
        model=text(at(one, "config", "backend", "model")),
        records=tuple(found),
        users=whole(at(strategy, "max_concurrency")) or whole(at(strategy, "streams"))
        if kind == "concurrent"
        else None,
        rate_per_s=number(at(strategy, "rate")) if scheduled else None,
        arrivals=kind if scheduled else "",
        asked=whole(at(one, "metrics", "request_totals", "total")),
        unread=tuple(unread),
        lacks=lacking(found),
    )


def _requests(one: object) -> Iterator[tuple[str, object]]:
    for end in ENDS:
        some = at(one, "requests", end)
        yield from ((end, request) for request in some) if isinstance(some, list) else ()


def _record(request: object, end: str, place: int, scheduled: bool) -> Record:
    about = at(request, "info", "timings")
    sent_s = finite(at(about, "request_start"), "start")
    closed_s = finite(at(about, "request_end"), "end")
    words = text(at(request, "info", "error"))
    failure = outcome(None, words or "errored") if end == "errored" else {}
    failure = {"outcome": "cut"} if end == "incomplete" else failure
    first, last = at(about, "first_token_iteration"), at(about, "last_token_iteration")
    stamps: tuple[int, ...] = ()
    complete = True
    if first is not None and last is not None:
        begins, finishes = finite(first, "first token") - sent_s, finite(last, "last token") - sent_s
        if begins < 0:
            raise Unusable("its first token is before its start")
        stamps, complete = ends(begins, finishes)
        if whole(at(about, "token_iterations")) == 1:
            stamps, complete = stamps[:1], True
    due = number(at(about, "targeted_start")) if scheduled else None
    fields: dict[str, Any] = tokens(at(request, "prompt_tokens"), at(request, "output_tokens"), "usage")
    return record(
        id=text(at(request, "request_id")) or f"request-{place}", worker="guidellm",
        session=text(at(request, "info", "conversation_id")), turn=count(at(request, "info", "turn_index")) or 0,
        cached_tokens=count(at(request, "cached_tokens")), base_s=0.0, sent_s=sent_s, closed_s=closed_s, stamps=stamps,
        whole=complete, due_s=due if due is not None and abs(due) < 1e11 else None, **fields, **failure,
    )  # fmt: skip
