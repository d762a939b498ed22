"""HTTP framing: where an answer begins and ends, in any split, and when its connection may be used
again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.client.http_response_parser import HTTPParseError, HTTPResponseParser

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: "
    b"chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def fed(*reads: bytes, frame: HTTPResponseParser | None = None) -> HTTPResponseParser:
    frame = frame or HTTPResponseParser()
    for frame.read, data in enumerate(reads):
        frame.feed(data)
    return frame


def body(frame: HTTPResponseParser) -> bytes:
    return b"".join(data for _, data in frame.pieces)


@pytest.mark.parametrize(
    "wire", [LENGTH, CHUNKED, CONTINUE + LENGTH, CONTINUE + CONTINUE + CHUNKED]
)
def test_every_split_of_a_framed_answer(wire: bytes) -> None:
    for cut in range(len(wire) + 1):
        frame = fed(wire[:cut], wire[cut:])
        assert (frame.complete, frame.reusable, body(frame), frame.get_code()) == (
            True,
            True,
            b"hello",
            200,
        )
        assert not fed(wire[:cut]).complete or cut == len(wire)
    frame = fed(*(wire[at : at + 1] for at in range(len(wire))))
    assert (frame.complete, frame.reusable, body(frame)) == (True, True, b"hello")


def test_each_piece_carries_the_number_of_its_read() -> None:
    assert fed(LENGTH[:-3], LENGTH[-3:]).pieces == [(0, b"he"), (1, b"llo")]


def test_an_interim_response_is_not_the_response() -> None:
    frame = fed(CONTINUE)
    assert (frame.complete, frame.has_headers) == (False, False)
    frame = fed(CONTINUE, UNTIL_CLOSE)
    assert (frame.has_headers, frame.chunked, frame.get("content-type")) == (
        True,
        False,
        "text/plain",
    )


def test_without_a_length_the_end_of_the_connection_is_the_end() -> None:
    frame = fed(UNTIL_CLOSE)
    assert not frame.complete
    frame.end()
    assert (frame.complete, frame.reusable, body(frame)) == (True, False, b"hello")


@pytest.mark.parametrize("wire", [LENGTH, CHUNKED, CONTINUE])
def test_with_a_length_an_early_end_is_no_end(wire: bytes) -> None:
    frame = fed(wire[:-1])
    frame.end()
    assert (frame.complete, frame.reusable) == (False, False)


def test_an_answer_without_a_body_ends_with_its_headers() -> None:
    assert fed(b"HTTP/1.1 204 No Content\r\n\r\n").reusable


@pytest.mark.parametrize(
    "extra", [b"x", b"garbage\r\n\r\n", LENGTH, b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@pytest.mark.parametrize("wire", [LENGTH, CHUNKED])
def test_bytes_after_the_end_change_nothing_and_are_noticed(wire: bytes, extra: bytes) -> None:
    for reads in ([wire + extra], [wire, extra], [wire[:-1], wire[-1:] + extra]):
        frame = HTTPResponseParser()
        with pytest.raises(HTTPParseError):
            fed(*reads, frame=frame)
        assert (frame.complete, frame.get_code(), body(frame)) == (True, 200, b"hello")


def test_a_connection_that_the_server_will_close_is_not_used_again() -> None:
    assert not fed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").reusable
    assert not fed(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").reusable
    assert fed(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n").reusable


@examples(300)
@given(st.sampled_from([LENGTH, CHUNKED, CONTINUE + CHUNKED, UNTIL_CLOSE, b""]), st.data())
def test_mutilated_bytes_raise_nothing_else(wire: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(wire)))
    gone = data.draw(st.integers(0, 5))
    wire = wire[:at] + data.draw(st.binary(max_size=12)) + wire[at + gone :]
    frame = HTTPResponseParser()
    try:
        for start in range(0, len(wire), 11):
            frame.feed(wire[start : start + 11])
    except HTTPParseError:
        pass
    frame.end()
    assert frame.complete in (True, False)
    assert not frame.reusable or frame.complete
