"""Every fault, once: what the run says of it, when its slot comes back, what its record keeps;
benchmarks/faults.md has it."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gevent
import pytest
from gevent import GreenletExit
from msgspec.structs import replace
from support.scripted import Scripted, chunked, delta, event, head, send, stream, whole

from locust_llm.client import request_exchange as module
from locust_llm.client.connection import Target
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import make_target
from locust_llm.gate.gate import Gate
from locust_llm.records.failure_kinds import generalise_failure_message
from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.record import Record

pytestmark = pytest.mark.xdist_group("faults")  # the last test looks at what all the others saw

BEGIN = "<!-- faults: made by tests/e2e/test_faults.py -->"
END = "<!-- faults: end -->"
PAGE = Path(__file__).parents[2] / "benchmarks" / "faults.md"

ERROR = {"message": "engine died, request 7f3a9", "code": 500}
PAUSE_MS = 60
"""Between the tokens and what goes wrong: else a slot that came back at the first token looks as if
it had not."""
SOME = [*stream(3, cut="close")[:-1], ["sleep", PAUSE_MS]]
"""Three tokens, and no end."""
OPEN = [send(head(Transfer_Encoding="chunked"))]


def last(*events: Any) -> list[Any]:
    """The last events, and the end of the answer."""
    return [
        send(
            b"".join(chunked(data if isinstance(data, bytes) else event(data)) for data in events)
            + chunked(b"")
        )
    ]


def finished(tokens: int) -> dict[str, Any]:
    """Without content."""
    return {**delta("stop"), "usage": {"completion_tokens": tokens}}


MORE = [send(chunked(b": " + b"x" * 60_000 + b"\n\n")), ["stall"]]
"""So much that it is decoded at once."""
STAYS_OPEN = [send(chunked(event(delta("stop")) + event("[DONE]"))), ["stall"]]


class Fault(NamedTuple):
    what: str
    """In the words of the page."""
    steps: list[Any]
    limits: tuple[tuple[str, int | float], ...] = ()


FAULTS: tuple[Fault, ...] = (
    Fault("HTTP 500", whole({"error": ERROR}, 500)),
    Fault("HTTP 429, Retry-After 7",
        whole({"error": {"message": "slow down"}}, 429, Retry_After="7")),
    Fault("HTTP 503, plain text", whole("busy", 503, "text/plain")),
    Fault("redirect to another host",
        whole("", 307, Location="http://elsewhere/v1/chat/completions")),
    Fault("error object in the stream, then `[DONE]` (vLLM)",
        stream(3, error=ERROR, end_ms=PAUSE_MS)),
    Fault("error as a string in the stream (transformers)",
        stream(3, error="out of blocks", done=False, end_ms=PAUSE_MS)),
    Fault("`event: error`", [*SOME, *last(b"event: error\ndata: overloaded\n\n")]),
    Fault("a field `error` in the stream (llama.cpp until 2025)",
        [*SOME, *last(b'error: {"message": "no context"}\n\n')]),
    Fault("`event: error` with a comment (Dynamo)",
        [*SOME, *last(b"event: error\n: overloaded\n\n")]),
    Fault("flat: `message` and `code` in the stream",
        [*SOME, *last({"code": 500, "message": "out of memory"})]),
    Fault("JSON of an error under `text/event-stream`",
        whole({"error": ERROR}, 200, "text/event-stream")),
    Fault("error instead of the first token", stream(0, error=ERROR)),
    Fault("error in a JSON answer with status 200", whole({"error": ERROR})),
    Fault("finish_reason `abort`", [*SOME, *last(delta("abort"))]),
    Fault("no finish_reason, though `[DONE]`", stream(3, finish="", usage="", end_ms=PAUSE_MS)),
    Fault("connection closed in the middle", [*SOME, ["close"]]),
    Fault("connection reset in the middle", [*SOME, ["reset"]]),
    Fault("closed before any answer", [["close"]]),
    Fault("bad JSON in an event", [*SOME, *last(b"data: {broken\n\n")]),
    Fault("an HTML page with status 200", whole("<html>welcome</html>", 200, "text/html")),
    Fault("no HTTP at all", [send(b"SSH-2.0-OpenSSH\r\n"), ["close"]]),
    Fault("an event without end", [*OPEN, send(chunked(b"data: " + b"x" * 90_000)), ["stall"]],
          (("max_response_bytes", 80_000),)),
    Fault("compressed, unasked", [send(head(Content_Encoding="gzip",
        Content_Length="3") + b"\x1f\x8b\x08")]),
    Fault("finished, no content, 5 tokens counted", [*OPEN, *last(finished(5))]),
    Fault("the model ends at once (1 token counted)", [*OPEN, *last(finished(1))]),
    Fault("no first token in time", stream(0, cut="stall"), (("first_token_timeout_s", 0.1),)),
    Fault("silence in the middle", stream(3, cut="stall"), (("gap_timeout_s", 0.1),)),
    Fault("not over in time", stream(3, cut="stall"), (("timeout_s", 0.1),)),
    Fault("more than `--max-response-bytes`", [*SOME, *MORE], (("max_response_bytes", 20_000),)),
    Fault("many times the tokens that were asked for", [*SOME, *MORE], (("max_chunks", 2),)),
    Fault("`[DONE]`, and the connection stays open", [*stream(3, cut="stall")[:-1], *STAYS_OPEN]),
    Fault("cancelled on purpose", stream(3, cut="stall"), (("cancel_after_s", 0.1),)),
)  # fmt: skip
SPECIAL = (
    "nobody listens", "no such host", "TLS with a stranger's certificate", "no connection in time",
    "half of the request written, then reset", "still running when the grace period is over",
)  # fmt: skip


class Seen(NamedTuple):
    """A row of the table, as it was observed."""

    what: str
    says: str
    slot: str
    keeps: str


def slot(record: Record) -> str:
    if record.admitted_at is None:
        return "never taken"
    if record.chunk_us and record.freed_at is not None and record.freed_at < record.closed_at:
        return "back at the first token"
    return "back with the failure" if record.failed else "back with the end"


def keeps(record: Record) -> str:
    if record.sent_at is None:
        return "never sent"
    parts = [f"HTTP {record.status}"] if record.status is not None else []
    if record.retry_after_s is not None:
        parts.append(f"Retry-After {record.retry_after_s:g} s")
    if record.ttft_s is not None:
        parts.append(f"TTFT, {record.output_tokens} tokens ({record.tokens_from})")
    elif record.output_tokens is not None:
        parts.append(f"{record.output_tokens} tokens ({record.tokens_from})")
    if record.broke_in:
        parts.append(f"broke in: {record.broke_in}")
    return ", ".join(parts)


def seen(what: str, record: Record) -> Seen:
    name = (
        f"ok: {record.error}"
        if record.outcome == OK
        else f"{record.outcome}: {generalise_failure_message(record.error)}"
    )
    return Seen(what, name, slot(record), keeps(record))


@pytest.fixture(scope="module")
def table() -> dict[str, Seen]:
    return {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_of_the_servers(scripted: Scripted, table: dict[str, Seen], fault: Fault) -> None:
    gate, line = Gate(1), UserConnection()
    record = exchange_request(
        line, gate, scripted.request(f"fault: {fault.what}", fault.steps, **dict(fault.limits)), 0.0
    )
    table[fault.what] = seen(fault.what, record)
    check_after(scripted, gate, line, fault.what)


def special(
    scripted: Scripted, tls: Scripted, what: str
) -> tuple[Gate, UserConnection, Callable[[], Record]]:
    gate, line = Gate(1), UserConnection()
    request = scripted.request(f"fault: {what}", stream(1))
    if what == "nobody listens":
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            to = Target("127.0.0.1", nobody.getsockname()[1])
            record = exchange_request(line, gate, replace(request, target=to), 0.0)
        return gate, line, lambda: record
    if what == "no such host":
        return (
            gate,
            line,
            lambda: exchange_request(
                line, gate, replace(request, target=Target("no.such.host.invalid", 80)), 0.0
            ),
        )
    if what.startswith("TLS"):
        to = make_target(f"https://127.0.0.1:{tls.ports['tls']}/", True, None)
        return gate, line, lambda: exchange_request(line, gate, replace(request, target=to), 0.0)
    if what == "half of the request written, then reset":
        large = scripted.request(
            f"fault: {what}", [["sleep", 20], ["reset"]], unread=b"x" * 20_000_000
        )
        return gate, line, lambda: exchange_request(line, gate, large, 0.0)
    job = gevent.spawn(
        exchange_request,
        line,
        gate,
        scripted.request(f"fault: {what}", stream(3, cut="stall")),
        0.0,
    )
    gevent.sleep(0.2)
    job.kill()
    assert isinstance(job.value, GreenletExit)
    return gate, line, lambda: job.value.record


@pytest.mark.parametrize("what", [what for what in SPECIAL if what != "no connection in time"])
def test_a_fault_on_the_way(
    scripted: Scripted, scripted_tls: Scripted, table: dict[str, Seen], what: str
) -> None:
    gate, line, record = special(scripted, scripted_tls, what)
    table[what] = seen(what, record())
    check_after(scripted, gate, line, what)


def test_no_connection_in_time(
    scripted: Scripted, table: dict[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener whose queue is full drops what asks for a connection."""
    what = "no connection in time"
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for some in (one, two):
            some.setblocking(False)
            some.connect_ex(full.getsockname())
        gate, line = Gate(1), UserConnection()
        to = Target("127.0.0.1", full.getsockname()[1])
        table[what] = seen(
            what,
            exchange_request(
                line, gate, replace(scripted.request(f"fault: {what}", []), target=to), 0.0
            ),
        )
    check_after(scripted, gate, line, what)


def check_after(scripted: Scripted, gate: Gate, line: UserConnection, what: str) -> None:
    """No slot is held, and the next request of the same user is as good as any."""
    assert (gate.used, gate.waiting) == (0, 0)
    after = exchange_request(line, gate, scripted.request(f"fault: {what}, after", stream(1)), 0.0)
    assert (after.outcome, gate.used) == (OK, 0)
    line.close()


def markdown(table: dict[str, Seen]) -> str:
    rows = [table[what] for what in [fault.what for fault in FAULTS] + list(SPECIAL)]
    lines = ["| fault | what the run says | its slot | its record keeps |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row.what} | `{cut(row.says)}` | {row.slot} | {row.keeps} |")
    return "\n".join(lines)


def cut(says: str) -> str:
    says = re.sub("^send_failed: .*", "send_failed: ConnectionResetError, or BrokenPipeError", says)
    says = says.replace("|", "/").replace("`", "'")
    return says if len(says) <= 90 else says[:89] + "…"


def test_the_table_is_whole_and_in_the_docs(table: dict[str, Seen]) -> None:
    if len(table) < len(FAULTS) + len(SPECIAL):
        pytest.skip("needs all tests of this file")
    made = markdown(table)
    print(made)
    shown = {row.says.partition(":")[0] for row in table.values()}
    assert (
        shown
        >= set(FAILURES)
        - {
            "no_socket",
            "proxy",
            "unreachable",
            "client_error",
            "unnamed",
        }
    )  # which take a machine that is out of files or networks, a mistake of ours, or another tool's result
    if not PAGE.is_file():
        pytest.skip("only a checkout has docs/")
    assert made == PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
