"""Both readers, and the decoder with and without its part in C: the same bytes in the same reads
are the same answer."""

import re
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.socket
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.scripted import chunked, delta, event, head
from support.tls_pair import Pair, pair

from locust_llm.client.connection import ask_for_stamps
from locust_llm.client.reader import native_reader
from locust_llm.client.reader.open_streams import OpenStreams
from locust_llm.client.reader.python_reader import PythonReader
from locust_llm.client.response_chunks import Response
from locust_llm.protocols.answer_parser import Completion

pytestmark = pytest.mark.skipif(
    native_reader.Reader is None, reason="the native reader was not compiled"
)

CAPTURES = sorted((Path(__file__).parents[2] / "captures").glob("*_stream.http*"))
EVENT = re.compile(rb".*?(?:\r?\n){2}", re.DOTALL)
HEAD = head(Transfer_Encoding="chunked")

events = st.sampled_from(
    [
        event(delta(content="a")),
        event(delta(content="a b~")),
        event(delta(content='"')),
        event(delta(content="\n")),
        event(delta(content="\x7f")),
        event(delta(content="")),
        event(delta(content="c") | {"created": 2}),
        event(delta(content="c") | {"usage": {"completion_tokens": 3}}),
        event(delta(content="c", reasoning="d")),
        event(delta("stop", content="c")),
        event(delta(content="µ…\u2028")),
        event(delta(role="assistant")),
        event(delta(), "\r\n"),
        event(delta("stop")),
        b"data: [DONE]\n\n",
        b": ping\n\n",
        b"data: {\n\n",
        b"data: {}\r\n\r\n",
        b"data: {}\n",
        b"\n",
        b"data:{}\n\n",
        b"event: error\ndata: {}\n\n",
        b'data: {"error": "no"}\n\n',
        b"data: {}\n\ndata: {}\n\n",
        b"\xef\xbb\xbfdata: {}\n\n",
        b"data: {\r}\n\n",
        b'error: {"message": "no"}\n\n',
        b"event: error\n: no\n\n",
        b'{"error": "no"}\n\n',
        b'data: {"code": 500, "message": "no"}\n\n',
        b'data: [{"error": "no"}]\n\n',
        b'data: {"choices": [{"delta": {"content": "c"}, "logprobs": -Infinity}]}\n\n',
        b'data: {"choices": [{"delta": [], "message": {"content": "c"}}], "usage": []}\n\n',
        b"event: ping\ndata: now\n\n",
        event(delta(content="c") | {"base_resp": {"status_code": 0}}),
        event(delta(content="c") | {"base_resp": {"status_code": 1, "status_msg": "no"}}),
        event(delta(content="c") | {"x_groq": {"usage": {"completion_tokens": 4}}}),
        event(delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}])),
        event(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}])),
        event(delta(reasoning_details=[{"type": "reasoning.summary", "summary": "t"}])),
        event(delta("null", content="c")),
        event(
            delta("stop", content="c") | {"usage": {"completion_tokens": 0, "prompt_tokens": "7"}}
        ),
    ]
)
chunks = st.one_of(
    events.map(chunked),
    st.lists(events, min_size=1, max_size=3).map(b"".join).map(chunked),
    st.sampled_from(
        [
            b"0\r\n\r\n",
            b"0\r\nX: y\r\n\r\n",
            b"5;x=y\r\nhello\r\n",
            b"\r\n",
            b"garbage",
            b"ffffffffffffffff\r\n",
            b"000A\r\ndata: {}\n\n\r\n",
        ]
    ),
    st.binary(max_size=12),
)
heads = st.sampled_from(
    [
        HEAD,
        HEAD,
        HEAD,
        HEAD.replace(b"\r\n", b"\n"),
        HEAD.replace(b"chunked", b"gzip, chunked"),
        HEAD.replace(b"chunked", b"Chunked"),
        head(Connection="close"),
        head(Content_Length="60"),
        head(500, Transfer_Encoding="chunked"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
        HEAD + chunked(event(delta(content="first"))),
        HEAD + b"5\r\nhel",
        HEAD.replace(b"200", b"2"),
        HEAD.replace(b"text/event-stream", b"application/json"),
        HEAD.replace(b"Content-Type: text/event-stream", b"X: y"),
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: none\r\n\r\n"),
        b"garbage\r\n\r\n",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """Reads: a head, then chunks, cut anywhere or nowhere."""
    reads = [draw(heads), *draw(st.lists(chunks, max_size=12))]
    if draw(st.booleans()):
        data = b"".join(reads)
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=8)))
        reads = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return [read for read in reads if read]


def said(stream: Response) -> dict[str, Any]:
    """All that becomes a record."""
    outcome = stream.finish()
    answer = stream.answer
    return {
        "outcome": outcome,
        "reads": answer.chunk_reads,
        "text": answer.text,
        "stamps": len(stream.stamps),
        "bytes": stream.received_bytes,
        "status": stream.status,
        "finish": answer.finish_reason,
        "tokens": (
            answer.input_tokens,
            answer.output_tokens,
            answer.hidden_tokens,
            answer.settled.rejected,
        ),
        "complete": stream.frame.complete,
        "followed": answer.followed,
        "done": answer.done_read,
        "early": answer.early_read,
        "ended": stream.ended_ns is None,
        "sample": stream.sample,
        "first": (answer.first_output, answer.first_chunk_tokens, answer.chunk_tokens),
    }


def decoded(
    reads: list[bytes], looks: list[bool], plain_events: Any, keep_text: bool
) -> dict[str, Any]:
    stream = Response(0, keep_text=keep_text)
    stream.plain_events = plain_events
    for number, (data, look) in enumerate(zip(reads, looks, strict=True)):
        if not stream.over and (stream.append_read(number + 1, number, data) or look):
            stream.decode_pending()
    if not stream.over:
        stream.note_closed()
    return said(stream)


@examples(3000)
@given(answers(), st.data())
def test_events_that_c_takes_out_are_those_of_the_parser(
    reads: list[bytes], data: st.DataObject
) -> None:
    looks = data.draw(st.lists(st.booleans(), min_size=len(reads), max_size=len(reads)))
    keep_text = data.draw(st.booleans())
    assert decoded(reads, looks, native_reader.plain_events, keep_text) == decoded(
        reads, looks, None, keep_text
    )


def test_events_are_taken_out_at_all() -> None:
    read = chunked(b"data: {1}\n\n") + chunked(b"data: {2}\n\n")
    assert native_reader.plain_events is not None
    found = native_reader.plain_events(
        [read, chunked(b"data: {3}\n\n"), b"0\r\n\r\n", read], 7, b"", b""
    )
    assert found == (
        [(7, "message", b"{1}"), (7, "message", b"{2}"), (8, "message", b"{3}")],
        2,
        len(read) + 16,
    )
    for odd in (
        b"",
        b"b",
        b"b\r\n",
        b"b\r\ndata: {1}\n\n",
        b"b\r\ndata: {1}\n\n\r",
        b"A\r\ndata: {}\n\n\r\nx",
        b"0000000a\r\ndata: {}\n\n\r\n",
        b"a\r\ndata: {\n\n\n\r\n",
        b"8\r\ndata: {\n\r\n",
    ):
        assert native_reader.plain_events([odd], 0, b"", b"") == ([], 0, 0)
    with pytest.raises(TypeError):
        native_reader.plain_events(["text"], 0, b"", b"")  # type: ignore[list-item]


def test_chunks_that_differ_in_their_text_alone_come_together() -> None:
    def read(*texts: bytes) -> bytes:
        return b"".join(chunked(b'data: {"a": "%s"}\n\n' % text) for text in texts)

    assert native_reader.plain_events is not None
    reads = [
        read(b"one", b"two"),
        read(b"~ three", b"", b"four"),
        read(b"f\\n", b"six"),
        read(b"caf\xc3\xa9"),
    ]
    found, number, _ = native_reader.plain_events(reads, 3, b'{"a": "', b'"}')
    assert number == 4
    assert found == [
        ([3, 3, 4], b'{"a": "~ three"}'),
        (4, "message", b'{"a": ""}'),
        ([4], b'{"a": "four"}'),
        (5, "message", b'{"a": "f\\n"}'),
        ([5], b'{"a": "six"}'),
        (6, "message", b'{"a": "caf\xc3\xa9"}'),
    ]


def test_an_answer_that_is_decoded_late_is_decoded_as_cheaply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    add = Completion.add

    def note(answer: Completion, one: tuple[int, str, bytes]) -> None:
        parsed.append(one[2])
        add(answer, one)

    monkeypatch.setattr(Completion, "add", note)
    role = event(delta(role="assistant", content=""))
    words = [event(delta(content=f"word{number}")) for number in range(60)]
    reads = [HEAD, *map(chunked, [role, *words])]
    stream = Response(0)
    stream.plain_events = native_reader.plain_events
    stream.append_reads(array("q", range(62)).tobytes(), array("q", range(62)).tobytes(), reads)
    stream.decode_pending()

    assert stream.answer.chunk_reads == list(range(2, 62))
    assert parsed == [data[6:-2] for data in (role, words[0])]  # behind "data: "


@pytest.fixture(scope="module")
def readers() -> list[OpenStreams]:
    assert native_reader.Reader is not None
    return [OpenStreams(PythonReader()), OpenStreams(native_reader.Reader())]


def read_by(
    reader: OpenStreams, reads: list[bytes], end: str, tls: Pair | None = None
) -> dict[str, Any]:
    """Over a connection, a piece each time the one before was read."""
    with gevent.socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        ours = gevent.socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        theirs.setsockopt(6, 1, 1)
        ask_for_stamps(ours)
        stream = Response(time.monotonic_ns(), keep_text=True)
        connection: Any = SimpleNamespace(fd=ours.fileno(), tls=tls and tls.client)
        reading = reader.add(connection, stream)
        for data in reads:
            before = reader.reads
            theirs.sendall(data if tls is None else tls.says(data))
            wait_for(lambda before=before: reader.reads > before or reading.ended.is_set())  # type: ignore[misc]
            if reading.ended.wait(0.002 if stream.frame.complete else 0):
                break
        if end in ("close", "cut") and not reading.ended.is_set():
            theirs.sendall(b"" if tls is None or end == "cut" else tls.closes())
            theirs.shutdown(1)
        elif end == "broken" and not reading.ended.is_set():
            theirs.sendall(b"\x17\x03\x03\x00\x14" + bytes(20))
        elif not reading.ended.is_set():
            reader.drop(reading, "cut", "given up")
        assert reading.ended.wait(10)
        assert (stream.unstamped, stream.bad_stamps) == (0, 0)
        assert all(since <= stamp for since, stamp in zip(stream.since, stream.stamps, strict=True))
        assert list(stream.since) == sorted(stream.since)
        return said(stream)


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        gevent.sleep(0.0002)


@examples(400)
@given(reads=answers(), end=st.sampled_from(["close", "drop"]))
def test_both_readers_have_the_same_answer(
    readers: list[OpenStreams], reads: list[bytes], end: str
) -> None:
    first, second = (read_by(reader, reads, end) for reader in readers)
    assert first == second


@examples(400)
@given(reads=answers(), end=st.sampled_from(["close", "cut", "drop", "broken"]))
def test_both_readers_have_the_same_answer_over_tls(
    readers: list[OpenStreams], certificate: Path, reads: list[bytes], end: str
) -> None:
    """``close`` is announced, ``cut`` is not; ``broken`` is a record that nobody can decrypt."""
    first, second = (read_by(reader, reads, end, pair(certificate)) for reader in readers)
    assert first == second


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_both_readers_have_the_same_answer_of_real_servers(
    readers: list[OpenStreams], path: Path
) -> None:
    # they are kept without the frame of their body
    top, _, body = path.read_bytes().partition(b"\r\n\r\n")
    data = top + b"\r\n\r\n" + b"".join(map(chunked, EVENT.findall(body))) + chunked(b"")
    for size in (len(data), 700, 64):
        reads = [data[at : at + size] for at in range(0, len(data), size)]
        first, second = (read_by(reader, reads, "close") for reader in readers)
        assert first == second
