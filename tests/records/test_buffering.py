"""Buffering: streams that were held back on the way, told from those that came as they were
made."""

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.loop_watch import garbage_frozen
from support.records import a_run, answered, failed

from locust_llm.records.buffering import (
    DELAYED,
    LUMPS,
    SLOT_ANSWERS,
    TAKEN_BACK,
    WHOLE,
    Buffering,
    BufferingByArm,
    classify_buffering,
    describe_cpu_shortage,
    describe_metrics_left_out,
    find_gathered_metrics,
    is_gathered,
)
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.slo.rules import parse_rule

STEADY = answered(*(200 + 20 * number for number in range(20)))
BURST = answered(*(2000 + number / 100 for number in range(40)))
QUANTA = answered(*(200 + 40.3 * (number // 2) for number in range(20)))
FULL = answered(*(200 + 150 * (number // 6) for number in range(24)))


def over_time(records: Iterable[Record], per_s: float = 4.0) -> list[tuple[float, str]]:
    """(seconds after the first answer, line) of every line for the console."""
    found = Buffering()
    return [
        (number / per_s, line)
        for number, record in enumerate(records)
        if (line := found.add(replace(record, closed_at=10.0 + number / per_s)))
    ]


def seen(records: Iterable[Record]) -> Buffering:
    found = Buffering()
    for record in records:
        found.add(record)
    return found


@pytest.mark.parametrize(
    ("record", "way"), [(STEADY, ""), (BURST, WHOLE), (QUANTA, DELAYED), (FULL, LUMPS)]
)
def test_how_chunks_came(record: Record, way: str) -> None:
    assert classify_buffering(record) == way


def test_forty_tokens_in_a_hundredth_of_a_second_may_be_a_small_model_or_a_cache() -> None:
    assert classify_buffering(answered(*(9 + number / 100 for number in range(40)))) == ""


def test_twenty_five_tokens_a_second_are_no_delayed_acknowledgements() -> None:
    assert classify_buffering(answered(*(200 + 40 * number for number in range(30)))) == ""


def test_a_fast_server_whose_chunks_come_two_to_a_read_is_not_buffered() -> None:
    """2,400 tokens a second, read every 0.75 ms, and a stall when somebody's prompt comes."""
    us = [9 + 0.75 * (number // 2) + (300 if number > 30 else 0) for number in range(60)]
    assert classify_buffering(answered(*us)) == ""


def test_what_was_read_late_is_no_proxys_doing() -> None:
    assert (
        classify_buffering(
            answered(*(2000 + number / 100 for number in range(40)), read_lag_us=1_500_000)
        )
        == ""
    )
    assert (
        classify_buffering(
            answered(*(200 + 150 * (number // 6) for number in range(24)), read_lag_us=400_000)
        )
        == ""
    )


def test_the_remark_names_the_likely_cause() -> None:
    assert list(seen([STEADY] * 20).remarks()) == []
    (said,) = seen([BURST] * 20).remarks("")
    assert said.startswith("WARNING: BUFFERED STREAM: 20 of 20 responses")
    assert "after up to 2.0 s" in said
    assert "proxy_buffering" in said
    (said,) = seen([QUANTA] * 20).remarks("")
    assert "TCP_NODELAY" in said
    (said,) = seen([FULL] * 20).remarks("")
    assert "arrived in groups of 4 or more" in said


@pytest.mark.parametrize("record", [BURST, QUANTA, FULL])
def test_the_end_names_the_cause_that_the_alarm_left_open(record: Record) -> None:
    """The alarm comes before it is known whether a core was free; a short run has no alarm."""
    ((_, alarm),) = over_time([record] * 60)
    assert ", or a process had too little CPU; at its end the run may know which. " in alarm
    long = Buffering()
    for number in range(60):
        long.add(replace(record, closed_at=10.0 + number / 4))
    (said,) = long.remarks("")
    decided = (
        " The warning during the run did not know the cause; there were free cores, so it is no "
        "lack of CPU. "
    )
    assert said.startswith("WARNING: BUFFERED STREAM: 60 of 60 responses" if record is BURST
        else "WARNING: BUFFERED STREAM: ")  # fmt: skip
    assert decided in said
    assert find_gathered_metrics([said]) == find_gathered_metrics(seen([record] * 20).remarks(""))
    for shortage in (None, "Others used 2.0 of the 2 cores"):
        (open_,) = long.remarks(shortage)
        assert decided not in open_
    assert decided not in next(seen([record] * 20).remarks(""))


def test_each_of_two_compared_servers_is_examined_by_itself() -> None:
    """The candidate holds all of its answers back, which are 9 of 20 of the run."""
    found = BufferingByArm(a_run(candidate="http://other:8000").settings)
    for number in range(20):
        record, arm = (BURST, CANDIDATE) if number % 20 < 9 else (STEADY, BASE)
        found.add(replace(record, arm=arm, closed_at=10.0 + number))
    (said,) = found.remarks("")
    assert said.startswith(
        "WARNING: BUFFERED STREAM: 9 of 9 responses examined of the candidate arrived complete"
    )


@pytest.mark.parametrize(
    ("settings", "which"),
    [
        ({"aa": True}, ""),
        ({"sweep": "prefill-concurrency=1,2"}, ""),
        ({"sweep": "concurrency=1,2"}, " in all stages"),
        ({"repeats": 3}, " in all repeats"),
        ({}, ""),
    ],
)
def test_one_server_is_examined_as_one_and_the_parts_of_a_run_are_named(
    settings: dict[str, Any], which: str
) -> None:
    """An A/A test has one server, and so has a comparison of prefill limits. The report of a stage
    has this note, too."""
    found = BufferingByArm(a_run(**settings).settings)
    for number in range(20):
        arm = CANDIDATE if number % 2 else BASE
        found.add(replace(BURST, arm=arm, closed_at=10.0 + number))
    (said,) = found.remarks("")
    assert said.startswith(
        f"WARNING: BUFFERED STREAM: 20 of 20 responses examined{which} arrived complete"
    )


def test_the_metrics_of_all_notes_are_gathered() -> None:
    """One server holds whole answers back, the other waits for acknowledgements: TTFT of one."""
    whole = next(seen([BURST] * 20).remarks(""))
    quanta = next(seen([QUANTA] * 20).remarks(""))
    assert "ttft" not in find_gathered_metrics([quanta])
    assert find_gathered_metrics([quanta, whole]) == find_gathered_metrics([whole])
    assert describe_metrics_left_out([quanta]) == (
        "the streams were buffered on the way, so ICL and Longest Stall are not compared"
    )
    assert describe_metrics_left_out(["Closed loop: ..."]) == ""
    for text, gathered in (
        ("ttft p95 < 1s", True),
        ("attainment >= 90% given ttft < 1s and request_latency < 9s", True),
        ("attainment >= 90% given request_latency < 9s", False),
        ("request_latency p95 < 9s", False),
    ):
        assert is_gathered(parse_rule(text), [whole]) == gathered


@pytest.mark.parametrize("record", [BURST, QUANTA, FULL])
def test_no_buffer_is_named_where_a_process_may_have_had_no_core(record: Record) -> None:
    (unknown,) = seen([record] * 20).remarks(None)
    (short,) = seen([record] * 20).remarks("Others used 2.0 of the 2 cores")
    for said in (unknown, short):
        assert said.startswith("WARNING: CHUNKS CAME TOGETHER: ")
        assert "the buffer" not in said
    assert " Either " in unknown
    assert ", or a process had too little CPU. " in unknown
    assert (
        "Others used 2.0 of the 2 cores. So the cause is not known: a buffer on the way, or too "
        "little CPU."
    ) in short


def health(wait: float, server: float | None, busy: float | None = 0.5) -> ProcessHealth:
    return ProcessHealth(
        worker="w", cpu_share=0.1, loop_lag_p99_ms=1.0, cpu_wait_share=wait, server_cores=server,
        machine_busy=busy,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("healths", "shortage"),
    [
        ([], None),
        ([health(0.01, None)], None),  # the server runs elsewhere
        ([health(0.01, 0.2, None)], None),
        ([health(0.01, 0.2)], ""),
        ([health(0.24, 0.2, 0.89)], ""),
        (
            [health(0.01, None), health(0.25, None)],
            "A thread of the load generator waited for a core for 25% of the run",
        ),
        (
            [health(0.15, 0.01, 0.9)],
            "The cores of the server's machine were busy for 90% of the time",
        ),
        ([health(0.0, None, 0.99)], None),  # busy with what is no server
    ],
)
def test_where_a_core_was_missing(healths: list[ProcessHealth], shortage: str | None) -> None:
    assert describe_cpu_shortage(healths) == shortage


def test_the_alarm_waits_for_ten_seconds_of_evidence() -> None:
    ((at, line),) = over_time([BURST] * 200)
    assert (
        at,
        line.startswith(
            "WARNING: CHUNKS CAME TOGETHER: 41 of 41 responses examined arrived complete"
        ),
    ) == (
        10.0,
        True,
    )


def test_a_stall_at_the_start_is_no_alarm() -> None:
    """In the first two seconds everything came together, as a server or this machine had other
    work."""
    assert over_time([FULL] * 8 + [STEADY] * 200) == []
    assert (
        list(
            seen(
                [replace(FULL, closed_at=10.0 + i / 10) for i in range(8)] + [STEADY] * 9
            ).remarks()
        )
        == []
    )


def test_an_alarm_that_was_wrong_is_taken_back_once_and_at_the_end() -> None:
    """For a minute the server was starved, then it was not."""
    records = [FULL] * 240 + [STEADY] * 1000
    (_, alarm), (at, line) = over_time(records)
    assert alarm.startswith("WARNING: CHUNKS CAME TOGETHER")
    assert (line.startswith(TAKEN_BACK), 60 < at < 150) == (True, True)
    found = Buffering()
    for number, record in enumerate(records):
        found.add(replace(record, closed_at=10.0 + number / 4))
    (remark,) = found.remarks()
    assert remark == (
        "The warning about a buffer no longer holds: of 1240 responses 240 were held back. A buffer "
        "would hold back most responses, early and late in the run."
    )


def test_the_alarm_and_the_end_have_one_criterion() -> None:
    """What is alarmed and not taken back is in the report, and what is not alarmed is not."""
    for records in (
        [BURST] * 100,
        [FULL, STEADY, STEADY] * 50,
        [FULL] * 30 + [STEADY] * 70,
        [STEADY] * 60 + [FULL] * 50,
    ):
        found = Buffering()
        lines = [
            line
            for n, one in enumerate(records)
            if (line := found.add(replace(one, closed_at=10.0 + n / 4)))
        ]
        assert bool(found.way) == (len(lines) == 1)
        assert found.way in ("", WHOLE, LUMPS)


def test_a_few_large_lumps_among_single_chunks_are_stalls() -> None:
    """Forty chunks, eight reads: six single ones, and two after stalls of 300 ms."""
    ms = [200, 220, 240, *[540] * 17, 560, 580, 600, *[900] * 17]
    assert classify_buffering(answered(*ms)) == ""


def test_it_takes_three_of_a_kind_and_half_of_all() -> None:
    assert seen([QUANTA] * 2).way == ""
    assert seen([BURST] * 2 + [STEADY]).way == ""
    assert seen([BURST] * 3).way == WHOLE
    assert seen([BURST] * 3 + [STEADY] * 4).way == ""
    assert seen(replace(one, closed_at=12.0) for one in [BURST] * 4 + [STEADY] * 4).way == WHOLE


def test_one_or_two_answers_that_all_came_whole_get_a_hedged_remark() -> None:
    found = seen([BURST] * 2)
    assert found.way == WHOLE
    (said,) = found.remarks("")
    assert said.startswith("WARNING: CHUNKS CAME TOGETHER: 2 of 2 responses examined arrived")


@pytest.mark.parametrize("shortage", ["", None, "Others used 2.0 of the 2 cores"])
@pytest.mark.parametrize(
    ("record", "gathered", "right"),
    [
        (BURST, {"ttft", "itl", "icl", "longest_stall"}, {"request_latency", "requests_per_s"}),
        (QUANTA, {"icl", "longest_stall"}, {"ttft", "itl"}),
        (FULL, {"ttft", "icl", "longest_stall"}, {"itl"}),
    ],
)
def test_which_metrics_a_buffer_gathers(
    record: Record, gathered: set[str], right: set[str], shortage: str | None
) -> None:
    found = find_gathered_metrics(["another note", *seen([record] * 20).remarks(shortage)])
    assert gathered <= found
    assert not right & found
    assert find_gathered_metrics(["another note"]) == frozenset()


def test_failures_short_answers_and_whole_bodies_say_nothing() -> None:
    short = answered(2000, 2000, 2000)
    whole = answered(streamed=False, output_tokens=50)
    found = seen([failed(chunk_us=BURST.chunk_us), short, whole] * 9)
    assert (found.answers, found.way, found.tokens_a_chunk, list(found.remarks())) == (
        0,
        "",
        None,
        [],
    )


def test_tokens_a_chunk_by_the_servers_own_count() -> None:
    ten = answered(*(200 + 90 * number for number in range(5)), output_tokens=41)
    found = seen([ten] * 3)
    assert found.tokens_a_chunk == pytest.approx(8.2)
    assert seen([answered(*range(200, 300, 10), output_tokens=11)]).tokens_a_chunk == pytest.approx(
        1.1
    )
    assert list(seen([answered(*range(200, 400, 20), output_tokens=11)] * 5).remarks()) == []
    estimated = answered(*range(200, 300, 10), tokens_from="chunks")
    assert seen([estimated] * 5).tokens_a_chunk is None
    assert (
        seen([answered(*range(200, 400, 20), output_tokens=20, choices=2)] * 5).tokens_a_chunk
        is None
    )


def test_no_more_than_some_answers_of_each_five_seconds_are_looked_at() -> None:
    found = seen([STEADY] * SLOT_ANSWERS + [BURST] * 1000)
    assert (found.answers, found.ways.total()) == (SLOT_ANSWERS, 0)


@given(
    st.lists(st.integers(0, 10_000_000), min_size=1, max_size=60).map(sorted),
    st.integers(0, 5_000_000),
)
def test_no_stream_raises(chunk_us: list[int], read_lag_us: int) -> None:
    record = answered(
        chunk_us=tuple(chunk_us), output_tokens=len(chunk_us), read_lag_us=read_lag_us
    )
    assert classify_buffering(record) in ("", WHOLE, DELAYED, LUMPS)
    list(seen([record] * 5).remarks())


def test_of_a_long_answer_only_the_beginning_is_looked_at() -> None:
    """A million chunks in lumps of six; to look at all of them held the master for a quarter of a
    second."""
    lumps = tuple(20_000 * (i // 6) for i in range(1_000_000))
    with garbage_frozen():
        began = time.thread_time()
        assert classify_buffering(replace(FULL, chunk_us=lumps)) == LUMPS
        assert time.thread_time() - began < 0.05
