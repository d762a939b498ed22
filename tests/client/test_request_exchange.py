"""One request all the way, at a server that knows the truth: its record, its slot, and every way in
which it may end."""

import gc
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import gevent
import msgspec
import pytest
from gevent import GreenletExit, Timeout
from hypothesis import given
from hypothesis import strategies as st
from support.scripted import (
    Row,
    Scripted,
    chunked,
    delta,
    event,
    head,
    most_in_prefill,
    send,
    stream,
    whole,
)

from locust_llm.client import request_exchange as exchange_module
from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.reader.reader_choice import get_open_streams
from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.request_timeout import find_exceeded_limit, next_limit
from locust_llm.client.response_chunks import NO_END, Response
from locust_llm.gate.gate import Gate, GateClosed
from locust_llm.records.outcomes import CANCELLED, OK
from locust_llm.records.record import Record


@pytest.fixture(autouse=True)
def _the_reader_is_done() -> Iterator[None]:
    yield
    assert get_open_streams().open_streams == 0


def run(
    server: Scripted,
    name: str,
    steps: list[Any],
    line: UserConnection | None = None,
    **options: Any,
) -> Record:
    return exchange_request(
        line or UserConnection(), Gate(), server.request(name, steps, **options), 0.0
    )


def until(true: Callable[[], object], patience_s: float = 10.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        gevent.sleep(0.001)


# -- what the record says --------------------------------------------------------------------------


def test_the_stamps_of_a_record_stand_in_order(scripted: Scripted) -> None:
    request = msgspec.structs.replace(
        scripted.request("order", stream(5, first_ms=20, each_ms=5)), due_at=1.5
    )
    line, gate = UserConnection(), Gate(2)
    began = time.monotonic()
    record = exchange_request(line, gate, request, 7.0)
    row = scripted.row("order")
    assert record.sent_at is not None
    assert record.admitted_at is not None
    assert record.freed_at is not None
    assert record.headers_at is not None
    assert began <= record.asked_at <= record.admitted_at <= record.sent_at <= row.arrived / 1e9
    assert (
        record.sent_at
        < record.headers_at
        < record.sent_at + record.chunk_us[0] / 1e6
        < record.freed_at
    )
    assert record.sent_at + record.chunk_us[-1] / 1e6 <= record.closed_at < time.monotonic()
    assert record.connect_s is not None
    assert 0 < record.connect_s < record.asked_at - began
    assert (record.due_at, record.clock_offset_s, record.limit, record.id) == (1.5, 7.0, 2, "order")
    assert record.request_bytes == len(request.data)
    assert record.response_bytes > 500
    again = exchange_request(line, gate, scripted.request("order2", stream(1)), 0.0)
    assert (again.connect_s, again.due_at) == (None, again.asked_at)
    assert scripted.row("order2").connection == row.connection


SLOW_HEADERS = [
    send(b"HTTP/1.1 200 OK\r\nX-Sl"), ["sleep", 20], send(b"ow: 1\r\nTransfer-Encoding: chun"),
    ["sleep", 20],
    send(b"ked\r\nContent-Type: text/event-stream\r\n\r"), ["sleep", 20], send(b"\n"),
    *stream(3)[1:],
]  # fmt: skip
FORMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "no role": (stream(3, role=False), {}),
    "no usage": (stream(3, usage=""), {"tokens_from": "chunks", "input_tokens": None}),
    "usage beside the finish": (stream(3, usage="finish"), {}),
    "continuous usage": (stream(3, usage="each"), {}),
    "finish beside the last token": (stream(3, finish="last"), {"finish_reason": "length"}),
    "no DONE": (stream(3, done=False), {}),
    "reasoning first": (stream(3, reasoning=2), {"first_output": 2}),
    "only reasoning": (stream(3, reasoning=3), {"first_output": None}),
    "tool calls": (stream(3, tools=3), {}),
    "CRLF": (stream(3, ends="\r\n"), {}),
    "CR": (stream(3, ends="\r"), {}),
    "content length": (stream(3, frame="length"), {}),
    "until close": (stream(3, frame="close"), {}),
    "byte by byte": (stream(3, split=1), {}),
    "all in one": (stream(3, batch=3), {}),
    "interim response": ([send(b"HTTP/1.1 100 Continue\r\n\r\n"), ["sleep", 5], *stream(3)], {}),
    "slow headers": (SLOW_HEADERS, {}),
    "bytes after the end": ([*stream(3), send(b"what else?")], {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_of_every_form_are_good(scripted: Scripted, form: str) -> None:
    steps, special = FORMS[form]
    line = UserConnection()
    record = run(scripted, form, steps, line)
    expected = {
        "outcome": OK, "error": "", "status": 200, "output_tokens": 3, "input_tokens": 7,
        "tokens_from": "usage",
        "finish_reason": "stop", "first_output": 0, "streamed": True,
    } | special  # fmt: skip
    assert {field: getattr(record, field) for field in expected} == expected
    assert len(record.chunk_us) == 3
    kept = form not in ("until close", "bytes after the end")
    until(lambda: kept or line.connection is None or not line.connection.alive())
    # whatever came: the next request is not hurt
    after = run(scripted, form + ", after", stream(1), line)
    assert after.outcome == OK
    assert (after.connect_s is None) == kept


def test_a_json_answer_to_a_streaming_request(scripted: Scripted) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    good = {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}], "usage": usage}
    gate = Gate(1)
    record = exchange_request(
        UserConnection(), gate, scripted.request("json", whole(good, first_ms=30)), 0.0
    )
    assert (record.outcome, record.streamed, record.chunk_us, record.output_tokens) == (
        OK,
        False,
        (),
        3,
    )
    assert record.latency_s is not None
    assert 0.03 <= record.latency_s < record.closed_at
    assert gate.used == 0


FAILURES: dict[str, tuple[list[Any], str, str, int]] = {
    # the steps, the outcome, what the message contains, how many chunks there are
    "500": (
        whole({"error": {"message": "it broke", "code": 500}}, 500),
        "http_status",
        "HTTP 500: it broke",
        0,
    ),
    "400 text": (whole("go away", 400, "text/plain"), "http_status", "HTTP 400: go away", 0),
    "401 string": (
        whole({"error": "Unauthorized"}, 401),
        "http_status",
        "HTTP 401: Unauthorized",
        0,
    ),
    "404 detail": (whole({"detail": "Not Found"}, 404), "http_status", "HTTP 404: Not Found", 0),
    "429": (
        whole({"error": {"message": "slow down"}}, 429, Retry_After="1"),
        "rate_limited",
        "slow down",
        0,
    ),
    "503": (whole("", 503, "text/plain"), "unavailable", "HTTP 503", 0),
    "redirect": (whole("", 307, Location="/elsewhere"), "http_status", "HTTP 307", 0),
    "200 error": (whole({"error": {"message": "no"}}), "stream_error", "no", 0),
    "200 page": (whole("<html>hello</html>", kind="text/html"), "malformed", "<html>", 0),
    "error object": (stream(2, error={"message": "died"}, done=False), "stream_error", "died", 2),
    "error string": (stream(2, error="died", done=False), "stream_error", "died", 2),
    "error and DONE": (stream(2, error={"message": "died"}), "stream_error", "died", 2),
    "error at once": (stream(0, error="died"), "stream_error", "died", 0),
    "no finish": (stream(2, finish=""), "truncated", "finish_reason", 2),
    "nothing but an end": (stream(0, usage=""), "empty", "stop", 0),
    "cut": (stream(2, cut="close"), "closed", "", 2),
    "cut in an event": (
        [*stream(2, cut="close")[:-1], send(b"20\r\ndata: {"), ["close"]],
        "closed",
        "",
        2,
    ),
    "cut, to be read to the end": (stream(2, cut="close", frame="close"), "truncated", "", 2),
    "reset": (
        [*stream(2, cut="close")[:-1], ["sleep", 30], ["reset"]],
        "reset",
        "ConnectionResetError",
        2,
    ),
    "closed unanswered": ([["close"]], "closed", "", 0),
    "reset unanswered": ([["reset"]], "reset", "", 0),
    "no HTTP": ([send(b"SSH-2.0-OpenSSH\r\n"), ["stall"]], "malformed", "not HTTP", 0),
    "no JSON": (
        [send(head(Connection="close") + b"data: {broken\n\n"), ["close"]],
        "malformed",
        "broken",
        0,
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_failures_have_their_names_and_keep_what_came(scripted: Scripted, what: str) -> None:
    steps, outcome, message, chunks = FAILURES[what]
    gate, line = Gate(1), UserConnection()
    record = exchange_request(line, gate, scripted.request(what, steps), 0.0)
    assert (record.outcome, len(record.chunk_us)) == (outcome, chunks)
    assert message in record.error
    assert record.failed
    assert gate.used == 0
    assert scripted.row(what).id == what  # and it was not sent a second time
    assert run(scripted, what + ", after", stream(1), line).outcome == OK


BROKE_IN = {
    "500": "headers", "redirect": "headers", "closed unanswered": "headers", "no HTTP": "headers",
    "200 page": "prefill",
    "error at once": "prefill", "error string": "decode", "no finish": "decode", "cut": "decode",
    "reset": "decode",
    "nothing but an end": "end",
}  # fmt: skip


@pytest.mark.parametrize("what", BROKE_IN)
def test_a_record_says_how_far_it_came(scripted: Scripted, what: str) -> None:
    record = run(scripted, f"how far: {what}", FAILURES[what][0])
    assert record.broke_in == BROKE_IN[what]


def test_how_long_the_server_asks_to_wait_is_kept(scripted: Scripted) -> None:
    assert (
        run(scripted, "later", whole("", 429, "text/plain", Retry_After="7")).retry_after_s == 7.0
    )
    assert (
        run(
            scripted, "sometime", whole("", 503, "text/plain", Retry_After="sometime")
        ).retry_after_s
        is None
    )
    assert run(scripted, "at once", whole("", 503, "text/plain")).retry_after_s is None


def test_a_plain_completion(scripted: Scripted) -> None:
    events = [
        {"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "b")
    ]
    end = {
        "choices": [{"index": 0, "text": "", "finish_reason": "stop"}],
        "usage": {"completion_tokens": 2},
    }
    steps = [send(head(Transfer_Encoding="chunked"))]
    for message in (*events, end):
        steps += [["sleep", 5], send(chunked(event(message)))]
    steps.append(send(chunked(b"")))
    record = run(scripted, "plain", steps, kind="completions")
    assert (record.outcome, len(record.chunk_us), record.output_tokens, record.choices) == (
        OK,
        2,
        2,
        1,
    )


class Closing:
    """A server that says to keep the connection, and closes it a moment after each answer: as
    llama.cpp does."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.seen: list[bytes] = []
        self.to = Target("127.0.0.1", self.listener.getsockname()[1])
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.seen.append(connection.recv(65_536))
                steps = stream(2)
                connection.sendall(
                    b"".join(step[1].encode("latin-1") for step in steps if step[0] == "send")
                )
                time.sleep(0.05)


def test_a_connection_that_the_server_was_just_closing_costs_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The close comes between the look at the connection and the send; the look is made blind, so
    that it always does."""
    server, line = Closing(), UserConnection()
    request = Request(
        target=server.to,
        data=b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        labels={"id": "again"},
    )
    first = exchange_request(line, Gate(1), request, 0.0)
    until(lambda: not line.connection.alive())
    gate = Gate(1)
    with monkeypatch.context() as blind:
        blind.setattr(Connection, "alive", lambda self: True)
        second = exchange_request(line, gate, request, 0.0)
    assert (first.outcome, first.resent) == (OK, 0)
    assert (second.outcome, second.resent, len(second.chunk_us), gate.used) == (OK, 1, 2, 0)
    assert len(server.seen) == 2  # the server saw each request once
    line.close()
    server.listener.close()


def test_who_closes_a_used_connection_later_was_heard(scripted: Scripted) -> None:
    """And a new connection leaves no doubt."""
    line = UserConnection()
    assert run(scripted, "used", stream(1), line).outcome == OK
    record = run(scripted, "heard", [["sleep", 300], ["close"]], line)
    assert (record.outcome, record.resent) == ("closed", 0)
    record = run(scripted, "new", [["close"]], UserConnection())
    assert (record.outcome, record.resent) == ("closed", 0)


# -- time limits and kills -------------------------------------------------------------------------


def test_a_timeout_keeps_what_came(scripted: Scripted) -> None:
    line = UserConnection()
    record = run(scripted, "stalled", stream(3, cut="stall"), line, timeout_s=0.6)
    assert (record.outcome, record.error, len(record.chunk_us)) == (
        "timeout",
        "not finished within 0.6 s",
        3,
    )
    assert record.sent_at is not None
    assert record.closed_at - record.sent_at >= 0.59
    assert line.connection is None
    assert scripted.row("stalled").end == "gone"


def test_a_server_that_never_answers(scripted: Scripted) -> None:
    gate = Gate(1)
    record = exchange_request(
        UserConnection(), gate, scripted.request("silent", [["stall"]], timeout_s=0.1), 0.0
    )
    assert (record.outcome, record.chunk_us, record.headers_at, record.status) == (
        "timeout",
        (),
        None,
        None,
    )
    assert gate.used == 0


def test_no_first_token_in_time(scripted: Scripted) -> None:
    """Headers and a role are no token."""
    gate, line = Gate(1), UserConnection()
    limits = {"first_token_timeout_s": 0.2, "gap_timeout_s": 0.07, "timeout_s": 5}
    record = exchange_request(
        line, gate, scripted.request("no-first", stream(0, cut="stall"), **limits), 0.0
    )
    assert (record.outcome, record.error) == ("first_token_timeout", "no first token within 0.2 s")
    assert (record.failed, record.chunk_us, record.status) == (True, (), 200)
    assert (gate.used, line.connection, scripted.row("no-first").end) == (0, None, "gone")


def test_a_gap_that_is_too_long(scripted: Scripted) -> None:
    """The timer goes off in the middle of the stream first, and is set again."""
    limits = {"first_token_timeout_s": 20, "gap_timeout_s": 0.6, "timeout_s": 20}
    line = UserConnection()
    record = run(scripted, "gap", stream(20, each_ms=40, cut="stall"), line, **limits)
    assert (record.outcome, record.error, len(record.chunk_us)) == (
        "gap_timeout",
        "nothing more for 0.6 s",
        20,
    )
    assert record.ttft_s is not None
    assert record.close_lag_s is not None
    assert record.close_lag_s >= 0.6
    assert (line.connection, scripted.row("gap").end) == (None, "gone")


def test_an_answer_whose_connection_stays_open_behind_its_done_is_complete(
    scripted: Scripted,
) -> None:
    """It ends a second later, and its record at the ``[DONE]``; the connection is not used
    again."""
    steps = [
        *stream(3, each_ms=20)[:-1],
        send(chunked(event(delta("stop")) + event("[DONE]"))),
        ["stall"],
    ]
    line = UserConnection()
    began = time.monotonic()
    record = run(scripted, "open behind done", steps, line, gap_timeout_s=60)
    assert 1 < time.monotonic() - began < 10
    assert (record.outcome, record.error, len(record.chunk_us)) == (OK, NO_END, 3)
    assert record.close_lag_s is not None
    assert 0 <= record.close_lag_s < 1
    assert line.connection is None
    assert scripted.row("open behind done").end == "gone"
    assert run(scripted, "open behind done, after", stream(1), line).outcome == OK


def test_an_answer_beyond_its_bounds_is_given_up(scripted: Scripted) -> None:
    gate = Gate(1)
    for name, limits in (
        ("too_large", {"max_response_bytes": 20_000}),
        ("too_long", {"max_chunks": 50}),
    ):
        record = exchange_request(
            UserConnection(),
            gate,
            scripted.request(name, stream(400, each_ms=1, batch=4), **limits),
            0.0,
        )
        assert (record.outcome, record.failed, gate.used) == (name, True, 0)
        assert 50 < len(record.chunk_us) < 400
        assert scripted.row(name).end == "gone"


def test_an_error_status_says_more_than_the_time_out_that_follows(scripted: Scripted) -> None:
    steps = [send(head(500, "text/plain", Content_Length="100") + b"out of mem"), ["stall"]]
    record = run(scripted, "500-stalled", steps, first_token_timeout_s=0.2)
    assert (record.outcome, record.error) == ("http_status", "HTTP 500: out of mem")


@pytest.mark.parametrize(("tokens", "after_s"), [(3, 0.25), (0, 0.25), (3, 0.0), (0, 0.0)])
def test_given_up_on_purpose(scripted: Scripted, tokens: int, after_s: float) -> None:
    gate, line, name = Gate(1), UserConnection(), f"given-up{tokens}-{after_s}"
    steps = stream(tokens, cut="stall")
    request = scripted.request(name, steps, cancel_after_s=after_s, timeout_s=1000)
    with Timeout(10):
        record = exchange_request(line, gate, request, 0.0)
    assert (record.outcome, record.error) == (
        CANCELLED,
        f"cancelled on purpose after {after_s:g} s",
    )
    assert not record.failed
    assert record.sent_at is not None
    assert record.closed_at - record.sent_at >= after_s
    if after_s:
        assert len(record.chunk_us) == tokens
        assert (record.ttft_s is not None) == bool(tokens)
    assert (gate.used, line.connection, scripted.row(name).end) == (0, None, "gone")
    assert run(scripted, name + ", after", stream(1), line).outcome == OK


def test_who_is_done_sooner_is_not_given_up(scripted: Scripted) -> None:
    line = UserConnection()
    for turn in range(3):
        record = run(scripted, f"sooner{turn}", stream(2), line, cancel_after_s=0.5)
        assert (record.outcome, record.connect_s is None) == (OK, turn > 0)
    gevent.sleep(0.55)  # nothing is left that could still go off
    assert run(scripted, "sooner-last", stream(2), line).connect_s is None


def test_what_is_not_fully_written_is_not_given_up_on_purpose(scripted: Scripted) -> None:
    request = scripted.request(
        "half",
        [["sleep", 2000]],
        unread=b"x" * 20_000_000,
        timeout_s=0.3,
        cancel_after_s=0.0,
        gap_timeout_s=0.05,
    )
    line = UserConnection()
    assert exchange_request(line, Gate(1), request, 0.0).outcome == "timeout"
    assert line.connection is None


def limited(**limits: float | None) -> Request:
    return Request(target=Target("", 0), data=b"", labels={}, **limits)


def streaming(*chunk_at: float) -> Response:
    """Sent at 10 s; the chunks that are there."""
    timed = Response(10_000_000_000)
    timed.stamps.extend(int(at * 1e9) for at in chunk_at)
    timed.first_seen = bool(chunk_at)
    return timed


def test_which_limit_is_over_first() -> None:
    request = limited(
        timeout_s=60.0, first_token_timeout_s=20.0, gap_timeout_s=15.0, cancel_after_s=30.0
    )
    assert next_limit(limited(), streaming(), None, 10.0) is None
    # no sooner: no chunk is there yet
    assert next_limit(request, streaming(), None, 10.0) == (25.0, "gap_timeout")
    assert next_limit(request, streaming(), None, 25.0) == (30.0, "first_token_timeout")
    assert next_limit(request, streaming(12.0, 14.5), None, 25.0) == (29.5, "gap_timeout")
    assert next_limit(request, streaming(12.0, 39.0), 11.0, 40.0) == (41.0, CANCELLED)
    assert next_limit(request, streaming(12.0, 39.0, 60.0), None, 60.0) == (70.0, "timeout")


def test_an_answer_beyond_its_limit_succeeds_by_no_late_timer() -> None:
    request = limited(timeout_s=0.5, first_token_timeout_s=0.2)
    assert find_exceeded_limit(request, 0.2, 0.5) == ""
    assert find_exceeded_limit(request, 0.2, 0.501) == "timeout"
    assert find_exceeded_limit(request, 0.201, 0.4) == "first_token_timeout"
    assert find_exceeded_limit(request, None, 0.4) == ""  # no stream
    assert find_exceeded_limit(limited(), 10.0, 20.0) == ""


def test_a_loop_that_was_blocked_makes_no_late_answer_a_success(scripted: Scripted) -> None:
    """All 20 chunks are there after 0.2 s, and the timer of 0.1 s goes off after 0.4 s."""
    gevent.spawn_later(0.05, time.sleep, 0.4)
    record = run(scripted, "late", stream(20, each_ms=10), timeout_s=0.1)
    assert (record.outcome, record.error) == ("timeout", "not finished within 0.1 s")


QUARTERS = st.integers(1, 20).map(lambda number: number / 4)  # exact in binary
MAYBE = st.none() | QUARTERS


@given(st.lists(QUARTERS, max_size=8), MAYBE, MAYBE, MAYBE, MAYBE, QUARTERS)
def test_one_timer_that_looks_seldom_misses_nothing(
    waits: list[float],
    timeout_s: float | None,
    first_s: float | None,
    gap_s: float | None,
    cancel_s: float | None,
    write_s: float,
) -> None:
    """Against a list of every moment at which any limit is over, for an answer that never ends."""
    chunk_at = [10.0 + sum(waits[: number + 1]) for number in range(len(waits))]
    written_at = 10.0 + write_s
    request = limited(
        timeout_s=timeout_s,
        first_token_timeout_s=first_s,
        gap_timeout_s=gap_s,
        cancel_after_s=cancel_s,
    )
    over: list[tuple[float, str]] = []
    if timeout_s is not None:
        over.append((10.0 + timeout_s, "timeout"))
    if first_s is not None and not any(at <= 10.0 + first_s for at in chunk_at):
        over.append((10.0 + first_s, "first_token_timeout"))
    if gap_s is not None:
        late = (
            at + gap_s for at, after in pairwise([*chunk_at, float("inf")]) if after > at + gap_s
        )
        over += [(at, "gap_timeout") for at in late]
    if cancel_s is not None:
        over.append((written_at + cancel_s, CANCELLED))

    looks, now, written, found = 0, 10.0, False, None
    while looks < 400:
        seen = streaming(*(at for at in chunk_at if at <= now))
        found = next_limit(request, seen, written_at if written else None, now)
        ends_at = float("inf") if found is None else found[0]
        if ends_at <= now:
            break
        if cancel_s is not None and not written and written_at <= ends_at:
            now, written = written_at, True  # the timer is set anew when the request is written
        elif found is not None:
            looks, now = looks + 1, ends_at
        else:
            break
    if over:
        assert found is not None
        assert found[0] == min(over)[0]
        assert found in over
        shortest = min(
            limit for limit in (timeout_s, first_s, gap_s, cancel_s) if limit is not None
        )
        assert looks <= 2 + 2 * (now - 10.0) / shortest
    else:
        # there is no gap before the first chunk, however often it looks
        assert found is None or looks == 400


# -- due at a moment -------------------------------------------------------------------------------


def sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        gevent.sleep(left)


def test_it_connects_first_and_is_asked_for_when_it_is_due(scripted: Scripted) -> None:
    line, moments = UserConnection(), []

    def wait_until(moment: float) -> None:
        assert line.connection is not None
        assert line.connection.alive()
        moments.append(moment)
        sleep_until(moment)

    due_at = time.monotonic() + 0.1
    record = exchange_request(
        line, Gate(), scripted.request("due", stream(2), due_at=due_at), 0.0, None, wait_until
    )
    assert (record.outcome, record.due_at, moments) == (OK, due_at, [due_at])
    assert due_at <= record.asked_at
    assert record.connect_s is not None
    past = exchange_request(
        line, Gate(), scripted.request("past", stream(2), due_at=due_at), 0.0, None, wait_until
    )
    assert (past.outcome, past.connect_s, moments) == (
        OK,
        None,
        [due_at, due_at],
    )  # a late one too may learn of the end


def test_who_waits_long_looks_again_before_it_is_due(scripted: Scripted) -> None:
    """The connection is lost meanwhile; the new one is there in time."""
    line, moments = UserConnection(), []
    due_at = time.monotonic() + 1000

    def wait_until(moment: float) -> None:
        assert line.connection is not None
        moments.append(moment)
        if moment < due_at:
            line.connection._socket.shutdown(2)

    record = exchange_request(
        line, Gate(), scripted.request("long", stream(2), due_at=due_at), 0.0, None, wait_until
    )
    assert (record.outcome, moments) == (OK, [due_at - 1.0, due_at])
    assert scripted.row("long").id == "long"


@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_a_refusal_counts_only_when_it_is_due(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    used: list[int] = []
    moments: list[float] = []

    def refuse(target: Target, timeout: float) -> Connection:
        used.append(gate.used)
        if len(used) <= refusals:
            raise ConnectFailed("refused", "scripted: refused")
        return Connection(target, timeout)

    monkeypatch.setattr(exchange_module, "Connection", refuse)
    due_at = time.monotonic() + 1000
    gate = Gate(1)
    request = scripted.request(f"refused{refusals}", stream(2), due_at=due_at)
    record = exchange_request(UserConnection(), gate, request, 0.0, None, moments.append)
    assert moments == [due_at - 1.0, due_at]
    assert (record.outcome, len(used)) == (("refused", 3) if refusals == 3 else (OK, refusals + 1))
    assert not any(used)  # nobody connects in a slot
    assert gate.used == 0


def test_the_run_ends_before_it_is_due(scripted: Scripted) -> None:
    def closed(moment: float) -> None:
        raise GateClosed

    gate, line = Gate(1), UserConnection()
    request = scripted.request("undue", stream(1), due_at=time.monotonic() + 0.5)
    with pytest.raises(GateClosed):
        exchange_request(line, gate, request, 0.0, None, closed)
    assert (gate.used, line.busy) == (0, False)
    # the connection is as good as before
    assert run(scripted, "undue-after", stream(1), line).connect_s is None
    assert set(scripted.rows("undue", 1)) == {"undue-after"}


def test_killed_before_it_is_due(scripted: Scripted) -> None:
    line, gate = UserConnection(), Gate(1)
    request = scripted.request("undue-killed", stream(1), due_at=time.monotonic() + 1000)
    job = gevent.spawn(exchange_request, line, gate, request, 0.0, None, sleep_until)
    until(lambda: line.connection)
    gevent.sleep(0.01)
    job.kill()
    assert isinstance(job.value, GreenletExit)
    assert not hasattr(job.value, "record")
    assert (gate.used, line.busy) == (0, False)


def test_the_time_limit_holds_for_the_sending_too(scripted: Scripted) -> None:
    """The server reads nothing, and the body is larger than what lies on the way."""
    line, gate = UserConnection(), Gate(1)
    request = scripted.request("unread", [["sleep", 2000]], unread=b"x" * 20_000_000, timeout_s=0.3)
    record = exchange_request(line, gate, request, 0.0)
    assert (record.outcome, gate.used, line.connection) == ("timeout", 0, None)


def test_killed_while_a_finished_one_waits_for_its_turn(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_here() -> None:
        raise GreenletExit

    monkeypatch.setattr(exchange_module.can_wait, "take", killed_here)
    # neither a gate nor a schedule: it gives way to nobody
    assert run(scripted, "no-turn", stream(3)).outcome == OK
    with pytest.raises(GreenletExit) as killed:
        exchange_request(UserConnection(), Gate(1), scripted.request("turn", stream(3)), 0.0)
    record: Record = killed.value.record  # type: ignore[attr-defined]
    assert (record.outcome, len(record.chunk_us)) == (OK, 3)


@pytest.mark.parametrize(("behind", "waits"), [(1, False), (2, True)])
def test_a_record_waits_where_the_gate_is_crowded(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, behind: int, waits: bool
) -> None:
    """Of one slot: whoever had it has time when two still wait for it."""
    monkeypatch.setattr(exchange_module, "SAME_STEP_S", 60.0)
    line, gate = UserConnection(), Gate(1)
    request = scripted.request(f"crowded-{behind}", stream(3, first_ms=50, each_ms=50))
    job = gevent.spawn(exchange_request, line, gate, request, 0.0)
    until(lambda: gate.used)
    # one gets the slot when the first chunk comes
    others = [gevent.spawn(gate.enter) for _ in range(1 + behind)]
    until(lambda: line.stream is not None and line.stream.over)
    job.join(0.2 if waits else 10)
    assert job.ready() != waits
    gevent.killall([job, *others])


def test_a_connection_is_looked_at_again_only_after_a_while(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    alive = Connection.alive
    monkeypatch.setattr(
        Connection, "alive", lambda self: looks.append(time.monotonic()) or alive(self)
    )
    line = UserConnection()
    target = scripted.request("", []).target
    assert line.open(target) is not None
    line.open(target, checked_s=60.0)
    assert len(looks) == 0
    line.open(target)
    line.open(target, checked_s=0.0)
    assert len(looks) == 2
    line.close()


def test_killed_while_it_is_sent(scripted: Scripted) -> None:
    line, gate = UserConnection(), Gate(1)
    request = scripted.request("unread-killed", [["sleep", 2000]], unread=b"x" * 20_000_000)
    job = gevent.spawn(exchange_request, line, gate, request, 0.0)
    until(lambda: gate.used)
    gevent.sleep(0.05)
    job.kill()
    assert job.value.record.outcome == "cut"
    assert (gate.used, line.connection) == (0, None)


def test_an_early_answer_to_a_large_body_is_heard(scripted: Scripted) -> None:
    too_large = whole({"error": {"message": "too large"}}, 413)
    line = UserConnection()
    request = scripted.request("413", [*too_large, ["close"]], unread=b"x" * 20_000_000)
    record = exchange_request(line, Gate(), request, 0.0)
    assert (record.outcome, record.error) == ("http_status", "HTTP 413: too large")
    assert line.connection is None  # half of the body was not sent
    patient = scripted.request(
        "413-open", [*too_large, ["sleep", 2000]], unread=b"x" * 20_000_000, timeout_s=0.6
    )
    record = exchange_request(line, Gate(), patient, 0.0)  # it neither reads nor closes
    assert (record.outcome, record.error) == ("http_status", "HTTP 413: too large")
    assert line.connection is None


def test_a_reset_during_a_large_body(scripted: Scripted) -> None:
    gate = Gate(1)
    request = scripted.request("reset-large", [["sleep", 20], ["reset"]], unread=b"x" * 20_000_000)
    record = exchange_request(UserConnection(), gate, request, 0.0)
    assert (record.outcome, gate.used) == ("send_failed", 0)
    assert record.sent_at is not None


def test_no_connection_no_send(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ConnectFailed("refused", "scripted: refused")

    gate = Gate(1)
    monkeypatch.setattr(exchange_module, "Connection", refuse)
    record = exchange_request(UserConnection(), gate, scripted.request("never", stream(1)), 0.0)
    assert (record.outcome, record.error, record.sent_at, record.admitted_at) == (
        "refused", "scripted: refused", None, None,
    )  # fmt: skip
    assert gate.used == 0


def test_a_connection_that_is_lost_in_the_queue_and_cannot_be_had_again(scripted: Scripted) -> None:
    gate, line = Gate(0), UserConnection()
    job = gevent.spawn(exchange_request, line, gate, scripted.request("lost", stream(1)), 0.0)
    until(lambda: gate.waiting)
    line.close()

    def gone(_: Any, **how: Any) -> None:
        raise ConnectFailed("refused", "gone")

    line.open = gone  # type: ignore[assignment,method-assign]
    gate.set_limit(1)
    record = job.get()
    assert (record.outcome, record.sent_at, record.admitted_at is not None, gate.used) == (
        "refused",
        None,
        True,
        0,
    )


def test_killed_in_the_queue_is_no_record_and_no_slot(scripted: Scripted) -> None:
    gate = Gate(0)
    job = gevent.spawn(
        exchange_request, UserConnection(), gate, scripted.request("queued", stream(1)), 0.0
    )
    until(lambda: gate.waiting)
    job.kill()
    assert isinstance(job.value, GreenletExit)
    assert not hasattr(job.value, "record")
    assert (gate.used, gate.waiting) == (0, 0)


def test_a_timeout_around_the_call_is_the_users_own(scripted: Scripted) -> None:
    theirs = Timeout(0.1)
    gate = Gate(1, on_enter=theirs.start)
    request = scripted.request("theirs", stream(2, cut="stall"), timeout_s=20)
    with pytest.raises(Timeout) as caught:
        exchange_request(UserConnection(), gate, request, 0.0)
    assert caught.value is theirs
    assert caught.value.record.outcome == "cancelled"
    assert gate.used == 0


def test_one_request_at_a_time(scripted: Scripted) -> None:
    """Two on one connection would read each other's answer."""
    line = UserConnection()
    job = gevent.spawn(run, scripted, "first", stream(2, first_ms=300), line)
    until(lambda: line.stream)
    with pytest.raises(RuntimeError, match="one request at a time"):
        run(scripted, "second", stream(2), line)
    assert job.get().outcome == OK
    assert run(scripted, "third", stream(2), line).outcome == OK


# -- the slot --------------------------------------------------------------------------------------


def test_the_slot_comes_back_with_the_first_chunk_not_with_headers_role_or_ping(
    scripted: Scripted,
) -> None:
    gate, line = Gate(1), UserConnection()
    ping = [send(head(Transfer_Encoding="chunked")), send(chunked(b": ping\n\n")), ["sleep", 30]]
    steps = [
        *ping,
        send(chunked(event(delta(role="assistant", content="")))),
        ["sleep", 30],
        *stream(3, each_ms=30)[1:],
    ]
    freed: list[tuple[int, int]] = []

    def first(timed: Response, labels: dict[str, Any], due_at: float) -> None:
        assert labels["id"] == "slot"
        assert due_at <= timed.sent_ns / 1e9
        freed.append((gate.used, timed.stamps[timed.answer.chunk_reads[0]]))

    record = exchange_request(line, gate, scripted.request("slot", steps), 0.0, first)
    (before, _), *_ = scripted.row("slot").chunks
    assert freed[0][0] == 0
    assert freed[0][1] >= before - 20_000
    assert record.freed_at is not None
    assert before / 1e9 < record.freed_at < record.closed_at
    assert len(freed) == 1


@pytest.mark.parametrize("cut", ["close", "reset", "stall"])
def test_without_a_first_chunk_the_hook_is_not_called(scripted: Scripted, cut: str) -> None:
    called: list[Any] = []
    request = scripted.request(f"no-chunk-{cut}", stream(0, cut=cut), timeout_s=0.2)
    record = exchange_request(
        UserConnection(), Gate(1), request, 0.0, lambda *all: called.append(all)
    )
    assert record.failed
    assert called == []


def test_an_error_event_frees_the_slot_though_the_stream_stays_open(scripted: Scripted) -> None:
    gate = Gate(1)
    top, error = send(head(Transfer_Encoding="chunked")), send(chunked(event({"error": "no"})))
    steps = [top, ["sleep", 50], error, ["stall"]]
    job = gevent.spawn(
        exchange_request, UserConnection(), gate, scripted.request("open-error", steps), 0.0
    )
    until(lambda: gate.used)
    until(lambda: not gate.used)
    assert not job.ready()
    job.kill()
    assert job.value.record.outcome == "cut"


def test_who_gives_up_is_gone_before_the_next_one_comes(scripted: Scripted) -> None:
    """The slot of a killed request goes on only when its connection is closed."""
    for number in range(10):
        gate = Gate(1)
        prefix = f"handover{number}-"
        first = gevent.spawn(
            exchange_request,
            UserConnection(),
            gate,
            scripted.request(prefix + "1", [["stall"]]),
            0.0,
        )
        until(partial(getattr, gate, "used"))
        second = gevent.spawn(
            exchange_request, UserConnection(), gate, scripted.request(prefix + "2", stream(1)), 0.0
        )
        until(partial(getattr, gate, "waiting"))
        gevent.sleep(0.002)
        first.kill()
        sent_at = second.get().sent_at
        assert sent_at is not None
        assert sent_at >= first.value.record.closed_at


def test_a_connection_that_is_closed_during_the_wait_is_opened_again(scripted: Scripted) -> None:
    """Servers close idle connections; here after 0.1 s, and the gate opens after 0.4 s."""
    gate, lines = Gate(), [UserConnection() for _ in range(5)]
    for number, line in enumerate(lines):
        steps = [*stream(1), ["linger", 0.1]]
        assert (
            exchange_request(line, gate, scripted.request(f"linger{number}", steps), 0.0).outcome
            == OK
        )
    idle = [line.connection for line in lines]
    gate.set_limit(0)
    jobs = [
        gevent.spawn(
            exchange_request, line, gate, scripted.request(f"waited{number}", stream(2)), 0.0
        )
        for number, line in enumerate(lines)
    ]
    until(lambda: gate.waiting == 5)
    gevent.sleep(0.4)
    until(
        lambda: all(
            line.connection is not one or not one.alive()
            for line, one in zip(lines, idle, strict=True)
        )
    )
    gate.set_limit(2)
    records = [job.get() for job in jobs]
    assert {record.outcome for record in records} == {OK}
    assert all(record.connect_s is not None and record.gate_wait_s > 0.35 for record in records)
    rows = scripted.rows("waited", 5)
    assert all(len(same) == 1 for same in rows.values())
    assert len(rows) == 5


def test_a_new_connection_after_the_admission_is_counted_by_itself(scripted: Scripted) -> None:
    """It is no delay of the load generator's: the server closed the idle one, after 0.5 s, and the
    gate opens after that."""
    gate, line = Gate(), UserConnection()
    exchange_request(line, gate, scripted.request("idle", [*stream(1), ["linger", 0.5]]), 0.0)
    idle = line.connection
    gate.set_limit(0)
    job = gevent.spawn(exchange_request, line, gate, scripted.request("held", stream(2)), 0.0)
    until(lambda: gate.waiting and not idle.alive())
    gate.set_limit(1)
    record = job.get()
    assert record.outcome == OK
    assert 0 < record.reconnect_s <= record.connect_s
    assert record.send_delay_s == pytest.approx(
        record.sent_at - record.admitted_at - record.reconnect_s
    )


# -- the gate at a real server ---------------------------------------------------------------------


def any_script(dice: random.Random) -> list[Any]:
    first_ms, tokens = dice.choice([0, 2, 5, 8]), dice.randint(1, 3)
    form = dice.choice(
        ["fine", "fine", "fine", "close", "reset", "stall", "error", "500", "json", "early close"]
    )
    if form == "500":
        return whole({"error": "no"}, 500, first_ms=first_ms)
    if form == "json":
        return whole(
            {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}, first_ms=first_ms
        )
    if form == "error":
        return stream(dice.randint(0, 1), first_ms=first_ms, error="no")
    cut = form if form in ("close", "reset", "stall") else ""
    steps = stream(
        tokens if not cut else dice.randint(0, 2),
        first_ms=first_ms,
        each_ms=dice.choice([0, 2]),
        cut=cut,
    )
    return [*steps, ["close"]] if form == "early close" else steps


def any_limits(dice: random.Random) -> dict[str, float]:
    """One that ends it in any case, of the others some, and sometimes it is due a little later."""
    chosen = {"timeout_s": dice.choice([0.01, 0.03])}
    for name, longest_s, often in (
        ("first_token_timeout_s", 0.006, 0.3), ("gap_timeout_s", 0.006, 0.6),
        ("cancel_after_s", 0.006, 0.3),
    ):  # fmt: skip
        if dice.random() < often:
            chosen[name] = dice.uniform(0.001, longest_s)
    if dice.random() < 0.3:
        chosen["due_at"] = time.monotonic() + dice.uniform(-0.001, 0.005)
    return chosen


def short_run(server: Scripted, seed: int) -> list[str]:
    """Users, a ramp that goes up and down, errors, cuts, kills, time-outs and requests that are
    given up on purpose; then the books of both sides are compared."""
    dice = random.Random(seed)
    prefix = f"run{seed}-"
    gate = Gate(dice.randint(1, 3))
    records: list[Record] = []
    sent: list[str] = []
    turned_away: list[str] = []
    killed_in_queue: list[str] = []
    requests: dict[str, Request] = {}
    closing: list[bool] = []

    def wait_until(moment: float) -> None:
        sleep_until(moment)
        if closing:
            raise GateClosed

    def user(number: int) -> None:
        line = UserConnection()
        try:
            for turn in range(20):
                name = f"{prefix}{number}-{turn}"
                sent.append(name)
                request = server.request(name, any_script(dice), **any_limits(dice))
                requests[name] = request
                try:
                    records.append(exchange_request(line, gate, request, 0.0, None, wait_until))
                except GateClosed:
                    turned_away.append(name)
                    return
                except GreenletExit as killed:
                    if hasattr(killed, "record"):
                        records.append(killed.record)
                    else:
                        killed_in_queue.append(name)
                    return
        finally:
            line.close()

    users = [gevent.spawn(user, number) for number in range(6)]
    for number in range(6, 10):
        gevent.sleep(dice.uniform(0, 0.015))
        gate.set_limit(dice.randint(0, 4))
        if dice.random() < 0.7:
            dice.choice(users).kill(block=False)
            users.append(gevent.spawn(user, number))
    gate.set_limit(dice.randint(1, 3))
    gevent.sleep(0.005)
    closing.append(True)
    gate.close()
    gevent.joinall(users, timeout=10, raise_error=True)

    assert (gate.used, gate.waiting) == (0, 0)
    assert sorted([record.id for record in records] + turned_away + killed_in_queue) == sorted(sent)
    check_books(server, prefix, records, requests)
    return [record.outcome for record in records]


def check_books(
    server: Scripted, prefix: str, records: list[Record], requests: dict[str, Request]
) -> None:
    by_id = {record.id: record for record in records}
    for record in records:
        check_end(record, requests[record.id])
    complete = {record.id for record in records if record.outcome == OK}
    gevent.sleep(0.02)  # longer than any script: the server has finished its rows, or nearly
    until(lambda: complete <= set(server.rows(prefix)))
    rows = server.rows(prefix)
    assert set(rows) <= set(by_id)
    assert all(len(same) == 1 for same in rows.values())  # no request came twice
    check_limit([row for same in rows.values() for row in same], by_id)


def check_end(record: Record, request: Request) -> None:
    """Nothing ends for a limit that it does not have, nor before it, and what came stays."""
    limits = {
        "timeout": request.timeout_s, "first_token_timeout": request.first_token_timeout_s,
        "gap_timeout": request.gap_timeout_s, CANCELLED: request.cancel_after_s,
    }  # fmt: skip
    if record.outcome in limits:
        limit_s = limits[record.outcome]
        assert limit_s is not None
        assert record.sent_at is not None
        assert record.closed_at - record.sent_at >= limit_s
        # what lay unread when the timer looked may have come a little before
        if record.outcome == "gap_timeout":
            after_last_s = record.closed_at - record.sent_at - record.chunk_us[-1] / 1e6
            assert (
                max(after_last_s, record.longest_stall_s or 0.0) + record.read_lag_us / 1e6 + 0.001
                >= limit_s
            )
    if request.due_at is not None and record.sent_at is not None:
        assert record.sent_at >= record.asked_at >= record.due_at == request.due_at
    assert record.failed == (record.outcome not in (OK, CANCELLED, "cut"))


def check_limit(rows: list[Row], records: dict[str, Record]) -> None:
    """At each arrival no more are in prefill at the server than the highest limit at which one of
    them was admitted: so never more than the limit, and after a fall only those that were in
    before."""
    moments: list[tuple[int, int, str]] = []
    for row in rows:
        left = min(
            [
                row.ended,
                int(records[row.id].closed_at * 1e9),
                *[before for before, _ in row.chunks[:1]],
            ]
        )
        if left > row.arrived:  # else it was given up before it came
            moments += [(row.arrived, 1, row.id), (left, 0, row.id)]
    inside: set[str] = set()
    for _, change, name in sorted(moments):  # those that leave first
        (inside.add if change else inside.discard)(name)
        assert len(inside) <= max((records[name].limit or 0 for name in inside), default=0)


@pytest.mark.parametrize(
    "block", [0, 1, *(pytest.param(block, marks=pytest.mark.full) for block in (2, 3, 4))]
)
def test_the_limit_holds_at_the_server_and_both_books_agree(scripted: Scripted, block: int) -> None:
    ends = Counter(short_run(scripted, block * 20))
    gc.collect()  # other tests' connections
    gevent.sleep(0.01)  # gevent closes in the next turn of its loop
    before = os.listdir("/proc/self/fd")
    for seed in range(block * 20 + 1, block * 20 + 20):
        ends.update(short_run(scripted, seed))
    # without each of them it shows little, and on a busy machine some are rare
    wanted = {OK, CANCELLED, "timeout", "first_token_timeout", "gap_timeout", "cut"}
    for seed in range(1000 * (block + 1), 1000 * (block + 1) + 200):
        if set(ends) >= wanted:
            break
        ends.update(short_run(scripted, seed))
    gevent.sleep(0.01)
    assert os.listdir("/proc/self/fd") == before
    assert set(ends) >= wanted


def test_with_one_limit_the_servers_maximum_is_that(scripted: Scripted) -> None:
    gate = Gate(3)

    def user(number: int) -> None:
        line = UserConnection()
        for turn in range(10):
            request: Request = scripted.request(
                f"three{number}-{turn}", stream(3, first_ms=5, each_ms=1)
            )
            assert exchange_request(line, gate, request, 0.0).outcome == OK
        line.close()

    gevent.joinall([gevent.spawn(user, number) for number in range(8)], raise_error=True)
    rows = [row for same in scripted.rows("three", 80).values() for row in same]
    assert len(rows) == 80
    assert most_in_prefill(rows) == 3


def test_embeddings_hold_their_slot_to_the_end_and_have_a_vector_for_each_input(
    scripted: Scripted,
) -> None:
    body = {"data": [{"embedding": [0.5]}] * 2, "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    for inputs, outcome in ((2, OK), (3, "truncated")):
        request = scripted.request(f"embed{inputs}", whole(body))
        request = msgspec.structs.replace(
            request, kind="embeddings", labels={**request.labels, "inputs": inputs}
        )
        record = exchange_request(UserConnection(), Gate(1), request, 0.0)
        assert (record.outcome, record.inputs, record.input_tokens, record.tokens_from) == (
            outcome,
            inputs,
            9,
            "usage",
        )
        assert (record.streamed, record.ttft_s, record.output_tokens, record.finish_reason) == (
            False,
            None,
            None,
            None,
        )
        assert (record.freed_at or 0.0) >= record.closed_at
    assert record.error == "2 of 3 inputs have a vector"
