"""Failures told apart: few kinds whatever a server writes, and no secret in a message or a sample."""

import re

from hypothesis import given
from hypothesis import strategies as st

from locust_llm.chat import MESSAGE_BYTES
from locust_llm.failure import HIDDEN, KINDS, OTHERS, SHORTEST, Kinds, kind_of, sample_of, secrets_of, without


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
    kinds = Kinds()
    assert kinds.name("reset", "by peer 1") == ("reset: by peer #", True)
    assert kinds.name("reset", "by peer 2") == ("reset: by peer #", False)
    assert kinds.name("closed", "by peer 2") == ("closed: by peer #", True)
    assert kinds.name("empty", "") == ("empty", True)


def test_names_stay_few_whatever_a_server_writes() -> None:
    kinds = Kinds()
    words = [chr(ord("a") + n % 26) * (1 + n // 26) for n in range(500)]
    told = [kinds.name("stream_error", word) for word in words]
    assert len({name for name, _ in told}) == KINDS + 1
    assert sum(first for _, first in told) == KINDS + 1
    assert told[-1] == (f"stream_error: {OTHERS}", False)
    assert kinds.name("stream_error", "a") == ("stream_error: a", False)
    assert kinds.name("reset", "another") == ("reset: another", True)


def test_secrets_are_those_of_our_headers_and_of_names_that_say_so() -> None:
    headers = {
        "Authorization": "Bearer sk-abcdef", "X-Tenant": "tenant-7", "Cookie": b"session=1", "Accept": "text/event-stream",
        "api-key": "short", "X-Odd": 'say "it"',
    }  # fmt: skip
    assert set(secrets_of(headers, ["x-tenant", "X-Odd"])) == {
        "Bearer sk-abcdef", "sk-abcdef", "tenant-7", "session=1", 'say "it"', 'say \\"it\\"',
    }  # fmt: skip


def test_a_secret_is_hidden_wherever_it_stands_also_where_it_is_cut_off() -> None:
    secrets = secrets_of({"Authorization": "Bearer sk-1234567890"})
    assert without("Incorrect key sk-1234567890: Bearer sk-1234567890", secrets) == f"Incorrect key {HIDDEN}: {HIDDEN}"
    assert without("Incorrect key sk-12345", secrets) == f"Incorrect key {HIDDEN}"
    assert without("Incorrect key sk-12", secrets) == "Incorrect key sk-12"


TEXT = st.text(st.sampled_from("abk-"), max_size=40)


@given(TEXT, TEXT, st.text(st.sampled_from("abk-"), min_size=SHORTEST, max_size=12), st.integers(0, 60))
def test_nothing_of_a_secret_of_any_length_that_tells_it_is_left(before: str, after: str, key: str, cut: int) -> None:
    secrets = secrets_of({"key": key})
    shown = without((before + key + after)[:cut], secrets)
    assert not any(secret in shown.replace(HIDDEN, "\n") for secret in secrets)
    assert not any(shown.endswith(secret[:-1]) for secret in secrets if len(secret) > SHORTEST)


def test_a_sample_has_4_kb_at_most_and_no_secret() -> None:
    key = "sk-0123456789"
    data = b"<html>" + b"x" * (MESSAGE_BYTES - 11) + key.encode() * 3
    sample = sample_of(data, [key])
    assert sample.startswith("<html>xx")
    assert len(sample.encode()) <= MESSAGE_BYTES
    assert not re.search("sk-0123", sample)
    assert sample_of("µ".encode() * MESSAGE_BYTES, []) == "µ" * (MESSAGE_BYTES // 2)
