"""Request exchange: one request, all the way: connection, gate, send, stream, record."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import gevent
from gevent import GreenletExit

from locust_llm.client.reader.open_streams import OpenStream, ReaderFailed
from locust_llm.gate.gate import Gate, Slot
from locust_llm.protocols.token_counts import count_output_tokens
from locust_llm.records.outcomes import CANCELLED, CLIENT_ERROR, CUT, OK
from locust_llm.records.record import Record

from .connection import CONNECT_TIMEOUT_S, ConnectFailed, Connection, Target
from .event_loop_yields import can_wait
from .reader.reader_choice import get_open_streams
from .request_bytes import Request
from .request_timeout import RequestTimeout, find_exceeded_limit, timeout_message
from .response_chunks import Response, describe_exception
from .retry import parse_retry_after_s

SIMULATOR: Final = "locust-llm-simulator"
"""The Server header of this package's simulator begins so."""
CONNECT_AHEAD_S: Final = 1.0
"""So long before it is due, a request checks its connection again. Idle servers close after 5 s; a
new connection takes less than this."""
CHECKED_S: Final = 0.001
"""A connection that was checked within this time needs no second check."""
SAME_STEP_S: Final = 0.002
"""Where the gate is crowded, the record of an answer waits so long. A server sends the last tokens
of some answers and the first tokens of others in one step, and somebody waits for each first
token."""
STALE_NS: Final = 50_000_000
"""A server that was closing the connection has closed it within this time, or within two round
trips if they are longer."""
STALE_OUTCOMES: Final = ("closed", "reset")
"""The outcomes, without a byte of an answer, of a request that came while the server was closing
its connection."""


WaitUntil = Callable[[float], object]
"""Waits for a moment in monotonic s. Raises GateClosed where the run ends before it."""
FirstHook = Callable[[Response, dict[str, Any], float], object]
"""Called in the event loop when the first chunk has come, with the stream, the labels and when the
request was due (monotonic s). It must not block."""


class UserConnection:
    """What a user keeps from request to request: its connection and the last answer."""

    def __init__(self, on_kill: Callable[[], str] = lambda: CUT) -> None:
        """``on_kill()`` gives the outcome of a request whose greenlet is killed: CUT, or CANCELLED
        when the user asked for that."""
        self.connection: Connection | None = None
        self.stream: Response | None = None
        self.busy = False
        self._checked_at = -math.inf
        self.closes = False
        """This server closes connections although it announced to keep them: none is used again."""
        self.on_kill = on_kill

    def open(self, target: Target, checked_s: float = 0.0) -> float | None:
        """Make sure that there is a connection. Returns the seconds that this took, None if there
        was one.

        A connection that was checked within the last ``checked_s`` is not checked again. Raises
        ConnectFailed.
        """
        now = time.monotonic()
        if self.connection is not None:
            if self.connection.target == target:
                if now - self._checked_at < checked_s:
                    return None
                if self.connection.alive():
                    self._checked_at = now
                    return None
            self.close()
        self.connection = Connection(target, CONNECT_TIMEOUT_S)
        self._checked_at = time.monotonic()
        return self.connection.connect_s

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def exchange_request(
    user_connection: UserConnection,
    gate: Gate,
    request: Request,
    clock_offset_s: float,
    on_first: FirstHook | None = None,
    wait_until: WaitUntil | None = None,
) -> Record:
    """Send one request through the gate and return its record, whatever becomes of it.

    With ``wait_until``, a request that has a ``due_at`` waits for it, connected. Raises GateClosed
    if the run ended before the request was sent: then there is no record. If its greenlet is killed
    after the send, GreenletExit is raised again with the record as its attribute ``record``.
    """
    if user_connection.busy:
        raise RuntimeError(
            "this user is still waiting for a response: a user sends one request at a time; use "
            "more users to send more"
        )
    user_connection.busy = True
    try:
        return _exchange(user_connection, gate, request, clock_offset_s, on_first, wait_until)
    finally:
        user_connection.busy = False


def _exchange(
    user_connection: UserConnection,
    gate: Gate,
    request: Request,
    clock_offset_s: float,
    on_first: FirstHook | None,
    wait_until: WaitUntil | None,
) -> Record:
    fields: dict[str, Any] = {
        **request.labels,
        "clock_offset_s": clock_offset_s,
        "request_bytes": sum(map(len, request.pieces)),
    }
    user_connection.stream = None
    stream = _make_response(request)
    try:
        get_open_streams()  # made before there is any time to measure
    except ReaderFailed as error:
        now = time.monotonic()
        return _make_unsent_record(fields, request, now, now, CLIENT_ERROR, str(error))
    try:
        fields["connect_s"] = _connect_until_due(user_connection, request, wait_until)
    except ConnectFailed as error:
        now = time.monotonic()
        return _make_unsent_record(fields, request, now, now, error.outcome, str(error))
    asked_at = time.monotonic()
    fields |= _measure_turnaround(request, asked_at, fields["connect_s"] or 0.0)
    slot = gate.enter()
    try:
        admitted = _AdmittedRequest(
            user_connection, gate, slot, request, stream, fields, asked_at, on_first
        )
        return admitted.exchange()
    finally:
        slot.release()  # whatever happened; if the first chunk freed it, this does nothing


def _measure_turnaround(request: Request, asked_at: float, connect_s: float) -> dict[str, int]:
    """The fields of the record for the time since the answer before. Empty: there was none."""
    if request.previous is None:
        return {}
    ended_at, paused_s = request.previous
    turnaround_s = max(0.0, asked_at - connect_s - ended_at - paused_s)
    return {"turnaround_us": round(turnaround_s * 1e6), "paused_us": round(paused_s * 1e6)}


def _make_response(request: Request) -> Response:
    return Response(
        time.monotonic_ns(), kind=request.kind, keep_text=request.keep_text,
        checked=request.checked,
        max_bytes=request.max_response_bytes, max_chunks=request.max_chunks,
    )  # fmt: skip


def _connect_until_due(
    user_connection: UserConnection, request: Request, wait_until: WaitUntil | None
) -> float | None:
    """Connect, then wait until the request is due. Returns the seconds that connecting took. Raises
    ConnectFailed and GateClosed.

    A connection that fails before the request is due is no failure yet: it is tried again when the
    request is due.
    """
    due_at = request.due_at
    if wait_until is None or due_at is None:
        return user_connection.open(request.target)
    connect_s: float | None = None
    early_at = due_at - CONNECT_AHEAD_S
    for moment in (early_at, due_at) if early_at > time.monotonic() else (due_at,):
        try:
            connect_s = user_connection.open(request.target) or connect_s
        except ConnectFailed:
            if time.monotonic() >= due_at:
                raise
        wait_until(moment)
    return user_connection.open(request.target) if user_connection.connection is None else connect_s


class _SendResult(NamedTuple):
    connection: Connection
    written: bool
    """The whole request was written."""
    unsent: OSError | None
    """Why it could not be written."""
    killed: BaseException | None
    """What killed this greenlet meanwhile."""


class _AdmittedRequest:
    """A request that has its slot: it is sent, waited for, and becomes a record."""

    def __init__(
        self,
        user_connection: UserConnection,
        gate: Gate,
        slot: Slot,
        request: Request,
        stream: Response,
        fields: dict[str, Any],
        asked_at: float,
        on_first: FirstHook | None,
    ) -> None:
        self._user_connection = user_connection
        self._gate = gate
        self._slot = slot
        self._request = request
        self._stream = stream
        self._fields = fields
        """What is known of the record so far."""
        self._asked_at = asked_at
        self._on_first = on_first
        self._freed_at: float | None = None

    def exchange(self) -> Record:
        """Send, again on a new connection where the server was closing the old one, and wait."""
        self._fields |= {"admitted_at": time.monotonic(), "limit": self._slot.limit}
        try:
            self._check_connection()
            result = self._send_once()
            if result.killed is None and _was_stale(result.connection, self._stream):
                self._renew_connection()
                result = self._send_once()
        except ConnectFailed as error:
            return self._make_unsent_record(error.outcome, str(error))
        except ReaderFailed as error:
            self._user_connection.close()
            return self._make_unsent_record(CLIENT_ERROR, str(error))
        return self._end(result)

    def _check_connection(self) -> None:
        """Servers close idle connections, and waits for a slot may be long."""
        again_s = self._user_connection.open(self._request.target, checked_s=CHECKED_S)
        if again_s is not None:
            self._fields["connect_s"] = (self._fields["connect_s"] or 0.0) + again_s
            self._fields["reconnect_s"] = again_s

    def _send_once(self) -> _SendResult:
        stream = self._stream
        connection = self._user_connection.connection
        assert connection is not None
        self._user_connection.stream = stream
        reader = get_open_streams()
        wire = connection.encrypt(self._request.pieces)
        stream.sent_ns = time.monotonic_ns()
        # before the send: an answer may come before all is written
        reading = reader.add(
            connection, stream, self._free_slot, awaited=self._slot.limit is not None
        )
        limits = RequestTimeout(self._request, stream)
        unsent, killed = _send_and_wait(self._user_connection, self._request, reading, limits, wire)
        return _SendResult(connection, limits.written_at is not None, unsent, killed)

    def _free_slot(self) -> None:
        """Called at the first chunk and at the end; only the first call frees it."""
        if not self._slot.release():
            return
        self._freed_at = time.monotonic()
        if self._on_first is not None and self._stream.answer.chunk_reads:
            due_at = self._asked_at if self._request.due_at is None else self._request.due_at
            self._on_first(self._stream, self._request.labels, due_at)

    def _renew_connection(self) -> None:
        self._user_connection.close()
        self._user_connection.open(self._request.target)
        self._user_connection.closes = True
        self._fields["resent"] = 1
        self._stream = _make_response(self._request)

    def _end(self, result: _SendResult) -> Record:
        """Give the slot back and make the record. Raises what killed the greenlet, with it."""
        stream = self._stream
        if not result.written or not stream.frame.reusable or self._user_connection.closes:
            # before the slot goes on: who gave up is gone when the next one comes
            self._user_connection.close()
        self._free_slot()
        if result.unsent is not None and stream.status is None:
            stream.failure = ("send_failed", describe_exception(result.unsent))
        self._fields["rtt_us"], self._fields["retransmits"] = result.connection.round_trip()
        killed = result.killed or _yield_to_due_sends(self._request, self._gate, stream)
        record = _make_record(stream, self._fields, self._request, self._asked_at, self._freed_at)
        if killed is not None:
            killed.record = record  # type: ignore[attr-defined]
            raise killed
        return record

    def _make_unsent_record(self, outcome: str, message: str) -> Record:
        now = time.monotonic()
        return _make_unsent_record(
            self._fields, self._request, self._asked_at, now, outcome, message
        )


def _yield_to_due_sends(request: Request, gate: Gate, stream: Response) -> BaseException | None:
    """Let sends that are due go before the record of a complete answer. Returns what killed this
    greenlet meanwhile.

    Without a schedule or a gate nothing is due, and each turn of the loop would cost a change of
    threads.
    """
    try:
        if stream.frame.complete and (request.due_at is not None or gate.limit is not None):
            if gate.crowded:
                gevent.sleep(SAME_STEP_S)
            can_wait.take()
    except BaseException as error:
        return error
    return None


def _was_stale(connection: Connection, stream: Response) -> bool:
    """The server was closing this used connection when the request came (RFC 9112, 9.3.1).

    A new connection has no such doubt, and a request that waited longer did arrive. The kernel does
    not know it: llama.cpp's server acknowledges the request, drops it, and closes up to a few
    milliseconds later.
    """
    if (
        connection.used < 2
        or stream.received_bytes
        or stream.failure is None
        or stream.failure[0] not in STALE_OUTCOMES
    ):
        return False
    rtt_us, _ = connection.round_trip()
    return time.monotonic_ns() - stream.sent_ns < max(STALE_NS, 2_000 * (rtt_us or 0))


def _send_and_wait(
    user_connection: UserConnection,
    request: Request,
    reading: OpenStream,
    limits: RequestTimeout,
    wire: Sequence[bytes],
) -> tuple[OSError | None, BaseException | None]:
    """Send, and wait until the answer is over. Returns (why the request could not be written, what
    killed this greenlet)."""
    unsent: OSError | None = None
    killed: BaseException | None = None
    try:
        try:
            get_open_streams().sent(reading, reading.connection.send(wire))
            reading.stream.written_ns = limits.written()
        except OSError as error:
            unsent = error  # the server may have answered before it had read everything
        reading.ended.wait()
    except BaseException as error:
        limits.close()
        if error is limits:
            killed = _give_up(reading, limits.outcome, timeout_message(request, limits.outcome))
        else:
            reason = user_connection.on_kill() if isinstance(error, GreenletExit) else CANCELLED
            killed = _give_up(reading, reason, "ended while it ran") or error
    finally:
        limits.close()
    return unsent, killed


def _give_up(reading: OpenStream, outcome: str, message: str) -> BaseException | None:
    """Take the stream back from the reader's thread, however often this greenlet is killed
    meanwhile. Returns the last kill."""
    killed: BaseException | None = None
    get_open_streams().drop(reading, outcome, message)
    while not reading.ended.is_set():
        try:
            reading.ended.wait()
        except BaseException as error:
            killed = error
    return killed


def _make_record(
    stream: Response,
    fields: dict[str, Any],
    request: Request,
    asked_at: float,
    freed_at: float | None,
) -> Record:
    get_open_streams().give_way()
    outcome, message = stream.finish()
    answer = stream.answer
    chunk_us, merged = stream.chunks()
    counts = answer.settled
    tokens = count_output_tokens(
        counts, len(chunk_us), answer.hidden_tokens, generates=not request.labels.get("inputs")
    )
    if (
        outcome == OK
        and answer.results is not None
        and answer.results < (asked := request.labels.get("inputs") or 0)
    ):
        outcome, message = "truncated", f"{answer.results} of {asked} inputs have a vector"
    if outcome == OK and stream.ended_ns is not None and not stream.unstamped:
        ended_s = (stream.ended_ns - stream.sent_ns) / 1e9
        first_s = chunk_us[0] / 1e6 if chunk_us and stream.streamed else None
        if exceeded := find_exceeded_limit(request, first_s, ended_s):
            outcome = exceeded
            message = timeout_message(request, exceeded)
    frame, drafts = stream.frame, stream.drafts
    server, later = (
        (str(frame.get("server", "")), frame.get("retry-after"))
        if frame.has_headers
        else ("", None)
    )
    return Record(
        **fields,
        due_at=asked_at if request.due_at is None else request.due_at,
        asked_at=asked_at,
        sent_at=stream.sent_ns / 1e9,
        written_us=None
        if stream.written_ns is None
        else max(0, stream.written_ns - stream.sent_ns) // 1000,
        freed_at=freed_at,
        headers_at=None if stream.headers_ns is None else stream.headers_ns / 1e9,
        closed_at=(stream.ended_ns or time.monotonic_ns()) / 1e9,
        chunk_us=chunk_us,
        merged=merged,
        first_output=answer.first_output,
        first_chunk_tokens=answer.first_chunk_tokens,
        chunk_tokens=answer.chunk_tokens,
        early_us=stream.early_us,
        outcome=outcome,
        status=stream.status,
        error=message,
        finish_reason=answer.finish_reason,
        streamed=stream.streamed,
        choices=answer.choices,
        retry_after_s=None if later is None else parse_retry_after_s(str(later), time.time()),
        input_tokens=counts.input,
        output_tokens=tokens.output,
        reasoning_tokens=tokens.reasoning,
        hidden_tokens=tokens.hidden,
        cached_tokens=counts.cached,
        tokens_from=tokens.counted_by,
        rejected_counts=counts.rejected,
        clock="thread" if stream.unstamped else "kernel",
        bad_stamps=stream.bad_stamps,
        read_lag_us=stream.read_lag_ns // 1000,
        server=stream.server,
        draft_steps=None if drafts is None else drafts.steps,
        drafted_tokens=None if drafts is None else drafts.drafted,
        accepted_tokens=None if drafts is None else drafts.accepted,
        reads=len(stream.stamps),
        response_bytes=stream.received_bytes,
        simulated=server.startswith(SIMULATOR),
    )


def _make_unsent_record(
    fields: dict[str, Any],
    request: Request,
    asked_at: float,
    closed_at: float,
    outcome: str,
    message: str,
) -> Record:
    due_at = asked_at if request.due_at is None else request.due_at
    return Record(
        **fields,
        due_at=due_at,
        asked_at=asked_at,
        closed_at=closed_at,
        outcome=outcome,
        error=message,
    )
