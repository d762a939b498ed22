"""Parts up to the first token: each case with a pencil; whatever comes, they add up to the
stamps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import UNIX, answered, failed, list_span_rows

from locust_llm.records.breakdown_labels import TO_FIRST
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.record import Record
from locust_llm.records.run_facts import LimitChange
from locust_llm.records.server_times import HEADERS, SPANS, TIMINGS, ServerTimes
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.latency_breakdown import (
    BOTH,
    NOTHING,
    PREFILL_ONLY,
    LatencySplit,
    find_part_source,
    split_latencies,
)

MS = 1000
GATE = (LimitChange(UNIX, 50),)


def cut(
    records: list[Record],
    spans: dict[str, ServerTimes] | None = None,
    limits: tuple[LimitChange, ...] = GATE,
) -> LatencySplit:
    columns = collect_columns(records)
    reported = columns.server.reported(list_span_rows(records, spans or {}))
    return split_latencies(columns.requests, reported, limits)


def parts(found: LatencySplit, row: int = 0) -> dict[str, int]:
    """In ms, without those of no time."""
    assert (sum(found.us.values()) == found.total_us).all()
    return {name: round(us[row] / MS, 3) for name, us in found.us.items() if us[row]}


def times(queue: float | None = None, prefill: float | None = None, **other: int) -> ServerTimes:
    """Of milliseconds."""
    us = [None if ms is None else round(ms * MS) for ms in (queue, prefill)]
    return ServerTimes(source=SPANS, queue_us=us[0], prefill_us=us[1], **other)


WAITED = {
    "due_at": 9.0, "asked_at": 9.4, "admitted_at": 9.6, "limit": 0, "connect_s": 0.1,
    "written_us": 10 * MS,
    "rtt_us": 5 * MS,
}  # fmt: skip
"""Due a second before the send: 0.2 s at the gate, 0.1 s to connect, so it was 0.7 s late. Writing
took 10 ms."""
BEFORE = {"late": 700, "gate": 200, "connect": 100, "send": 10}


AT_ONCE = answered(*[500] * 8, rtt_us=5 * MS)


def test_the_wait_for_a_free_user_is_no_late_send() -> None:
    """One user: the second request is due half a second before the first ends, and begins 10 ms
    after its end; the third is due when the user is free, and begins 30 ms late."""
    first = answered(300, 1000, sent_at=10.0, closed_at=11.0)
    second = answered(300, 1000, sent_at=11.01, due_at=10.5, asked_at=11.0, closed_at=12.01)
    third = answered(300, 1000, sent_at=13.03, due_at=13.0, asked_at=13.03, closed_at=14.03)
    columns = collect_columns([first, second, third])
    reported = columns.server.reported({})

    def waits(users: int | None) -> list[dict[str, int]]:
        found = split_latencies(columns.requests, reported, (), users)
        each = (parts(found, row) for row in range(3))
        return [{name: ms for name, ms in row.items() if name in ("user", "late")} for row in each]

    assert waits(1) == [{}, {"user": 500, "late": 10}, {"late": 30}]
    assert waits(2) == waits(None) == [{}, {"late": 510}, {"late": 30}]


def test_a_turn_that_waits_long_waits_for_a_user() -> None:
    """Between two turns a user is busy without a request."""
    turns = [
        answered(300, 1000, sent_at=10.0, closed_at=11.0),
        answered(300, 1000, sent_at=15.0, due_at=14.0, asked_at=15.0, closed_at=16.0, turn=1),
        answered(300, 1000, sent_at=16.0, due_at=13.0, asked_at=16.0, closed_at=17.0),
    ]
    columns = collect_columns(turns)
    found = split_latencies(columns.requests, columns.server.reported({}), (), 1)
    assert [int(us) for us in found.us["user"]] == [0, 1_000_000, 3_000_000]


@pytest.mark.parametrize(
    ("record", "spans", "expected"),
    [
        (answered(300, 400, **WAITED), None, {**BEFORE, "network": 5, "server": 285}),
        (answered(300, 400, **WAITED), times(100, 150),
            {**BEFORE, "network": 40, "queue": 100, "prefill": 150}),
        (answered(300, 400, **WAITED), times(None, 150),
            {**BEFORE, "network": 5, "prefill": 150, "server": 135}),
        (answered(300, 400, **WAITED), times(100),
            {**BEFORE, "network": 5, "queue": 100, "server": 185}),
        (answered(300, 400, **WAITED, attempt=2), times(100, 150),
         {"retries": 700, "gate": 200, "connect": 100, "send": 10, "network": 40, "queue": 100,
             "prefill": 150}),
        (answered(300, 400, **WAITED, resent=1), None,
         {"retries": 700, "gate": 200, "connect": 100, "send": 10, "network": 5, "server": 285}),
        # the first chunk came at 300 ms in one read with the next; it may have come at 280
        (answered(300, 300, 400, read_lag_us=5 * MS, merged=((0, 280 * MS), (1, 280 * MS))),
            times(100, 150),
         {"network": 30, "queue": 100, "prefill": 150, "client": 20}),
        # it cannot have come before 295 ms, as it was not computed
        (answered(300, 300, 400, read_lag_us=5 * MS, merged=((0, 280 * MS), (1, 280 * MS))),
            times(100, 195),
         {"queue": 100, "prefill": 195, "client": 5}),
        # its front end says 275 ms: 25 before and after the engine; 290, and the first chunk cannot
        # have come at 280
        (answered(300, 400, **WAITED), times(100, 150, ttft_us=275 * MS),
         {**BEFORE, "network": 15, "handover": 25, "queue": 100, "prefill": 150}),
        (answered(300, 300, 400, read_lag_us=5 * MS, merged=((0, 280 * MS), (1, 280 * MS))),
         times(100, 150, ttft_us=290 * MS),
         {"handover": 40, "queue": 100, "prefill": 150, "client": 10}),
        # 4 ms more than there was: two clocks; 6 ms more: it cannot be
        (answered(300, 400), times(100, 204), {"queue": 100, "prefill": 200}),
        (answered(3, 400), times(7, 0), {"queue": 3}),
        (answered(300, 400), times(100, 206), {"server": 300}),
        (answered(300, 400), times(100, 150, ttft_us=306 * MS), {"server": 300}),
        (answered(300, 400), times(100, 150, decode_us=156 * MS), {"server": 300}),
        (answered(300, 400), times(100, 150, inference_us=306 * MS), {"server": 300}),
        (answered(300, 400), times(100, 150, e2e_us=406 * MS), {"server": 300}),
        (answered(300, 400), times(100, 150, e2e_us=404 * MS),
            {"network": 50, "queue": 100, "prefill": 150}),
        # a proxy sent eight chunks at once, 500 ms after the send; 350 ms of them are decode
        (AT_ONCE, times(decode_us=350 * MS), {"network": 5, "server": 145, "held": 350}),
        (AT_ONCE, times(None, 100, decode_us=350 * MS),
            {"network": 5, "prefill": 100, "server": 45, "held": 350}),
        (AT_ONCE, times(30, 100, decode_us=350 * MS),
            {"network": 20, "queue": 30, "prefill": 100, "held": 350}),
        # 3 ms more than there was: two clocks
        (AT_ONCE, times(30, 100, decode_us=373 * MS), {"queue": 30, "prefill": 100, "held": 370}),
        # the decode is not reported, so what else there was cannot be told from it
        (AT_ONCE, None, {"network": 5, "with_decode": 495}),
        (AT_ONCE, times(30, 100), {"network": 5, "queue": 30, "prefill": 100, "with_decode": 365}),
        (AT_ONCE, times(None, 100), {"network": 5, "prefill": 100, "with_decode": 395}),
        # a tool call of 40 tokens in one chunk; a short answer, and a cached one
        (answered(500, output_tokens=40), times(None, 100, decode_us=350 * MS),
            {"prefill": 100, "server": 50, "held": 350}),
        (answered(500, output_tokens=40), None, {"with_decode": 500}),
        (answered(500, output_tokens=7), None, {"server": 500}),
        (answered(99, output_tokens=40), None, {"server": 99}),
        # four chunks together, then one each 20 ms: 140 ms of decode, 80 of it after the first
        (answered(300, 300, 300, 300, 320, 340, 360, 380, merged=((0, 300 * MS),)),
            times(None, 100, decode_us=140 * MS), {"prefill": 100, "server": 140, "held": 60}),
        # alone, its first chunk may be late by itself: 20 ms of 140
        (answered(300, 420), times(None, 100, decode_us=140 * MS), {"prefill": 100, "server": 200}),
        # no first token: to its end, a second after the send; never sent: a second after it was
        # asked for
        (failed(written_us=10 * MS), times(100, 150), {"send": 10, "unattributed": 990}),
        (failed(sent_at=None, asked_at=10.0, admitted_at=10.25, limit=0, outcome="refused"), None,
         {"gate": 250, "connect": 750}),
        (failed(sent_at=None, due_at=9.0, asked_at=10.0, outcome="cut"), None,
            {"gate": 1000, "connect": 1000}),
    ],
)  # fmt: skip
def test_one_request(record: Record, spans: ServerTimes | None, expected: dict[str, int]) -> None:
    found = cut([record], {record.id: spans} if spans else {})
    assert parts(found) == expected
    assert found.impossible[0] == (spans is not None and expected == {"server": 300})


def test_what_came_with_the_answer_counts_where_there_is_no_span() -> None:
    record = answered(300, 400, server=ServerTimes(source=TIMINGS, prefill_us=250 * MS))
    assert parts(cut([record])) == {"prefill": 250, "server": 50}
    assert parts(cut([record], {"a": times(100, 150)})) == {
        "network": 50,
        "queue": 100,
        "prefill": 150,
    }
    headers = answered(
        300, 400, server=ServerTimes(source=HEADERS, queue_us=60 * MS, e2e_us=350 * MS)
    )
    assert parts(cut([headers])) == {"queue": 60, "server": 240}


def test_an_event_loop_that_was_busy_is_no_gate() -> None:
    """Both waited 150 ms for their admission. The gate of one slot was free for the first one, and
    taken for the second."""
    wait = {"due_at": 10.0, "asked_at": 10.0, "admitted_at": 10.15, "sent_at": 10.15}
    alone = answered(50, 60, id="alone", limit=1, **wait)
    assert parts(cut([alone])) == {"late": 150, "server": 50}
    taken = answered(200, 900, id="first", limit=1, sent_at=9.95, admitted_at=9.95)
    found = cut([taken, alone])
    assert parts(found, 1) == {"gate": 150, "server": 50}
    assert parts(cut([taken, answered(50, 60, id="no gate", **wait)]), 1) == {
        "late": 150,
        "server": 50,
    }


def test_who_was_never_admitted_waited_at_the_gate_if_there_was_one() -> None:
    never = failed(sent_at=None, due_at=10.0, asked_at=10.0, outcome="cut")
    assert parts(cut([never])) == {"gate": 1000}
    assert parts(cut([never], limits=())) == {"connect": 1000}


def test_a_limit_that_was_raised_meanwhile_was_lower_when_a_request_came() -> None:
    """The second one waited until a second slot was there."""
    raised = (LimitChange(UNIX, 1), LimitChange(UNIX + 10.15, 2))
    first = answered(900, 950, id="first", limit=1, sent_at=9.9, admitted_at=9.9)
    second = answered(
        50, 60, id="b", limit=2, due_at=10.0, asked_at=10.0, admitted_at=10.15, sent_at=10.15
    )
    assert parts(cut([first, second], limits=raised), 1) == {"gate": 150, "server": 50}
    assert parts(cut([first, second], limits=(LimitChange(UNIX, 2),)), 1) == {
        "late": 150,
        "server": 50,
    }


def test_two_processes_have_half_of_the_slots_each() -> None:
    """Of two slots a process has one, and of four two. One is taken, by whom is not asked. One of
    two is free, and on its way from the other process."""
    wait = {"due_at": 10.0, "asked_at": 10.0, "admitted_at": 10.15, "sent_at": 10.15, "worker": "b"}
    taken = answered(200, 900, id="first", limit=2, sent_at=9.95, admitted_at=9.95, worker="a")
    two = (LimitChange(UNIX, 2),)
    assert parts(cut([taken, answered(50, 60, id="a", limit=2, **wait)], limits=two), 1) == {
        "permit": 150,
        "server": 50,
    }
    assert parts(cut([taken, answered(50, 60, id="a", limit=4, **wait)]), 1) == {
        "late": 150,
        "server": 50,
    }


def test_a_permit_that_is_on_its_way_between_processes_is_no_gate() -> None:
    """The limit is one. The other process holds it from 9.95 to 10.05, and the one that waits from
    10 on has it at 10.15."""
    one = (LimitChange(UNIX, 1),)
    taken = answered(100, 900, id="first", limit=1, sent_at=9.95, admitted_at=9.95, worker="a")
    wait = {"due_at": 10.0, "asked_at": 10.0, "admitted_at": 10.15, "sent_at": 10.15, "limit": 1}
    here = answered(50, 60, id="a", worker="b", **wait)
    assert parts(cut([taken, here], limits=one), 1) == {"gate": 50, "permit": 100, "server": 50}
    assert parts(cut([taken, answered(50, 60, id="a", worker="a", **wait)], limits=one), 1) == {
        "gate": 150,
        "server": 50,
    }


def test_chunks_that_were_sent_together_are_not_put_down_to_the_reader() -> None:
    """The whole answer came after 300 ms, in one read that followed at once."""
    at_once = answered(300, 300, 300, read_lag_us=MS // 2, merged=((0, 0), (1, 0), (2, 0)))
    assert parts(cut([at_once])) == {"server": 300}


def test_the_network_is_the_shortest_round_trip_of_a_process() -> None:
    """The kernel's figure of a single connection may hold a delayed acknowledgement."""
    found = cut([answered(50, 60, id="a", rtt_us=40 * MS), answered(50, 60, id="b", rtt_us=1 * MS)])
    assert parts(found, 0) == parts(found, 1) == {"network": 1, "server": 49}


@pytest.mark.parametrize(
    ("known", "sources"),
    [
        (NOTHING, {"network": "measured", "server": "measured"}),
        (
            PREFILL_ONLY,
            {"network": "measured", "prefill": "reported", "server": "measured less reported"},
        ),
        (BOTH, {"network": "measured less reported", "queue": "reported", "prefill": "reported"}),
    ],
)
def test_where_a_figure_is_from(known: int, sources: dict[str, str]) -> None:
    """Of most of the requests."""
    several = np.array([known, known, NOTHING], np.int8)
    assert {name: find_part_source(name, several) for name in sources} == sources


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
    server = ServerTimes(
        source=SPANS, queue_us=draw(maybe), prefill_us=draw(maybe), ttft_us=draw(maybe),
        decode_us=draw(maybe),
    )  # fmt: skip
    return Record(
        id="a", clock_offset_s=1.7e9, due_at=10 + due / 1e6, asked_at=at, admitted_at=admitted,
        sent_at=at + (gate + draw(ms)) / 1e6 if sent else None,
        connect_s=draw(st.none() | st.just(0.5)),
        written_us=written, rtt_us=rtt,
        closed_at=at + 20, chunk_us=chunks, outcome="ok" if chunks else "reset",
        attempt=draw(st.integers(1, 2)),
        input_tokens=draw(maybe), merged=merged, server=draw(st.none() | st.just(server)),
    )  # fmt: skip


@given(records=st.lists(any_record(), min_size=1, max_size=40))
def test_the_parts_are_of_some_time_and_add_up(records: list[Record]) -> None:
    found = cut(records)
    assert tuple(found.us) == TO_FIRST
    for row, record in enumerate(records):
        first = record.chunk_us[0] / 1e6 if record.chunk_us else None
        end = (
            record.closed_at if record.sent_at is None or first is None else record.sent_at + first
        )
        # stamps are doubles in Unix time
        assert abs(found.total_us[row] - (end - record.due_at) * 1e6) <= 2
        assert sum(int(us[row]) for us in found.us.values()) == found.total_us[row]
    for name, us in found.us.items():
        assert (us >= 0).all(), name


def test_a_hundred_thousand_requests_with_failures_and_retries() -> None:
    """Every tenth fails, every twentieth is a second attempt; spans of all that were answered, with
    2 ms on the way."""
    random = np.random.default_rng(1)
    count = 100_000
    late, queue, prefill = (
        random.integers(1000, high, count).tolist() for high in (50_000, 400_000, 90_000)
    )
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
            records.append(
                Record(**common, sent_at=due, closed_at=due, outcome=RETRIED, status=429)
            )
            common["attempt"] = 2
        if i % 10 == 7:
            records.append(
                Record(**common, sent_at=sent, closed_at=sent + us / 1e6, outcome="reset")
            )
            continue
        records.append(
            Record(
                **common,
                sent_at=sent,
                closed_at=sent + (us + 10_000) / 1e6,
                chunk_us=(us, us + 10_000),
                input_tokens=9,
            )
        )
        spans[str(i)] = ServerTimes(source=SPANS, queue_us=queue[i], prefill_us=prefill[i])
    found = cut(records, spans)
    assert len(found.total_us) == count
    true_us = np.array(late) + np.array(queue) + np.array(prefill) + 2000
    assert (found.total_us == true_us).all()
    assert (sum(found.us.values()) == true_us).all()
    answered_ = np.arange(count) % 10 != 7
    assert not found.us["unattributed"][answered_].any()
    assert not found.us["server"][answered_].any()
    assert (found.us["retries"] > 0).sum() == count // 20
    assert not found.impossible.any()
