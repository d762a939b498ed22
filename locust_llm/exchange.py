"""One request, all the way: connection, gate, send, stream, record."""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from gevent import GreenletExit, Timeout

from .connection import CONNECT_TIMEOUT_S, ConnectFailed, Connection, Target
from .gate import Gate, Slot
from .reader import Reading, stream_reader
from .record import CANCELLED, CUT, Record
from .stream import Stream, describe

SIMULATOR: Final = "locust-llm-simulator"
"""How the Server header of the simulator that comes with this package begins."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, ready as bytes, and what the record shall say of it."""

    target: Target
    data: bytes
    labels: dict[str, Any]
    """Fields of Record that are known beforehand: id, name, model, user_class, asked_output_tokens, ..."""
    due_at: float | None = None
    timeout_s: float | None = None
    keep_text: bool = False


FirstHook = Callable[[Stream, dict[str, Any]], object]
"""Called in the event loop when the first chunk is there, with the stream and the labels: must not block."""


class Line:
    """What a user holds from request to request: its connection, kept alive, and the last answer."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.stream: Stream | None = None
        self.busy = False
        self.on_kill: Callable[[], str] = lambda: CUT
        """What a request becomes whose greenlet is killed: CUT, or CANCELLED when that was asked for."""

    def open(self, target: Target) -> float | None:
        """Make sure of a connection; seconds it took, None if there was one. Raises ConnectFailed."""
        if self.connection is not None:
            if self.connection.alive():
                return None
            self.close()
        self.connection = Connection(target, CONNECT_TIMEOUT_S)
        return self.connection.connect_s

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def exchange(
    line: Line, gate: Gate, request: Request, clock_offset_s: float, on_first: FirstHook | None = None
) -> Record:
    """Send one request through the gate and give its record, whatever becomes of it.

    Raises GateClosed if the run ended before it was sent (then there is no record). A greenlet that is killed on the way
    gets its record too, as the attribute ``record`` of the GreenletExit that is raised again.
    """
    if line.busy:
        raise RuntimeError("this user waits for an answer already: one request at a time, and more users for more")
    line.busy = True
    try:
        return _exchange(line, gate, request, clock_offset_s, on_first)
    finally:
        line.busy = False


def _exchange(
    line: Line, gate: Gate, request: Request, clock_offset_s: float, on_first: FirstHook | None
) -> Record:  # fmt: skip
    fields: dict[str, Any] = {**request.labels, "clock_offset_s": clock_offset_s, "request_bytes": len(request.data)}
    line.stream = None
    stream_reader()  # made before there is any time to measure
    try:
        fields["connect_s"] = line.open(request.target)
    except ConnectFailed as error:
        now = time.monotonic()
        return _unsent(fields, request, now, now, error.outcome, str(error))
    asked_at = time.monotonic()
    slot = gate.enter()
    try:
        return _admitted(line, slot, request, fields, asked_at, on_first)
    finally:
        slot.release()  # whatever happened; if the first chunk freed it, this does nothing


def _admitted(
    line: Line, slot: Slot, request: Request, fields: dict[str, Any], asked_at: float, on_first: FirstHook | None
) -> Record:  # fmt: skip
    admitted_at = time.monotonic()
    fields |= {"admitted_at": admitted_at, "limit": slot.limit}
    try:
        again_s = line.open(request.target)  # servers close idle connections, and the wait may have been long
    except ConnectFailed as error:
        return _unsent(fields, request, asked_at, time.monotonic(), error.outcome, str(error))
    if again_s is not None:
        fields["connect_s"] = (fields["connect_s"] or 0.0) + again_s
    connection = line.connection
    assert connection is not None
    freed: list[float] = []

    def free() -> None:
        if slot.release():
            freed.append(time.monotonic())
            if on_first is not None and stream.answer.chunk_reads:
                on_first(stream, request.labels)

    reader, sealed = stream_reader(), connection.sealed(request.data)
    sent = False
    unsent: OSError | None = None
    killed: BaseException | None = None
    deadline = Timeout.start_new(request.timeout_s)
    stream = line.stream = Stream(time.monotonic_ns(), keep_text=request.keep_text, on_first=free)
    reading = reader.add(
        connection, stream, awaited=slot.limit is not None
    )  # before the send: an answer may come before all is written
    try:
        try:
            stream.sent_ns = connection.send(sealed)
            sent = True
        except OSError as error:
            unsent = error  # the server may have answered before it had read everything: see what it says
        reading.ended.wait()
    except BaseException as error:
        deadline.close()
        if error is deadline:
            killed = _give_up(reading, "timeout", f"not finished within {request.timeout_s:g} s")
        else:
            reason = line.on_kill() if isinstance(error, GreenletExit) else CANCELLED
            killed = _give_up(reading, reason, "given up while it ran") or error
    finally:
        deadline.close()
    if not sent or not stream.frame.reusable:
        line.close()  # before the slot goes on: who gave up is gone when the next one comes
    free()
    if unsent is not None and stream.status is None:
        stream.failure = ("send_failed", describe(unsent))
    fields["rtt_us"], fields["retransmits"] = connection.round_trip()
    record = _record(stream, fields, request, asked_at, freed[0] if freed else None)
    if killed is not None:
        killed.record = record  # type: ignore[attr-defined]
        raise killed
    return record


def _give_up(reading: Reading, outcome: str, message: str) -> BaseException | None:
    """Take the stream back from the reader's thread, however often this greenlet is killed meanwhile; the last kill."""
    killed: BaseException | None = None
    stream_reader().drop(reading, outcome, message)
    while not reading.ended.is_set():
        try:
            reading.ended.wait()
        except BaseException as error:
            killed = error
    return killed


def _record(
    stream: Stream, fields: dict[str, Any], request: Request, asked_at: float, freed_at: float | None
) -> Record:
    stream_reader().give_way()
    outcome, message = stream.finish()
    answer = stream.answer
    chunk_us, merged = stream.chunks()
    tokens, tokens_from = answer.output_tokens, "usage"
    if tokens is None:
        tokens, tokens_from = (len(chunk_us), "chunks") if chunk_us else (None, "")
    server = str(stream.frame.get("server", "")) if stream.frame.has_headers else ""
    return Record(
        **fields,
        due_at=asked_at if request.due_at is None else request.due_at,
        asked_at=asked_at,
        sent_at=stream.sent_ns / 1e9,
        freed_at=freed_at,
        headers_at=None if stream.headers_ns is None else stream.headers_ns / 1e9,
        closed_at=(stream.stamps[-1] if stream.frame.complete else time.monotonic_ns()) / 1e9,
        chunk_us=chunk_us,
        merged=merged,
        first_output=answer.first_output,
        first_chunk_tokens=answer.first_chunk_tokens,
        outcome=outcome,
        status=stream.status,
        message=message,
        finish_reason=answer.finish_reason,
        streamed=stream.streamed,
        input_tokens=answer.input_tokens,
        output_tokens=tokens,
        reasoning_tokens=answer.reasoning_tokens,
        cached_tokens=answer.cached_tokens,
        tokens_from=tokens_from,
        clock="thread" if stream.unstamped else "kernel",
        bad_stamps=stream.bad_stamps,
        read_lag_us=stream.read_lag_ns // 1000,
        reads=len(stream.stamps),
        response_bytes=stream.received_bytes,
        simulated=server.startswith(SIMULATOR),
    )


def _unsent(
    fields: dict[str, Any], request: Request, asked_at: float, closed_at: float, outcome: str, message: str
) -> Record:
    due_at = asked_at if request.due_at is None else request.due_at
    return Record(**fields, due_at=due_at, asked_at=asked_at, closed_at=closed_at, outcome=outcome, message=message)
