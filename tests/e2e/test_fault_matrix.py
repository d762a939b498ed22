"""The faults of answers with each protocol: what the run says of them;
benchmarks/faults.md has the table."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from support.scripted import Scripted, Step, chunked, event, head, send, whole

from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

# the last test looks at what all the others saw
pytestmark = pytest.mark.xdist_group("fault_matrix")

BEGIN = "<!-- faults: made by tests/e2e/test_fault_matrix.py -->"
END = "<!-- faults: end -->"
PAGE = Path(__file__).parents[2] / "benchmarks" / "faults.md"
INPUTS = 4
DONE = event("[DONE]")
DIED = "engine died"


def typed(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


class Form(NamedTuple):
    """What a server sends of one protocol; the last four are bodies of answers in one piece."""

    token: Callable[[int], bytes]
    end: Callable[[str, int], bytes]
    """Of a reason, in the words of chat completions, and a number of tokens."""
    failure: bytes
    """An error in the stream, and what comes behind it."""
    broken_off: bytes
    """An end that says that the answer was broken off."""


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None, **fields}]}


def chat_end(empty: dict[str, Any]) -> Callable[[str, int], bytes]:
    return lambda reason, tokens: (
        event(
            {
                **choice(**empty, finish_reason=reason),
                "usage": {"prompt_tokens": 7, "completion_tokens": tokens},
            }
        )
        + DONE
    )


def responses_end(reason: str, tokens: int) -> bytes:
    status = {"length": "incomplete", "stop": "completed"}.get(reason, reason)
    why = {"reason": "max_output_tokens"} if reason == "length" else None
    usage = {"input_tokens": 7, "output_tokens": tokens}
    return typed(
        f"response.{status}", response={"status": status, "incomplete_details": why, "usage": usage}
    )


def messages_end(reason: str, tokens: int) -> bytes:
    reason = {"length": "max_tokens", "stop": "end_turn"}[reason]
    return typed(
        "message_delta", delta={"stop_reason": reason}, usage={"output_tokens": tokens}
    ) + typed("message_stop")


ERROR = event({"error": {"message": DIED, "code": 500}})
FORMS: dict[str, Form] = {
    "chat": Form(
        lambda number: event(choice(delta={"content": f"w{number}"})), chat_end({"delta": {}}),
        ERROR + DONE,
        chat_end({"delta": {}})("abort", 3),
    ),
    "completions": Form(
        lambda number: event(choice(text=f"w{number}")), chat_end({"text": ""}), ERROR + DONE,
        chat_end({"text": ""})("abort", 3),
    ),
    "responses": Form(
        lambda number: typed("response.output_text.delta", delta=f"w{number}"), responses_end,
        typed("error", code="server_error", message=DIED), responses_end("cancelled", 3),
    ),
    "messages": Form(
        lambda number: typed("content_block_delta", index=0,
            delta={"type": "text_delta", "text": f"w{number}"}),
        messages_end,
        typed("error", error={"type": "overloaded_error", "message": DIED}),
        typed("error", error={"type": "api_error", "message": DIED}),
    ),
}  # fmt: skip
VECTORS: dict[str, Callable[[int], dict[str, Any]]] = {
    "embeddings": lambda count: {"data": [{"index": i, "embedding": [0.5]} for i in range(count)]},
    "rerank": lambda count: {"results": [{"index": i,
        "relevance_score": 0.5} for i in range(count)]},
}  # fmt: skip
PROTOCOLS = (*FORMS, *VECTORS)


def streamed(form: Form, tokens: int, *last: bytes, ends: bool = True) -> list[Step]:
    """The answer's head, so many tokens, and these events; ``ends``: so does the HTTP message."""
    opening = b"".join(chunked(form.token(number)) for number in range(tokens))
    return [
        send(head(Transfer_Encoding="chunked") + opening),
        send(b"".join(map(chunked, last)) + (chunked(b"") if ends else b"")),
    ]


Limits = tuple[tuple[str, float], ...]


class Fault(NamedTuple):
    what: str
    of_stream: Callable[[Form], list[Step]] | None
    of_vectors: Callable[[Callable[[int], dict[str, Any]]], list[Step]] | None = None
    limits: Limits = ()


def half(body: dict[str, Any]) -> list[Step]:
    """Half of a body, and the end of the connection."""
    data = json.dumps(body).encode()
    return [
        send(head(200, "application/json", Content_Length=str(len(data))) + data[: len(data) // 2])
    ]


def both(steps: list[Step]) -> tuple[Callable[[Form], list[Step]], Callable[[Any], list[Step]]]:
    return (lambda form: steps), (lambda make: steps)


FAULTS: tuple[Fault, ...] = (
    Fault("none: three tokens, an end", lambda form: streamed(form, 3, form.end("length", 3)),
          lambda make: whole(make(INPUTS))),
    Fault("HTTP 500", *both(whole({"error": {"message": DIED}}, 500))),
    Fault("HTTP 429", *both(whole({"error": {"message": "slow down"}}, 429))),
    Fault("HTTP 503, plain text", *both(whole("busy", 503, "text/plain"))),
    Fault("error in the stream after three tokens", lambda form: streamed(form, 3, form.failure)),
    Fault("error instead of the first token", lambda form: streamed(form, 0, form.failure)),
    Fault("error in a JSON answer with status 200", *both(whole({"error": {"message": DIED}}))),
    Fault("an end that says it was broken off", lambda form: streamed(form, 3, form.broken_off)),
    Fault("the stream ends without an end", lambda form: streamed(form, 3)),
    Fault("connection closed in the middle",
        lambda form: [*streamed(form, 3, ends=False), ["close"]],
          lambda make: [*half(make(INPUTS)), ["close"]]),
    Fault("connection reset in the middle",
        lambda form: [*streamed(form, 3, ends=False), ["sleep", 20], ["reset"]],
          lambda make: [*half(make(INPUTS)), ["sleep", 20], ["reset"]]),
    Fault("bad JSON", lambda form: streamed(form, 3, b"data: {broken\n\n", form.end("stop", 3)),
          lambda make: whole('{"data": [')),
    Fault("an HTML page with status 200", *both(whole("<html>welcome</html>", 200, "text/html"))),
    Fault("JSON of something else", *both(whole({"hello": "world"}))),
    Fault("the events of another protocol",
          lambda form: streamed(next(other for other in FORMS.values() if other.token(0)[:5] != form.token(0)[:5]), 3)),
    Fault("finished, no content, 5 tokens counted",
        lambda form: streamed(form, 0, form.end("stop", 5))),
    Fault("the model ends at once (1 token counted)",
        lambda form: streamed(form, 0, form.end("stop", 1))),
    Fault("fewer vectors than inputs", None, lambda make: whole(make(INPUTS - 1))),
    Fault("no vector or score at all", None, lambda make: whole(make(0))),
    Fault("no first token in time", lambda form: [*streamed(form, 0, ends=False), ["stall"]], None,
          (("first_token_timeout_s", 0.1),)),
    Fault("silence in the middle", lambda form: [*streamed(form, 3, ends=False), ["stall"]], None,
          (("gap_timeout_s", 0.1),)),
    Fault("not over in time", lambda form: [*streamed(form, 3, ends=False), ["stall"]],
          lambda make: [*half(make(INPUTS)), ["stall"]], (("timeout_s", 0.1),)),
)  # fmt: skip


def cell(record: Record | None) -> str:
    """Its outcome, and how many tokens were kept."""
    if record is None:
        return ""
    return f"`{record.outcome}`" + (f" ({len(record.chunk_us)})" if record.chunk_us else "")


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], Record | None]:
    return {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_with_each_protocol(
    scripted: Scripted, table: dict[tuple[str, str], Record | None], fault: Fault
) -> None:
    for kind in PROTOCOLS:
        steps = None
        if kind in FORMS and fault.of_stream is not None:
            steps = fault.of_stream(FORMS[kind])
        elif kind in VECTORS and fault.of_vectors is not None:
            steps = fault.of_vectors(VECTORS[kind])
        if steps is None:
            table[fault.what, kind] = None
            continue
        gate, line = Gate(1), UserConnection()
        request = scripted.request(f"{kind}: {fault.what}", steps, kind=kind, **dict(fault.limits))
        if kind in VECTORS:
            request = replace(request, labels=request.labels | {"inputs": INPUTS})
        record = table[fault.what, kind] = exchange_request(line, gate, request, 0.0)
        line.close()
        assert (gate.used, gate.waiting) == (0, 0)
        assert (record.outcome == OK) == (not record.failed)
        if (record.status or 0) < 300 and DIED in str(steps) and record.failed:
            assert DIED in record.error, (kind, record.error)


def markdown(table: dict[tuple[str, str], Record | None]) -> Iterator[str]:
    yield "| fault | " + " | ".join(f"`{kind}`" for kind in PROTOCOLS) + " |"
    yield "|---" * (len(PROTOCOLS) + 1) + "|"
    for fault in FAULTS:
        yield (
            f"| {fault.what} | "
            + " | ".join(cell(table[fault.what, kind]) for kind in PROTOCOLS)
            + " |"
        )


def test_the_table_is_whole_and_in_the_docs(table: dict[tuple[str, str], Record | None]) -> None:
    if len(table) < len(FAULTS) * len(PROTOCOLS):
        pytest.skip("needs all tests of this file")
    made = "\n".join(markdown(table))
    print(made)
    if not PAGE.is_file():
        pytest.skip("only a checkout has docs/")
    assert made == PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
