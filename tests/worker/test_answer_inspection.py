"""Answer inspection: what is found in an answer, what is none of a server's fault, and what goes to
the controller as evidence."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import UNIX, answered

from locust_llm.answers.session_markers import Marker, MarkerKey
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.answer_fault import AnswerFault, decode_answer_fault
from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.profile_export_jsonl import decode_record, format_record_line
from locust_llm.records.record import Record
from locust_llm.text.hide_secrets import Secrets, collect_secrets
from locust_llm.wire.worker_messages import AnswerFaultFound
from locust_llm.worker.answer_inspection import (
    MAX_REPORTED,
    AnswerInspector,
    InspectedRequest,
    hash_id,
    join_texts,
    read_received_answer,
)
from locust_llm.worker.recent_requests import (
    BEFORE_S,
    MAX_BYTES,
    MAX_REQUESTS,
    RecentRequest,
    RecentRequests,
)
from locust_llm.worker.request_to_send import OutgoingTurn

KEY = b"0123456789abcdef"
OWN, OTHER = (MarkerKey(KEY, process).make() for process in (1, 2))


def completion(*deltas: dict[str, Any], kind: str = "chat", **event: Any) -> Completion:
    answer = Completion(PROTOCOLS[kind], checked=True)
    for number, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta}
        data = json.dumps({"id": "r-1", "model": "m", "choices": [choice], **event})
        answer.add((number, "message", data.encode()))
    end = {"id": "r-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    answer.add((len(deltas), "message", json.dumps(end).encode()))
    return answer


def asked(
    marker: Marker | None = OWN, text: str = "", name: str = "a-1", *, asks: bool = False
) -> InspectedRequest:
    messages = [{"role": "user", "content": text or f"Hello. {OWN.sentence}"}]
    number = None if marker is None else marker.number
    turn = OutgoingTurn(messages, 10, 10, marker=number, asked=asks)
    return InspectedRequest(name, turn, [json.dumps({"messages": messages}).encode()], 10)


def record(name: str = "a-1", **fields: Any) -> Record:
    return replace(answered(100, 200), id=name, model="m", **fields)


class Reported(list[AnswerFault]):
    def __call__(self, found: AnswerFaultFound) -> None:
        self.append(decode_answer_fault(found.line))


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture
def inspector(reported: Reported) -> AnswerInspector:
    return AnswerInspector(MarkerKey(KEY), reported)


def inspect(inspector: AnswerInspector, answer: Completion | None, **how: Any) -> AnswerChecks:
    checked = inspector.inspect(record(), asked(**how), answer).answer
    assert checked is not None
    return checked


def test_an_answer_without_markers_is_fine(inspector: AnswerInspector, reported: Reported) -> None:
    checks = inspect(inspector, completion({"content": "Hello "}, {"content": "you"}))
    assert checks == AnswerChecks(marker=OWN.number, id_hash=hash_id("r-1"), searched=True)
    assert reported == []


def test_the_own_marker_shows_that_a_leak_would_be_seen(inspector: AnswerInspector) -> None:
    checks = inspect(inspector, completion({"content": OWN.text.upper()}), asks=True)
    assert (checks.asked, checks.repeated, checks.foreign) == (True, True, ())


@pytest.mark.parametrize(
    "deltas",
    [
        [{"content": f"x {OTHER.text[:9]}"}, {"content": f"{OTHER.text[9:]} y"}],
        [{"content": "x"}, {"reasoning_content": OTHER.text}],
        [{"content": "x"}, {"reasoning": OTHER.text}],
        [{"content": "x"}, {"thinking": OTHER.text}],
        [{"content": "x"}, {"reasoning_details": [{"type": "reasoning.text", "text": OTHER.text}]}],
        [{"content": [{"type": "text", "text": OTHER.text}]}],
        [{"refusal": f"No {OTHER.text}"}],
        [{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": part}}]}
            for part in ('{"a": "\\n', OTHER.text[:15], OTHER.text[15:], '\\n"}')],
        [{"function_call": {"name": "f", "arguments": json.dumps({"a": OTHER.text})}}],
    ],
)  # fmt: skip
def test_a_foreign_marker_is_found_wherever_it_stands(
    inspector: AnswerInspector, reported: Reported, deltas: list[dict[str, Any]]
) -> None:
    checks = inspect(inspector, completion(*deltas))
    assert checks.foreign == (OTHER.number,)
    (fault,) = reported
    assert (fault.faults, fault.markers) == (("foreign_marker",), (OTHER.number,))
    assert fault.own_marker == OWN.number


def test_what_the_request_itself_held_is_no_leak(inspector: AnswerInspector) -> None:
    text = f"Compare {OTHER.text} with this. {OWN.sentence}"
    checks = inspect(inspector, completion({"content": OTHER.text}), text=text)
    assert checks.foreign == ()


def test_a_replayed_prompt_is_searched_too(inspector: AnswerInspector) -> None:
    checks = inspect(inspector, completion({"content": OTHER.text}), marker=None, text="Hello")
    assert (checks.marker, checks.foreign, checks.searched) == (None, (OTHER.number,), True)


def test_what_came_of_a_cut_answer_is_searched(inspector: AnswerInspector) -> None:
    answer = Completion(PROTOCOLS["chat"], checked=True)
    event = {"id": "r", "choices": [{"index": 0, "delta": {"content": OTHER.text}}]}
    answer.add((0, "message", json.dumps(event).encode()))
    assert inspect(inspector, answer).foreign == (OTHER.number,)


def test_without_an_answer_nothing_was_searched(inspector: AnswerInspector) -> None:
    checks = inspect(inspector, None, asks=True)
    assert checks == AnswerChecks(marker=OWN.number, asked=True)


def test_an_answer_in_one_body_is_as_one_in_chunks() -> None:
    answer = Completion(PROTOCOLS["chat"], checked=True)
    message = {"role": "assistant", "content": OTHER.text, "reasoning_content": "hm"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer.whole(json.dumps({"id": "r", "model": "m", "choices": choices}).encode())
    received = read_received_answer(answer)
    assert join_texts(received) == f"{OTHER.text}\nhm"
    assert received.events is not None
    assert received.events.ids == ["r"]


def several_choices(kind: str, *pieces: tuple[int, str], whole: bool = False) -> Completion:
    """An answer with ``n`` above 1: the index of a choice and its next text, in the order in which
    they came."""
    answer = Completion(PROTOCOLS[kind], checked=True)
    holder = "message" if whole else "delta"
    texts = dict[int, str]()
    for index, text in pieces:
        texts[index] = texts.get(index, "") + text
    shown = [*texts.items()] if whole else pieces
    choices = [
        {"index": index, "text": text}
        if kind == "completions"
        else {"index": index, holder: {"content": text}}
        for index, text in shown
    ]
    ends = [{"index": index, "finish_reason": "stop"} for index in texts]
    if whole:
        body = [choice | {"finish_reason": "stop"} for choice in choices]
        answer.whole(json.dumps({"id": "r-1", "model": "m", "choices": body}).encode())
        return answer
    for number, choice in enumerate([*choices, *ends]):
        event = {"id": "r-1", "model": "m", "choices": [choice]}
        answer.add((number, "message", json.dumps(event).encode()))
    return answer


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("leaking", [0, 1, 2])
def test_each_of_several_choices_is_searched(
    inspector: AnswerInspector, kind: str, whole: bool, leaking: int
) -> None:
    """Their pieces come in turn, and choice 1 comes first."""
    head, tail = OTHER.text[:9], OTHER.text[9:]
    pieces = [(index, head if index == leaking else "no ") for index in (1, 0, 2)]
    pieces += [(index, tail if index == leaking else "leak") for index in (0, 1, 2)]
    checks = inspect(inspector, several_choices(kind, *pieces, whole=whole))
    assert (checks.foreign, checks.faults) == ((OTHER.number,), ())


def test_the_own_marker_in_any_choice_shows_that_a_leak_would_be_seen(
    inspector: AnswerInspector,
) -> None:
    checks = inspect(inspector, several_choices("chat", (0, "Hello"), (1, OWN.text)), asks=True)
    assert checks.repeated


@pytest.mark.parametrize(
    ("pieces", "faults"),
    [
        (((0, "fine"), (1, "bro\ufffdken")), ("broken_text",)),
        (((0, "fine"), (1, "half a character\ufffd")), ()),  # its length may have cut it off
        (((1, "bro\ufffdken"),), ("broken_text",)),  # the only choice has another number
    ],
)
def test_broken_text_is_found_in_each_choice(
    inspector: AnswerInspector, pieces: tuple[tuple[int, str], ...], faults: tuple[str, ...]
) -> None:
    assert inspect(inspector, several_choices("chat", *pieces)).faults == faults


def test_an_id_that_switches_is_a_fault(inspector: AnswerInspector, reported: Reported) -> None:
    answer = completion({"content": "a"}, {"content": "b"})
    other = {"id": "r-2", "choices": [{"index": 0, "delta": {"content": "c"}}]}
    answer.add((9, "message", json.dumps(other).encode()))
    assert inspect(inspector, answer).faults == ("id_switched",)
    assert [fault.faults for fault in reported] == [("id_switched",)]


def test_two_arms_may_have_names_of_their_own_for_a_model(inspector: AnswerInspector) -> None:
    found = []
    for arm, name in (("base", "a.gguf"), ("candidate", "b.gguf"), ("base", "b.gguf")):
        answer = completion({"content": "x"}, model=name)
        checked = inspector.inspect(record(arm=arm), asked(), answer).answer
        assert checked is not None
        found.append(checked.faults)
    assert found == [(), (), ("wrong_model",)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "text", "type", "index", "function", "arguments", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    ["content", "reasoning", "thinking", "reasoning_details", "refusal", "tool_calls",
        "function_call", "role"]
)  # fmt: skip


@given(st.lists(st.dictionaries(fields, json_values, max_size=3), max_size=4), st.booleans())
def test_no_answer_is_too_strange_to_check(deltas: list[dict[str, Any]], whole: bool) -> None:
    answer = Completion(PROTOCOLS["chat"], checked=True)
    for number, delta in enumerate(deltas):
        choice = {"index": 0, "message" if whole else "delta": delta, "finish_reason": "stop"}
        data = json.dumps({"id": "r", "choices": [choice]}).encode()
        if whole:
            answer.whole(data)
        else:
            answer.add((number, "message", data))
    AnswerInspector(MarkerKey(KEY)).inspect(record(), asked(), answer)


def test_nesting_does_not_end_the_run(inspector: AnswerInspector) -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [{"type": "text", "text": deep}]
    inspect(inspector, completion({"content": deep}, {"reasoning_details": deep}))


def test_the_first_wrong_answers_are_reported_and_all_are_in_the_records(
    inspector: AnswerInspector, reported: Reported
) -> None:
    for _ in range(MAX_REPORTED + 5):
        assert inspect(inspector, completion({"content": OTHER.text})).foreign
    assert len(reported) == MAX_REPORTED


def test_no_evidence_holds_a_secret(inspector: AnswerInspector, reported: Reported) -> None:
    key = "sk-0123456789abcdef"
    secrets = collect_secrets({"Authorization": f"Bearer {key}"})
    request = asked(text=f"My key is {key}. {OWN.sentence}")
    inspector.begin(replace_id(request, "b-1"), "s", UNIX + 10.0)
    answer = completion({"content": f"{key} {OTHER.text}"})
    inspector.inspect(record(), request, answer, lambda: secrets)
    (fault,) = reported
    assert len(fault.beside) == 1
    assert key.encode() not in msgspec.json.encode(fault)
    assert OTHER.text in fault.text
    assert b"My key is ***" in bytes(fault.body)
    assert b"My key is ***" in bytes(fault.beside[0].body)


def replace_id(request: InspectedRequest, name: str) -> InspectedRequest:
    return request._replace(id=name)


def test_a_record_is_the_same_after_the_wire() -> None:
    checks = AnswerChecks(
        marker=2**33 - 1, asked=True, repeated=True, foreign=(1, 2), faults=("wrong_usage",),
        id_hash=2**62 - 1, searched=True, text="µ",
    )  # fmt: skip
    made = record(answer=checks)
    assert decode_record(format_record_line(made)).record == made
    assert b'"answer":' not in format_record_line(record())


# -- the requests beside ---------------------------------------------------------------------------


def begin(recent: RecentRequests, name: str, at: float, marker: int | None = None) -> None:
    recent.begin(RecentRequest(name, f"s-{name}", marker, [b'{"a":1}'], UNIX + at))


def end(recent: RecentRequests, name: str, sent_at: float, ms: float, **fields: Any) -> None:
    recent.end(record(name, sent_at=sent_at, closed_at=sent_at + ms / 1e3, **fields))


def names(recent: RecentRequests, victim: Record, markers: tuple[int, ...] = ()) -> list[str]:
    return [one.id for one in recent.list_beside(victim, markers, Secrets())]


def test_requests_beside_are_those_that_were_open_or_had_just_ended() -> None:
    recent = RecentRequests()
    victim = record("victim", sent_at=100.0, closed_at=101.0)
    for name, at in (("long ago", 10.0), ("ended before", 95.0), ("open", 99.0), ("inside", 100.2)):
        begin(recent, name, at)
    begin(recent, "victim", 100.0)
    begin(recent, "later", 101.5)
    end(recent, "long ago", 10.0, 1_000)
    end(recent, "ended before", 95.0, 1_000, outcome=CANCELLED)
    end(recent, "inside", 100.2, 100)
    assert BEFORE_S == 10.0
    assert names(recent, victim) == ["ended before", "open", "inside"]
    (cancelled, still_open, _) = recent.list_beside(victim, (), Secrets())
    assert (cancelled.outcome, cancelled.ended_at) == (CANCELLED, UNIX + 96.0)
    assert (still_open.outcome, still_open.ended_at) == ("", None)


def test_the_request_whose_marker_leaked_is_among_them_however_old_it_is() -> None:
    recent = RecentRequests()
    begin(recent, "source", 10.0, marker=7)
    end(recent, "source", 10.0, 1_000)
    begin(recent, "another", 10.0, marker=8)
    end(recent, "another", 10.0, 1_000)
    victim = record("victim", sent_at=500.0, closed_at=501.0)
    assert names(recent, victim, (7,)) == ["source"]


def test_only_the_last_requests_are_kept() -> None:
    recent = RecentRequests()
    for number in range(MAX_REQUESTS + 3):
        begin(recent, f"r{number}", 100.0)
    victim = record("victim", sent_at=100.0, closed_at=101.0)
    assert names(recent, victim) == [f"r{number}" for number in range(3, MAX_REQUESTS + 3)]
    large = [b"x" * (MAX_BYTES // 2)]
    for name in ("large 1", "large 2", "large 3"):
        recent.begin(RecentRequest(name, "", None, large, UNIX + 100.0))
    assert names(recent, victim) == ["large 2", "large 3"]


def test_a_request_that_was_never_sent_is_no_evidence() -> None:
    recent = RecentRequests()
    victim = record("victim", sent_at=100.0, closed_at=101.0)
    for name in ("refused", "killed", "sent"):
        begin(recent, name, 100.0)
    recent.end(record("refused", sent_at=None))
    recent.forget("killed")
    end(recent, "sent", 100.0, 100)
    recent.forget("sent")
    assert names(recent, victim) == ["sent"]
