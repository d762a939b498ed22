"""Events out of bytes: the WHATWG rules that matter, any split, and hostile bodies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sseclient import SSEClient
from support.examples import examples

from locust_llm.client.sse import LARGE_BYTES, MAX_EVENT_LINES, EventDecoder, EventTooLong


def events(*pieces: bytes) -> list[tuple[str, bytes]]:
    return [(kind, data) for _, kind, data in EventDecoder().feed(enumerate(pieces))]


def test_each_event_carries_the_number_of_the_read_that_ended_it() -> None:
    decoder = EventDecoder()
    got = list(decoder.feed([(0, b"data: a\n\ndata: b"), (1, b"c\n"), (2, b"\ndata: d\n\n")]))
    assert got == [(0, "message", b"a"), (2, "message", b"bc"), (2, "message", b"d")]


def test_fields_comments_and_types() -> None:
    assert events(b": ping\n\nevent: error\ndata: x\n\nid: 1\n\ndata:y\ndata: z\n\n") == [
        ("error", b"x"),
        ("message", b"y\nz"),
    ]


@pytest.mark.parametrize("body", [
    b"event: a\ndata: {}\n\n", b"event: a b \ndata:  x \n\n", b"event: \ndata: x\n\n",
    b"event: a\ndata: \n\n",
    b"event: a\nid: 1\ndata: x\n\n", b"event: a\ndata: x\ndata: y\n\n",
    b"event: a\ndata: x\n\ndata: y\n\n",
])  # fmt: skip
def test_a_named_event_of_one_line_is_read_as_sseclient_reads_it(body: bytes) -> None:
    assert events(body) == [
        (event.event, event.data.encode()) for event in SSEClient(iter([body])).events()
    ]


@pytest.mark.parametrize(
    ("shortcut", "parsed"), [(True, [b"x"]), (False, [b"1", b"2", b"x", b"3"])]
)
def test_what_sseclient_reads(
    shortcut: bool, parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the Python reader all events; else those that are not one ``data:`` line."""
    seen = list[bytes]()

    class Counting(SSEClient):  # type: ignore[misc]
        def events(self) -> Any:
            for found in super().events():
                seen.append(found.data.encode())
                yield found

    monkeypatch.setattr("locust_llm.client.sse.SSEClient", Counting)
    decoder = EventDecoder(shortcut)
    pieces = [b"data: 1\n\ndata: 2\n\n", b": note\ndata: x\n\n", b"event: a\ndata: 3\n\n"]
    got = list(decoder.feed(enumerate(pieces)))
    assert got == [(0, "message", b"1"), (0, "message", b"2"), (1, "message", b"x"), (2, "a", b"3")]
    assert seen == parsed


def test_a_blank_line_of_mixed_line_ends_ends_an_event() -> None:
    for blank in (b"\n\r\n", b"\r\n\n", b"\r\r\n", b"\n\r", b"\r\n\r"):
        body = b"data: a" + blank + b"data: b" + blank
        assert (
            events(body)
            == events(*[bytes([b]) for b in body])
            == [("message", b"a"), ("message", b"b")]
        )


def test_a_read_that_ends_an_event_and_begins_the_next_is_told() -> None:
    decoder = EventDecoder()
    pieces = [
        b"data: a\n\n",
        b"data: b\n\ndata: c\n\n",
        b"data: d\n\nda",
        b"ta: e\n\n",
        b"data: f\n",
        b"\n",
    ]
    assert len(list(decoder.feed(enumerate(pieces)))) == 6
    assert decoder.shared == {2}
    two = EventDecoder()  # two pieces of one read, as two chunks of a chunked body are
    list(two.feed([(0, b"data: a\n\n"), (0, b"data: b")]))
    assert two.shared == {0}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end(end: bytes) -> None:
    assert events(b"data: a" + end + end + b"data: b" + end + end) == [
        ("message", b"a"),
        ("message", b"b"),
    ]


def test_a_byte_order_mark_does_not_cost_the_first_event() -> None:
    body = b"\xef\xbb\xbfdata: a\n\n"
    assert events(body) == events(*[bytes([b]) for b in body]) == [("message", b"a")]


def test_a_tail_without_a_blank_line_is_no_event() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed([(0, b"data: a\n\ndata: lost\n")])) == [(0, "message", b"a")]
    assert decoder.unterminated
    tidy = EventDecoder()
    list(tidy.feed([(0, b"data: a\n\n\n")]))
    assert not tidy.unterminated


def test_a_tail_above_a_megabyte_is_no_error_and_may_be_json() -> None:
    for tail, count in ((b"data: " + b"x" * LARGE_BYTES, 0), (b"x" * LARGE_BYTES + b"x", 0),
                        (b'{"image": "' + b"A" * LARGE_BYTES + b'"}', 1)):  # fmt: skip
        decoder = EventDecoder()
        assert list(decoder.feed([(0, tail)])) == []
        assert len(decoder.rest(0)) == count


def test_bytes_that_are_no_utf8_come_through_unchanged() -> None:
    assert events(b"data: \xff\xfe\n\n") == [("message", b"\xff\xfe")]


def test_what_was_whole_comes_before_the_refusal() -> None:
    feed = EventDecoder().feed([(0, b"data: a\n\n"), (1, b"data: x\n" * (MAX_EVENT_LINES + 1))])
    assert next(feed) == (0, "message", b"a")
    with pytest.raises(EventTooLong):
        next(feed)


def test_an_image_of_megabytes_is_an_event_and_a_million_values_are_none() -> None:
    image = b'{"image": "' + b"A" * (3 << 20) + b'"}'
    assert events(b"data: " + image + b"\n\n") == [("message", image)]
    for many in (b"[" + b"1," * 600_000 + b"1]", b"[" * 1_100_000, b'{"a":' * 300_000):
        with pytest.raises(EventTooLong):
            events(b"data: " + many + b"\n\n")
        assert EventDecoder().rest(0) == []


def test_a_megabyte_of_short_lines_is_refused_before_it_costs_time() -> None:
    with pytest.raises(EventTooLong):
        list(EventDecoder().feed([(0, b"a\n" * 30_000)]))


def test_a_long_answer_of_small_events_is_none_of_these() -> None:
    decoder = EventDecoder()
    for read in range(3000):
        assert (
            len(
                list(
                    decoder.feed([(read, b"data: " + b"x" * 1000 + b"\n"), (read, b"\n: ping\n\n")])
                )
            )
            == 1
        )


LINES = st.lists(
    st.sampled_from(
        [b"data: x", b"data:", b": c", b"event: e", b"", b"id: 1", b"data: \xe2\x82\xac"]
    ),
    max_size=12,
)


@examples(300)
@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_any_split_gives_the_same_events(
    lines: list[bytes], end: bytes, data: st.DataObject
) -> None:
    body = end.join(lines) + end * 2
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert events(*pieces) == events(body) == events(*[bytes([b]) for b in body])


@examples(300)
@given(
    st.lists(
        st.lists(st.binary(max_size=6) | LINES.map(b"\n".join), min_size=1, max_size=3), max_size=6
    )
)
def test_what_needs_no_reading_is_what_sseclient_would_read(written: list[list[bytes]]) -> None:
    """Its own blank lines and line ends are the guard's business, so none are written here."""
    pieces = [
        b"".join(b"data: " + b"".join(line.split()) + b"\n" if line else b": c\n" for line in lines)
        + b"\n"
        for lines in written
    ]
    twin = [
        (event.event, event.data.encode("latin-1"))
        for event in SSEClient(pieces, char_enc="latin-1").events()
    ]
    assert events(*pieces) == twin


@examples(200)
@given(st.binary(max_size=400), st.integers(1, 7))
def test_no_bytes_raise_anything(body: bytes, size: int) -> None:
    decoder = EventDecoder()
    list(decoder.feed((i, body[i : i + size]) for i in range(0, len(body), size)))
