"""Recent requests: the bodies of the last requests of a process, as evidence for a wrong answer."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from locust_llm.records.answer_fault import NO_BODY, RequestBeside
from locust_llm.records.record import Record
from locust_llm.text.hide_secrets import Secrets

MAX_REQUESTS: Final = 1_000
MAX_BYTES: Final = 8 << 20
"""The most bytes of all their bodies."""
BEFORE_S: Final = 10.0
"""Requests that ended so long before are evidence too: a server may go on with a cancelled one, or
find a part of an earlier one in its cache."""


@dataclass
class RecentRequest:
    id: str
    session: str
    marker: int | None
    body: Sequence[bytes]
    sent_at: float
    """Unix seconds. Until it is over: when it was due."""
    ended_at: float | None = None
    outcome: str = ""


class RecentRequests:
    """The last requests of one process."""

    def __init__(self) -> None:
        self._requests = OrderedDict[str, RecentRequest]()
        self._bytes = 0

    def begin(self, request: RecentRequest) -> None:
        """A request is about to be sent."""
        self._requests[request.id] = request
        self._bytes += sum(map(len, request.body))
        while len(self._requests) > MAX_REQUESTS or self._bytes > MAX_BYTES:
            _, dropped = self._requests.popitem(last=False)
            self._bytes -= sum(map(len, dropped.body))

    def end(self, record: Record) -> None:
        """A request is over. One that was never sent is no evidence."""
        request = self._requests.get(record.id)
        if request is None:
            return
        if record.sent_at is None:
            self._remove(request)
            return
        request.sent_at = record.sent_unix_s
        request.ended_at = record.closed_unix_s
        request.outcome = record.outcome

    def forget(self, request_id: str) -> None:
        """This request is not under way any more. Without an end it was never sent."""
        request = self._requests.get(request_id)
        if request is not None and request.ended_at is None:
            self._remove(request)

    def _remove(self, request: RecentRequest) -> None:
        del self._requests[request.id]
        self._bytes -= sum(map(len, request.body))

    def list_beside(
        self, record: Record, markers: Sequence[int], secrets: Secrets
    ) -> tuple[RequestBeside, ...]:
        """The requests that were open beside this one or ended shortly before it, and those whose
        markers its answer has."""
        since = record.sent_unix_s - BEFORE_S
        until = record.closed_unix_s
        beside = []
        for request in self._requests.values():
            is_near = request.sent_at <= until and (
                request.ended_at is None or request.ended_at >= since
            )
            if request.id != record.id and (is_near or request.marker in markers):
                beside.append(request)
        beside.sort(key=lambda request: request.sent_at)
        return tuple([_describe(request, secrets) for request in beside])


def _describe(request: RecentRequest, secrets: Secrets) -> RequestBeside:
    return RequestBeside(
        id=request.id,
        session=request.session,
        sent_at=request.sent_at,
        ended_at=request.ended_at,
        outcome=request.outcome,
        marker=request.marker,
        body=hide_in_body(request.body, secrets),
    )


def hide_in_body(body: Sequence[bytes], secrets: Secrets) -> msgspec.Raw:
    """A request's JSON without secrets. Without them it may be no JSON: then there is
    none."""
    data = b"".join(body)
    if not any(form.encode() in data for form in secrets.forms):
        return msgspec.Raw(data)
    hidden = secrets.hide(data.decode("utf-8", "replace")).encode()
    try:
        msgspec.json.decode(hidden)
    except ValueError:
        return NO_BODY
    return msgspec.Raw(hidden)
