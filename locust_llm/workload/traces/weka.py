"""Weka: a row is a session, ``requests`` of ``t`` (s), ``in``, ``out``, ``hash_ids``, ``api_time``,
``think_time``; those of type ``subagent`` have ``requests`` of their own.

kv-cache-tester, docs/trace_replay_tester.md (2026-07) and its traces; AIPerf,
docs/tutorials/weka-trace.md, for the two kinds of times in sub-agents.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from locust_llm.text.numbers import SECONDS, TOKENS, make_session_ids
from locust_llm.workload.dataset_formats import (
    Count,
    Id,
    RowError,
    Turn,
    Wait,
    decode_row,
    read_row_id,
)
from locust_llm.workload.session_trees import RecordedSpan, TreeError, order_spans_by_time

from .recorded_session import RecordedSession, convert_row, simplify_turns

BLOCK_TOKENS: Final = 64
CLOCK_S: Final = 1.0
"""Times are often whole seconds: a time that is too early by this much is not early."""
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS)]


class _Entry(msgspec.Struct, rename={"input_tokens": "in", "output_tokens": "out"}):
    t: _Seconds
    type: Literal["n", "s", "subagent"] = "n"
    input_tokens: Annotated[int, msgspec.Meta(ge=0, le=TOKENS)] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=0, le=TOKENS)] | None = None
    hash_ids: tuple[Id, ...] = ()
    api_time: _Seconds | None = None
    think_time: _Seconds | None = None
    duration_ms: Wait | None = None
    input_types: list[str] | None = None
    requests: "list[_Entry] | None" = None


class _Weka(msgspec.Struct):
    requests: Annotated[list[_Entry], msgspec.Meta(min_length=1)]
    id: Any = None
    block_size: Count = BLOCK_TOKENS
    hash_id_scope: str = "local"


def read_weka_session(row: bytes, line: int) -> RecordedSession:
    """Contexts are whole. A sub-agent's times count from its beginning (kv-cache-tester) if one of
    them would lie before it, else from the session's (SemiAnalysis)."""
    trace = convert_row(decode_row(row), _Weka)
    name = read_row_id(trace.id)
    agents = [agent for agent in _agents(trace.requests) if agent.requests]
    relative = any(map(_begins_before_agent, agents))
    origin = "their beginning" if relative else "the beginning of the session"
    about = f"times of sub-agents from {origin}"
    turns = []
    try:
        placed = order_spans_by_time(_weka_spans(trace.requests, 0.0, relative, "requests"))
    except TreeError as wrong:
        raise RowError(str(wrong), field="requests") from None
    for node in placed:
        entry, previous = node.request
        parents = [placed[parent].request[0] for parent in node.after]
        alone = previous is not None and parents == [previous]
        wait_s = entry.think_time if alone and entry.think_time is not None else node.wait_s
        ids = (
            entry.hash_ids
            if trace.hash_id_scope == "global"
            else make_session_ids(name or str(line), entry.hash_ids)
        )
        turns.append(Turn(
            whole=True, input_tokens=entry.input_tokens, output_tokens=entry.output_tokens or 1,
            hash_ids=ids,
            block_tokens=trace.block_size, at_s=node.start, delay_s=wait_s, after=node.after,
            tool="tool_result" in (entry.input_types or ()), row=line,
        ))  # fmt: skip
    return RecordedSession(name, simplify_turns(turns), about if agents else "")


def _agents(entries: list[_Entry]) -> Iterable[_Entry]:
    for entry in entries:
        if entry.type == "subagent":
            yield entry
            yield from _agents(entry.requests or [])


def _begins_before_agent(agent: _Entry) -> bool:
    """Whether a request has an earlier time than the sub-agent that sends it."""
    return any(entry.t < agent.t - CLOCK_S for entry in agent.requests or ())


def _weka_spans(
    entries: list[_Entry], since_s: float, relative: bool, where: str
) -> list[RecordedSpan]:
    made: list[RecordedSpan] = []
    previous = None
    for number, entry in enumerate(entries):
        start = since_s + entry.t
        if entry.type == "subagent":
            inside = f"{where}[{number}].requests"
            inner = _weka_spans(
                entry.requests or [], start if relative else since_s, relative, inside
            )
            start = min([start, *(span.start for span in inner)])
            end = max([start + (entry.duration_ms or 0.0) / 1e3, *(span.end for span in inner)])
            made.append(RecordedSpan(start, end, inner=inner))
            continue
        if entry.input_tokens is None or entry.output_tokens is None:
            raise RowError(f"{where}[{number}] needs in and out", field="requests")
        if not entry.input_tokens:
            continue  # it had failed
        # a time in whole seconds was cut: with the duration cut too, what follows does not seem to
        # begin before the end
        took_s = entry.api_time or 0.0
        end = start + (int(took_s) if entry.t == int(entry.t) else took_s)
        made.append(RecordedSpan(start, end, (entry, previous)))
        previous = entry
    return made
