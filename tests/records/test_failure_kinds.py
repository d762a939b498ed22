"""Failures told apart: few kinds whatever a server writes."""

import math

from msgspec.structs import replace
from support.records import UNIX, answered
from support.records import failed as a_failure

from locust_llm.records.failure_kinds import (
    FIRST,
    MAX_KINDS,
    OTHER_KINDS,
    FailureKinds,
    FirstRequests,
    SilenceDetector,
    describe_retries,
    generalise_failure_message,
)
from locust_llm.records.record import Record


def test_a_kind_has_neither_numbers_nor_ids() -> None:
    one = "Request chatcmpl-9f3a11 exceeded 4096 tokens at 2026-01-01T00:00:00, key " + "x" * 60
    other = "Request chatcmpl-0b77c2 exceeded 512 tokens at 2026-02-03T11:12:13, key " + "y" * 41
    assert (
        generalise_failure_message(one)
        == generalise_failure_message(other)
        == "Request # exceeded # tokens at #, key #"
    )


def test_a_status_stays_in_its_kind() -> None:
    assert (
        generalise_failure_message("HTTP 429: slow down, request 17")
        == "HTTP 429: slow down, request #"
    )
    assert generalise_failure_message("HTTP 4290: x") == "HTTP # x"


def test_addresses_and_times_are_no_kinds_of_their_own() -> None:
    assert (
        generalise_failure_message("127.0.0.1:8000: [Errno 111] Connection refused")
        == "# [Errno #] Connection refused"
    )
    assert generalise_failure_message("no first token within 0.25 s") == generalise_failure_message(
        "no first token within 12 s"
    )


def test_a_kind_has_the_name_of_its_first_message() -> None:
    kinds = FailureKinds()
    assert kinds.name("reset", "by peer 1") == ("reset: by peer 1", True)
    assert kinds.name("reset", "by peer 2") == ("reset: by peer 1", False)
    assert kinds.name("closed", "by peer 2") == ("closed: by peer 2", True)
    assert kinds.name("empty", "") == ("empty", True)
    assert kinds.name("long", "no room " * 100) == ("long: " + ("no room " * 25).strip(), True)


def test_names_stay_few_whatever_a_server_writes() -> None:
    kinds = FailureKinds()
    words = [chr(ord("a") + n % 26) * (1 + n // 26) for n in range(500)]
    told = [kinds.name("stream_error", word) for word in words]
    assert len({name for name, _ in told}) == MAX_KINDS + 1
    assert sum(first for _, first in told) == MAX_KINDS + 1
    assert told[-1] == (f"stream_error: {OTHER_KINDS}", False)
    assert kinds.name("stream_error", "a") == ("stream_error: a", False)
    assert kinds.name("reset", "another") == ("reset: another", True)


ALL_ENDED = math.inf


def failed(message: str, sent_at: float = 10.0) -> Record:
    return replace(answered(1, sent_at=sent_at), outcome="http_status", error=message)


def add_all(first: FirstRequests, *records: Record) -> None:
    for record in records:
        first.add(record)


def test_first_requests_that_all_fail_are_known_once() -> None:
    first = FirstRequests()
    messages = [f"HTTP 404: no {number}" for number in range(7)] + ["HTTP 500: died"] * 2
    add_all(first, *(failed(message) for message in messages))
    assert first.judge(ALL_ENDED) == ()  # nine
    first.add(failed("HTTP 500: died"))
    assert [(record.error, count) for record, count in first.judge(ALL_ENDED)] == [
        ("HTTP 404: no 0", 7),
        ("HTTP 500: died", 3),
    ]
    add_all(first, *[failed("HTTP 404: no")] * FIRST)
    assert first.judge(ALL_ENDED) == ()


def test_one_that_succeeds_among_them_is_enough() -> None:
    first = FirstRequests()
    add_all(first, *[failed("HTTP 404: no")] * 9, answered(1))
    assert first.judge(ALL_ENDED) == ()
    add_all(first, *[failed("HTTP 404: no")] * 20)
    assert first.judge(ALL_ENDED) == ()


def test_refusals_that_end_before_the_first_answers_are_not_the_first_requests() -> None:
    """Eight are sent in seconds 10 to 17 and answered much later. Twenty from second 20 on are
    refused instantly, so their records are first. All sent by second 10 has ended."""
    first = FirstRequests()
    add_all(first, *(failed("HTTP 503: busy", 20.0 + number) for number in range(20)))
    assert first.judge(UNIX + 10.0) == ()
    add_all(first, *(answered(60_000, sent_at=10.0 + number) for number in range(8)))
    assert first.judge(ALL_ENDED) == ()


def test_the_alarm_waits_for_those_that_were_sent_before_the_last_of_them() -> None:
    """Ten are sent in seconds 10 to 19, and fail. Of second 19 all is known only after it."""
    first = FirstRequests()
    add_all(first, *(failed("HTTP 503: busy", 10.0 + number) for number in range(10)))
    assert first.judge(UNIX + 19.0) == ()
    ((record, count),) = first.judge(UNIX + 19.5)
    assert (record.sent_at, count) == (10.0, 10)


def test_a_server_that_falls_silent_and_comes_back_has_a_line_each() -> None:
    """The last answer ends 6 s after the start; the third refusal that is two seconds later is
    enough."""
    silence, start = SilenceDetector(), UNIX + 4.0
    refusals = [
        a_failure("refused", closed_at=10.0 + at, sent_at=None, error="no")
        for at in (0.5, 1.0, 2.1, 2.5, 3.0)
    ]
    records = [
        answered(0.0, sent_at=10.0),
        *refusals,
        answered(0.0, sent_at=14.0),
        answered(0.0, sent_at=15.0),
    ]
    lines = [silence.add(record, start) for record in records]
    assert [line for line in lines if line] == [
        "WARNING: no answer since 6.0 s after the start: refused: no",
        "The server answers again, after 4.0 s.",
    ]  # fmt: skip
    assert lines.index("WARNING: no answer since 6.0 s after the start: refused: no") == 3


def test_a_line_names_the_server_of_its_arm() -> None:
    silence = SilenceDetector("candidate")
    refusals = [
        a_failure("refused", closed_at=10.0 + at, sent_at=None, error="no") for at in (1, 2, 3)
    ]
    lines = [silence.add(record, UNIX + 4.0) for record in (answered(0.0, sent_at=10.0), *refusals)]
    assert lines[-1] == (
        "WARNING: no answer from the candidate since 6.0 s after the start: refused: no"
    )
    back = silence.add(answered(0.0, sent_at=14.0), UNIX + 4.0)
    assert back == "The candidate answers again, after 4.0 s."


def test_the_last_answer_is_the_last_chunk_as_in_the_report() -> None:
    """Chunks came until 5.5 s after the begin; that the connection was reset at 6.25 s is no
    answer."""
    silence = SilenceDetector()
    broken_off = a_failure("reset", sent_at=10.0, chunk_us=(100_000, 1_500_000), closed_at=12.25)
    refusals = [
        a_failure("refused", closed_at=at, sent_at=None, error="no") for at in (13.0, 13.5, 14.0)
    ]
    lines = [silence.add(record, UNIX + 6.0) for record in (broken_off, *refusals)]
    assert lines == ["", "", "", "WARNING: no answer since 5.5 s after the start: refused: no"]
    again = answered(500.0, sent_at=15.0)  # its first token comes at 15.5 s, 4 s after that chunk
    assert silence.add(again, UNIX + 6.0) == "The server answers again, after 4.0 s."


def test_errors_with_a_status_and_a_server_that_never_answered_are_no_silence() -> None:
    silence = SilenceDetector()
    for at in range(10, 30):
        assert silence.add(a_failure("refused", closed_at=float(at)), UNIX) == ""
    for at in range(30, 60):
        assert silence.add(a_failure("http_status", status=500, closed_at=float(at)), UNIX) == ""


def test_attempts_are_told_where_there_were_any() -> None:
    assert list(describe_retries(0)) == []
    assert next(describe_retries(1)).startswith("1 attempt was refused")
    assert next(describe_retries(20)).startswith("20 attempts were refused")
    assert next(iter(describe_retries(0, 3))).startswith("3 requests were sent again immediately")
    assert len(list(describe_retries(1, 1))) == 2
