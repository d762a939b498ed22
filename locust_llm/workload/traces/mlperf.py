"""MLPerf: a row is a message, of ``conversation_id``, ``turn``, ``role``; mlcommons/endpoints,
scripts/agentic_inference_dataset_schema.json 1.0.0."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from locust_llm.text.numbers import SECONDS
from locust_llm.workload.dataset_formats import (
    Count,
    RowError,
    Turn,
    decode_row,
    select_body_fields,
)

from .recorded_session import convert_row

_NEXT: Final = {
    "": ("user",),
    "user": ("assistant",),
    "assistant": ("tool", "user"),
    "tool": ("assistant", "user"),
}
"""The roles that may follow each role."""


class _Result(msgspec.Struct):
    tool_call_id: str
    content: str


class _Message(msgspec.Struct):
    turn: Annotated[int, msgspec.Meta(ge=1)]
    role: Literal["user", "assistant", "tool"]
    content: str | list[Any] | None = None
    system: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_results: list[_Result] | None = None
    reasoning_content: str | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=SECONDS)] | None = None
    max_new_tokens: Count | None = None
    max_completion_tokens: Count | None = None


def read_mlperf_turns(rows: Sequence[tuple[bytes, int]]) -> list[Turn]:
    """A turn for each row of a user or a tool. The answers of the file go into the history, as in
    MLPerf's own client."""
    read = []
    for data, line in rows:
        fields = decode_row(data)
        read.append((convert_row(fields, _Message, line), fields, line))
    read.sort(key=lambda row: row[0].turn)
    turns: list[Turn] = []
    system = next((row.system for row, _, _ in read if row.system), None)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    tools: Any = None
    role = ""
    for number, (row, fields, line) in enumerate(read, 1):
        if row.turn != number:
            raise RowError(
                f"turn {row.turn}, but the next one must be {number}", field="turn", line=line
            )
        if row.role not in _NEXT[role]:
            before = f"after the role {role!r}" if role else "first"
            raise RowError(f"the role {row.role!r} comes {before}", field="role", line=line)
        role = row.role
        if role == "assistant":
            turns[-1] = msgspec.structs.replace(turns[-1], recorded=_answer(row, line))
            continue
        messages += _make_messages(row, line)
        tools = fields.get("tools") or tools
        turns.append(Turn(
            messages=messages, output_tokens=row.max_new_tokens or row.max_completion_tokens,
            recorded={},
            delay_s=row.delay_seconds, tool=role == "tool", row=line,
            body={key: value for key, value in {**select_body_fields(fields),
                "tools": tools}.items() if value and key != "model"},
        ))  # fmt: skip
        messages = []
    return turns


def _make_messages(row: _Message, line: int) -> list[dict[str, Any]]:
    if row.role == "tool":
        if not row.tool_results:
            raise RowError("a tool's row needs tool_results", field="role", line=line)
        return [
            {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.content}
            for result in row.tool_results
        ]
    if not row.content:
        raise RowError("a user's row needs content", field="role", line=line)
    return [{"role": "user", "content": row.content}]


def _answer(row: _Message, line: int) -> dict[str, Any]:
    if row.content is None and not row.tool_calls:
        raise RowError("an assistant's row needs content or tool_calls", field="role", line=line)
    more = {"tool_calls": row.tool_calls, "reasoning_content": row.reasoning_content}
    return {
        "role": "assistant",
        "content": row.content,
        **{key: value for key, value in more.items() if value},
    }
