"""Measurement error of a run's figures and rules: each cause in the figures that it can touch, from
records and certificates by hand."""

import csv
import json
import math

import pytest
from msgspec.structs import replace
from support.levels import level as a_level
from support.records import UNIX, a_run, answered

from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, ProcessHealth, Run
from locust_llm.records.timing_accuracy import ErrorBounds, MeasurementAccuracy
from locust_llm.report.aiperf_export import export_summary_json
from locust_llm.report.load_records import collect_columns
from locust_llm.report.report_document import build_report_document
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.slo_evidence.measurement_error import RuleError, combine_rule_errors
from locust_llm.report.slo_evidence.observed_value import ObservedValue
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Row, SweepSummary
from locust_llm.report.sweep_csv import export_sweep_csv
from locust_llm.settings.selftest_modes import REQUIRE
from locust_llm.slo.load_generator_health import (
    BURST_SENT,
    INVALID,
    LATE_PERMIT,
    LATE_READ,
    LATE_SEND,
    LATE_USER,
    MERGED,
    RATES,
    SENT_TOGETHER,
    SENTINELS,
)
from locust_llm.slo.load_generator_health import OK as FINE
from locust_llm.slo.rules import INCONCLUSIVE, parse_rule
from locust_llm.text.format import format_error_ends


def off(ms: float) -> ErrorBounds:
    return ErrorBounds(count=100, p50_ms=ms, p95_ms=ms, p99_ms=ms, max_ms=ms)


def run_with(*certificates: MeasurementAccuracy | None, **settings: object) -> Run:
    health = tuple(
        ProcessHealth(worker=f"w{i}", cpu_share=0.1, loop_lag_p99_ms=1, certificate=one)
        for i, one in enumerate(certificates)
    )
    run = a_run(**settings)
    return type(run)(
        **{**{name: getattr(run, name) for name in run.__struct_fields__}, "health": health}
    )


def summary_of(run: Run, *records: Record) -> Summary:
    return summarise_run(collect_columns(records), run)


def row(summary: Summary, tag: str) -> Row:
    return next(row for row in summary.rows if row.tag == tag)


CERTIFICATE = MeasurementAccuracy(streams=10, chunks=100, ttft=off(0.5), gap=off(0.2))


def test_by_the_largest_difference() -> None:
    summary = summary_of(
        run_with(CERTIFICATE), *(answered(100 + i, 120 + i, 140 + i, worker="w0") for i in range(9))
    )
    ttft, icl, itl = (
        row(summary, tag)
        for tag in ("time_to_first_token", "inter_chunk_latency", "inter_token_latency")
    )
    assert ttft.percentiles[50] == 104
    assert ttft.plus_minus[50] == pytest.approx((0.5, 0.5))
    assert icl.plus_minus[99] == pytest.approx((0.2, 0.2))
    assert itl.plus_minus[50] == pytest.approx((0.1, 0.1))  # spread over two tokens
    assert (summary.sentinels, summary.uncertified) == (100, "")


def test_what_came_merged_is_as_uncertain_as_its_record_says() -> None:
    """Of 5 requests one had its first two chunks in one read: they came between 60 and 140 ms after
    the send."""
    merged = answered(140, 140, 160, merged=((0, 60_000), (1, 60_000)), worker="w0")
    summary = summary_of(
        run_with(CERTIFICATE), merged, *(answered(100, 120, 140, worker="w0") for _ in range(4))
    )
    ttft, icl = (row(summary, tag) for tag in ("time_to_first_token", "inter_chunk_latency"))
    assert ttft.percentiles[99] == pytest.approx(138.4)
    assert ttft.plus_minus[99] == pytest.approx((40 + 0.5, 0.5))  # all five may have had 100 ms
    assert ttft.plus_minus[50] == pytest.approx((0.5, 0.5))
    assert icl.count == 8
    # two gaps are left out: 0 to 80 ms, and 20 to 100 ms; the other eight are 20 ms
    assert icl.plus_minus[50] == pytest.approx((0.2, 0.2))
    assert icl.plus_minus[99] == pytest.approx((0.2, 80.2))


def test_the_bounds_of_merged_gaps_are_the_same_however_they_were_read() -> None:
    merged = answered(140, 140, 160, merged=((0, 60_000), (1, 60_000)))
    columns = collect_columns([merged])
    (some,) = columns.blurred.values()
    assert some.least.percentiles_ms([0, 100]) == [0, 20]
    assert some.most.percentiles_ms([0, 100]) == [80, 100]


def test_without_a_certificate_of_each_process_there_is_none() -> None:
    missing = MeasurementAccuracy(missing="the run was shorter than 5 s")
    records = [answered(100, 120, worker="w0"), answered(100, 120, worker="w1")]
    summary = summary_of(run_with(CERTIFICATE, missing), *records)
    assert not any(row.plus_minus for row in summary.rows)
    assert summary.uncertified == "the run was shorter than 5 s"
    text = " ".join(map(str, build_report_document(summary, run_with(missing))))
    assert "They do not include the error of the timestamps: the run was shorter than 5 s." in text
    older = summary_of(run_with(None), *records)
    assert older.uncertified == ""
    assert older.client is not None
    assert older.client.level == FINE


@pytest.mark.parametrize(
    "one",
    [
        None,
        MeasurementAccuracy(missing="no python"),
        MeasurementAccuracy(ttft=off(3), gap=off(0.2)),
    ],
)
def test_a_run_that_must_have_a_good_one_is_invalid_without(
    one: MeasurementAccuracy | None,
) -> None:
    """3 ms of 100 is worse than DEGRADED allows."""
    records = [answered(100, 120, worker="w0") for _ in range(5)]
    summary = summary_of(run_with(one, selftest=REQUIRE), *records)
    assert summary.client is not None
    assert summary.client.level == INVALID
    if one is not None and one.missing:
        assert "no python" in summary.client.reasons[0]


def test_the_report_shows_it() -> None:
    summary = summary_of(run_with(CERTIFICATE), answered(100, 120, worker="w0"))
    text = " ".join(map(str, build_report_document(summary, run_with(CERTIFICATE))))
    assert (
        "'Time to First Token avg', '100 ms', '0.50 ms', '0.5%', '', 'timestamps (reference" in text
    )
    without = summary_of(
        run_with(MeasurementAccuracy(missing="that was so")), answered(100, 120, worker="w0")
    )
    text = " ".join(map(str, build_report_document(without, run_with())))
    assert "that was so" in text


def test_the_exports_have_it() -> None:
    run = run_with(CERTIFICATE)
    summary = summary_of(run, answered(100, 120, worker="w0"))
    said = json.loads(export_summary_json(summary, run))
    assert said["locust_llm"]["plus_minus"]["time_to_first_token"]["50.0"] == [0.5, 0.5]
    assert "plus_minus" not in said["time_to_first_token"]
    levels = [
        a_level(
            1.0,
            latencies={row.tag: row for row in summary.rows if row.tag == "time_to_first_token"},
        ),
        a_level(2.0, latencies={}),
    ]
    sweep = SweepSummary(axis="concurrency", unit="users", levels=tuple(levels), ended="")
    head, *rows = csv.reader(export_sweep_csv(sweep).splitlines())
    at = head.index("time_to_first_token_p50_plus_minus_ms")
    assert [row[at] for row in rows] == ["0.5", ""]


def test_a_bound_is_written_rounded_up() -> None:
    assert format_error_ends((0.5, 0.5)) == "± 0.50"
    assert format_error_ends((0.0301, 0.0301)) == "± 0.031"
    assert format_error_ends((17.81, 0.02)) == "-18 +0.020"
    assert format_error_ends((0.0, 12.0)) == "-0 +12"
    assert format_error_ends((math.inf, 0.1)) == "unknown"
    assert format_error_ends((0.0, 0.0)) == "± 0"
    assert format_error_ends(None) == "-"


# -- each cause in the figures that it can touch ---------------------------------------------------


def off_by(*records: Record, run: Run | None = None) -> dict[str, dict[str, float]]:
    """By metric, of its mean, or of its rate: what each cause comes to. ``run``: of a closed
    loop."""
    summary = summary_of(run or a_run(), *records)
    return {
        error.word: {cause: pytest.approx(most, abs=1e-3) for cause, most in error.causes.items()}
        for error in summary.figure_errors
        if error.stat in ("", "avg", "p50")
        if error.causes
    }


def test_a_merged_first_chunk_touches_ttft_itl_and_gaps() -> None:
    """It came 30 ms sooner at most; two tokens follow, so ITL is 15 ms more at most."""
    merged = answered(140, 160, 180, merged=((0, 110_000),))
    found = off_by(merged)
    assert found.keys() == {"ttft", "itl", "longest_stall"}
    assert found["ttft"] == {MERGED: 30}
    assert found["itl"] == {MERGED: 15}
    assert found["longest_stall"] == {MERGED: 30}  # 20 ms, or 50 from 110 on


def test_chunks_that_a_prompt_read_found_together_were_sent_together() -> None:
    """The answer was never unread for 1 ms, so they came within that."""
    together = answered(140, 140, 180, merged=((0, 110_000), (1, 110_000)), read_lag_us=300)
    assert off_by(together)["ttft"] == {SENT_TOGETHER: 1}
    summary = summary_of(a_run(), together)
    assert summary.client is not None
    assert summary.client.level == FINE
    late = replace(together, read_lag_us=1500)
    assert off_by(late)["ttft"] == {MERGED: 30}


def test_a_stall_before_chunks_that_were_sent_together_is_known() -> None:
    """Silence from 40 ms on, and at 1,040 ms three at once: 999 to 1,001 ms."""
    several = ((2, 40_000), (3, 40_000), (4, 40_000))
    stalled = [
        answered(20, 40, 1040, 1040, 1040, merged=several, read_lag_us=500) for _ in range(100)
    ]
    summary = summary_of(
        a_run(slo=("longest_stall p50 < 998ms", "longest_stall p50 < 1s")), *stalled
    )
    assert [result.status for result in summary.slos] == ["FAIL", "INCONCLUSIVE"]


def test_late_sends_touch_what_begins_with_them_and_the_rate() -> None:
    """5 ms of 100 from the request on: 5 / 95 more requests a second."""
    late = answered(90, 95, asked_at=9.995, admitted_at=9.995, due_at=9.995)
    found = off_by(late, run=a_run(((0, 4),)))
    assert found["ttft"] == found["request_latency"] == {LATE_SEND: 5}
    assert found["ttft_from_due"] == {LATE_SEND: 5}
    assert found["requests_per_s"] == {LATE_SEND: (1 / 0.095) * 5 / 95}
    assert found.keys().isdisjoint({"itl", "icl", "gate_wait", "longest_stall"})


def cycles(turnaround_ms: int, paused_ms: int = 0) -> list[Record]:
    """Three users from second 10 to 11: of each 200 ms, an answer takes 100, and its user pauses
    and comes late for the other 100."""
    return [
        answered(
            50, 100, user=user, sent_at=10.1 + i / 5, turnaround_us=turnaround_ms * 1000,
            paused_us=paused_ms * 1000,
        )
        for user in range(3) for i in range(5)
    ]  # fmt: skip


def test_late_users_of_a_closed_loop_send_less() -> None:
    """A user is late by 100 ms beyond the first of 201: where 101 ms would do, 15 requests in 0.9 s could
    have been nearly 30."""
    found = off_by(*cycles(101))
    assert found == {
        word: {LATE_USER: pytest.approx(value * 100 / 101, abs=1e-3)}
        for word, value in rates_of(cycles(101)).items()
    }
    assert off_by(*cycles(1)) == {}
    run = a_run(slo=("requests_per_s < 20", "requests_per_s > 2", "requests_per_s > 20"))
    summary = summary_of(run, *cycles(100))
    assert [result.status for result in summary.slos] == ["INCONCLUSIVE", "PASS", "INCONCLUSIVE"]
    assert summary.client is not None
    assert summary.client.level == INVALID
    assert summary.client.reasons[0].startswith("late users: ")


def rates_of(records: list[Record]) -> dict[str, float]:
    """The rates of these records that may be off."""
    summary = summary_of(a_run(), *records)
    return {
        error.word: error.value
        for error in summary.figure_errors
        if error.word in RATES and error.causes
    }


def test_a_pause_that_was_asked_for_is_no_delay() -> None:
    assert off_by(*cycles(0, paused_ms=100)) == {}
    found = off_by(*cycles(21, paused_ms=79))  # 20 of 200 ms, a tenth of the time: by a ninth
    reported = rates_of(cycles(21, paused_ms=79))["requests_per_s"]
    assert found["requests_per_s"] == {LATE_USER: pytest.approx(reported / 9, abs=1e-3)}


def test_late_users_of_a_schedule_change_nothing() -> None:
    run = a_run(request_rate=1.0, users=None)
    assert "requests_per_s" not in off_by(*cycles(100), run=run)


def test_a_late_read_at_the_end_of_an_answer_counts_once() -> None:
    """The user was late by 100 ms, 80 of them before the last byte was read."""
    late = [replace(record, read_lag_us=80_000) for record in cycles(100)]
    assert off_by(*late)["requests_per_s"].keys() == {LATE_USER}
    some = [replace(late[0], turnaround_us=None), *late[1:]]  # of one it is not known
    assert off_by(*some)["requests_per_s"].keys() == {LATE_USER, LATE_READ}


def test_with_a_prefill_limit_a_late_end_counts_once_and_a_late_slot_beside_it() -> None:
    """The last byte was read 80 ms late, as the user was by 100 ms. Then the slot was given back
    21 ms after the first chunk, of 200 ms: a tenth of the time but for the first millisecond."""
    run = a_run(((0, 4),))
    late = [
        replace(record, read_lag_us=80_000, limit=4, admitted_at=record.asked_at,
            freed_at=(record.sent_at or 0.0) + 0.05)
        for record in cycles(100)
    ]  # fmt: skip
    assert off_by(*late, run=run)["requests_per_s"].keys() == {LATE_USER}
    slots = [replace(record, freed_at=(record.freed_at or 0.0) + 0.021) for record in late]
    on_time = [replace(record, turnaround_us=0, paused_us=100_000) for record in slots]
    reported = rates_of(slots)["requests_per_s"]
    found = off_by(*on_time, run=run)["requests_per_s"]
    assert found == {LATE_READ: pytest.approx(reported / 9, abs=1e-3)}
    assert off_by(*slots, run=run)["requests_per_s"].keys() == {LATE_USER, LATE_READ}


def test_the_time_of_a_user_has_all_attempts_of_a_request() -> None:
    """It was refused at second 10, and the second attempt took 0.1 s from second 12 on."""
    again = answered(50, 100, sent_at=12.0, due_at=10.0, attempt=2)
    assert again.cycle_s == pytest.approx(2.1)
    assert answered(50, 100, sent_at=12.0, due_at=10.0).cycle_s == pytest.approx(0.1)


def test_late_sends_of_a_schedule_leave_its_rate_alone() -> None:
    late = answered(90, 95, asked_at=9.995, admitted_at=9.995, due_at=9.995)
    assert "requests_per_s" not in off_by(late, run=a_run(request_rate=1.0, users=None))


def offered(*records: Record, out_of_users: bool, **settings: object) -> dict[str, float]:
    """The errors of TTFT from due in an open loop with at most one user."""
    offer = OpenLoopSchedule(
        due=len(records),
        never_started=0,
        duration_s=100.0,
        most_users=1,
        out_of_users=out_of_users,
    )
    asked: dict[str, object] = {"request_rate": 1.0, "users": None, "max_users": 1, **settings}
    return off_by(*records, run=replace(a_run(**asked), offer=offer)).get("ttft_from_due", {})


def test_who_found_a_user_and_began_late_was_held_up_by_the_load_generator() -> None:
    """Its user began 40 ms after it was due, and no other request was open. That another one found no user
    later, as the maximum was reached, changes nothing."""
    late = answered(100, 200, due_at=9.96, id="a")
    assert offered(late, out_of_users=False) == {LATE_SEND: 40}
    assert offered(late, out_of_users=True) == {LATE_SEND: 40}


def test_who_waits_for_the_one_user_is_not_late() -> None:
    """It was due while the only user had an open request, and began when that had ended."""
    first = answered(100, 200, id="a")
    second = answered(100, 200, sent_at=10.21, due_at=10.1, id="b")
    assert offered(first, second, out_of_users=True) == {}


def test_what_waited_for_something_else_is_not_late() -> None:
    """A retry waited for its refused attempt; a later turn of a trace for the answer before; a new connection
    for the server."""
    again = answered(100, 200, due_at=9.0, attempt=2)
    assert offered(again, out_of_users=False) == {}
    turn = answered(100, 200, due_at=9.0, turn=1)
    assert offered(turn, out_of_users=False, fixed_schedule=True, request_rate=None) == {}
    connected = answered(100, 200, due_at=9.0, connect_s=0.99)
    assert offered(connected, out_of_users=False) == {LATE_SEND: 10}


def test_a_refused_attempt_keeps_its_user_busy() -> None:
    """The first request was due at 9, refused and sent again at 10: at 9.5 its user was not free."""
    again = answered(100, 200, due_at=9.0, attempt=2, id="a")
    other = answered(100, 200, sent_at=10.2, due_at=9.5, id="b")
    assert offered(again, other, out_of_users=True) == {}


def test_users_of_a_locustfile_may_be_busy_without_a_request() -> None:
    late = answered(100, 200, due_at=9.5)
    assert offered(late, out_of_users=True, locustfile="own.py") == {}
    assert offered(late, out_of_users=True) == {LATE_SEND: 500}


def test_a_number_of_users_may_be_too_few() -> None:
    late = answered(100, 200, due_at=9.96)
    assert offered(late, out_of_users=False, users=1) == {}


def test_a_request_that_was_sent_again_was_not_late() -> None:
    again = answered(90, 95, asked_at=9.9, admitted_at=9.9, due_at=9.9, resent=1)
    assert off_by(again) == {}


def test_a_late_permit_is_in_the_wait_and_from_due_and_in_no_gap() -> None:
    """A limit of one. The slot is free from second 10.1 on, and the other process has it at
    10.3."""
    first = answered(100, 150, 200, sent_at=10.0, admitted_at=10.0, worker="a")
    second = answered(
        100, 150, 200, sent_at=10.3, asked_at=10.0, due_at=10.0, admitted_at=10.3, worker="b"
    )
    found = off_by(first, second, run=a_run(((0, 1),)))
    assert found["gate_wait"] == found["ttft_from_due"] == {LATE_PERMIT: 100}  # 200 of one of two
    assert found["requests_per_s"].keys() == {LATE_PERMIT}
    assert found.keys().isdisjoint({"ttft", "itl", "icl", "longest_stall", "request_latency"})


def test_late_reads_return_slots_late() -> None:
    """Slots were held for 100 ms, and their return was read 26 ms later: of a wait of 63 ms a fifth
    is the load generator's."""
    waited = answered(
        100, 200, sent_at=10.063, asked_at=10.0, due_at=10.0, admitted_at=10.063,
        read_lag_us=26_000,
    )  # fmt: skip
    found = off_by(waited, run=a_run(((0, 1),)))
    assert found["gate_wait"] == {LATE_READ: 63 * 25 / 125}
    assert "ttft" not in found


def test_requests_that_a_standstill_delayed_are_a_burst_that_nobody_asked_for() -> None:
    """Four requests a second; the load generator stands still from 12 to 14 s. Eight of 40 were due
    in it, go out at 14 s and take 300 ms to their first token, as the server has them all at once.
    Others take 20 ms."""
    records = []
    for place in range(40):
        due_at = 10 + place / 4
        late = 12 <= due_at < 14
        sent_at = 14.0 if late else due_at
        ttft_ms = 300 if late else 20
        records.append(answered(ttft_ms, ttft_ms + 10, sent_at=sent_at, due_at=due_at, worker="w0"))
    health = ProcessHealth(
        worker="w0", cpu_share=0.1, loop_lag_p99_ms=1, standstills=((UNIX + 12, 2.0),)
    )
    run = replace(a_run(slo=("ttft p95 < 200ms",), users=None, request_rate=4.0), health=(health,))
    summary = summary_of(run, *records)
    errors = {(one.word, one.stat): one for one in summary.figure_errors}
    assert errors["ttft", "p95"].value == 300
    assert errors["ttft", "p95"].causes == {BURST_SENT: pytest.approx(280)}
    assert errors["ttft", "p50"].level == FINE
    assert summary.client is not None
    assert summary.client.reasons[0] == (
        "the load generator stood still for 2.0 s, and then sent 8 overdue requests together"
    )
    (rule,) = summary.slos
    assert (rule.status, rule.voided, rule.longer_s, rule.likely) == (INCONCLUSIVE, True, None, "")
    assert rule.reason.endswith(", which reaches the limit: a burst after a standstill")
    # users of a closed loop send when they are asked to
    closed = replace(run, settings=replace(run.settings, users=2, request_rate=None))
    prompt = [replace(one, due_at=one.sent_at) for one in records]
    assert row(summary_of(closed, *prompt), "time_to_first_token").inexact == ()


@pytest.mark.parametrize(
    ("lower", "higher", "hidden"),
    [
        (150.0, 0.0, True),
        (40.0, 0.0, False),
        (0.0, 150.0, False),
        (101.0, 0.0, True),
        (39.0, 39.0, False),
    ],
)
def test_a_large_error_hides_on_which_side_of_the_limit_a_value_is(
    lower: float, higher: float, hidden: bool
) -> None:
    """300 ms, and a limit of 200 ms: above a fifth of the value, and beyond the limit."""
    rule = parse_rule("ttft p95 < 200ms")
    found = ObservedValue(0.3, (0.1, 0.9))
    error = RuleError(lower / 1e3, higher / 1e3, (BURST_SENT,))
    assert error.survives(rule, found)
    assert error.hides(rule, found) == hidden


def test_sentinels_touch_stamps_and_no_rate() -> None:
    run = run_with(CERTIFICATE)
    found = off_by(answered(100, 120, 140, worker="w0"), run=run)
    assert found["ttft"] == {SENTINELS: 0.5}
    assert found["itl"] == {SENTINELS: 0.1}
    assert found["longest_stall"] == {SENTINELS: 0.2}
    assert "requests_per_s" not in found


def test_an_answer_in_one_piece_has_no_gap_that_could_be_off() -> None:
    """Gaps of sentinels are off by up to 3 ms, their TTFT by 0.5 ms."""
    wide = replace(CERTIFICATE, gap=replace(off(3), within={0.05: 0.1}))
    whole = [
        answered(sent_at=10.0 + i, closed_at=10.2 + i, streamed=False, status=200, worker="w0")
        for i in range(50)
    ]
    summary = summary_of(run_with(wide), *whole)
    assert summary.client is not None
    assert summary.client.level == FINE
    assert {error.word for error in summary.figure_errors} <= {"request_latency", *RATES}


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("ttft p50 < 160ms", "PASS"),
        ("ttft p50 < 141ms", "PASS"),  # what came merged can only have come sooner
        ("ttft p50 < 139ms", "INCONCLUSIVE"),
        ("ttft p50 < 109ms", "FAIL"),
        ("itl p50 < 60ms", "PASS"),
        ("itl p50 < 30ms", "INCONCLUSIVE"),  # 20, or 35 ms
        ("error_rate < 5%", "PASS"),
        ("attainment > 50% given ttft < 139ms", "INCONCLUSIVE"),
        ("attainment > 50% given ttft < 100ms", "FAIL"),
        ("attainment > 50% given ttft < 150ms", "PASS"),
    ],
)
def test_a_rule_is_void_only_where_the_error_reaches_its_limit(rule: str, status: str) -> None:
    """200 requests whose first chunk came between 110 and 140 ms, and two tokens until 180."""
    records = [
        answered(140, 160, 180, merged=((0, 110_000),), sent_at=10.0 + i) for i in range(200)
    ]
    (result,) = summary_of(a_run(slo=(rule,)), *records).slos
    assert result.status == status
    assert result.voided == (status == "INCONCLUSIVE")
    if result.voided:
        assert "the error of the load generator may be up to" in result.reason
        assert MERGED in result.reason


def test_a_run_of_another_load_generator_has_no_error_of_ours() -> None:
    merged = answered(140, 140, 180, merged=((0, 110_000), (1, 110_000)))
    assert off_by(merged, run=replace(a_run(), imported="vllm bench")) == {}


def test_of_a_figure_that_is_worse_than_a_base_both_runs_have_an_error() -> None:
    """120 ms may be 115 to 121, 100 may be 98 to 104: by 20 ms worse, or 11 to 23; by 20 %, or 10.6
    to 23.5."""
    here, base = RuleError(5, 1, (MERGED,)), RuleError(2, 4, (SENTINELS,))
    in_ms = combine_rule_errors(parse_rule("ttft p50 within 9ms of runs/a"), here, base, 120, 100)
    assert in_ms == (9, 3, (MERGED, SENTINELS))
    of_it = combine_rule_errors(parse_rule("ttft p50 within 9% of runs/a"), here, base, 120, 100)
    assert of_it[:2] == pytest.approx((1.2 - 115 / 104, 121 / 98 - 1.2))
