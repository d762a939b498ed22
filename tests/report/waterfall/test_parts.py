"""Parts up to the first token: each case with a pencil; whatever comes, they add up to the stamps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.core.record import RETRIED, Record
from locust_llm.core.server_times import HEADERS, SPANS, TIMINGS, ServerTimes
from locust_llm.report.analysis.columns import collect
from locust_llm.report.waterfall.parts import TO_FIRST, Split, overtaken, split
from locust_llm.report.waterfall.price import Prompts

MS = 1000


def cut(
    records: list[Record],
    spans: dict[str, ServerTimes] | None = None,
    gap_us: float = 0.0,
    streams: int = 0,
    alone: Prompts = (),
) -> Split:
    columns = collect(records)
    count = len(columns.requests)
    return split(columns.requests, columns.server.reported(spans or {}), np.full(count, float(streams)), gap_us, alone)


def parts(found: Split, row: int = 0) -> dict[str, int]:
    """In ms, without those of no time."""
    assert (sum(found.us.values()) == found.total_us).all()
    return {name: round(us[row] / MS, 3) for name, us in found.us.items() if us[row]}


def times(queue: float | None = None, prefill: float | None = None, **other: int) -> ServerTimes:
    """Of milliseconds."""
    us = [None if ms is None else round(ms * MS) for ms in (queue, prefill)]
    return ServerTimes(source=SPANS, queue_us=us[0], prefill_us=us[1], **other)


WAITED = {
    "due_at": 9.0, "asked_at": 9.4, "admitted_at": 9.6, "connect_s": 0.1, "written_us": 10 * MS, "rtt_us": 5 * MS,
}  # fmt: skip
"""Due a second before the send: 0.2 s at the gate, 0.1 s to connect, so it was 0.7 s late. Writing took 10 ms."""
BEFORE = {"late": 700, "gate": 200, "connect": 100, "send": 10}


@pytest.mark.parametrize(
    ("record", "spans", "expected"),
    [
        (answered(300, 400, **WAITED), None, {**BEFORE, "network": 5, "unattributed": 285}),
        (answered(300, 400, **WAITED), times(100, 150), {**BEFORE, "network": 40, "queue": 100, "prefill": 150}),
        (answered(300, 400, **WAITED), times(None, 150), {**BEFORE, "network": 5, "queue": 135, "prefill": 150}),
        (answered(300, 400, **WAITED), times(100), {**BEFORE, "network": 5, "queue": 100, "prefill": 185}),
        (answered(300, 400, **WAITED, attempt=2), times(100, 150),
         {"retries": 700, "gate": 200, "connect": 100, "send": 10, "network": 40, "queue": 100, "prefill": 150}),
        (answered(300, 400, **WAITED, resent=1), None,
         {"retries": 700, "gate": 200, "connect": 100, "send": 10, "network": 5, "unattributed": 285}),
        # the first chunk came at 300 ms in one read with the next; it may have come at 280
        (answered(300, 300, 400, merged=((0, 280 * MS), (1, 280 * MS))), times(100, 150),
         {"network": 30, "queue": 100, "prefill": 150, "client": 20}),
        # it cannot have come before 295 ms, as it was not computed
        (answered(300, 300, 400, merged=((0, 280 * MS), (1, 280 * MS))), times(100, 195),
         {"queue": 100, "prefill": 195, "client": 5}),
        # its front end says 275 ms: 25 before and after the engine; 290, and the first chunk cannot have come at 280
        (answered(300, 400, **WAITED), times(100, 150, ttft_us=275 * MS),
         {**BEFORE, "network": 15, "handover": 25, "queue": 100, "prefill": 150}),
        (answered(300, 300, 400, merged=((0, 280 * MS), (1, 280 * MS))), times(100, 150, ttft_us=290 * MS),
         {"handover": 40, "queue": 100, "prefill": 150, "client": 10}),
        # 4 ms more than there was: two clocks; 6 ms more: it cannot be
        (answered(300, 400), times(100, 204), {"queue": 100, "prefill": 200}),
        (answered(3, 400), times(7, 0), {"queue": 3}),
        (answered(300, 400), times(100, 206), {"unattributed": 300}),
        (answered(300, 400), times(100, 150, ttft_us=306 * MS), {"unattributed": 300}),
        (answered(300, 400), times(100, 150, decode_us=156 * MS), {"unattributed": 300}),
        (answered(300, 400), times(100, 150, inference_us=306 * MS), {"unattributed": 300}),
        (answered(300, 400), times(100, 150, e2e_us=406 * MS), {"unattributed": 300}),
        (answered(300, 400), times(100, 150, e2e_us=404 * MS), {"network": 50, "queue": 100, "prefill": 150}),
        # no first token: to its end, a second after the send; never sent: a second after it was asked for
        (failed(written_us=10 * MS), times(100, 150), {"send": 10, "unattributed": 990}),
        (failed(sent_at=None, asked_at=10.0, admitted_at=10.25, outcome="refused"), None,
         {"gate": 250, "connect": 750}),
        (failed(sent_at=None, due_at=9.0, asked_at=10.0, outcome="cut"), None, {"gate": 1000, "connect": 1000}),
    ],
)  # fmt: skip
def test_one_request(record: Record, spans: ServerTimes | None, expected: dict[str, int]) -> None:
    found = cut([record], {record.id: spans} if spans else {})
    assert parts(found) == expected
    assert found.impossible[0] == (spans is not None and "unattributed" in expected and record.outcome == "ok")


def test_what_came_with_the_answer_counts_where_there_is_no_span() -> None:
    record = answered(300, 400, server=ServerTimes(source=TIMINGS, prefill_us=250 * MS))
    assert parts(cut([record])) == {"queue": 50, "prefill": 250}
    assert parts(cut([record], {"a": times(100, 150)})) == {"network": 50, "queue": 100, "prefill": 150}
    headers = answered(300, 400, server=ServerTimes(source=HEADERS, queue_us=60 * MS, e2e_us=350 * MS))
    assert parts(cut([headers])) == {"queue": 60, "prefill": 240}


def lone(count: int) -> list[Record]:
    """10 s apart: 100 tokens take 120 ms, 400 take 420 and 900 take 920, of which 10 are a round trip."""
    return [
        answered(tokens + 20, tokens + 520, id=f"{i}", sent_at=10.0 * i, input_tokens=tokens, rtt_us=10 * MS)
        for i, tokens in enumerate([100, 400, 900] * (count // 3))
    ]


def test_without_a_word_of_the_server() -> None:
    """Price: 10 ms and 1 ms a token. Two come together at 1000 s, of 100 and 400 tokens, computed one after the other."""
    one = answered(120, 900, id="one", sent_at=1000.0, input_tokens=100, rtt_us=10 * MS)
    two = answered(530, 900, id="two", sent_at=1000.0, input_tokens=400, rtt_us=10 * MS)
    found = cut([*lone(30), one, two])
    assert found.price is not None
    assert (found.price.fixed_us, found.price.per_token_us) == (pytest.approx(10 * MS), pytest.approx(MS))
    assert parts(found, -2) == {"network": 10, "prefill": 110}
    assert parts(found, -1) == {"network": 10, "queue": 110, "prefill": 410}
    assert found.low_us["queue"][-1] == 0  # the step of the first token of the other may have been shared
    assert found.high_us["queue"][-1] == 110 * MS
    assert [found.high_us["others"][-1], found.low_us["others"][-1]] == [110 * MS, 0]


def test_the_price_of_a_probe() -> None:
    """10 ms and 1 ms a token, and 10 ms of network. Two requests say nothing by themselves; one waited for the other."""
    one = answered(120, 900, id="one", sent_at=1000.0, input_tokens=100, rtt_us=10 * MS)
    two = answered(530, 900, id="two", sent_at=1000.0, input_tokens=400, rtt_us=10 * MS)
    prompts = [(tokens, 0.02 + tokens / 1000) for tokens in (50, 100, 200, 400, 800)]
    found = cut([one, two], alone=prompts)
    assert parts(found, 0) == {"network": 10, "prefill": 110}
    assert parts(found, 1) == {"network": 10, "queue": 110, "prefill": 410}
    assert (found.low_us["prefill"][1], found.high_us["prefill"][1]) == (328 * MS, 492 * MS)  # a fifth to both sides
    assert not found.unlike_probe
    other = cut([one, two], alone=[(tokens, 3 * ttft_s) for tokens, ttft_s in prompts])
    assert other.unlike_probe
    assert parts(other, 1) == {"network": 10, "unattributed": 520}
    assert not cut([one, two], alone=prompts[:1]).unlike_probe  # one length is no price


def test_who_comes_while_others_decode_waits_for_half_a_gap() -> None:
    found = cut([answered(130, 900, id=f"{i}", sent_at=10.0 * i) for i in range(20)], gap_us=20_000, streams=2)
    assert parts(found) == {"queue": 10, "prefill": 120}
    assert (found.low_us["prefill"][0], found.high_us["prefill"][0]) == (110 * MS, 130 * MS)


def test_where_answers_overtake_each_other_the_order_is_open() -> None:
    pairs = []
    for i in range(10):
        pairs.append(answered(530, 900, id=f"{i} first", sent_at=1000.0 + 10 * i, input_tokens=400))
        pairs.append(answered(120, 900, id=f"{i} second", sent_at=1000.1 + 10 * i, input_tokens=100))
    found = cut([*lone(60), *pairs])
    assert parts(found, 60) == {"queue": 60, "prefill": 410, "others": 60}
    assert (found.low_us["queue"][60], found.high_us["queue"][60]) == (0, 120 * MS)


def test_overtaken() -> None:
    sent, first = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 5.0, 3.5, 5.001])
    assert overtaken(sent, first) == 0.25  # the second, by the third
    assert overtaken(np.array([2.0, 1.0]), np.array([2.0, 2.001])) == 0.0  # by a millisecond
    assert overtaken(sent[:1], first[:1]) == 0.0


ms = st.integers(0, 5_000_000)
maybe = st.none() | ms


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    due, late, gate, written, rtt = (draw(ms) for _ in range(5))
    sent = draw(st.booleans())
    at = 10 + (due + late) / 1e6
    admitted = draw(st.none() | st.just(at + gate / 1e6))
    chunks = tuple(sorted(draw(st.lists(ms, max_size=3)))) if sent else ()
    merged = ((0, draw(st.integers(0, chunks[0]))),) if chunks and draw(st.booleans()) else ()
    server = ServerTimes(source=SPANS, queue_us=draw(maybe), prefill_us=draw(maybe), ttft_us=draw(maybe))
    return Record(
        id="a", clock_offset_s=1.7e9, due_at=10 + due / 1e6, asked_at=at, admitted_at=admitted,
        sent_at=at + (gate + draw(ms)) / 1e6 if sent else None, connect_s=draw(st.none() | st.just(0.5)),
        written_us=written, rtt_us=rtt,
        closed_at=at + 20, chunk_us=chunks, outcome="ok" if chunks else "reset", attempt=draw(st.integers(1, 2)),
        input_tokens=draw(maybe), merged=merged, server=draw(st.none() | st.just(server)),
    )  # fmt: skip


@given(records=st.lists(any_record(), min_size=1, max_size=40), gap_us=st.floats(0, 1e6), streams=st.integers(0, 2))
def test_the_parts_are_of_some_time_and_add_up(records: list[Record], gap_us: float, streams: int) -> None:
    found = cut(records, gap_us=gap_us, streams=streams)
    assert tuple(found.us) == TO_FIRST
    for row, record in enumerate(records):
        first = record.chunk_us[0] / 1e6 if record.chunk_us else None
        end = record.closed_at if record.sent_at is None or first is None else record.sent_at + first
        assert abs(found.total_us[row] - (end - record.due_at) * 1e6) <= 2  # stamps are doubles in Unix time
        assert sum(int(us[row]) for us in found.us.values()) == found.total_us[row]
    for name, us in found.us.items():
        assert (us >= 0).all()
        assert (found.low_us[name] <= us).all()
        assert (us <= found.high_us[name]).all()
        assert (found.high_us[name] <= found.total_us).all()


def test_a_hundred_thousand_requests_with_failures_and_retries() -> None:
    """Every tenth fails, every twentieth is a second attempt; spans of all that were answered, with 2 ms on the way."""
    random = np.random.default_rng(1)
    count = 100_000
    late, queue, prefill = (random.integers(1000, high, count).tolist() for high in (50_000, 400_000, 90_000))
    records, spans = list[Record](), dict[str, ServerTimes]()
    for i in range(count):
        due = i / 1000
        common = {
            "id": str(i),
            "clock_offset_s": 1.7e9,
            "due_at": due,
            "asked_at": due,
            "admitted_at": due + late[i] / 3e6,
        }
        sent, us = due + late[i] / 1e6, queue[i] + prefill[i] + 2000
        if i % 20 == 3:
            records.append(Record(**common, sent_at=due, closed_at=due, outcome=RETRIED, status=429))
            common["attempt"] = 2
        if i % 10 == 7:
            records.append(Record(**common, sent_at=sent, closed_at=sent + us / 1e6, outcome="reset"))
            continue
        records.append(
            Record(
                **common, sent_at=sent, closed_at=sent + (us + 10_000) / 1e6, chunk_us=(us, us + 10_000), input_tokens=9
            )
        )
        spans[str(i)] = ServerTimes(source=SPANS, queue_us=queue[i], prefill_us=prefill[i])
    found = cut(records, spans)
    assert len(found.total_us) == count
    true_us = np.array(late) + np.array(queue) + np.array(prefill) + 2000
    assert (found.total_us == true_us).all()
    assert (sum(found.us.values()) == true_us).all()
    answered_ = np.arange(count) % 10 != 7
    assert found.us["unattributed"][answered_].sum() < 0.05 * true_us[answered_].sum()
    assert (found.us["retries"] > 0).sum() == count // 20
    assert not found.impossible.any()
