"""Agentic Mooncake: a row is a request, of ``request_id``, lengths, ``hash_ids``, and ``wait_for``
with ``delay`` and ``tool_wait_ms`` (ms); ai-dynamo/dynamo, lib/data-gen/src/mooncake.rs. Its
version 2 has a header and ``dependencies``."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from locust_llm.text.numbers import TOKENS
from locust_llm.workload.dataset_formats import (
    MAX_UNIX_S,
    Count,
    Id,
    RowError,
    Turn,
    Wait,
    decode_row,
)
from locust_llm.workload.session_trees import TreeError, link_turns
from locust_llm.workload.synthetic_prompts import BLOCK_TOKENS

from .recorded_session import RecordedSession, convert_row


class _Dependency(msgspec.Struct):
    request_id: str
    trigger: Literal["dispatch", "completion"] = "completion"
    delay_ms: Wait = 0.0


class _Request(msgspec.Struct):
    request_id: str
    input_length: Count
    output_length: Count
    session_id: str | None = None
    play_id: str | None = None
    hash_ids: tuple[Id, ...] | None = None
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=MAX_UNIX_S * 1e3)] | None = None
    not_before_ms: Annotated[float, msgspec.Meta(ge=0, le=MAX_UNIX_S * 1e3)] | None = None
    delay: Wait = 0.0
    tool_wait_ms: Wait = 0.0
    wait_for: list[str] = []
    dependencies: list[_Dependency] = []


def read_mooncake_names(fields: dict[str, Any]) -> list[str]:
    """The request, the requests that it waits for, and its session. The header of version 2 has
    none. Raises RowError."""
    if "schema" in fields:
        return []
    request = convert_row(fields, _Request)
    waits = [*request.wait_for, *(dependency.request_id for dependency in request.dependencies)]
    session = request.play_id or request.session_id
    return [
        *(f"request {name}" for name in (request.request_id, *waits)),
        *([f"session {session}"] if session else []),
    ]


def read_mooncake_session(rows: Sequence[tuple[bytes, int]], head: bytes) -> RecordedSession:
    """Contexts are whole. A request that waits for a dispatch waits for the same as the dispatched
    request."""
    block = _block_tokens(head)
    read: dict[str, tuple[_Request, int]] = {}
    for row, line in rows:
        request = convert_row(decode_row(row), _Request, line)
        if request.request_id in read:
            raise RowError(
                f"the request_id {request.request_id!r} occurs twice",
                field="request_id",
                line=line,
            )
        read[request.request_id] = request, line
    names = list(read)
    lines = [line for _, line in read.values()]
    afters, waits_ms = [], []
    for request, _ in read.values():
        after = list(request.wait_for)
        wait_ms = request.delay + request.tool_wait_ms
        for dependency in request.dependencies:
            beside = read.get(dependency.request_id)
            if dependency.trigger == "dispatch" and beside is not None:
                after += [
                    *beside[0].wait_for,
                    *(other.request_id for other in beside[0].dependencies),
                ]
            else:
                after.append(dependency.request_id)
            wait_ms = max(wait_ms, dependency.delay_ms)
        afters.append(after)
        waits_ms.append(wait_ms)
    times_ms = [
        request.timestamp if request.not_before_ms is None else request.not_before_ms
        for request, _ in read.values()
    ]
    times = [None if ms is None else ms / 1e3 for ms in times_ms]

    def label(number: int) -> str:
        return f"the request {names[number]!r}"

    try:
        order = link_turns(names, afters, times, label)
    except TreeError as wrong:
        raise RowError(str(wrong), field="request_id", line=lines[wrong.number]) from None
    turns = []
    for place, before in order:
        request, line = read[names[place]]
        turns.append(Turn(
            whole=True, input_tokens=request.input_length, output_tokens=request.output_length,
            block_tokens=block,
            hash_ids=request.hash_ids or (), at_s=times[place], delay_s=waits_ms[place] / 1e3,
            tool=request.tool_wait_ms > 0, after=before, row=line,
        ))  # fmt: skip
    first = read[names[order[0][0]]][0]
    return RecordedSession(first.play_id or first.session_id or first.request_id, turns)


def _block_tokens(head: bytes) -> int:
    """The header's block size, if the file has one."""
    first = decode_row(head)
    block = first.get("block_size", BLOCK_TOKENS) if "schema" in first else BLOCK_TOKENS
    if not isinstance(block, int) or not 0 < block <= TOKENS:
        raise RowError(
            f"block_size must be a whole number of tokens: {block!r}", field="block_size", line=1
        )
    return block
