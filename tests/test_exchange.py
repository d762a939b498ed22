"""One request all the way, at a server that knows the truth: its record, its slot, and every way in which it may end."""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gevent
import msgspec
import pytest
from gevent import GreenletExit, Timeout
from scripted import Row, Scripted, chunked, delta, event, head, most_in_prefill, send, stream, whole

from locust_llm import exchange as exchange_module
from locust_llm.connection import ConnectFailed
from locust_llm.exchange import Line, Request, exchange
from locust_llm.gate import Gate, GateClosed
from locust_llm.reader import stream_reader
from locust_llm.record import OK, Record
from locust_llm.stream import Stream


@pytest.fixture(autouse=True)
def _the_reader_is_done() -> Iterator[None]:
    yield
    assert stream_reader().open_streams == 0


def run(server: Scripted, name: str, steps: list[Any], line: Line | None = None, **options: Any) -> Record:
    return exchange(line or Line(), Gate(), server.request(name, steps, **options), 0.0)


def until(true: Callable[[], object], patience_s: float = 10.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        gevent.sleep(0.001)


# -- what the record says --------------------------------------------------------------------------------------------------


def test_the_stamps_of_a_record_stand_in_order(scripted: Scripted) -> None:
    request = msgspec.structs.replace(scripted.request("order", stream(5, first_ms=20, each_ms=5)), due_at=1.5)
    line, gate = Line(), Gate(2)
    began = time.monotonic()
    record = exchange(line, gate, request, 7.0)
    row = scripted.row("order")
    assert record.sent_at is not None
    assert record.admitted_at is not None
    assert record.freed_at is not None
    assert record.headers_at is not None
    assert began <= record.asked_at <= record.admitted_at <= record.sent_at <= row.arrived / 1e9
    assert record.sent_at < record.headers_at < record.sent_at + record.chunk_us[0] / 1e6 < record.freed_at
    assert record.sent_at + record.chunk_us[-1] / 1e6 <= record.closed_at < time.monotonic()
    assert record.connect_s is not None
    assert 0 < record.connect_s < record.asked_at - began
    assert (record.due_at, record.clock_offset_s, record.limit, record.id) == (1.5, 7.0, 2, "order")
    assert record.request_bytes == len(request.data)
    assert record.response_bytes > 500
    again = exchange(line, gate, scripted.request("order2", stream(1)), 0.0)
    assert (again.connect_s, again.due_at) == (None, again.asked_at)
    assert scripted.row("order2").connection == row.connection


SLOW_HEADERS = [
    send(b"HTTP/1.1 200 OK\r\nX-Sl"), ["sleep", 20], send(b"ow: 1\r\nTransfer-Encoding: chun"), ["sleep", 20],
    send(b"ked\r\nContent-Type: text/event-stream\r\n\r"), ["sleep", 20], send(b"\n"), *stream(3)[1:],
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
    line = Line()
    record = run(scripted, form, steps, line)
    expected = {
        "outcome": OK, "message": "", "status": 200, "output_tokens": 3, "input_tokens": 7, "tokens_from": "usage",
        "finish_reason": "stop", "first_output": 0, "streamed": True,
    } | special  # fmt: skip
    assert {field: getattr(record, field) for field in expected} == expected
    assert len(record.chunk_us) == 3
    gevent.sleep(0.02)
    after = run(scripted, form + ", after", stream(1), line)  # whatever came: the next request is not hurt
    assert after.outcome == OK
    used_again = after.connect_s is None
    assert used_again == (form not in ("until close", "bytes after the end"))


def test_a_json_answer_to_a_streaming_request(scripted: Scripted) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    good = {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}], "usage": usage}
    gate = Gate(1)
    record = exchange(Line(), gate, scripted.request("json", whole(good, first_ms=30)), 0.0)
    assert (record.outcome, record.streamed, record.chunk_us, record.output_tokens) == (OK, False, (), 3)
    assert record.latency_s is not None
    assert 0.03 <= record.latency_s < record.closed_at
    assert gate.used == 0


FAILURES: dict[str, tuple[list[Any], str, str, int]] = {
    # the steps, the outcome, what the message contains, how many chunks there are
    "500": (whole({"error": {"message": "it broke", "code": 500}}, 500), "http_status", "HTTP 500: it broke", 0),
    "400 text": (whole("go away", 400, "text/plain"), "http_status", "HTTP 400: go away", 0),
    "401 string": (whole({"error": "Unauthorized"}, 401), "http_status", "HTTP 401: Unauthorized", 0),
    "404 detail": (whole({"detail": "Not Found"}, 404), "http_status", "HTTP 404: Not Found", 0),
    "429": (whole({"error": {"message": "slow down"}}, 429, Retry_After="1"), "rate_limited", "slow down", 0),
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
    "cut in an event": ([*stream(2, cut="close")[:-1], send(b"20\r\ndata: {"), ["close"]], "closed", "", 2),
    "cut, to be read to the end": (stream(2, cut="close", frame="close"), "truncated", "", 2),
    "reset": ([*stream(2, cut="close")[:-1], ["sleep", 30], ["reset"]], "reset", "ConnectionResetError", 2),
    "closed unanswered": ([["close"]], "closed", "", 0),
    "reset unanswered": ([["reset"]], "reset", "", 0),
    "no HTTP": ([send(b"SSH-2.0-OpenSSH\r\n"), ["stall"]], "malformed", "no HTTP", 0),
    "no JSON": ([send(head(Connection="close") + b"data: {broken\n\n"), ["close"]], "malformed", "broken", 0),
}


@pytest.mark.parametrize("what", FAILURES)
def test_failures_have_their_names_and_keep_what_came(scripted: Scripted, what: str) -> None:
    steps, outcome, message, chunks = FAILURES[what]
    gate, line = Gate(1), Line()
    record = exchange(line, gate, scripted.request(what, steps), 0.0)
    assert (record.outcome, len(record.chunk_us)) == (outcome, chunks)
    assert message in record.message
    assert record.failed
    assert gate.used == 0
    assert scripted.row(what).id == what  # and it was not sent a second time
    assert run(scripted, what + ", after", stream(1), line).outcome == OK


# -- time limits and kills -------------------------------------------------------------------------------------------------


def test_a_timeout_keeps_what_came(scripted: Scripted) -> None:
    line = Line()
    record = run(scripted, "stalled", stream(3, cut="stall"), line, timeout_s=0.6)
    assert (record.outcome, record.message, len(record.chunk_us)) == ("timeout", "not finished within 0.6 s", 3)
    assert record.sent_at is not None
    assert record.closed_at - record.sent_at >= 0.59
    assert line.connection is None
    assert scripted.row("stalled").end == "gone"


def test_a_server_that_never_answers(scripted: Scripted) -> None:
    gate = Gate(1)
    record = exchange(Line(), gate, scripted.request("silent", [["stall"]], timeout_s=0.1), 0.0)
    assert (record.outcome, record.chunk_us, record.headers_at, record.status) == ("timeout", (), None, None)
    assert gate.used == 0


def test_the_time_limit_holds_for_the_sending_too(scripted: Scripted) -> None:
    """The server reads nothing, and the body is larger than what lies on the way."""
    line, gate = Line(), Gate(1)
    request = scripted.request("unread", [["sleep", 2000]], unread=b"x" * 20_000_000, timeout_s=0.3)
    record = exchange(line, gate, request, 0.0)
    assert (record.outcome, gate.used, line.connection) == ("timeout", 0, None)


def test_killed_while_it_is_sent(scripted: Scripted) -> None:
    line, gate = Line(), Gate(1)
    request = scripted.request("unread-killed", [["sleep", 2000]], unread=b"x" * 20_000_000)
    job = gevent.spawn(exchange, line, gate, request, 0.0)
    until(lambda: gate.used)
    gevent.sleep(0.05)
    job.kill()
    assert job.value.record.outcome == "cut"
    assert (gate.used, line.connection) == (0, None)


def test_an_early_answer_to_a_large_body_is_heard(scripted: Scripted) -> None:
    too_large = whole({"error": {"message": "too large"}}, 413)
    line = Line()
    request = scripted.request("413", [*too_large, ["close"]], unread=b"x" * 20_000_000)
    record = exchange(line, Gate(), request, 0.0)
    assert (record.outcome, record.message) == ("http_status", "HTTP 413: too large")
    assert line.connection is None  # half of the body was not sent
    patient = scripted.request("413-open", [*too_large, ["sleep", 2000]], unread=b"x" * 20_000_000, timeout_s=0.6)
    record = exchange(line, Gate(), patient, 0.0)  # it neither reads nor closes
    assert (record.outcome, record.message) == ("http_status", "HTTP 413: too large")
    assert line.connection is None


def test_a_reset_during_a_large_body(scripted: Scripted) -> None:
    gate = Gate(1)
    request = scripted.request("reset-large", [["sleep", 20], ["reset"]], unread=b"x" * 20_000_000)
    record = exchange(Line(), gate, request, 0.0)
    assert (record.outcome, gate.used) == ("send_failed", 0)
    assert record.sent_at is not None


def test_no_connection_no_send(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ConnectFailed("refused", "scripted: refused")

    gate = Gate(1)
    monkeypatch.setattr(exchange_module, "Connection", refuse)
    record = exchange(Line(), gate, scripted.request("never", stream(1)), 0.0)
    assert (record.outcome, record.message, record.sent_at, record.admitted_at) == (
        "refused", "scripted: refused", None, None,
    )  # fmt: skip
    assert gate.used == 0


def test_a_connection_that_is_lost_in_the_queue_and_cannot_be_had_again(scripted: Scripted) -> None:
    gate, line = Gate(0), Line()
    job = gevent.spawn(exchange, line, gate, scripted.request("lost", stream(1)), 0.0)
    until(lambda: gate.waiting)
    line.close()

    def gone(_: Any) -> None:
        raise ConnectFailed("refused", "gone")

    line.open = gone  # type: ignore[assignment,method-assign]
    gate.set_limit(1)
    record = job.get()
    assert (record.outcome, record.sent_at, record.admitted_at is not None, gate.used) == ("refused", None, True, 0)


def test_killed_in_the_queue_is_no_record_and_no_slot(scripted: Scripted) -> None:
    gate = Gate(0)
    job = gevent.spawn(exchange, Line(), gate, scripted.request("queued", stream(1)), 0.0)
    until(lambda: gate.waiting)
    job.kill()
    assert isinstance(job.value, GreenletExit)
    assert not hasattr(job.value, "record")
    assert (gate.used, gate.waiting) == (0, 0)


def test_a_timeout_around_the_call_is_the_users_own(scripted: Scripted) -> None:
    gate = Gate(1)
    with pytest.raises(Timeout) as caught, Timeout(0.1) as theirs:
        exchange(Line(), gate, scripted.request("theirs", stream(2, cut="stall"), timeout_s=5), 0.0)
    assert caught.value is theirs
    assert caught.value.record.outcome == "cancelled"
    assert gate.used == 0


def test_one_request_at_a_time(scripted: Scripted) -> None:
    """Two on one connection would read each other's answer."""
    line = Line()
    job = gevent.spawn(run, scripted, "first", stream(2, first_ms=300), line)
    until(lambda: line.stream)
    with pytest.raises(RuntimeError, match="one request at a time"):
        run(scripted, "second", stream(2), line)
    assert job.get().outcome == OK
    assert run(scripted, "third", stream(2), line).outcome == OK


# -- the slot --------------------------------------------------------------------------------------------------------------


def test_the_slot_comes_back_with_the_first_chunk_not_with_headers_role_or_ping(scripted: Scripted) -> None:
    gate, line = Gate(1), Line()
    ping = [send(head(Transfer_Encoding="chunked")), send(chunked(b": ping\n\n")), ["sleep", 30]]
    steps = [
        *ping,
        send(chunked(event(delta(role="assistant", content="")))),
        ["sleep", 30],
        *stream(3, each_ms=30)[1:],
    ]
    freed: list[tuple[int, int]] = []

    def first(timed: Stream, labels: dict[str, Any]) -> None:
        assert labels["id"] == "slot"
        freed.append((gate.used, timed.stamps[timed.answer.chunk_reads[0]]))

    record = exchange(line, gate, scripted.request("slot", steps), 0.0, first)
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
    record = exchange(Line(), Gate(1), request, 0.0, lambda *all: called.append(all))
    assert record.failed
    assert called == []


def test_an_error_event_frees_the_slot_though_the_stream_stays_open(scripted: Scripted) -> None:
    gate = Gate(1)
    top, error = send(head(Transfer_Encoding="chunked")), send(chunked(event({"error": "no"})))
    steps = [top, ["sleep", 50], error, ["stall"]]
    job = gevent.spawn(exchange, Line(), gate, scripted.request("open-error", steps), 0.0)
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
        first = gevent.spawn(exchange, Line(), gate, scripted.request(prefix + "1", [["stall"]]), 0.0)
        until(partial(getattr, gate, "used"))
        second = gevent.spawn(exchange, Line(), gate, scripted.request(prefix + "2", stream(1)), 0.0)
        until(partial(getattr, gate, "waiting"))
        gevent.sleep(0.002)
        first.kill()
        sent_at = second.get().sent_at
        assert sent_at is not None
        assert sent_at >= first.value.record.closed_at


def test_a_connection_that_is_closed_during_the_wait_is_opened_again(scripted: Scripted) -> None:
    """Servers close idle connections; here after 0.3 s, and the gate opens after 0.9 s."""
    gate, lines = Gate(), [Line() for _ in range(5)]
    for number, line in enumerate(lines):
        steps = [*stream(1), ["linger", 0.3]]
        assert exchange(line, gate, scripted.request(f"linger{number}", steps), 0.0).outcome == OK
    gate.set_limit(0)
    jobs = [
        gevent.spawn(exchange, line, gate, scripted.request(f"waited{number}", stream(2)), 0.0)
        for number, line in enumerate(lines)
    ]
    gevent.sleep(0.9)
    gate.set_limit(2)
    records = [job.get() for job in jobs]
    assert {record.outcome for record in records} == {OK}
    assert all(record.connect_s is not None and record.gate_wait_s > 0.8 for record in records)
    rows = scripted.rows("waited", 5)
    assert all(len(same) == 1 for same in rows.values())
    assert len(rows) == 5


# -- the gate at a real server ---------------------------------------------------------------------------------------------


def short_run(server: Scripted, seed: int) -> None:
    """Users, a ramp that goes up and down, errors, cuts and kills; then the books of both sides are compared."""
    dice = random.Random(seed)
    prefix = f"run{seed}-"
    gate = Gate(dice.randint(1, 3))
    records: list[Record] = []
    sent: list[str] = []
    turned_away: list[str] = []
    killed_in_queue: list[str] = []

    def script() -> list[Any]:
        first_ms, tokens = dice.choice([0, 2, 5, 8]), dice.randint(1, 3)
        form = dice.choice(["fine", "fine", "fine", "close", "reset", "stall", "error", "500", "json", "early close"])
        if form == "500":
            return whole({"error": "no"}, 500, first_ms=first_ms)
        if form == "json":
            return whole({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}, first_ms=first_ms)
        if form == "error":
            return stream(dice.randint(0, 1), first_ms=first_ms, error="no")
        cut = form if form in ("close", "reset", "stall") else ""
        steps = stream(
            tokens if not cut else dice.randint(0, 2), first_ms=first_ms, each_ms=dice.choice([0, 2]), cut=cut
        )
        return [*steps, ["close"]] if form == "early close" else steps

    def user(number: int) -> None:
        line = Line()
        try:
            for turn in range(20):
                name = f"{prefix}{number}-{turn}"
                sent.append(name)
                request = server.request(name, script(), timeout_s=dice.choice([0.01, 0.03]))
                try:
                    records.append(exchange(line, gate, request, 0.0))
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
    gate.close()
    gevent.joinall(users, timeout=10, raise_error=True)

    assert (gate.used, gate.waiting) == (0, 0)
    assert sorted([record.id for record in records] + turned_away + killed_in_queue) == sorted(sent)
    by_id = {record.id: record for record in records}
    complete = {record.id for record in records if record.outcome == OK}
    gevent.sleep(0.02)  # longer than any script: the server has finished its rows, or nearly
    until(lambda: complete <= set(server.rows(prefix)))
    rows = server.rows(prefix)
    assert set(rows) <= set(by_id)
    assert all(len(same) == 1 for same in rows.values())  # no request came twice
    check_limit([row for same in rows.values() for row in same], by_id)


def check_limit(rows: list[Row], records: dict[str, Record]) -> None:
    """At each arrival no more are in prefill at the server than the highest limit at which one of them was admitted:
    so never more than the limit, and after a fall only those that were in before."""
    moments: list[tuple[int, int, str]] = []
    for row in rows:
        left = min([row.ended, int(records[row.id].closed_at * 1e9), *[before for before, _ in row.chunks[:1]]])
        if left > row.arrived:  # else it was given up before it came
            moments += [(row.arrived, 1, row.id), (left, 0, row.id)]
    inside: set[str] = set()
    for _, change, name in sorted(moments):  # those that leave first
        (inside.add if change else inside.discard)(name)
        assert len(inside) <= max((records[name].limit or 0 for name in inside), default=0)


@pytest.mark.parametrize("block", range(5))
def test_the_limit_holds_at_the_server_and_both_books_agree(scripted: Scripted, block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        short_run(scripted, seed)


def test_with_one_limit_the_servers_maximum_is_that(scripted: Scripted) -> None:
    gate = Gate(3)

    def user(number: int) -> None:
        line = Line()
        for turn in range(10):
            request: Request = scripted.request(f"three{number}-{turn}", stream(3, first_ms=5, each_ms=1))
            assert exchange(line, gate, request, 0.0).outcome == OK
        line.close()

    gevent.joinall([gevent.spawn(user, number) for number in range(8)], raise_error=True)
    rows = [row for same in scripted.rows("three", 80).values() for row in same]
    assert len(rows) == 80
    assert most_in_prefill(rows) == 3
