"""Trace formats: the formats of agents' traces, which of them a row is, and which rows are one
session.

The models in a recording are not requested, except where its author wrote them for this purpose
(dag_jsonl).
"""

from array import array
from collections.abc import Sequence
from typing import Final

from locust_llm.workload.dataset_formats import decode_row, read_row_id

from . import aiperf_dag, bailian, mlperf, mooncake, otel_spans, weka
from .recorded_session import RecordedSession

KINDS: Final = (
    "weka_trace",
    "otel_spans",
    "mlperf_agentic",
    "agentic_mooncake",
    "dag_jsonl",
    "bailian_trace",
)
BY_ROW: Final = ("weka_trace",)
"""A row of these formats is a session."""
LINKED: Final = ("agentic_mooncake", "dag_jsonl", "bailian_trace")
"""Rows that share a name belong to one session, directly or through other rows."""


def recognise_trace(row: bytes) -> str | None:
    """The kind of a row, by its fields. None: none of these. Raises RowError."""
    fields = decode_row(row)
    requests = fields.get("requests")
    turns = fields.get("turns")
    if isinstance(requests, list) and any(
        isinstance(request, dict) and "t" in request for request in requests[:1]
    ):
        return "weka_trace"
    if otel_spans.is_span_row(fields):
        return "otel_spans"
    if "conversation_id" in fields and "turn" in fields and "role" in fields:
        return "mlperf_agentic"
    if bailian.is_bailian_row(fields):
        return "bailian_trace"
    if fields.get("schema") == "dynamo.agentic_mooncake" or (
        "request_id" in fields and "input_length" in fields
    ):
        return "agentic_mooncake"
    branches = "forks", "spawns"
    if isinstance(turns, list) and any(
        isinstance(turn, dict) and any(map(turn.get, branches)) for turn in turns
    ):
        return "dag_jsonl"
    return None


def read_trace_names(kind: str, row: bytes) -> list[str]:
    """The sessions that a row belongs to, or for a kind in LINKED the names that it shares with
    others. Empty: it is no part of a session. Raises RowError."""
    if kind == "otel_spans":
        return otel_spans.read_trace_ids(row)
    if kind == "bailian_trace":
        return bailian.read_bailian_names(row)
    fields = decode_row(row)
    if kind == "mlperf_agentic":
        return (
            [read_row_id(fields.get("conversation_id"))]
            if fields.get("_type") != "dataset_metadata"
            else []
        )
    return (
        mooncake.read_mooncake_names(fields)
        if kind == "agentic_mooncake"
        else aiperf_dag.read_dag_names(fields)
    )


def group_trace_rows(kind: str, members: "dict[str, array[int]]") -> "list[tuple[str, array[int]]]":
    """(name, rows) of each session, from the numbers of the rows with each name."""
    if kind not in LINKED:
        return list(members.items())
    root: dict[int, int] = {}

    def find_root(number: int) -> int:
        while root.setdefault(number, number) != number:
            root[number] = number = root[root[number]]
        return number

    for numbers in members.values():
        for number in numbers:
            first, other = sorted((find_root(numbers[0]), find_root(number)))
            root[other] = first
    groups: dict[int, array[int]] = {}
    for number in sorted(root):
        groups.setdefault(find_root(number), array("I")).append(number)
    return [("", numbers) for numbers in groups.values()]


def read_trace_session(
    kind: str, name: str, rows: Sequence[tuple[bytes, int]], head: bytes
) -> RecordedSession:
    """A session of these (row, line).

    ``name`` is one of the names by which rows were joined. ``head`` is the first row of the file.
    Raises RowError, for another row than the first with its line.
    """
    if kind == "weka_trace":
        return weka.read_weka_session(*rows[0])
    if kind == "otel_spans":
        return RecordedSession(name, otel_spans.read_span_turns(rows, name))
    if kind == "mlperf_agentic":
        return RecordedSession(name, mlperf.read_mlperf_turns(rows))
    if kind == "agentic_mooncake":
        return mooncake.read_mooncake_session(rows, head)
    if kind == "bailian_trace":
        return bailian.read_bailian_session(rows)
    return RecordedSession(
        *aiperf_dag.read_dag_turns([(decode_row(row), line) for row, line in rows])
    )
