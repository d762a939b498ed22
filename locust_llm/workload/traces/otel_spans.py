"""Spans: OpenTelemetry's traces of agents, exported as JSON, as turns.

A trace is a session. Rows may be of OTLP/JSON (``resourceSpans``; opentelemetry-proto, as the
collector's file exporter writes it), a span each (of OTLP, or as Python's ConsoleSpanExporter
prints it), or a trace each (``spans``; as kubernetes-sigs/inference-perf reads it,
docs/otel_trace_replay.md). What is a request, a tool or an agent is told by the attributes
``gen_ai.*`` (semantic-conventions-genai, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md,
execute-tool.md).

With ``gen_ai.input.messages`` a request is sent as it was. Else it has the recorded length, and
within one agent the shorter of two prompts is taken for the beginning of the longer: an agent's
context grows.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.text.numbers import (
    TOKENS,
    format_quoted_value,
    make_session_ids,
    parse_finite_number,
)
from locust_llm.workload.dataset_formats import (
    RowError,
    Turn,
    decode_row,
    parse_time_s,
    read_row_id,
)
from locust_llm.workload.session_trees import MAX_DEPTH, TreeError, order_spans_by_time
from locust_llm.workload.session_trees import RecordedSpan as Piece

INPUT: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT: Final = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "gen_ai.request.max_tokens",
)
"""The present name, then older ones."""
_CHAT: Final = ("chat", "text_completion", "generate_content")
_BLOCK_TOKENS: Final = 64
_ERROR: Final = (2, "ERROR", "STATUS_CODE_ERROR", "Error")


class _Span(NamedTuple):
    id: str
    parent: str
    start: float
    end: float
    attributes: dict[str, Any]
    failed: bool
    line: int

    @property
    def asks(self) -> bool:
        """The span is a request to a model."""
        operation = self.attributes.get("gen_ai.operation.name")
        if operation is None:
            return any(name in self.attributes for name in (*INPUT, "gen_ai.input.messages"))
        return operation in _CHAT

    @property
    def is_tool(self) -> bool:
        return self.attributes.get("gen_ai.operation.name") == "execute_tool"


def is_span_row(fields: Mapping[str, Any]) -> bool:
    if "resourceSpans" in fields or (
        "spans" in fields and _first(fields, "trace_id", "traceId") is not None
    ):
        return True
    return bool(_ids(fields)[0]) and "attributes" in fields


def read_trace_ids(row: bytes) -> list[str]:
    """The traces that have spans in this row. Raises RowError."""
    return list(_by_trace(row))


def read_span_turns(rows: Sequence[tuple[bytes, int]], trace: str) -> list[Turn]:
    """The requests of a trace. Raises RowError with its line."""
    spans_by_id: dict[str, _Span] = {}
    for row, line in rows:
        for fields in _by_trace(row).get(trace, ()):
            span = _read(fields, line)
            if span.id in spans_by_id:
                raise RowError(f"the span {span.id!r} occurs twice", field="spanId", line=line)
            spans_by_id[span.id] = span
    inner: dict[str, list[_Span]] = {}
    for span in spans_by_id.values():
        inner.setdefault(span.parent if span.parent in spans_by_id else "", []).append(span)
    pieces, reached = _pieces(inner, "", 0)
    if reached < len(spans_by_id):
        lost = next(span for span in spans_by_id.values() if _is_circle(span, spans_by_id))
        raise RowError(
            f"spans are parents of each other in a circle, such as {lost.id!r}",
            field="parentSpanId",
            line=lost.line,
        )
    try:
        placed = order_spans_by_time(pieces)
    except TreeError as wrong:
        raise RowError(str(wrong), line=rows[0][1]) from None
    turns = []
    for at, span_placed in enumerate(placed):
        span = span_placed.request
        line_after = (at - 1,) if at else ()
        turns.append(msgspec.structs.replace(
            _turn(span, trace), at_s=span_placed.start, delay_s=span_placed.wait_s, tool=span_placed.tool,
            after=None if span_placed.after == line_after else span_placed.after,
        ))  # fmt: skip
    return turns


def _is_circle(span: _Span, spans_by_id: Mapping[str, _Span]) -> bool:
    seen = set[str]()
    at = span
    while at.parent in spans_by_id and at.parent not in seen:
        seen.add(at.parent)
        at = spans_by_id[at.parent]
    return span.id in seen


def _pieces(inner: Mapping[str, list[_Span]], parent: str, depth: int) -> tuple[list[Piece], int]:
    """(the spans below a parent, their number). A span without any request in it is left out."""
    if depth > MAX_DEPTH:
        raise RowError(f"spans are nested more than {MAX_DEPTH} deep", line=inner[parent][0].line)
    made = list[Piece]()
    count = 0
    for span in inner.get(parent, ()):
        below, more = _pieces(inner, span.id, depth + 1)
        count += 1 + more
        start, end = span.start, span.end
        if span.asks:
            if not (span.failed and not _has_model_call(span)):
                made.append(Piece(start, end, span))
        elif any(not piece.tool for piece in below):
            start = min(start, *(p.start for p in below))
            end = max(end, *(p.end for p in below))
            made.append(Piece(start, end, inner=below))
        elif span.is_tool:
            made.append(Piece(start, end, tool=True))
        else:
            made += below  # tools, wrapped
    return made, count


def _has_model_call(span: _Span) -> bool:
    return bool(_count(span, INPUT)) or _first(span.attributes, "gen_ai.input.messages") is not None


def _turn(span: _Span, trace: str) -> Turn:
    messages = _messages(span)
    tokens = _count(span, INPUT)
    if messages is None and not tokens:
        raise RowError(
            f"the span {span.id!r} has neither gen_ai.usage.input_tokens nor gen_ai.input.messages",
            field="attributes", line=span.line,
        )  # fmt: skip
    # of one agent, and of those who ask the same model within the same parent, the prompts begin
    # alike
    agent = f"{trace}/{span.attributes.get('gen_ai.agent.id') or span.parent}"
    ids = (
        ()
        if messages is not None or tokens is None
        else make_session_ids(agent, range(tokens // _BLOCK_TOKENS))
    )
    return Turn(
        messages=messages, whole=True, input_tokens=tokens or None,
        output_tokens=_count(span, OUTPUT) or None,
        hash_ids=ids, block_tokens=_BLOCK_TOKENS, row=span.line,
    )  # fmt: skip


# -- how a span is written -------------------------------------------------------------------------


@lru_cache(1)
def _by_trace(row: bytes) -> dict[str, list[dict[str, Any]]]:
    """The last row that was read, by trace, as one row may hold many traces."""
    by_trace: dict[str, list[dict[str, Any]]] = {}
    fields = decode_row(row)
    outer = read_row_id(_first(fields, "trace_id", "traceId"))
    for span in _spans(fields):
        trace = _ids(span)[1] or outer
        if not trace:
            raise RowError("a span has no traceId", field="spanId")
        by_trace.setdefault(trace, []).append(span)
    return by_trace


def _spans(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "resourceSpans" in fields:
        for resource in _objects(fields["resourceSpans"], "resourceSpans"):
            name = "scopeSpans" if "scopeSpans" in resource else "instrumentationLibrarySpans"
            for scope in _objects(resource.get(name, []), name):
                yield from _objects(scope.get("spans", []), "spans")
    elif "spans" in fields:
        yield from _objects(fields["spans"], "spans")
    else:
        yield fields


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RowError(f"{name} must be a list of objects", field=name)
    return value


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _ids(span: Mapping[str, Any]) -> tuple[str, str]:
    """(id of the span, id of its trace); "" where there is none."""
    context = span.get("context")
    outer: Mapping[str, Any] = {**span, **context} if isinstance(context, dict) else span
    return read_row_id(_first(outer, "spanId", "span_id")), read_row_id(
        _first(outer, "traceId", "trace_id")
    )


def _read(span: dict[str, Any], line: int) -> _Span:
    id, _ = _ids(span)
    if not id:
        raise RowError("a span has no spanId", field="spans", line=line)
    start, end = (_time_s(span, id, line, *names) for names in (
        ("startTimeUnixNano", "start_time"), ("endTimeUnixNano", "end_time"),
    ))  # fmt: skip
    if end < start:
        raise RowError(
            f"the span {id!r} ends {start - end:g} s before it begins",
            field="endTimeUnixNano",
            line=line,
        )
    status = span.get("status")
    code = _first(status, "code", "status_code") if isinstance(status, dict) else status
    parent = read_row_id(_first(span, "parentSpanId", "parent_span_id", "parent_id"))
    return _Span(
        id, parent, start, end, _attributes(span.get("attributes"), id, line), code in _ERROR, line
    )


def _time_s(span: dict[str, Any], id: str, line: int, nanos: str, text: str) -> float:
    name = nanos if span.get(nanos) is not None else text
    value = span.get(name)
    try:
        return parse_time_s(value, name, unit_s=1e-9)
    except RowError as wrong:
        raise RowError(f"the span {id!r}: {wrong}", field=wrong.field, line=line) from None


def _attributes(attributes: Any, id: str, line: int) -> dict[str, Any]:
    """OTLP's attributes, a list of keys and typed values, as an object."""
    if attributes is None:
        return {}
    if isinstance(attributes, dict):
        return attributes
    if isinstance(attributes, list) and all(
        isinstance(attribute, dict) and isinstance(attribute.get("key"), str)
        for attribute in attributes
    ):
        return {attribute["key"]: _value(attribute.get("value"), 0) for attribute in attributes}
    raise RowError(
        f"the span {id!r}: attributes must be a list of keys and values",
        field="attributes",
        line=line,
    )


def _value(value: Any, depth: int) -> Any:
    """The value of an AnyValue."""
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return None
    kind, held = next(iter(value.items()), ("", None))
    if kind == "arrayValue" and isinstance(held, dict) and isinstance(held.get("values"), list):
        return [_value(value, depth + 1) for value in held["values"]]
    if kind == "kvlistValue" and isinstance(held, dict) and isinstance(held.get("values"), list):
        pairs = [value for value in held["values"] if isinstance(value, dict)]
        return {str(pair.get("key")): _value(pair.get("value"), depth + 1) for pair in pairs}
    return held


def _count(span: _Span, names: Sequence[str]) -> int | None:
    value = _first(span.attributes, *names)
    if value is None:
        return None
    count = parse_finite_number(value)
    if count is None or count < 0 or count != int(count) or count > TOKENS:
        name = next(name for name in names if span.attributes.get(name) is not None)
        raise RowError(
            f"the span {span.id!r}: {name} is not a whole number of tokens: {format_quoted_value(value)}",
            field="attributes",
            line=span.line,
        )
    return int(count)


def _messages(span: _Span) -> list[dict[str, Any]] | None:
    """The messages of the attribute, a JSON text or a list, with ``content`` or the conventions'
    ``parts``."""
    given = _decoded(span.attributes.get("gen_ai.input.messages"))
    if given is None:
        return None
    system = _decoded(span.attributes.get("gen_ai.system_instructions"))
    first = [{"role": "system", "parts": system}] if isinstance(system, list) and system else []
    is_list = isinstance(given, list) and all(isinstance(message, dict) for message in given)
    if not is_list or not given:
        raise RowError(
            f"the span {span.id!r}: gen_ai.input.messages is not a list of messages",
            field="attributes",
            line=span.line,
        )
    messages = list(chain.from_iterable(map(_message, (*first, *given))))
    if not messages or not all(isinstance(message["role"], str) for message in messages):
        raise RowError(
            f"the span {span.id!r}: a message has no role", field="attributes", line=span.line
        )
    return messages


def _message(message: dict[str, Any]) -> list[dict[str, Any]]:
    role = message.get("role")
    parts = message.get("parts")
    if not isinstance(parts, list):
        kept_fields = ("content", "tool_calls", "tool_call_id", "name")
        return [{"role": role, **{name: message[name] for name in kept_fields if name in message}}]
    parts = [part for part in parts if isinstance(part, dict)]
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    if results:
        return [
            {
                "role": "tool",
                "tool_call_id": str(part.get("id")),
                "content": _text(_first(part, "response", "result")),
            }
            for part in results
        ]
    calls = [
        {"id": str(part.get("id")), "type": "function",
         "function": {"name": str(part.get("name")), "arguments": _text(part.get("arguments"))}}
        for part in parts if part.get("type") == "tool_call"
    ]  # fmt: skip
    text = "\n".join(
        _text(part.get("content")) for part in parts if part.get("type", "text") == "text"
    )
    return [{"role": role, "content": text, **({"tool_calls": calls} if calls else {})}]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return [{"role": "user", "content": value}] if value else None
