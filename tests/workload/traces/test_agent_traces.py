"""Agent traces: each format by a file that one can read, with waits by pencil; what is broken is
named, with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples

from locust_llm.workload.conversation import list_turn_parents
from locust_llm.workload.dataset import Dataset
from locust_llm.workload.dataset_formats import DatasetError, DatasetSession, Turn
from locust_llm.workload.dataset_summary import check_dataset, explain_too_fast_trace
from locust_llm.workload.session_trees import RecordedSpan, order_spans_by_time
from locust_llm.workload.traces.session_start_point import (
    cap_session_waits,
    parse_start_shares,
    start_session_at,
)
from locust_llm.workload.traces.trace_formats import KINDS

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "file.jsonl"


def items(place: Path, rows: Rows, kind: str | None = None, **more: Any) -> list[DatasetSession]:
    place.write_text("\n".join(map(json.dumps, rows)))
    dataset = Dataset(str(place), kind=kind, **more)
    found = list(dataset)
    assert kind is not None or dataset.kind in (*KINDS, "multi_turn")
    return found


def waits(item: DatasetSession) -> list[tuple[tuple[int, ...], float | None, bool]]:
    """(what it waits for, s, is it a tool's) of each turn."""
    rounded = [
        turn.delay_s if turn.delay_s is None else round(turn.delay_s, 6) for turn in item.turns
    ]
    return [
        (after, wait, turn.tool)
        for after, wait, turn in zip(
            list_turn_parents(item.turns), rounded, item.turns, strict=True
        )
    ]


# -- our own ---------------------------------------------------------------------------------------


def tree(*turns: dict[str, Any]) -> Rows:
    return [{"session_id": "s", "turns": [{"text": "hi", **turn} for turn in turns]}]


def test_our_own_rows_are_trees(place: Path) -> None:
    rows = tree(
        {"id": "a"},
        {"id": "b", "tool": 800},
        {"id": 3, "after": "a", "delay": 500},
        {"after": ["b", "3"]},
        {"after": []},
    )
    [item] = items(place, rows)
    assert waits(item) == [
        ((), None, False),
        ((0,), 0.8, True),
        ((0,), 0.5, False),
        ((1, 2), None, False),
        ((), None, False),
    ]
    [item] = items(
        place,
        tree({"after": "b", "output_length": 1}, {"id": "b", "after": [], "output_length": 2}),
    )
    assert [turn.output_tokens for turn in item.turns] == [2, 1]  # none waits for a later one
    [item] = items(place, tree({"after": [], "timestamp": 90}, {"after": [], "timestamp": 40}))
    # the session begins with its earliest
    assert [turn.at_s for turn in item.turns] == [0.04, 0.09]


@pytest.mark.parametrize(
    ("turns", "what"),
    [
        ([{"id": "a"}, {"id": "a"}], "turns[1]: the id 'a' occurs twice"),
        ([{}, {"after": "x"}], "turns[1] waits for 'x', but no turn has this id"),
        (
            [{"id": "a", "after": "b"}, {"id": "b", "after": "a"}],
            "turns wait for each other: turns[0] after turns[1] after turns[0]",
        ),
        ([{"id": "a", "after": "a"}], "turns wait for each other: turns[0] after turns[0]"),
        ([{}, {"tool": -1}], "tool: expected"),
        ([{}, {"delay": -1}], "delay: expected"),
        ([{}, {"delay": 1, "tool": 1}], "delay and tool exclude each other"),
        (
            [{"id": "a", "timestamp": 2000}, {"after": "a", "timestamp": 1000}],
            "turns[1] begins at 1 s, before turns[0], which it waits for, at 2 s",
        ),
        ([{"id": []}], "turns[0].id must be text"),
        ([{}, {"after": [None]}], "turns[1].after must be an id or a list of ids"),
        ([{"forks": ["a"]}], "--custom-dataset-type dag_jsonl"),
    ],
)
def test_what_is_no_tree_is_named(place: Path, turns: Rows, what: str) -> None:
    rows = tree({}) + tree(*turns)
    with pytest.raises(DatasetError) as wrong:
        items(place, rows, "multi_turn")
    assert f"{place}, line 2, column" in str(wrong.value)
    assert what in str(wrong.value)


# -- by time ---------------------------------------------------------------------------------------


def slow_twin(spans: list[tuple[int, int]]) -> list[set[int]]:
    """Of requests of one agent: those that ended before, but for those that another which ended
    before came after."""
    found = []
    for at, (start, _) in enumerate(spans):
        before = [one for one in range(len(spans)) if spans[one][1] <= start and one < at]
        found.append(
            {
                one
                for one in before
                if not any(spans[other][0] >= spans[one][1] and other > one for other in before)
            }
        )
    return found


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=12))
@examples(300)
def test_requests_wait_for_those_that_had_ended(drawn: list[tuple[int, int]]) -> None:
    spans = sorted(((start, start + took) for start, took in drawn), key=lambda one: one[0])
    placed = order_spans_by_time([RecordedSpan(start, end, (start, end)) for start, end in spans])
    assert [set(one.after) for one in placed] == slow_twin(spans)
    assert all(parent < at for at, one in enumerate(placed) for parent in one.after)
    for one in placed:
        ends = [placed[parent].request[1] for parent in one.after]
        assert one.wait_s == one.start - max(ends, default=spans[0][0]) >= 0


# -- Weka ------------------------------------------------------------------------------------------


def call(t: float, took: float, tokens: int = 130, **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "n",
        "in": tokens,
        "out": 7,
        "hash_ids": [1, 2],
        "api_time": took,
        **more,
    }


def weka(*inner_t: float) -> Rows:
    agents = [
        {
            "t": 20.5,
            "type": "subagent",
            "duration_ms": 9500,
            "requests": [call(t, 2) for t in inner_t],
        }
    ]
    calls = [
        call(0, 10.4),
        call(12, 8, think_time=1.5, input_types=["tool_result"]),
        *agents,
        call(22, 5),
        call(35, 1, think_time=8),
    ]
    return [{"id": "w", "block_size": 64, "hash_id_scope": "local", "requests": calls}]


@pytest.mark.parametrize("inner_t", [(0, 4), (20, 24)], ids=["relative", "absolute"])
def test_a_weka_trace(place: Path, inner_t: tuple[float, ...]) -> None:
    [item] = items(place, weka(*inner_t))
    shift = 20.5 if inner_t[0] == 0 else 0.0
    first, second = inner_t[0] + shift, inner_t[1] + shift
    # the last one waits for the agent, which ends at 30 (as its marker says), and for the request
    # of 22 to 27
    assert [turn.at_s for turn in item.turns] == [0, 12, first, 22, second, 35]
    assert waits(item) == [
        ((), 0.0, False),
        ((0,), 1.5, True),  # its think time, not 12 - 10
        ((1,), first - 20, False),
        ((1,), 2.0, False),
        ((2,), second - first - 2, False),
        ((4, 3), 8.0, False),
    ]
    assert [turn.whole for turn in item.turns] == [True] * 6
    assert item.turns[0].block_tokens == 64
    assert (
        item.turns[0].input_tokens,
        item.turns[0].output_tokens,
        len(item.turns[0].hash_ids),
    ) == (130, 7, 2)
    basis = "their beginning" if shift else "the beginning of the session"
    assert f"times of sub-agents from {basis} (1 sessions)" in str(check_dataset(str(place)))


def test_ids_of_a_weka_trace_are_its_own(place: Path) -> None:
    one, other = weka(0)[0], {**weka(0)[0], "id": "v"}
    a, b = items(place, [one, other])
    assert not set(a.turns[0].hash_ids) & set(b.turns[0].hash_ids)
    assert a.turns[0].hash_ids == a.turns[1].hash_ids
    a, b = items(place, [{**row, "hash_id_scope": "global"} for row in (one, other)])
    assert a.turns[0].hash_ids == b.turns[0].hash_ids == (1, 2)


# -- OpenTelemetry ---------------------------------------------------------------------------------


def span(
    id: str, start: float, end: float, operation: str = "chat", parent: str = "", **more: Any
) -> dict[str, Any]:
    usage = (
        {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 9}
        if operation == "chat"
        else {}
    )
    attributes = {"gen_ai.operation.name": operation, **usage, **more}
    values = [
        {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in attributes.items()
    ]
    return {
        "traceId": "t",
        "spanId": id,
        "parentSpanId": parent,
        "name": operation,
        "attributes": values,
        "startTimeUnixNano": str(round(start * 1e9)),
        "endTimeUnixNano": round(end * 1e9),
    }


AGENTS = [
    span("root", 0, 20, "invoke_agent"),
    span("plan", 1, 3, parent="root"),
    span("tool", 3.1, 4, "execute_tool", "root"),
    span("next", 5, 6, parent="root"),
    span("A", 6.5, 12, "invoke_agent", "root"),
    span("B", 6.5, 10, "execute_tool", "root"),  # an agent as a tool
    span("a1", 7, 8, parent="A"),
    span("b1", 7, 7.5, parent="B"),
    span("a2", 9, 11, parent="A"),
    span("b2", 8, 9.5, parent="B"),
    span("sum", 13, 15, parent="root"),
]


@pytest.mark.parametrize(
    "rows",
    [
        AGENTS,
        [{"resourceSpans": [{"scopeSpans": [{"spans": AGENTS[:4]}, {"spans": AGENTS[4:]}]}]}],
        [{"resourceSpans": [{"scopeSpans": [{"spans": AGENTS[at::2]}]}]} for at in (0, 1)],
        [
            {
                "trace_id": "t",
                "spans": [{key: v for key, v in one.items() if key != "traceId"} for one in AGENTS],
            }
        ],
    ],
    ids=["a span a row", "OTLP", "two batches", "a trace a row"],
)
def test_spans_of_agents(place: Path, rows: Rows) -> None:
    [item] = items(place, rows)
    assert item.id == "t"
    assert [turn.at_s for turn in item.turns] == [1, 5, 7, 7, 8, 9, 13]
    assert waits(item) == [
        ((), 0.0, False),
        ((0,), 2.0, True),  # plan, next
        ((1,), 1.0, False),
        ((1,), 1.0, False),
        ((3,), 0.5, False),
        ((2,), 1.0, False),  # a1, b1, b2, a2
        ((5, 4), 2.0, False),  # after both agents
    ]
    assert {(turn.input_tokens, turn.output_tokens, turn.whole) for turn in item.turns} == {
        (100, 9, True)
    }


def test_spans_with_texts_and_without(place: Path) -> None:
    said = [{"role": "user", "content": "hi"}]
    parts = [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"x": 1}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "ok"}]},
    ]
    rows = [
        span("a", 0, 1, **{"gen_ai.input.messages": json.dumps(said)}),
        span("b", 2, 3, **{"gen_ai.input.messages": json.dumps(parts)}),
        span("c", 4, 5, "embeddings"),
        {
            "name": "x",
            "context": {"trace_id": "0x1", "span_id": "0x2"},
            "parent_id": None,
            "status": {"status_code": "OK"},
            "start_time": "2026-01-01T00:00:00Z",
            "end_time": "2026-01-01T00:00:01Z",
            "attributes": {"gen_ai.usage.prompt_tokens": 640},
        },
    ]
    texts, other = items(place, rows)
    assert texts.turns[0].messages == said
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]
    assert texts.turns[1].messages == [
        *said,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    assert len(texts.turns) == 2
    assert (len(other.turns[0].hash_ids), other.turns[0].block_tokens) == (10, 64)


# -- MLPerf, Mooncake, AIPerf's DAGs ---------------------------------------------------------------

CALLS = [{"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
MLPERF: Rows = [
    {
        "conversation_id": "c",
        "turn": 1,
        "role": "user",
        "content": "hi",
        "system": "Be brief.",
        "tools": [{"type": "function"}],
    },
    {"conversation_id": "d", "turn": 1, "role": "user", "content": "ho", "max_new_tokens": 5},
    {"conversation_id": "c", "turn": 2, "role": "assistant", "tool_calls": CALLS},
    {
        "conversation_id": "c",
        "turn": 3,
        "role": "tool",
        "delay_seconds": 0.4,
        "tool_results": [{"tool_call_id": "f:0", "content": "1"}],
    },
]


def test_mlperfs_messages(place: Path) -> None:
    one, other = items(place, MLPERF)
    assert (one.id, other.id) == ("c", "d")
    assert waits(one) == [((), None, False), ((0,), 0.4, True)]
    assert one.turns[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert one.turns[0].recorded == {"role": "assistant", "content": None, "tool_calls": CALLS}
    assert one.turns[1].messages == [{"role": "tool", "tool_call_id": "f:0", "content": "1"}]
    assert one.turns[1].body == one.turns[0].body == {"tools": [{"type": "function"}]}
    assert other.turns[0].output_tokens == 5


def request(id: str, after: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "request_id": id,
        "input_length": 1000,
        "output_length": 10,
        "hash_ids": [1, 2],
        "wait_for": [*after],
        **more,
    }


def test_mooncake_with_what_a_request_waits_for(place: Path) -> None:
    rows = [
        request("a", session_id="x", timestamp=50),
        request("z", session_id="y", timestamp=60),
        request("b", ("a",), session_id="sub", delay=100, tool_wait_ms=400),
        request("c", ("a", "b"), session_id="x"),
    ]
    one, other = items(place, rows)
    assert waits(one) == [((), 0.0, False), ((0,), 0.5, True), ((0, 1), 0.0, False)]
    assert ([turn.at_s for turn in one.turns], one.turns[0].block_tokens) == (
        [0.05, None, None],
        512,
    )
    assert [turn.row for turn in other.turns] == [2]
    depends = [{"request_id": "a", "trigger": "completion", "delay_ms": 30, "relation": "sequence"}]
    beside = [{"request_id": "b", "trigger": "dispatch", "delay_ms": 0, "relation": "spawn"}]
    header = {
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": 64,
        "hash_id_scope": "local",
    }
    play = [
        {
            **request(id),
            "play_id": "p",
            "session_id": id,
            "not_before_ms": 5,
            "dependencies": list(edges),
        }
        for id, edges in (("a", ()), ("b", depends), ("c", beside))
    ]
    [item] = items(place, [header, *play])
    assert waits(item) == [((), 0.0, False), ((0,), 0.03, False), ((0,), 0.0, False)]
    assert {turn.block_tokens for turn in item.turns} == {64}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_aiperfs_dags(place: Path) -> None:
    rows = [
        {
            "session_id": "root",
            "turns": [
                said("1", spawns=["sub", {"children": ["late"], "join_at": 3}]),
                said("2", delay=250),
                said("3"),
                said("4", forks=["f"]),
            ],
        },
        {"session_id": "sub", "turns": [said("s1"), said("s2")]},
        {"session_id": "late", "turns": [said("l")]},
        {"session_id": "f", "turns": [said("f1")]},
        {"session_id": "alone", "turns": [said("x")]},
    ]
    one, other = items(place, rows)
    texts = [turn.messages[0]["content"] if turn.messages else "" for turn in one.turns]
    assert texts == ["1", "s1", "s2", "l", "2", "3", "4", "f1"]
    assert list_turn_parents(one.turns) == [(), (0,), (1,), (0,), (0, 2), (4,), (5, 3), (6,)]
    assert [turn.whole for turn in one.turns] == [
        False,
        True,
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert other.id == "alone"


@pytest.mark.parametrize(
    ("rows", "line", "what"),
    [
        ([*weka(0), {"requests": [{"t": 0}]}], 2, "requests[0] needs in and out"),
        ([*weka(0), {"requests": [call(-1, 0)]}], 2, "requests[0].t: expected"),
        ([span("a", 0, 1), span("a", 2, 3)], 2, "the span 'a' occurs twice"),
        ([span("a", 0, 1), span("b", 2, 1)], 2, "the span 'b' ends 1 s before it begins"),
        (
            [span("a", 0, 1), span("b", 0, 1, parent="c"), span("c", 0, 1, parent="b")],
            2,
            "spans are parents of each other in a circle, such as 'b'",
        ),
        (
            [span("a", 0, 1), span("b", 0, 1, "chat", **{"gen_ai.usage.input_tokens": "x"})],
            2,
            "gen_ai.usage.input_tokens is not a whole number of tokens",
        ),
        ([*MLPERF, {**MLPERF[1], "turn": 3}], 5, "turn 3, but the next one must be 2"),
        ([*MLPERF, {**MLPERF[1], "turn": 2}], 5, "the role 'user' comes after the role 'user'"),
        ([*MLPERF, {**MLPERF[2], "turn": 4, "delay_seconds": -1}], 5, "delay_seconds: expected"),
        ([request("a", ("b",)), request("b", ("a",))], 1, "turns wait for each other"),
        (
            [request("a"), request("b", ("x",))],
            2,
            "the request 'b' waits for 'x', but no turn has this id",
        ),
        ([request("a"), request("b", ("a",), delay=-1)], 2, "delay: expected"),
        (
            [request("a", timestamp=9000), request("b", ("a",), timestamp=2000)],
            2,
            "begins at 2 s, before the request 'a'",
        ),
        (
            [{"session_id": "a", "turns": [said("1", forks=["b"])]}],
            1,
            "starts 'b', but no row has this session_id",
        ),
        (
            [
                {"session_id": "r", "turns": [said("1", forks=["a"])]},
                {"session_id": "a", "turns": [said("1", forks=["a"])]},
            ],
            2,
            "conversations start each other in a circle: r starts a starts a",
        ),
    ],
)
def test_a_broken_trace_is_named_with_its_line(
    place: Path, rows: Rows, line: int, what: str
) -> None:
    with pytest.raises(DatasetError) as wrong:
        items(place, rows)
    assert f"{place}, line {line}, column" in str(wrong.value)
    assert what in str(wrong.value)


GOOD: dict[str, Rows] = {
    "weka_trace": weka(0, 4),
    "otel_spans": AGENTS,
    "mlperf_agentic": MLPERF,
    "agentic_mooncake": [request("a"), request("b", ("a",), timestamp=5)],
    "dag_jsonl": [
        {"session_id": "r", "turns": [said("1", forks=["a"], spawns=["a"])]},
        {"session_id": "a", "turns": [said("1")]},
    ],
    "multi_turn": tree({"id": "a"}, {"after": "a", "tool": 3}),
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=3)
    | st.just("a"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "t", "after", "turns"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything below."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [place for key, inner in pairs for place in ((value, key), *places_in(inner))]


@given(st.data())
@examples(600)
def test_whatever_is_in_a_row_it_is_read_or_named(place: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(GOOD)))
    rows = json.loads(json.dumps(GOOD[kind]))
    for _ in range(data.draw(st.integers(1, 2))):
        found = [one for row in rows for one in places_in(row)]
        if not found:
            break
        container, key = data.draw(st.sampled_from(found))
        container[key] = data.draw(JSON)
    told = ""
    found_items = list[DatasetSession]()
    try:
        found_items = items(place, rows, kind)
    except DatasetError as wrong:
        told = str(wrong)
    assert not told or (str(place) in told and ("line" in told or "nothing to send" in told))
    for item in found_items:
        for at, after in enumerate(list_turn_parents(item.turns)):
            assert all(0 <= parent < at for parent in after)
        assert all(turn.delay_s is None or turn.delay_s >= 0 for turn in item.turns)


# -- waits and beginnings --------------------------------------------------------------------------


def test_long_waits_are_cut_and_the_times_move_along(place: Path) -> None:
    [item] = items(place, weka(0, 4))
    short = cap_session_waits(item, 2.5)
    assert [turn.delay_s for turn in short.turns] == [0.0, 1.5, 0.5, 2.0, 2.0, 2.5]
    assert [turn.at_s for turn in short.turns] == [0, 12, 20.5, 22, 24.5, 35 - 5.5]
    line = DatasetSession(
        id="", row=1, turns=tuple(Turn(at_s=at, row=1) for at in (10.0, 100.0, 101.0))
    )
    assert [turn.at_s for turn in cap_session_waits(line, 5).turns] == [10, 15, 16]


def test_a_session_begins_in_its_middle(place: Path) -> None:
    [whole] = items(place, weka(0, 4))
    half = start_session_at(whole, 0.5)
    assert half.turns[0] == replace(whole.turns[3], after=None, delay_s=0.0)
    assert waits(half) == [((), 0.0, False), ((), 2.5, False), ((1, 0), 8.0, False)]
    said_so = [
        {"text": "1", "output_length": 3},
        {"messages": [{"role": "user", "content": "2"}, {"role": "assistant", "content": "ok"}]},
        {"text": "3"},
        {"text": "4"},
    ]
    [item] = items(place, [{"turns": said_so}])
    late = start_session_at(item, 0.5)
    assert late.turns[0].messages == [
        {"role": "user", "content": "1\n\n2"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "3"},
    ]
    assert (late.turns[0].whole, late.turns[1]) == (True, item.turns[3])
    one, _ = items(place, MLPERF)
    messages = start_session_at(one, 0.6).turns[0].messages or []
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    lengths = DatasetSession(
        id="", row=1, turns=tuple(Turn(input_tokens=10, output_tokens=3, row=1) for _ in range(3))
    )
    assert start_session_at(lengths, 0.7).turns == (
        Turn(input_tokens=36, output_tokens=3, whole=True, delay_s=0.0, row=1),
    )
    assert start_session_at(item, 0.2) == item
    assert (parse_start_shares("0.25..0.75"), parse_start_shares("0.5")) == (
        (0.25, 0.75),
        (0.5, 0.5),
    )
    for wrong in ("", "0.5..0.2", "1", "-0.1..0.2", "x", "0.1.."):
        with pytest.raises(ValueError):  # noqa: PT011
            parse_start_shares(wrong)


def test_the_longest_context_is_known_before_the_load(place: Path) -> None:
    items(place, [*weka(0), {**weka(0)[0], "requests": [call(0, 1, tokens=5000)]}])
    assert (check_dataset(str(place)).longest, check_dataset(str(place)).longest_row) == (5007, 2)
    items(
        place,
        [
            {
                "turns": [
                    {"input_length": 100, "output_length": 10},
                    {"input_length": 20, "output_length": 5},
                ]
            }
        ],
        "multi_turn",
    )
    assert check_dataset(str(place)).longest == 135


def test_an_object_over_several_lines_is_one_row(place: Path) -> None:
    place.write_text("\n" + json.dumps({"trace_id": "t", "spans": AGENTS}, indent=1) + "\n")
    dataset = Dataset(str(place))
    assert (dataset.kind, len(next(iter(dataset)).turns)) == ("otel_spans", 7)
    place.write_text('{\n "trace_id": "t",\n "spans": [}\n')
    with pytest.raises(DatasetError, match="line 3, column 12: broken JSON"):
        Dataset(str(place))


# -- Bailian ---------------------------------------------------------------------------------------


def chat(number: int, parent: int, at_s: float, tokens: int, *ids: int) -> dict[str, Any]:
    return {
        "chat_id": number, "parent_chat_id": parent, "timestamp": at_s, "input_length": tokens,
        "output_length": 4,
        "type": "text", "turn": 1 if parent < 0 else 2, "hash_ids": list(ids),
    }  # fmt: skip


def test_bailian_has_seconds_blocks_of_16_and_parents(place: Path) -> None:
    rows = [
        chat(1, -1, 61.0, 96, *range(6)), chat(2, -1, 62.0, 64, 0, 1, 23, 24),
        chat(3, 1, 63.5, 128, *range(8)),
        chat(4, 99, 64.0, 16, 7), chat(5, 3, 70.0, 160, *range(10)),
    ]  # fmt: skip
    first, second, orphan = items(place, rows, timed=True)
    assert [turn.at_s for turn in first.turns] == [61.0, 63.5, 70.0]
    assert [(turn.input_tokens, turn.output_tokens, turn.block_tokens,
        turn.whole) for turn in first.turns] == [
        (96, 4, 16, True), (128, 4, 16, True), (160, 4, 16, True)
    ]  # fmt: skip
    assert list_turn_parents(first.turns) == [(), (0,), (1,)]
    assert (second.turns[0].hash_ids, second.id) == ((0, 1, 23, 24), "2")
    # its parent is not in the file
    assert (orphan.turns[0].at_s, list_turn_parents(orphan.turns)) == (64.0, [()])


@examples(100)
@given(
    parents_of=st.lists(st.integers(-1, 8), min_size=1, max_size=9),
    times=st.lists(st.floats(0, 1e6), min_size=9, max_size=9).map(sorted),
)
def test_every_row_of_bailian_is_one_turn_at_its_time(
    place: Path, parents_of: list[int], times: list[float]
) -> None:
    rows = [
        chat(number, min(parent, number - 1), at_s, 32, number)
        for number, (parent, at_s) in enumerate(zip(parents_of, times, strict=False))
    ]
    found = items(place, rows)
    sent = [(turn.at_s, turn.hash_ids) for item in found for turn in item.turns]
    assert sorted(sent) == sorted((row["timestamp"], (row["chat_id"],)) for row in rows)
    assert len(found) == sum(row["parent_chat_id"] < 0 for row in rows)


def test_rows_without_a_name_are_bailians_by_choice(place: Path) -> None:
    rows = [{"timestamp": 1.5, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, 3]}] * 2
    found = items(place, rows, "bailian_trace")
    assert [
        (item.turns[0].at_s, item.turns[0].block_tokens) for item in found for turn in item.turns
    ] == [(1.5, 16)] * 2


def test_small_blocks_are_no_mooncake(place: Path) -> None:
    rows = [{"timestamp": 1, "input_length": 96, "output_length": 2, "hash_ids": list(range(6))}]
    with pytest.raises(
        DatasetError, match=r"line 1, column \d+: 6 hash_ids for 96 tokens: .* bailian_trace reads"
    ):
        items(place, rows)


# -- times that can hardly be meant ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (
            [0, 1, 2],
            "1,000 per second, because mooncake_trace has its times in milliseconds: if they are "
            "seconds, give --replay",
        ),
        ([0, 400], ""),
        ([0, 0, 0, 0], ""),  # a burst is one in any unit
        ([*range(0, 20_000, 2)], ""),  # 500 per second
        ([61.114, 61.2, 61.3, 61.31], "per second"),
        ([1700000000.0, 1700000001.5], "begin at 1,700,000,000, which are seconds since 1970"),
        ([1700000000000, 1700000001500], ""),  # milliseconds since 1970
    ],
)
def test_a_trace_that_is_too_fast_is_questioned(place: Path, times: list[float], says: str) -> None:
    rows = [{"timestamp": at, "input_length": 40, "output_length": 3} for at in times]
    place.write_text("\n".join(map(json.dumps, rows)))
    why = explain_too_fast_trace(check_dataset(str(place), timed=True))
    assert (says in why) if says else why == ""
