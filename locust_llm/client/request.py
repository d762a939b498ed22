"""A request, ready to be sent, and its time limits."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from gevent import get_hub, getcurrent

from locust_llm.records.record import CANCELLED
from locust_llm.settings.settings import MAX_RESPONSE_BYTES

from .connection import Target
from .response import Response

CHUNKS_PER_TOKEN: Final = 8
EXTRA_CHUNKS: Final = 4096
"""An answer may have CHUNKS_PER_TOKEN chunks per requested token, and EXTRA_CHUNKS more: enough for
a server that ignores the number or does not count reasoning, and for a proxy that sends each
character by itself."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, ready as bytes, with the fields of its record that are known beforehand."""

    target: Target
    data: bytes
    more: tuple[bytes, ...] = ()
    """What follows on ``data``: megabytes that are not copied."""
    labels: dict[str, Any]
    """Fields of Record: id, name, model, user_class, asked_output_tokens, ..."""
    due_at: float | None = None
    timeout_s: float | None = None
    """The longest time from the send to the end of the answer."""
    first_token_timeout_s: float | None = None
    """From the send to the first chunk. Not for a request that asks for no stream: it has none."""
    gap_timeout_s: float | None = None
    """Without any byte, once the first chunk is there."""
    cancel_after_s: float | None = None
    """Given up on purpose, so long after the request was fully written; 0: at once."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """Of the answer, headers and framing too: beyond it the connection is closed."""
    max_chunks: int | None = None
    """The answer has at most so many chunks: see ``chunk_limit``."""
    keep_text: bool = False
    kind: str = "chat"
    """Of the endpoint, its protocol: see ``PROTOCOLS``."""

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Returns all pieces of the request, in their order."""
        return (self.data, *self.more)


def chunk_limit(
    tokens: int | None, body: Mapping[str, Any], length_fields: Sequence[str]
) -> int | None:
    """Chunks that an answer may have with ``tokens`` asked for, unless ``body``, the other fields
    of the request, has its own number in one of the ``length_fields`` (the last that is there);
    None: no limit."""
    tokens = next((body[name] for name in reversed(length_fields) if name in body), tokens)
    choices = body.get("n") or 1
    if not isinstance(tokens, int) or not isinstance(choices, int):
        return None
    return choices * (CHUNKS_PER_TOKEN * tokens + EXTRA_CHUNKS)


class RequestTimeout(BaseException):
    """The time limits of a request: thrown into its greenlet when one of them is over; ``outcome``
    is which.

    One timer serves them all. It goes off when the first may be over and is set again if none is,
    so the chunks of a stream need not touch it.
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
        """The whole request: from now on counts the time after which it is cancelled on purpose.
        Monotonic ns."""
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
    """(when the first of its time limits is over, the outcome then), as of ``now``; None if it has
    none.

    All times in monotonic s. Before the first chunk there is no gap yet: the soonest that one can
    be over is one gap from now.
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
    """The outcome of an answer that is complete, but by its stamps beyond a limit: the timer of a
    busy machine goes off late, and no answer succeeds by that. Empty: it kept its limits.

    ``first_s``, ``ended_s``: after the send came the first chunk, None without a stream, and all
    of it.
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
    return f"given up on purpose after {request.cancel_after_s:g} s"
