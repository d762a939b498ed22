"""Breakdowns and the slowest requests, with a pencil."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.records import a_run, answered, failed, list_span_rows

from locust_llm.records.record import Record
from locust_llm.records.server_times import SPANS, ServerTimes
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.latency_breakdown import (
    LatencyAttribution,
    LatencyBreakdown,
    attribute_latencies,
)


def of(
    records: list[Record],
    *asked: str,
    spans: dict[str, ServerTimes] | None = None,
    limits: tuple[tuple[float, int | None], ...] = (),
) -> LatencyAttribution | None:
    def since(at: float) -> Iterator[Record]:
        return (
            one
            for one in sorted(records, key=lambda one: one.closed_at)
            if one.closed_at + one.clock_offset_s >= at
        )

    columns = collect_columns(records)
    return attribute_latencies(
        columns, list_span_rows(records, spans or {}), a_run(limits), since, asked
    )


def a_hundred() -> LatencyAttribution:
    """10 s apart, of two models in turn: 1 ms on the way, 0 to 99 ms of queue and 50 ms of prefill;
    100 ms later another chunk, after a decode of 90 ms. And one that failed."""
    records, spans = [failed(id="f", sent_at=5.0)], dict[str, ServerTimes]()
    for i in range(100):
        ttft = 51 + i
        records.append(
            answered(ttft, ttft + 100, id=f"{i}", sent_at=10.0 * (i + 1), model="ab"[i % 2])
        )
        spans[f"{i}"] = ServerTimes(
            source=SPANS, queue_us=i * 1000, prefill_us=50_000, decode_us=90_000
        )
    found = of(
        records,
        "ttft p90",
        "request_latency p90",
        "ttft{model=b} p90",
        "ttft{model=c} p90",
        spans=spans,
    )
    assert found is not None
    return found


def means(found: LatencyBreakdown) -> dict[str, tuple[float, float, float]]:
    """The slow ones, the typical ones, all."""
    return {
        part.name: (round(part.slow_ms, 3), round(part.typical_ms, 3), round(part.all_ms, 3))
        for part in found.parts
    }


def test_slow_requests_beside_typical_ones() -> None:
    """At or above the 90th percentile (140.1 ms) are those of 90 to 99 ms of queue; typical are
    those of 40 to 59."""
    found = a_hundred()
    by = {(one.metric, one.where): one for one in found.breakdowns if one.percentile == 90}
    ttft = by["ttft", ""]
    assert (ttft.value_ms, ttft.typical_ms) == (pytest.approx(140.1), pytest.approx(100.5))
    assert (ttft.slow, ttft.typical, ttft.count) == (10, 20, 100)
    assert means(ttft) == {
        "network": (1, 1, 1),
        "queue": (94.5, 49.5, 49.5),
        "prefill": (50, 50, 50),
    }
    sources = {part.name: part.source for part in ttft.parts}
    assert sources == {
        "network": "measured less reported",
        "queue": "reported",
        "prefill": "reported",
    }
    latency = by["request_latency", ""]
    assert means(latency) == means(ttft) | {"decode": (90, 90, 90), "delivery": (10, 10, 10)}
    assert [part.source for part in latency.parts[-2:]] == ["reported", "measured less reported"]
    groups = [(group.by, group.label, group.count) for group in ttft.groups]
    assert groups[:2] == [("model", "a", 50), ("model", "b", 50)]
    assert {by for by, _, _ in groups[2:]} == {"time"}
    assert ttft.groups[0].value_ms == pytest.approx(51 + 0.9 * 98)
    of_b = by["ttft", "{model=b}"]  # at or above 140.2 ms: 91, 93, 95, 97 and 99 ms of queue
    assert (of_b.slow, of_b.count, means(of_b)["queue"][0]) == (5, 50, 95)


@pytest.mark.parametrize(("lost", "round_trip_ms"), [(0, 40.0), (1, None)])
def test_the_longest_round_trip_of_the_slow_requests_is_known_where_no_segment_was_lost(
    lost: int, round_trip_ms: float | None
) -> None:
    """TTFT of 101 to 140 ms, round trips of 1 to 40 ms; the last one lost a segment, or none."""
    records = [answered(100 + i, 300, id=f"{i}", rtt_us=i * 1000) for i in range(1, 41)]
    found = of([*records[:-1], replace(records[-1], retransmits=lost)], "ttft p90")
    assert found is not None
    (one,) = (one for one in found.breakdowns if one.metric == "ttft" and one.percentile == 90)
    assert one.round_trip_ms == round_trip_ms


def test_where_it_is_from_and_what_is_left_out() -> None:
    found = a_hundred()
    assert (found.requests, found.reported, found.impossible) == (100, {"spans": 100}, 0)
    assert found.left_out[-1] == "too few requests for ttft{model=c}"
    assert [one.id for one in found.slowest] == [f"{i}" for i in range(99, 89, -1)]
    assert found.slowest[0].parts == (
        ("network", 1, "measured less reported"), ("queue", 99, "reported"),
        ("prefill", 50, "reported"),
    )  # fmt: skip


def test_who_waited_beside_the_slowest() -> None:
    """slow waits from 10.0 to 10.5 s: early's wait overlaps it by 0.3 s, late's by 0.1, and that of
    before not at all."""
    slow = answered(500, 600, id="slow", sent_at=10.0, due_at=9.9)
    early = answered(400, 900, id="early", sent_at=9.9, input_tokens=2000)
    late = answered(300, 900, id="late", sent_at=10.4, input_tokens=None)
    found = of([answered(400, 420, id="before", sent_at=9.0), early, slow, late])
    assert found is not None
    first = found.slowest[0]
    assert (first.id, round(first.total_ms), first.others) == ("slow", 600, 2)
    assert [(one.id, one.input_tokens, round(one.from_ms),
        round(one.to_ms)) for one in first.overlapping] == [
        ("early", 2000, 0, 400), ("late", None, 500, 800),
    ]  # fmt: skip


def test_nobody_was_answered() -> None:
    assert of([failed()]) is None


@pytest.mark.parametrize(("told", "split"), [(90, True), (89, False)])
def test_a_server_that_reports_too_few_requests_splits_none(told: int, split: bool) -> None:
    """Of 100 requests: 40 ms of queue and 50 of prefill in 100 ms, of 90 of them or of 89."""
    records = [answered(100, 200, id=f"{i}", sent_at=10.0 * i) for i in range(100)]
    times = ServerTimes(source=SPANS, queue_us=40_000, prefill_us=50_000)
    found = of(records, "ttft p50", spans={f"{i}": times for i in range(told)})
    assert found is not None
    (of_ttft,) = (one for one in found.breakdowns if one.percentile == 50)
    all_ms = {part.name: part.all_ms for part in of_ttft.parts}
    if split:
        assert found.server.basis == "requests"
        assert all_ms == pytest.approx({"network": 9, "queue": 36, "prefill": 45, "server": 10})
    else:
        assert found.server.basis == ""
        assert all_ms == pytest.approx({"server": 100})
    assert found.server.server_ms == pytest.approx(91 if split else 100)
    assert found.reported == {"spans": told}


@pytest.mark.parametrize(
    ("limits", "late_s", "metric"),
    [
        ((), 0.0, "ttft"),
        ((), 0.004, "ttft"),
        ((), 0.006, "ttft_from_due"),
        (((0.0, 1),), 0.0, "ttft_from_due"),
    ],
)
def test_the_breakdown_has_the_name_that_the_tables_have(
    limits: tuple[tuple[float, int | None], ...], late_s: float, metric: str
) -> None:
    """100 ms from the send to the first token. Without a gate TTFT from due is another figure only
    where at least 5% of it precede the send: 6 of 106 ms do, 4 of 104 ms do not."""
    records = [
        answered(100, 200, id=f"{i}", due_at=10.0 * i - late_s, sent_at=10.0 * i)
        for i in range(100)
    ]
    found = of(records, limits=limits)
    assert found is not None
    assert [one.metric for one in found.breakdowns] == [metric]


def test_a_decode_that_no_server_reports_is_measured() -> None:
    found = of(
        [answered(5, 15, id=f"{i}", sent_at=10.0 + i) for i in range(50)], "request_latency p90"
    )
    assert found is not None
    (latency,) = (one for one in found.breakdowns if one.metric == "request_latency")
    assert means(latency) == {"server": (5, 5, 5), "decode": (10, 10, 10)}
    assert {part.source for part in latency.parts} == {"measured"}
