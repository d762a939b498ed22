"""Changes of streams: each one that is made to the bytes of an answer is found as its kind, and none
is found in an answer that is the same."""

import zlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from locust_llm.lab.gateway.changed_streams import (
    KINDS,
    AnswerFacts,
    GatewayAnswer,
    compare_facts,
    count_lost_chunks,
    read_facts,
    summarise_changes,
)
from locust_llm.lab.gateway.gateway_client import Exchange
from locust_llm.lab.gateway.upstream_answers import UpstreamAnswerOptions, plan_answer
from locust_llm.lab.gateway.upstream_events import STAMP
from locust_llm.lab.gateway.upstream_script import FEATURES, UpstreamScript
from locust_llm.records.outcomes import OK

MS = 1_000_000
Body = list[tuple[int, bytes]]


def answered(
    kind: str = "chat",
    feature: str = "",
    *,
    identity: str = "id-one",
    stream: bool = True,
    gap: int = 10,
) -> Exchange:
    """The answer to a script, each write read as it was written, in HTTP/1.0: its body is plain."""
    script = UpstreamScript(
        id=identity, ttft_ms=5, gap_ms=gap, tokens=8, features=(feature,) if feature else ()
    )
    asked = UpstreamAnswerOptions(
        kind, stream=stream, include_usage=True, chunked=False, gzip=feature == "gzip"
    )
    plan = plan_answer(script, asked, 0, fault="", replica=0, headers=[("Server", "gwbench")])
    reads = list[tuple[int, bytes]]()
    for write in plan.writes:
        data = write.data.replace(STAMP, b"%018d" % write.at_ns)
        reads.append((write.at_ns + 1000, data if write.seal is None else write.seal(data)))
        plan.moments += [write.at_ns] * write.words
    return Exchange(
        script=script, kind=kind, sent_ns=-5, ended_ns=reads[-1][0], connect_s=None,
        reads=tuple(reads), closed=True, outcome=OK, message="",
    )  # fmt: skip


def changed(exchange: Exchange, old: bytes, new: bytes, count: int = -1) -> Exchange:
    """With one text in its bytes replaced."""
    assert any(old in data for _, data in exchange.reads)
    reads = tuple((at_ns, data.replace(old, new, count)) for at_ns, data in exchange.reads)
    return replace(exchange, reads=reads)


def rearranged(exchange: Exchange, move: Callable[[Body], Body]) -> Exchange:
    return replace(exchange, reads=tuple(move(list(exchange.reads))))


def kinds_of(direct: Exchange, through: Exchange) -> list[str]:
    return [kind for kind, _ in compare_facts(read_facts(direct), read_facts(through))]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("feature", ["", *FEATURES])
@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
def test_the_same_answer_with_another_id_has_no_change(
    kind: str, feature: str, stream: bool
) -> None:
    direct = answered(kind, feature, stream=stream)
    assert kinds_of(direct, answered(kind, feature, identity="id-two", stream=stream)) == []
    facts = read_facts(direct)
    assert sorted(facts.words) == list(range(8))
    assert facts.usage
    assert facts.done
    assert facts.finish
    assert not facts.held


def swap(body: Body) -> Body:
    (first_at, first), (second_at, second) = body[3:5]
    return [*body[:3], (first_at, second), (second_at, first), *body[5:]]


def merge_two(body: Body) -> Body:
    """The text of the fourth word moves into the event of the fifth."""
    word = b"w3.%018d " % (35 * MS)
    place = b"w4.%018d " % (45 * MS)
    at_ns, data = body[4]
    return [*body[:3], (at_ns, data.replace(place, word + place)), *body[5:]]


def split_one(body: Body) -> Body:
    at_ns, data = body[3]
    whole = b"w3.%018d " % (35 * MS)
    pieces = data.replace(whole, whole[:8]) + data.replace(whole, whole[8:])
    return [*body[:3], (at_ns, pieces), *body[4:]]


def hold(body: Body) -> Body:
    return [(body[-1][0], data) for _, data in body]


def compress(body: Body) -> Body:
    whole = b"".join(data for _, data in body)
    head, _, plain = whole.partition(b"\r\n\r\n")
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(plain) + packer.flush()
    return [(body[-1][0], head + b"\r\nContent-Encoding: gzip\r\n\r\n" + packed)]


MOVES: dict[str, tuple[Callable[[Body], Body], list[str]]] = {
    "lost": (lambda body: [*body[:3], *body[4:]], ["lost"]),
    "doubled": (lambda body: [*body[:4], body[3], *body[4:]], ["doubled"]),
    "swapped": (swap, ["reordered"]),
    "merged": (merge_two, ["merged"]),
    "split": (split_one, ["split"]),
    "held": (hold, ["held"]),
    "compressed": (compress, ["compressed", "held"]),
}


@pytest.mark.parametrize("name", [*MOVES])
def test_words_that_are_moved(name: str) -> None:
    move, expected = MOVES[name]
    direct = answered()
    assert kinds_of(direct, rearranged(direct, move)) == expected


REPLACED: list[tuple[str, str, bytes, bytes, list[str]]] = [
    ("chat", "comments", b": keep-alive\n\n", b"", ["comments_lost"]),
    ("chat", "", b'data: {"id"', b': ping\n\ndata: {"id"', ["comments_added"]),
    ("chat", "", b'"completion_tokens": 8', b'"completion_tokens": 9', ["usage_changed"]),
    ("chat", "", b'"usage"', b'"used"', ["usage_missing", "fields_lost", "fields_added"]),
    ("chat", "", b"chatcmpl-id-one", b"chatcmpl-b", ["id"]),
    ("chat", "", b'"gwbench"', b'"openai/gwbench"', ["model"]),
    ("chat", "", b'"stop"', b'"length"', ["finish"]),
    ("chat", "", b"data: [DONE]\n\n", b"", ["done_missing"]),
    ("chat", "", b"text/event-stream", b"text/event-stream; x=y", []),
    ("chat", "", b'"system_fingerprint": "fp_gwbench", ', b"", ["fields_lost"]),
    ("chat", "", b'"object"', b'"provider": "x", "object"', ["fields_added"]),
    ("chat", "extra_fields", b'"vendor_field": {"kept": true}', b'"vendor_field": null',
        ["fields_lost"]),
    ("chat", "event_ids", b"id: ", b"di: ", ["event_ids"]),
    ("chat", "reasoning", b'"reasoning_content"', b'"content"', ["channel", "fields_lost"]),
    ("chat", "tools", b'"name": "note"', b'"name": "other"', ["tool_call"]),
    ("chat", "tools", b'"arguments": "\\"}"', b'"arguments": ""', ["text", "tool_call"]),
    ("chat", "unicode", "\N{GRINNING FACE}".encode(), b"?", ["text"]),
    ("messages", "", b"event: ping\ndata: ", b"event: pong\ndata: ", ["event_types"]),
    ("messages", "", b'"end_turn"', b'"max_tokens"', ["finish"]),
    ("responses", "", b'"output_tokens": 8', b'"output_tokens": 1', ["usage_changed"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "feature", "old", "new", "expected"), REPLACED)
def test_texts_that_are_replaced(
    kind: str, feature: str, old: bytes, new: bytes, expected: list[str]
) -> None:
    direct = answered(kind, feature)
    through = changed(direct, old, new)
    assert kinds_of(direct, through) == expected


def test_every_kind_is_one_of_the_table() -> None:
    made = {"failed", "status", "content_type", "unpacked", "usage_added", "several_ids",
        "done_added"}  # fmt: skip
    made |= {kind for _, kinds in MOVES.values() for kind in kinds}
    for *_, kinds in REPLACED:
        made |= set(kinds)
    assert made == set(KINDS)


def test_what_was_not_sent_and_what_failed() -> None:
    direct = answered()
    without = changed(changed(direct, b'"usage"', b'"used"'), b"data: [DONE]\n\n", b"")
    assert [kind for kind in kinds_of(without, direct) if kind.endswith("_added")] == [
        "usage_added",
        "done_added",
        "fields_added",
    ]
    failed = replace(direct, outcome="closed", reads=())
    assert list(compare_facts(read_facts(direct), read_facts(failed))) == [
        ("failed", "closed"),
        ("status", "200 became None"),
    ]
    refused = replace(
        direct,
        outcome="http_status",
        reads=((9, b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n"),),
    )
    assert list(compare_facts(read_facts(direct), read_facts(refused))) == [
        ("failed", "HTTP 502, http_status"),
        ("status", "200 became 502"),
    ]
    html = changed(direct, b"text/event-stream", b"text/html")
    assert "content_type" in kinds_of(direct, html)
    assert kinds_of(answered("chat", "gzip"), answered()) == ["unpacked"]
    second = changed(direct, b"chatcmpl-id-one", b"chatcmpl-b", 1)
    mixed = rearranged(direct, lambda body: [*body[:3], second.reads[3], *body[4:]])
    assert kinds_of(direct, mixed) == ["several_ids"]


def facts_changed(kind: str, outcome: str = OK) -> GatewayAnswer:
    return GatewayAnswer("chat, tools", ((kind, "an example"),), outcome)


def test_the_summary_counts_within_the_trials_that_have_a_kind() -> None:
    unchanged = GatewayAnswer("chat, tools", (), OK)
    other = GatewayAnswer("chat", (), OK)
    (lost,) = summarise_changes([facts_changed("lost", "truncated"), unchanged, other])
    assert (lost.kind, lost.seen, lost.of, lost.noticed) == ("lost", 1, 2, "truncated")
    assert lost.example == "chat, tools: an example"
    assert summarise_changes([unchanged, other]) == ()


def test_chunks_held_back_now_and_then_are_the_machine() -> None:
    held = facts_changed("held")
    unchanged = GatewayAnswer("chat, tools", (), OK)
    assert summarise_changes([held, unchanged]) == ()
    (found,) = summarise_changes([held] * 4 + [unchanged])
    assert (found.seen, found.of) == (4, 5)


def test_facts_of_what_is_no_answer() -> None:
    facts = read_facts(replace(answered(), reads=((1, b"nonsense"),), outcome="malformed"))
    assert isinstance(facts, AnswerFacts)
    assert (facts.status, facts.words, facts.usage, facts.done) == (None, (), (), False)


def test_lost_chunks_are_counted_one_by_one() -> None:
    whole = read_facts(answered("chat"))
    events = answered("chat").reads
    without_two = replace(answered("chat"), reads=(*events[:3], *events[5:]))
    assert count_lost_chunks(whole, whole) == 0
    assert count_lost_chunks(whole, read_facts(without_two)) == 2
    failed = replace(without_two, outcome="truncated")
    assert count_lost_chunks(whole, read_facts(failed)) == 0
