"""From the trace id of a request to its server times: ids, decoders, what a span says, the join,
the file."""

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exports import ARRIVED_NS, NAMES, as_json, as_protobuf, span

from locust_llm.records.server_times import ServerTimes
from locust_llm.records.spans import otlp_json, otlp_protobuf
from locust_llm.records.spans.join_spans import SpanJoin, SpanLine, sort_spans
from locust_llm.records.spans.span import extract_server_times
from locust_llm.records.spans.span_times import FILE, read_spans
from locust_llm.records.spans.trace_ids import make_run_trace, make_trace_id, make_traceparent

RUN = "4bf92f3577b34da6"
OF_VLLM = {
    "queue": 0.25,
    "prefill": 0.125,
    "decode": 1.5,
    "inference": 1.625,
    "ttft": 0.3755,
    "e2e": 1.9,
}
US = {
    "queue_us": 250_000,
    "prefill_us": 125_000,
    "decode_us": 1_500_000,
    "inference_us": 1_625_000,
    "ttft_us": 375_500,
}
TIMES = ServerTimes(source="spans", **US, e2e_us=1_900_000, arrived_at=ARRIVED_NS / 1e9)


def test_the_ids_of_a_request() -> None:
    """blake2b of 8 bytes: ``printf local-1-1 | b2sum -l 64`` says the same."""
    assert make_trace_id(RUN, "local-1-1") == RUN + "07701931c1580219"
    assert make_traceparent(RUN, "local-1-1") == f"00-{RUN}07701931c1580219-07701931c1580219-01"
    assert make_trace_id(RUN, "local-1-1.2") != make_trace_id(RUN, "local-1-1")
    assert len({make_run_trace(Random(seed)) for seed in range(100)} | {RUN}) == 101
    assert all(len(make_run_trace(Random(seed))) == 16 for seed in range(100))


@pytest.mark.parametrize(
    ("made", "decode"),
    [(as_json, otlp_json.decode_otlp_json), (as_protobuf, otlp_protobuf.decode_otlp_protobuf)],
)
def test_a_span_of_vllm_in_both_forms(made: Any, decode: Any) -> None:
    first, whole, none = decode(
        made(span(RUN * 2, **OF_VLLM), span(RUN * 2, queue=2), span(RUN * 2))
    )
    assert (first.trace_id, first.name, first.end_ns - first.start_ns) == (
        RUN * 2,
        "llm_request",
        1_000_000_000,
    )
    assert set(first.attributes) == set(NAMES.values())
    assert extract_server_times(first) == TIMES
    assert extract_server_times(whole).queue_us == 2_000_000
    assert extract_server_times(none) is None
    (text,) = decode(made(span(RUN * 2, queue={"stringValue": "soon"})))
    with pytest.raises(ValueError, match="time_in_queue = nan s"):
        extract_server_times(text)


def test_json_as_others_write_it() -> None:
    """Numbers for texts, large letters, the name of before 2022, a list of exports, one per line of
    a collector's file."""
    other = span(RUN.upper() * 2, queue={"doubleValue": "0.5"}) | {"startTimeUnixNano": ARRIVED_NS}
    (found,) = otlp_json.decode_otlp_json(
        json.dumps(
            [{"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": [other]}]}]}]
        ).encode()
    )
    assert (found.trace_id, found.start_ns, found.attributes) == (
        RUN * 2,
        ARRIVED_NS,
        {NAMES["queue"]: 0.5},
    )
    assert (
        otlp_json.decode_otlp_json(b'{"resourceSpans": []}')
        == otlp_json.decode_otlp_json(b'{"resourceSpans": null}')
        == []
    )
    for wrong in (
        b"",
        b"{}",
        b"[1]",
        b'{"resourceSpans": {}}',
        b"[" * 100_000,
        b'{"resourceSpans": [{"scopeSpans": 1}]}',
    ):
        with pytest.raises(ValueError, match=r"\w"):
            otlp_json.decode_otlp_json(wrong)


@given(st.binary(max_size=200), st.data())
def test_no_bytes_get_past_a_decoder_but_spans(data: bytes, more: st.DataObject) -> None:
    """Damaged exports, too: ValueError, or spans that can be sorted."""
    whole = (as_json if more.draw(st.booleans()) else as_protobuf)(span(RUN * 2, **OF_VLLM))
    at = more.draw(st.integers(0, len(whole)))
    for decode in (otlp_json.decode_otlp_json, otlp_protobuf.decode_otlp_protobuf):
        for damaged in (data, whole[:at] + data + whole[at + len(data) :], whole[:at]):
            try:
                found = decode(damaged)
            except ValueError:
                continue
            assert sort_spans(found, RUN).counts.get("received", 0) == len(found)


@pytest.mark.parametrize("seconds", [-1e-9, float("nan"), float("inf"), 86_401.0, 1e8])
def test_a_time_that_cannot_be_keeps_its_span_apart(seconds: float) -> None:
    found = sort_spans(
        otlp_protobuf.decode_otlp_protobuf(
            as_protobuf(span(RUN * 2, **{**OF_VLLM, "decode": seconds}))
        ),
        RUN,
    )
    assert (found.times, found.counts) == ([], {"received": 1, "impossible": 1})
    assert found.mistake.startswith("gen_ai.latency.time_in_model_decode = ")


def test_a_prefill_without_a_queue_of_its_own_is_no_prefill() -> None:
    """SGLang's begins at the dispatch to the scheduler."""
    (found,) = otlp_json.decode_otlp_json(
        as_json(span(RUN * 2, prefill=0.4, inference=1.9, ttft=0.5, decode=1.5))
    )
    assert extract_server_times(found) == ServerTimes(
        source="spans", ttft_us=500_000, decode_us=1_500_000, arrived_at=ARRIVED_NS / 1e9
    )


def sent(join: SpanJoin, *request_ids: str, **seconds: float) -> list[str]:
    """The ids of the lines that spans of these requests make."""
    exported = as_json(
        *(span(make_trace_id(RUN, one), **(seconds or OF_VLLM)) for one in request_ids)
    )
    return [line.id for line in join.spans(sort_spans(otlp_json.decode_otlp_json(exported), RUN))]


def test_spans_and_requests_meet_in_any_order() -> None:
    join = SpanJoin()
    assert join.request("a", ok=True) is None
    assert join.request("b", ok=True) is None
    assert join.missing == 2
    assert sent(join, "b", "c", "x") == ["b"]
    assert sent(join, "b", "c") == []
    assert join.request("c", ok=False) == SpanLine(id="c", **msgspec.structs.asdict(TIMES))
    assert (join.missing, join.counts.joined, join.counts.joined_others, join.counts.twice) == (
        1,
        1,
        1,
        2,
    )
    other = [
        span("0" * 32, **OF_VLLM),
        span(RUN + "no hex at all!!!", queue=1.0),
        span("", queue=1.0),
    ]
    assert [*join.spans(sort_spans(otlp_json.decode_otlp_json(as_json(*other)), RUN))] == []
    assert [
        *join.spans(
            sort_spans(otlp_json.decode_otlp_json(as_json(span(make_trace_id(RUN, "a")))), RUN)
        )
    ] == []
    join.late = True
    assert sent(join, "a") == ["a"]
    assert join.missing == 0
    counts = join.counts
    assert (counts.received, counts.other_traces, counts.without_times, counts.late) == (
        10,
        3,
        1,
        1,
    )
    assert str(counts) == (
        "2 of 2 requests have a span (3 of other traces, 1 without known times, 2 twice, 1 of no "
        "request)"
    )


def test_what_nobody_asks_for_is_bounded() -> None:
    join = SpanJoin(most_open=2)
    for one in "abc":
        join.request(one, ok=True)
    assert sent(join, *"abc") == ["b", "c"]  # a was dropped, and its span waits
    assert sent(join, "d", "e") == []
    assert join.counts.dropped == 1


def test_the_file_is_read_by_id_and_the_first_line_counts(tmp_path: Path) -> None:
    assert read_spans(tmp_path).times == {}
    lines = [
        msgspec.json.encode(SpanLine(id=one, source="spans", queue_us=us))
        for one, us in (("a", 1), ("b", 2), ("a", 3))
    ]
    stage = tmp_path / "stages" / "1"
    stage.mkdir(parents=True)
    (tmp_path / FILE).write_bytes(
        b"\n".join([*lines, b'{"id":"c","source":"spans","queue_us":-1}', lines[1][:9]])
    )
    for folder in (tmp_path, stage):
        times, unread = read_spans(folder)
        assert {one: line.queue_us for one, line in times.items()} == {"a": 1, "b": 2}
        assert unread == 2
