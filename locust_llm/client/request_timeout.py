"""Request timeout: the time limits of a request, and the timer that ends it when one is over."""

import time
from typing import Any

from gevent import get_hub, getcurrent

from locust_llm.records.outcomes import CANCELLED

from .request_bytes import Request
from .response_chunks import Response


class RequestTimeout(BaseException):
    """The time limits of a request. It is thrown into the request's greenlet when one of them is
    over; ``outcome`` names which.

    One timer serves all limits. It fires when the first of them may be over and is set again if
    none is, so the chunks of a stream need not touch it.
    """

    def __init__(self, request: Request, stream: Response) -> None:
        self.outcome = ""
        self.written_at: float | None = None
        """When the whole request was written."""
        self._request = request
        self._stream = stream
        self._greenlet = getcurrent()
        self._timer: Any = None
        self._set()

    def written(self) -> int:
        """Note that the whole request is written: the time until its cancellation counts from now.
        Returns monotonic ns."""
        now = time.monotonic_ns()
        self.written_at = now / 1e9
        if self._request.cancel_after_s is not None:
            self._set()
        return now

    def close(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _set(self) -> None:
        self.close()
        now = time.monotonic()
        limit = next_limit(self._request, self._stream, self.written_at, now)
        if limit is not None:
            self._timer = get_hub().loop.timer(max(limit[0] - now, 0.0))
            # else it counts from when the loop began to turn
            self._timer.start(self._look, update=True)

    def _look(self) -> None:
        now = time.monotonic()
        limit = next_limit(self._request, self._stream, self.written_at, now)
        if limit is not None and limit[0] <= now:
            self.outcome = limit[1]
            self.close()
            self._greenlet.throw(self)
        else:
            self._set()


def next_limit(
    request: Request, stream: Response, written_at: float | None, now: float
) -> tuple[float, str] | None:
    """(when the first time limit is over, the outcome then), as of ``now``; None if there is no
    limit. All times are monotonic s.

    Before the first chunk there is no gap yet: the soonest that one can be over is one gap from
    now.
    """
    sent_at = stream.sent_ns / 1e9
    first = stream.first_seen
    ends: list[tuple[float, str]] = []
    if request.timeout_s is not None:
        ends.append((sent_at + request.timeout_s, "timeout"))
    if request.first_token_timeout_s is not None and not first:
        ends.append((sent_at + request.first_token_timeout_s, "first_token_timeout"))
    if request.gap_timeout_s is not None:
        ends.append(
            ((stream.newest_ns / 1e9 if first else now) + request.gap_timeout_s, "gap_timeout")
        )
    if request.cancel_after_s is not None and written_at is not None:
        ends.append((written_at + request.cancel_after_s, CANCELLED))
    return min(ends, default=None)


def find_exceeded_limit(request: Request, first_s: float | None, ended_s: float) -> str:
    """The outcome of a complete answer whose stamps are beyond a limit; empty if it kept its
    limits.

    The timer of a busy machine fires late, and no answer may succeed by that. ``first_s`` and
    ``ended_s`` count from the send to the first chunk (None without a stream) and to the end.
    """
    if request.timeout_s is not None and ended_s > request.timeout_s:
        return "timeout"
    if first_s is None or request.first_token_timeout_s is None:
        return ""
    return "first_token_timeout" if first_s > request.first_token_timeout_s else ""


def timeout_message(request: Request, outcome: str) -> str:
    """The message of the record when a time limit is over."""
    if outcome == "timeout":
        return f"not finished within {request.timeout_s:g} s"
    if outcome == "first_token_timeout":
        return f"no first token within {request.first_token_timeout_s:g} s"
    if outcome == "gap_timeout":
        return f"nothing more for {request.gap_timeout_s:g} s"
    return f"cancelled on purpose after {request.cancel_after_s:g} s"
