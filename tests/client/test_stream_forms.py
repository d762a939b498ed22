"""Streams of unusual form: measured where they can be, else refused with the server's message or
the true reason."""

import gzip
import json
import zlib
from itertools import pairwise
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.scripted import chunked, delta, event, head

from locust_llm.client import compression
from locust_llm.client.compression import decompress_body, parse_codings
from locust_llm.client.response_chunks import MAX_ERROR_BYTES, Response
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import OK

TEXTS = event(delta(role="assistant")) + event(delta(content="a")) + event(delta(content="b"))
END = event(delta("stop")) + event("[DONE]")
ERROR = {"error": {"message": "boom", "code": 400}}


def answered(*reads: bytes, kind: str = "chat") -> Response:
    """The reads a microsecond apart; then the server closes, if the answer has no other end."""
    stream = Response(0, kind=kind, keep_text=True)
    for number, data in enumerate(reads, 1):
        if (
            data
            and not stream.over
            and stream.append_read(number * 1000, number * 1000 - 500, data)
        ):
            stream.decode_pending()
    if not stream.over:
        stream.note_closed()
    return stream


def outcome(*reads: bytes, kind: str = "chat") -> tuple[str, str]:
    return answered(*reads, kind=kind).finish()


def typed(kind: str | None, **headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", "Connection: close"] + (
        [f"Content-Type: {kind}"] if kind is not None else []
    )
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


KINDS = [
    None,
    "",
    "text/plain",
    "application/octet-stream",
    "application/json",
    "text/html",
    "text/event-stream; charset=x",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"\n\n",
        b"\xef\xbb\xbf",
        b": ping\n\n",
        b"event: message\n",
        b"id: 1\n",
        b"retry: 9\n\n",
    ],
)
def test_an_event_stream_is_known_by_its_first_bytes(kind: str | None, begin: bytes) -> None:
    body = begin + TEXTS + END
    for size in (1, 3, 1000):
        stream = answered(typed(kind), *cut(body, size))
        assert (stream.finish(), stream.answer.text, stream.streamed) == (
            (OK, ""),
            ["a", "b"],
            True,
        )
    stream = answered(typed(kind), TEXTS, END)
    stream.finish()
    assert stream.first_seen
    assert stream.chunks()[0][0] == 2


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_json_and_pages_are_no_event_streams(kind: str | None) -> None:
    body = {
        "choices": [{"message": {"content": "data: a"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 3},
    }
    for size in (1, 1000):
        stream = answered(typed(kind), *cut(json.dumps(body).encode(), size))
        assert (stream.finish(), stream.streamed) == ((OK, ""), False)
        for page in (
            b"<html>data: a</html>",
            b"dat",
            b"database is down",
            b"identity: wrong",
            b"",
            b" " * 5000,
        ):
            assert outcome(typed(kind), *cut(page, size))[0] == "malformed"


@pytest.mark.parametrize(
    "coding", ["none", "identity", "", "None", "utf-8", "chunked", "identity, none"]
)
def test_a_coding_that_changes_no_byte_is_none(coding: str) -> None:
    assert parse_codings(coding) == ()
    assert outcome(typed("text/event-stream", Content_Encoding=coding), TEXTS + END) == (OK, "")


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "deflate", "zstd", "none, gzip"])
def test_a_compressed_stream_is_refused_by_name(coding: str) -> None:
    got = outcome(typed("text/event-stream", Content_Encoding=coding), b"\x1f\x8b\x08")
    assert got[0] == "malformed"
    # whoever asked for it: a header Accept-Encoding of the run, or nobody
    assert got[1].endswith(": leave out a header Accept-Encoding, or switch compression off")


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


CODERS: dict[str, Any] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "x-gzip": gzip.compress,
}


@pytest.mark.parametrize("coding", CODERS)
def test_an_error_that_comes_compressed_is_read(coding: str) -> None:
    body = CODERS[coding](json.dumps(ERROR).encode())
    for size in (1, 1000):
        top = head(500, "application/json", Content_Encoding=coding, Content_Length=str(len(body)))
        assert outcome(top, *cut(body, size)) == ("http_status", "HTTP 500: boom")
        assert outcome(typed("application/json", Content_Encoding=coding), *cut(body, size)) == (
            "stream_error",
            "boom",
        )
    whole = CODERS[coding](b'{"choices": []}')
    assert outcome(typed("application/json", Content_Encoding=coding), whole)[0] == "malformed"


def test_codings_one_over_the_other_and_what_is_no_such_coding() -> None:
    data = b"boom" * 10
    assert decompress_body(raw_deflate(data), ("deflate",), 1000) == data
    assert decompress_body(brotli.compress(gzip.compress(data)), ("gzip", "br"), 1000) == data
    for applied in (("gzip",), ("br",), ("deflate",), ("zstd",), ("compress",), ("gzip",) * 4):
        assert decompress_body(b"\x00not compressed", applied, 1000) is None
    top = head(502, "text/plain", Content_Encoding="gzip", Connection="close")
    assert outcome(top, b"not compressed") == ("http_status", "HTTP 502: not compressed")
    top = head(502, "text/plain", Content_Encoding="zstd", Connection="close")
    assert outcome(top, b"\x28\xb5\x2f\xfd") == ("http_status", "HTTP 502: (compressed: zstd)")


def zstd_frame(data: bytes) -> bytes:
    """One block as it is, without a checksum (RFC 8878, section 3.1.1)."""
    block = (len(data) << 3 | 1).to_bytes(3, "little")  # the last one, raw
    return b"\x28\xb5\x2f\xfd" + b"\x20" + bytes([len(data)]) + block + data


class Zstd:
    """What Python 3.14 has, as far as it is used here: it reads the one block of ``zstd_frame``."""

    class DecompressionParameter:
        window_log_max = "window"

    class ZstdDecompressor:
        def __init__(self, options: dict[str, int]) -> None:
            assert options == {"window": 23}

        def decompress(self, data: bytes, most: int) -> bytes:
            assert zstd_frame(data[9:]) == data
            return data[9 : 9 + most]


def test_zstd_is_read_where_something_can(monkeypatch: pytest.MonkeyPatch) -> None:
    body = zstd_frame(json.dumps(ERROR).encode())
    top = head(500, "application/json", Content_Encoding="zstd", Content_Length=str(len(body)))
    monkeypatch.setattr(compression, "zstd", Zstd)
    assert outcome(top, body) == ("http_status", "HTTP 500: boom")
    monkeypatch.setattr(compression, "zstd", None)
    monkeypatch.setattr(compression, "zstandard", None)
    assert outcome(top, body) == ("http_status", "HTTP 500: (compressed: zstd)")


@pytest.mark.parametrize("name", ["compression.zstd", "backports.zstd", "zstandard"])
def test_zstd_by_a_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip(name)
    monkeypatch.setattr(compression, "zstd", None if name == "zstandard" else package)
    monkeypatch.setattr(compression, "zstandard", package if name == "zstandard" else None)
    data = json.dumps(ERROR).encode()
    assert decompress_body(zstd_frame(data), ("zstd",), 1000) == data
    assert decompress_body(zstd_frame(data), ("zstd",), 10) == data[:10]
    assert decompress_body(package.compress(bytes(64 << 20)), ("zstd",), MAX_ERROR_BYTES) == bytes(
        MAX_ERROR_BYTES
    )
    assert decompress_body(b"\x00not compressed", ("zstd",), 1000) is None


@pytest.mark.parametrize("coding", CODERS)
def test_a_bomb_stays_small(coding: str) -> None:
    bomb = CODERS[coding](b"x" * (64 << 20))
    found = decompress_body(bomb, (coding,), MAX_ERROR_BYTES)
    assert found is not None
    assert len(found) <= MAX_ERROR_BYTES
    got = outcome(head(500, "text/plain", Content_Encoding=coding, Connection="close"), bomb)
    assert got[1].startswith("HTTP 500: xxx")
    assert len(got[1]) < 5000


FAILURES: list[bytes] = [
    b'error: {"code": 400, "message": "boom", "type": "invalid_request_error"}\n\n',
    b'error: {"code": 400, "message": "boom"}\n',
    b'error:{"message":"boom"}',
    b"error: boom\n\n",
    b"event: error\n: boom\n\n",
    b'event: error\n: "boom"\n\n',
    b'event: error\n: {"message": "boom"}\n\n',
    b"event: error\n:boom\n",
    b"event: error\n: boom",
    b"event: error\ndata: boom\n\n",
    b"event:error\ndata:boom\n\n",
    b"event: Error\ndata: boom\n\n",
    b"event: error\nboom\n\n",
    b'event: error\ndata: {"detail": "boom"}\n\n',
    b'event: error\nid: 1\ndata: {"error": {"message": "boom"}}\n\n',
    json.dumps(ERROR).encode(),
    json.dumps(ERROR).encode() + b"\n",
    json.dumps(ERROR).encode() + b"\n\n",
    json.dumps(ERROR, indent=2).encode() + b"\n\n",
    json.dumps(ERROR, indent=2).encode(),
    json.dumps([ERROR]).encode(),
    json.dumps([ERROR], indent=1).encode() + b"\n",
    event([ERROR]),
    event(ERROR),
    b"data: " + json.dumps(ERROR).encode(),
    b"data: " + json.dumps(ERROR).encode() + b"\n",
    event({"message": "boom", "code": "x"}),
    event({"detail": "boom"}),
]


@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_an_error_in_a_stream_however_it_is_written(kind: str, failure: bytes, end: bytes) -> None:
    failure = failure.replace(b"\n", end)
    begun = TEXTS if kind == "chat" else b": ping\n\n"
    for top in (typed("text/event-stream"), typed(None)):
        for before in (b"", begun) if top == typed("text/event-stream") else (begun,):
            for size in (1, 7, 1000):
                assert outcome(top, *cut(before + failure, size), kind=kind) == (
                    "stream_error",
                    "boom",
                )
    stream = answered(
        head(Transfer_Encoding="chunked") + chunked(begun),
        chunked(failure) + chunked(b""),
        kind=kind,
    )
    assert stream.finish() == ("stream_error", "boom")


def test_an_error_ends_prefill_when_its_event_is_there() -> None:
    for failure in FAILURES:
        if failure.endswith(b"\n\n") and b"detail" not in failure:
            stream = Response(0)
            stream.append_read(1, 0, head(Transfer_Encoding="chunked"))
            stream.append_read(2, 0, chunked(failure))
            stream.decode_pending()
            assert stream.first_seen, failure


def test_an_empty_event_named_error_is_one() -> None:
    assert outcome(typed("text/event-stream"), TEXTS + b"event: error\n\n")[0] == "stream_error"
    assert (
        outcome(typed("text/event-stream"), TEXTS + b"event: error\ndata:\n\n")[0] == "stream_error"
    )


def test_what_is_no_event_stream_at_all_is_said_to_be_none() -> None:
    for page in (b"<html>\n<body>gone</body>\n</html>\n\n", b"<html>gone", b"Bad gateway\n\n"):
        got = outcome(typed("text/event-stream"), page)
        assert got[0] == "malformed"
        assert page.split(b"\n")[0].decode() in got[1]
    for nothing in (b"", b": ping\n\n" * 3, b"\n\n", b"retry: 3\n\n"):
        assert outcome(typed("text/event-stream"), nothing)[0] == "truncated"


PINGS = [
    b"event: ping\ndata: 2026-11-25 18:00:00.000000+00:00\n\n",
    b"event: ping\ndata: {}\n\n",
    b"event: ping\n\n",
    b"event: heartbeat\ndata: alive\n\n",
    b"event: keepalive\ndata:\n\n",
    b": ping - 2026-11-25 18:00:00\r\n\r\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"event: status\ndata: generating\n\n",
    b"id: 7\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: {}\n\n",
    b"data: true\n\n",
    b"data: ping\n\n",
    b"data: : keep-alive\n\n",
]


@examples(200)
@given(st.lists(st.sampled_from(PINGS), max_size=4), st.integers(0, 4), st.integers(1, 200))
def test_pings_of_any_kind_change_nothing(pings: list[bytes], at: int, size: int) -> None:
    events = [*TEXTS.split(b"\n\n")[:-1], *END.split(b"\n\n")[:-1]]
    body = b"".join(
        (b"".join(pings) if number == at else b"") + one + b"\n\n"
        for number, one in enumerate(events)
    )
    stream = answered(typed("text/event-stream"), *cut(body, size))
    assert (stream.finish(), stream.answer.text) == ((OK, ""), ["a", "b"])


@pytest.mark.parametrize("end", ['"[DONE]"', "[done]", " [DONE] ", "[DONE]"])
def test_the_last_event_in_other_writing(end: str) -> None:
    stream = answered(typed("text/event-stream"), TEXTS, event(delta("stop")), event(end))
    assert (stream.finish(), stream.answer.done_read) == ((OK, ""), 2 + 1)


def test_words_in_place_of_json_explain_what_has_no_answer() -> None:
    top, words = typed("text/event-stream"), b"data: no model here\n\n"
    assert outcome(top, words, event("[DONE]")) == ("malformed", "not JSON: no model here")
    assert outcome(top, TEXTS, words)[0] == "truncated"
    assert outcome(top, TEXTS, b"data: Internal Server Error\n\n") == (
        "stream_error",
        "Internal Server Error",
    )


def test_events_without_a_blank_line_between_them_have_no_time() -> None:
    lines = b"".join(line + b"\n" for line in (TEXTS + END).split(b"\n\n") if line)
    for body in (lines, lines + b"\n"):
        got = outcome(typed("text/event-stream"), body)
        assert got[0] == "malformed"
        assert "blank line" in got[1]


@pytest.mark.parametrize("index", ["0", "1", 1, -1, 1.0, None])
def test_the_only_choice_may_have_any_index(index: Any) -> None:
    events = [delta(content="a"), delta(content="b"), delta("stop")]
    for one in events:
        one["choices"][0]["index"] = index
    stream = answered(typed("text/event-stream"), *map(event, events))
    assert (stream.finish(), stream.answer.text, stream.answer.choices) == ((OK, ""), ["a", "b"], 1)
    late = answered(
        typed("text/event-stream"),
        *map(event, events[:2]),
        event(delta(content="c")),
        event(delta("stop")),
    )
    assert late.finish()[0] == (OK if index in ("0", None) else "truncated")


@pytest.mark.parametrize("kind", ["messages", "responses"])
def test_a_type_that_only_the_event_has(kind: str) -> None:
    if kind == "messages":
        events = [
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}),
            (
                "message_delta",
                {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            ),
        ]
    else:
        last = {"response": {"usage": {"output_tokens": 3}}}
        events = [("response.output_text.delta", {"delta": "a"}), ("response.completed", last)]
    reads = [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events]
    stream = answered(typed("text/event-stream"), *reads, kind=kind)
    assert (stream.finish(), stream.answer.text, stream.answer.output_tokens) == (
        (OK, ""),
        ["a"],
        3,
    )


@pytest.mark.parametrize("last", ["response.completed", "response.done", "response.incomplete"])
def test_an_end_of_responses_may_have_no_status(last: str) -> None:
    text = event({"type": "response.output_text.delta", "delta": "a"})
    status = {"status": "completed"} if last == "response.done" else {}
    end = event(
        {"type": last, "response": {**status, "usage": {"input_tokens": 7, "output_tokens": 3}}}
    )
    stream = answered(typed("text/event-stream"), text, end, kind="responses")
    assert (stream.finish(), stream.answer.input_tokens) == ((OK, ""), 7)
    assert stream.answer.finish_reason == ("length" if last == "response.incomplete" else "stop")


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_text": "hm"},
        {"content": "<thought>hm", "extra_content": {"google": {"thought": True}}},
    ],
    ids=["copilot", "gemini"],
)
def test_reasoning_in_fields_of_the_servers_own(thought: dict[str, Any]) -> None:
    plain = delta(content="a", extra_content={"google": {"thought_signature": "x"}})
    stream = answered(typed("text/event-stream"), *map(event, [delta(**thought), plain]), END)
    assert stream.finish() == (OK, "")
    assert (stream.answer.chunk_reads, stream.answer.first_output, stream.answer.thought) == (
        [1, 2],
        1,
        True,
    )


def test_broken_json_in_a_named_event_is_malformed() -> None:
    body = b"event: response.output_text.delta\ndata: {broken\n\n"
    assert outcome(typed("text/event-stream"), body, kind="responses")[0] == "malformed"


@pytest.mark.parametrize("number", ["-Infinity", "Infinity", "NaN", "-1e999"])
def test_numbers_that_json_lacks_cost_no_chunk(number: str) -> None:
    one = (
        b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"x": [%b]}}]}\n\n'
        % number.encode()
    )
    stream = answered(typed("text/event-stream"), one, one, END)
    assert (stream.finish(), stream.answer.text) == ((OK, ""), ["a", "a"])


WHOLE = {
    "chat": {"object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"},
             "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    "completions": {"choices": [{"text": "a", "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    "messages": {"type": "message", "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn",
                 "usage": {"input_tokens": 7, "output_tokens": 3}},
    "responses": {"object": "response", "id": "r", "status": "completed",
                  "output": [{"type": "message", "content": [{"type": "output_text",
                      "text": "a"}]}],
                  "usage": {"input_tokens": 7, "output_tokens": 3}},
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_the_whole_answer_as_one_event_is_a_chunk(kind: str) -> None:
    forms = [
        event(WHOLE[kind]),
        event(WHOLE[kind]) + event("[DONE]"),
        json.dumps(WHOLE[kind]).encode(),
    ]
    if kind == "responses":
        forms.append(event({"type": "response.completed", "response": WHOLE[kind]}))
        forms.append(
            event({"type": "response.output_text.done", "text": "a"})
            + event({"type": "response.completed", "response": WHOLE[kind]})
        )
    for body in forms:
        stream = answered(typed("text/event-stream"), body, kind=kind)
        assert stream.finish() == (OK, "")
        answer = stream.answer
        assert (
            answer.text,
            len(answer.chunk_reads),
            answer.input_tokens,
            answer.output_tokens,
        ) == (["a"], 1, 7, 3)


def test_a_message_behind_its_own_deltas_is_no_chunk() -> None:
    last = {
        "choices": [
            {"index": 0, "delta": {}, "message": {"content": "ab"}, "finish_reason": "stop"}
        ]
    }
    stream = answered(typed("text/event-stream"), TEXTS + event(last))
    assert (stream.finish(), stream.answer.text) == ((OK, ""), ["a", "b"])


@pytest.mark.parametrize("none", ["null", "NULL", "None", "none", "", " ", None, False, 0, []])
@pytest.mark.parametrize("kind", ["chat", "completions", "messages"])
def test_a_reason_that_is_none_ends_nothing(kind: str, none: Any) -> None:
    if kind == "chat":
        one: Any = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": none}]}
    elif kind == "completions":
        one = {"choices": [{"index": 0, "text": "a", "finish_reason": none}]}
    else:
        text = event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "a"},
            }
        )
        end = event(
            {"type": "message_delta", "delta": {"stop_reason": none}, "usage": {"output_tokens": 1}}
        )
        assert outcome(typed("text/event-stream"), text, end, kind=kind)[0] == "truncated"
        return
    assert (
        outcome(typed("text/event-stream"), event(one), event("[DONE]"), kind=kind)[0]
        == "truncated"
    )


@pytest.mark.parametrize(
    ("call", "written"),
    [
        ("function_call", "response.function_call_arguments"),
        ("custom_tool_call", "response.custom_tool_call_input"),
        ("mcp_call", "response.mcp_call_arguments"),
    ],
)
def test_calls_of_tools_in_responses(call: str, written: str) -> None:
    """Reasoning, the begin of the call and two deltas; the empty ones and the repeats are none."""
    item = {"type": call, "call_id": "c", "name": "f"}
    field = "input" if call == "custom_tool_call" else "arguments"
    reads = [
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_item.added", "output_index": 1, "item": {**item, field: ""}},
        {"type": f"{written}.delta", "output_index": 1, "delta": "ls"},
        {"type": f"{written}.delta", "output_index": 1, "delta": ""},
        {"type": f"{written}.delta", "output_index": 1, "delta": " -l"},
        {"type": f"{written}.done", "output_index": 1, field: "ls -l"},
        {"type": "response.output_item.done", "output_index": 1, "item": {**item, field: "ls -l"}},
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": [{**item, field: "ls -l"}]},
        },
    ]
    stream = answered(typed("text/event-stream"), *map(event, reads), kind="responses")
    assert (stream.finish(), stream.answer.finish_reason) == ((OK, ""), "tool_calls")
    assert (stream.answer.chunk_reads, stream.answer.first_output) == ([1, 2, 3, 5], 1)


def test_a_repeated_begin_of_a_call_is_no_chunk() -> None:
    begin = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}
    other = {"index": 1, "id": "u", "function": {"name": "f", "arguments": ""}}
    deltas = [delta(tool_calls=[call]) for call in (begin, begin, more, begin, other)]
    deltas += [
        delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": None, "arguments": None}}])
    ]
    old = [
        delta(function_call=call)
        for call in ({"name": "f", "arguments": ""}, {"name": "f", "arguments": ""})
    ]
    stream = answered(typed("text/event-stream"), *map(event, [*deltas, *old]), END)
    assert stream.finish() == (OK, "")
    assert stream.answer.chunk_reads == [1, 3, 5, 7]


def test_a_call_of_a_tool_outside_of_a_list_is_one() -> None:
    calls = [
        {"index": 0, "id": "", "function": {"name": name, "arguments": "{"}} for name in ("f", None)
    ]
    stream = answered(
        typed("text/event-stream"), *[event(delta(tool_calls=call)) for call in calls], END
    )
    assert (stream.finish(), stream.answer.chunk_reads) == ((OK, ""), [1, 2])


def test_an_image_of_megabytes_is_a_chunk_and_counts_for_the_bytes_of_the_answer() -> None:
    image = event(
        delta(
            images=[
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64," + "A" * 1_600_000},
                }
            ]
        )
    )
    stream = answered(typed("text/event-stream"), *cut(image, 65_536), END)
    assert (stream.finish(), len(stream.answer.chunk_reads)) == ((OK, ""), 1)
    small = Response(0, max_bytes=1_000_000)
    for number, data in enumerate([typed("text/event-stream"), *cut(image, 65_536)], 1):
        if not small.over and small.append_read(number, number, data):
            small.decode_pending()
    assert small.finish() == ("too_large", "more than 1000000 bytes")


PIECES = st.sampled_from(
    [
        *FAILURES,
        *PINGS,
        TEXTS,
        END,
        b"{",
        b"[",
        b"error:",
        b"event: error\n",
        b"\n\n",
        b"data: {",
        b"\r",
    ]
)


@examples(400)
@given(
    st.lists(PIECES | st.binary(max_size=8), max_size=8),
    st.data(),
    st.sampled_from(list(PROTOCOLS)),
)
def test_any_split_of_odd_streams_means_the_same(
    pieces: list[bytes], data: st.DataObject, kind: str
) -> None:
    body = b"".join(pieces)
    top = typed(data.draw(st.sampled_from(KINDS)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(body) - 1)), max_size=6)))
    parts = [body[a:b] for a, b in pairwise([0, *cuts, len(body)])]
    one, many = answered(top, body, kind=kind), answered(top, *parts, kind=kind)
    assert one.finish() == many.finish()
    assert (one.answer.text, one.streamed) == (many.answer.text, many.streamed)
