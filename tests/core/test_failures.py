"""Failures told apart: few kinds whatever a server writes."""

from locust_llm.core.failures import MAX_KINDS, OTHER_KINDS, FailureKinds, kind_of


def test_a_kind_has_neither_numbers_nor_ids() -> None:
    one = "Request chatcmpl-9f3a11 exceeded 4096 tokens at 2026-01-01T00:00:00, key " + "x" * 60
    other = "Request chatcmpl-0b77c2 exceeded 512 tokens at 2026-02-03T11:12:13, key " + "y" * 41
    assert kind_of(one) == kind_of(other) == "Request # exceeded # tokens at #, key #"


def test_a_status_stays_in_its_kind() -> None:
    assert kind_of("HTTP 429: slow down, request 17") == "HTTP 429: slow down, request #"
    assert kind_of("HTTP 4290: x") == "HTTP # x"


def test_addresses_and_times_are_no_kinds_of_their_own() -> None:
    assert kind_of("127.0.0.1:8000: [Errno 111] Connection refused") == "# [Errno #] Connection refused"
    assert kind_of("no first token within 0.25 s") == kind_of("no first token within 12 s")


def test_the_first_of_a_kind_is_told_once() -> None:
    kinds = FailureKinds()
    assert kinds.name("reset", "by peer 1") == ("reset: by peer #", True)
    assert kinds.name("reset", "by peer 2") == ("reset: by peer #", False)
    assert kinds.name("closed", "by peer 2") == ("closed: by peer #", True)
    assert kinds.name("empty", "") == ("empty", True)


def test_names_stay_few_whatever_a_server_writes() -> None:
    kinds = FailureKinds()
    words = [chr(ord("a") + n % 26) * (1 + n // 26) for n in range(500)]
    told = [kinds.name("stream_error", word) for word in words]
    assert len({name for name, _ in told}) == MAX_KINDS + 1
    assert sum(first for _, first in told) == MAX_KINDS + 1
    assert told[-1] == (f"stream_error: {OTHER_KINDS}", False)
    assert kinds.name("stream_error", "a") == ("stream_error: a", False)
    assert kinds.name("reset", "another") == ("reset: another", True)
