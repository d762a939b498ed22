"""The answers of the upstream, read by the parser of the load generator, which shares no code with
it: what each API, feature and fault is to a client."""

import json
import re
import zlib
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.client.response_chunks import Response
from locust_llm.lab.gateway.upstream_answers import (
    MS,
    PlannedWrite,
    draw_moments,
    find_kind,
    plan_answer,
    read_answer_request,
)
from locust_llm.lab.gateway.upstream_events import STAMP, UpstreamAnswerOptions, fill_moments
from locust_llm.lab.gateway.upstream_script import FAULTS, FEATURES, UpstreamScript
from locust_llm.records.outcomes import OK

RECEIVED_NS = 5_000_000_000
STREAMS = ("chat", "completions", "responses", "messages")


def played(
    script: UpstreamScript, asked: UpstreamAnswerOptions, fault: str | None = None
) -> list[tuple[int, bytes, PlannedWrite]]:
    """(moment, bytes, write) of each write, each exactly when it is due."""
    plan = plan_answer(
        script,
        asked,
        RECEIVED_NS,
        fault=script.fault if fault is None else fault,
        replica=3,
        headers=[("Server", "gwbench")],
    )
    writes = list[tuple[int, bytes, PlannedWrite]]()
    for write in plan.writes:
        moment = RECEIVED_NS + write.at_ns
        data = write.data.replace(STAMP, b"%018d" % moment)
        writes.append((moment, data if write.seal is None else write.seal(data), write))
        plan.moments += [moment] * write.words
    return writes


def read(asked: UpstreamAnswerOptions, writes: list[tuple[int, bytes, PlannedWrite]]) -> Response:
    """What the client makes of it."""
    response = Response(RECEIVED_NS, kind=asked.kind, keep_text=True)
    for moment, data, write in writes:
        if data and not response.over:
            response.append_read(moment, moment, data)
            response.decode_pending(moment)
        if write.then == "reset" and not response.over:
            response.end_with("reset", "reset")
        elif write.then == "close" and not response.over:
            response.note_closed()
    return response


def outcome_of(script: UpstreamScript, asked: UpstreamAnswerOptions) -> str:
    response = read(asked, played(script, asked))
    if not response.over:
        response.end_with("timeout", "nothing more comes")
    return response.finish()[0]


# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STREAMS)
def test_each_word_has_the_moment_of_its_write(kind: str) -> None:
    script = UpstreamScript(id="a", ttft_ms=20, gap_ms=10, tokens=4)
    writes = played(script, UpstreamAnswerOptions(kind, stream=True))
    assert [moment - RECEIVED_NS for moment, _, _ in writes] == [20 * MS, 30 * MS, 40 * MS, 50 * MS]
    assert [write.words for _, _, write in writes] == [1, 1, 1, 1]
    for index, (moment, data, _) in enumerate(writes):
        assert b"w%d.%018d " % (index, moment) in data
    assert b"r%018d.3 w0." % RECEIVED_NS in writes[0][1]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("feature", ["", *FEATURES])  # it asks for no compression
def test_a_client_reads_each_feature(kind: str, feature: str, version: str) -> None:
    features = (feature,) if feature else ()
    script = UpstreamScript(id="a", tokens=6, features=features)
    asked = UpstreamAnswerOptions(
        kind, stream=True, include_usage=True, chunked=version == "1.1", keep_alive=version == "1.1",
    )  # fmt: skip
    response = read(asked, played(script, asked))
    assert response.over
    assert response.finish() == (OK, "")
    assert len(response.chunks()[0]) in (6, 7, 8)  # a call has a begin and an end
    assert response.answer.settled.output == 6


@pytest.mark.parametrize("kind", [*STREAMS, "embeddings"])
@pytest.mark.parametrize("feature", ["", "reasoning", "tools", "unicode", "length"])
def test_a_client_reads_each_answer_in_one_piece(kind: str, feature: str) -> None:
    features = (feature,) if feature else ()
    script = UpstreamScript(id="a", ttft_ms=5, gap_ms=2, tokens=4, features=features)
    asked = UpstreamAnswerOptions(kind, inputs=2)
    ((moment, data, write),) = played(script, asked)
    assert moment - RECEIVED_NS == (5 if kind == "embeddings" else 11) * MS
    response = read(asked, [(moment, data, write)])
    assert response.finish() == (OK, "")
    if kind != "embeddings":
        assert response.answer.settled.output == 4
        words = {b"w%d.%018d" % (index, moment) for index in range(4)}
        assert set(re.findall(rb"w\d\.\d{18}", data)) == words


@pytest.mark.parametrize("features", [(), ("reasoning", "tools")])
def test_the_last_texts_of_responses_repeat_the_deltas(features: tuple[str, ...]) -> None:
    script = UpstreamScript(id="a", tokens=4, features=features)
    data = b"".join(
        bytes_ for _, bytes_, _ in played(script, UpstreamAnswerOptions("responses", True))
    )
    events: list[dict[str, Any]] = [
        json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")
    ]
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    texts = [
        event.get("text", event.get("arguments"))
        for event in events
        if event["type"].endswith(("text.done", "arguments.done"))
    ]
    assert "".join(deltas) == "".join(texts)
    assert len(texts) == len(events[-1]["response"]["output"]) == (2 if features else 1)


def test_a_compressed_stream_is_whole() -> None:
    script = UpstreamScript(id="a", tokens=3, features=("gzip",))
    asked = UpstreamAnswerOptions("chat", stream=True, gzip=True)
    plain = b"".join(data for _, data, _ in played(script, asked._replace(gzip=False)))
    packed = b"".join(data for _, data, _ in played(script, asked))
    assert b"Content-Encoding: gzip" in packed
    body, at = b"", packed.index(b"\r\n\r\n") + 4
    while size := int(packed[at : packed.index(b"\r\n", at)], 16):
        at = packed.index(b"\r\n", at) + 2
        body += packed[at : at + size]
        at += size + 2
    unpacked = zlib.decompress(body, wbits=31)
    assert unpacked.count(b"data: ") == plain.count(b"data: ") == 6
    assert unpacked.endswith(b"data: [DONE]\n\n")


def test_bursts_splits_and_comments() -> None:
    def writes_of(*features: str) -> list[tuple[int, bytes, int]]:
        script = UpstreamScript(id="a", ttft_ms=10, gap_ms=10, tokens=5, features=features)
        played_writes = played(script, UpstreamAnswerOptions("chat", stream=True))
        return [
            ((moment - RECEIVED_NS) // MS, data, write.words)
            for moment, data, write in played_writes
        ]

    assert [(at, words) for at, _, words in writes_of("bursts")] == [(40, 4), (50, 1)]
    split = writes_of("split")
    assert [at for at, _, _ in split] == [10, 11, 20, 21, 30, 31, 40, 41, 50]
    assert not split[0][1].endswith(b"\n\n\r\n")
    commented = writes_of("comments")
    assert [at for at, _, _ in commented] == [10, 15, 20, 25, 30, 35, 40, 45, 50]
    assert commented[1][1] == b"e\r\n: keep-alive\n\n\r\n"


@given(jitter=st.floats(0, 1), seed=st.integers(0, 1000), tokens=st.integers(1, 50))
def test_moments_stay_near_their_schedule(jitter: float, seed: int, tokens: int) -> None:
    script = UpstreamScript(id="a", ttft_ms=20, gap_ms=10, tokens=tokens, jitter=jitter)
    moments = draw_moments(script, Random(seed))
    assert len(moments) == tokens
    assert abs(moments[0] - 20 * MS) <= 20 * MS * jitter + 1
    for before, after in pairwise(moments):
        assert abs(after - before - 10 * MS) <= 10 * MS * jitter + 1


def test_moments_of_written_words_are_filled_in() -> None:
    place = STAMP.decode()
    assert fill_moments(f"w0.{place} w1.{place} ", [7]) == f"w0.{7:018d} w1.{place} "
    assert fill_moments("nothing", [1, 2]) == "nothing"


# -- what is wrong ---------------------------------------------------------------------------------

OUTCOMES = {
    "http_400": "http_status", "http_401": "http_status", "http_404": "http_status",
    "http_429": "rate_limited", "http_500": "http_status", "http_503_text": "unavailable",
    "close_unanswered": "closed", "reset_unanswered": "reset", "stall_unanswered": "timeout",
    "not_http": "malformed", "error_first": "stream_error", "error_midstream": "stream_error",
    "abort_finish": "stream_error", "content_filter": OK, "no_end": "truncated", "no_done": OK,
    "close_midstream": "closed", "reset_midstream": "reset", "stall_first": "timeout",
    "stall_midstream": "timeout", "bad_chunk": "malformed", "bad_json": "malformed",
    "html_200": "malformed", "other_json": "malformed", "error_in_200": "stream_error",
    "other_protocol": "truncated", "empty_counted": "empty", "empty": OK, "wrong_usage": OK,
    "missing_usage": OK, "wrong_model": OK, "id_changes": OK,
}  # fmt: skip
"""What the load generator calls each failure in a stream of chat completions."""


def test_each_fault_of_a_stream_is_seen() -> None:
    assert set(OUTCOMES) == {name for name, fault in FAULTS.items() if fault.streamed}
    seen = {
        name: outcome_of(
            UpstreamScript(id="a", tokens=6, fault=name),
            UpstreamAnswerOptions("chat", stream=True, include_usage=True),
        )
        for name in OUTCOMES
    }
    assert seen == OUTCOMES


@pytest.mark.parametrize("kind", ["completions", "responses", "messages"])
def test_each_fault_of_another_api_is_seen(kind: str) -> None:
    for name, expected in OUTCOMES.items():
        outcome = outcome_of(
            UpstreamScript(id="a", tokens=6, fault=name),
            UpstreamAnswerOptions(kind, stream=True, include_usage=True),
        )
        if name == "no_done" and kind in ("responses", "messages"):
            assert outcome in (OK, "truncated")
        else:
            assert outcome == expected, name


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.whole])
def test_each_fault_of_an_answer_in_one_piece_is_made(name: str) -> None:
    outcome = outcome_of(
        UpstreamScript(id="a", tokens=6, fault=name), UpstreamAnswerOptions("chat")
    )
    same = ("wrong_usage", "missing_usage", "wrong_model", "content_filter", "empty")
    if name in (*same, "fewer_vectors"):
        assert outcome == OK
    else:
        assert outcome != OK


@pytest.mark.parametrize("after", [0, 3, 6])
@pytest.mark.parametrize("name", ["close_midstream", "error_midstream", "no_end", "bad_json"])
def test_a_fault_in_the_middle_comes_after_so_many_words(name: str, after: int) -> None:
    script = UpstreamScript(id="a", tokens=6, fault=name, after=after)
    writes = played(script, UpstreamAnswerOptions("chat", stream=True))
    assert sum(write.words for _, _, write in writes) == after
    assert outcome_of(script, UpstreamAnswerOptions("chat", stream=True)) != OK


def test_facts_that_are_wrong() -> None:
    def data_of(fault: str) -> bytes:
        script = UpstreamScript(id="a", tokens=6, fault=fault)
        asked = UpstreamAnswerOptions("chat", stream=True, include_usage=True)
        return b"".join(data for _, data, _ in played(script, asked))

    assert b'"completion_tokens": 6,' in data_of("")
    assert b'"completion_tokens": 12,' in data_of("wrong_usage")
    assert b"completion_tokens" not in data_of("missing_usage")
    assert set(re.findall(rb'"model": "([\w-]+)"', data_of("wrong_model"))) == {b"another-model"}
    assert set(re.findall(rb'"id": "([\w-]+)"', data_of("id_changes"))) == {
        b"chatcmpl-a",
        b"chatcmpl-other-a",
    }
    (_, data, write), *rest = played(
        UpstreamScript(id="a"), UpstreamAnswerOptions("chat"), fault="http_429"
    )
    assert (b"Retry-After: 7" in data, write.then, rest) == (True, "", [])


def test_a_fault_that_a_form_cannot_have_is_left_out() -> None:
    plan = plan_answer(
        UpstreamScript(id="a"),
        UpstreamAnswerOptions("chat"),
        1,
        fault="no_end",
        replica=0,
        headers=[],
    )
    assert plan.fault == ""
    assert plan_answer(
        UpstreamScript(id="a"), UpstreamAnswerOptions("chat", True), 1, fault="no_end", replica=0,
        headers=[],
    ).fault == "no_end"  # fmt: skip


def test_what_a_request_wants() -> None:
    assert find_kind("/openai/v1/chat/completions?x=1") == "chat"
    assert find_kind("/v1/completions/") == "completions"
    assert find_kind("/v1/models") is None
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    asked = read_answer_request("chat", body, chunked=False, gzip=True, keep_alive=False)
    assert asked == UpstreamAnswerOptions("chat", True, True, "m", 1, False, False, True, False)
    asked = read_answer_request(
        "embeddings",
        {"input": ["a", "b"], "encoding_format": "base64", "stream": True},
        chunked=True,
        gzip=False,
        keep_alive=True,
    )
    assert (asked.stream, asked.inputs, asked.base64) == (False, 2, True)
    assert read_answer_request(
        "chat", None, chunked=True, gzip=False, keep_alive=True
    ) == UpstreamAnswerOptions("chat")
