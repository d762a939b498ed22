"""Alerts: values in, a sentence out, by pencil and in virtual time."""

import pytest
from support.records import UNIX, answered, failed

from locust_llm.controller.run_progress import LostWorker, ProcessState
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.web.alerts import (
    BAD,
    CLIENT,
    FAILURES,
    LEAK,
    PAST,
    RULE,
    SERVER,
    WARN,
    Alert,
    FailureWatch,
    LiveMark,
    SilenceWatch,
    describe_client,
    describe_failing_rule,
    describe_hole,
    describe_leak_alert,
    describe_lost_worker,
    describe_silent_worker,
    find_change_before,
    order_alerts,
)

Marks = list[tuple[float, str]]


def watch_failures() -> tuple[FailureWatch, Marks]:
    marks: Marks = []
    return FailureWatch(lambda at, text: marks.append((at, text))), marks


REFUSED = failed("refused", error="connection refused (127.0.0.1:29311)")


def test_an_outage_has_its_count_its_reason_and_since_when() -> None:
    """Six answers beside 319 failures from 0:14 on: 325 ended in the series."""
    watch, marks = watch_failures()
    for second in range(14):
        watch.add(second, answered(100))
    assert watch.alert(13) is None
    for count in range(319):
        watch.add(14 + count / 100, REFUSED)
        if count < 6:
            watch.add(14 + count / 100, answered(100))
    alert = watch.alert(20)
    assert alert == Alert(
        FAILURES,
        BAD,
        "319 of the last 325 requests failed since 0:14: connection refused (127.0.0.1:29311)",
        14,
    )
    assert marks == [(14, "failures")]


def test_few_failures_warn_and_have_no_mark() -> None:
    watch, marks = watch_failures()
    watch.add(5, failed("timeout", error="no answer within 30 s"))
    for _ in range(9):
        watch.add(6, answered(100))
    alert = watch.alert(7)
    assert alert is not None
    assert (alert.level, alert.text) == (
        WARN,
        "1 of the last 10 requests failed since 0:05: no answer within 30 s",
    )
    assert marks == []


def test_failures_that_are_over_stay_as_a_line_of_the_past() -> None:
    watch, _ = watch_failures()
    for second in (20, 21, 22):
        watch.add(second, REFUSED)
    watch.add(25, answered(100))
    watch.add(60, answered(100))  # of no series any more
    alert = watch.alert(60)
    assert alert is not None
    assert (alert.level, alert.text) == (
        PAST,
        "3 of 4 requests failed from 0:20 to 0:22: connection refused (127.0.0.1:29311)",
    )


def test_a_second_series_has_its_own_count_and_mark() -> None:
    watch, marks = watch_failures()
    for second in (1, 2, 3, 40, 41, 42):
        watch.add(second, REFUSED)
    alert = watch.alert(42)
    assert alert is not None
    assert alert.text.startswith("3 of the last 3 requests failed since 0:40: ")
    assert marks == [(1, "failures"), (40, "failures")]


@pytest.mark.parametrize("outcome", ["cut", "cancelled", "retried"])
def test_what_the_load_generator_ends_is_no_failure(outcome: str) -> None:
    watch, _ = watch_failures()
    watch.add(1, failed(outcome))
    assert watch.alert(1) is None


def test_the_last_message_of_each_class_is_kept() -> None:
    watch, _ = watch_failures()
    watch.add(1, REFUSED)
    watch.add(2, failed("timeout", error="a"))
    watch.add(3, failed("timeout", error="b" * 1000))
    assert watch.messages["refused"] == "connection refused (127.0.0.1:29311)"
    assert watch.messages["timeout"] == "b" * 159 + "…"


def test_a_silent_server_has_its_time_and_what_waits_for_it() -> None:
    marks: Marks = []
    watch = SilenceWatch(lambda at, text: marks.append((at, text)))
    watch.look(7, 24, 0.0)
    assert watch.alert(7) is None
    for now in (8, 9, 10):
        watch.look(now, 24, now - 3.0)
    assert watch.alert(10) == Alert(
        SERVER,
        BAD,
        "No answer for 7 s, since 0:03: 24 requests wait for the server",
        3,
    )
    watch.look(10, 0, 7.0)
    refused = watch.alert(10)
    assert refused is not None
    assert refused.text == "No answer for 7 s, since 0:03"
    assert marks == [(3, "server silent")]
    watch.look(11, 24, 0.0)
    assert watch.alert(11) is None


def test_a_lost_worker_by_pencil() -> None:
    loss = LostWorker(at=UNIX + 15, number=2, of=2, missing=8, recovered=3)
    alert = describe_lost_worker(loss, UNIX)
    assert (alert.level, alert.text, alert.since) == (
        BAD, "Worker 2 of 2 lost at 0:15: 8 records gone", 15,
    )  # fmt: skip
    whole = describe_lost_worker(loss._replace(missing=0), UNIX)
    assert whole.text == "Worker 2 of 2 lost at 0:15: no record is missing"


def test_a_silent_worker_is_named_before_it_is_given_up() -> None:
    assert describe_silent_worker(ProcessState(1, 8, None, 1.9), 2, 30) is None
    alert = describe_silent_worker(ProcessState(2, 8, None, 4.2), 2, 30)
    assert alert is not None
    assert alert.text == "Worker 2 of 2 has reported nothing for 4 s"
    assert alert.since == pytest.approx(25.8)


def test_the_reason_of_the_client_verdict_is_text() -> None:
    assert describe_client(None, None) is None
    assert describe_client(ClientVerdict("OK"), None) is None
    reasons = ("TTFT p50 may be off by 130 ms", "it needs 0.95 cores")
    alert = describe_client(ClientVerdict("INVALID", reasons), 62)
    assert alert == Alert(
        CLIENT,
        BAD,
        "Measurement INVALID since 1:02: TTFT p50 may be off by 130 ms; it needs 0.95 cores",
        62,
    )
    degraded = describe_client(ClientVerdict("DEGRADED", reasons), 62)
    assert degraded is not None
    assert degraded.level == WARN


def test_a_hole_is_named_afterwards() -> None:
    alert = describe_hole(14, 30)
    assert (alert.level, alert.text) == (
        PAST,
        "The load generator stood still for 16 s, from 0:14 to 0:30, so there are no readings of that time",
    )


def test_a_broken_rule_names_the_change_before_it() -> None:
    marks = [
        LiveMark(5, "limit 8", "gate", "the prefill limit went from 4 to 8"),
        LiveMark(26, "40 users", "users", "the users went from 24 to 40"),
        LiveMark(27, "failures", "trouble"),
        LiveMark(40, "50 users", "users", "the users went from 40 to 50"),
    ]
    cause = find_change_before(marks, 28)
    assert cause == marks[1]
    counts = "121 of 171 over the limit, 5% allowed"
    alert = describe_failing_rule(
        "ITL p95 can no longer pass", "141 ms", "60 ms", counts, 28, cause
    )
    assert alert == Alert(
        RULE,
        BAD,
        "ITL p95 can no longer pass: 141 ms against 60 ms; 121 of 171 over the limit, 5% allowed. "
        "Beyond the limit since 0:28, after the users went from 24 to 40",
        28,
    )
    assert find_change_before(marks, 47) == marks[3]
    assert find_change_before(marks, 61) is None


def test_the_worst_comes_first() -> None:
    past = Alert(FAILURES, PAST, "a")
    warning = Alert(CLIENT, WARN, "b")
    rule = Alert(RULE, BAD, "c")
    server = Alert(SERVER, BAD, "d")
    leak = describe_leak_alert(1, 12.0, has_evidence=True)
    assert order_alerts([past, warning, rule, server, leak]) == [leak, server, rule, warning, past]


@pytest.mark.parametrize(
    ("leaks", "sentence"),
    [
        (1, "1 answer contains the session marker of another session, since 1:12"),
        (12, "12 answers contain the session marker of another session, since 1:12"),
    ],
)
def test_a_leak_is_said_with_its_count_and_since_when(leaks: int, sentence: str) -> None:
    found = describe_leak_alert(leaks, 72.004, has_evidence=False)
    assert found == Alert(LEAK, BAD, sentence, 72.0)
    found = describe_leak_alert(leaks, 72.004, has_evidence=True)
    assert found.text == (
        f"{sentence}. Reproduce a leak after the run: locust-llm verify reproduce DIR"
    )
