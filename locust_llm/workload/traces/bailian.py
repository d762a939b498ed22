"""Bailian: a row is a request, of ``timestamp`` (s), lengths, ``hash_ids`` of 16 tokens each, and
``chat_id``, which a later row names as its ``parent_chat_id``;
alibaba-edu/qwen-bailian-usagetraces-anon."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from locust_llm.workload.dataset_formats import MAX_UNIX_S, Count, Id, RowError, Turn, decode_row
from locust_llm.workload.session_trees import TreeError, link_turns

from .recorded_session import RecordedSession, convert_row, simplify_turns

BLOCK_TOKENS: Final = 16


class _Request(msgspec.Struct):
    input_length: Count
    output_length: Count
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=MAX_UNIX_S)] | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    hash_ids: tuple[Id, ...] | None = None

    @property
    def parent(self) -> int | str | None:
        """None: the row begins a conversation."""
        return None if self.parent_chat_id in (-1, "-1", "") else self.parent_chat_id


def is_bailian_row(fields: dict[str, Any]) -> bool:
    return "chat_id" in fields and "parent_chat_id" in fields and "input_length" in fields


def read_bailian_names(row: bytes) -> list[str]:
    """The request and the one that it goes on from. A row without a name gets its own. Raises
    RowError."""
    request = convert_row(decode_row(row), _Request)
    if request.chat_id is None:
        return [f"row {hash(row)}"]
    return [f"chat {name}" for name in (request.chat_id, request.parent) if name is not None]


def read_bailian_session(rows: Sequence[tuple[bytes, int]]) -> RecordedSession:
    """Contexts are whole. A turn waits for its own time and for the answer before it. Where a file
    begins in the middle of a conversation, it waits for its time alone."""
    read = [(convert_row(decode_row(row), _Request, line), line) for row, line in rows]
    names = [
        f"line {line}" if request.chat_id is None else str(request.chat_id)
        for request, line in read
    ]
    known = set(names)
    parents = [str(request.parent) for request, _ in read]
    afters = [[parent] if parent in known else [] for parent in parents]
    times = [request.timestamp for request, _ in read]
    try:
        order = link_turns(names, afters, times, lambda number: f"the request {names[number]!r}")
    except TreeError as wrong:
        raise RowError(str(wrong), field="chat_id", line=read[wrong.number][1]) from None
    turns = []
    for place, before in order:
        request, line = read[place]
        turns.append(Turn(
            whole=True, input_tokens=request.input_length, output_tokens=request.output_length,
            at_s=request.timestamp,
            hash_ids=request.hash_ids or (), block_tokens=BLOCK_TOKENS, after=before, row=line,
        ))  # fmt: skip
    return RecordedSession(names[order[0][0]], simplify_turns(turns))
