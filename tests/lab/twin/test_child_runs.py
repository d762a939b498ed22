"""Child runs: what their command lines may be stored with, and the progress in their logs."""

import pytest

from locust_llm.lab.twin.child_runs import read_log_line, split_withheld

KEY = "sk-of-the-child"
LOG = "[2026-11-27 10:00:00,000] host/INFO/locust_llm: "


def test_words_that_may_be_secrets_are_not_stored() -> None:
    words = [
        "-u",
        "4",
        "--header",
        f"X: {KEY}",
        f"--api-key-command=echo {KEY}",
        "--pid",
        "7",
        "--verbose",
        "--model",
        "m",
    ]
    assert split_withheld(words) == (
        ["-u", "4", "--model", "m"],
        ["--header", "--api-key-command", "--pid", "--verbose"],
    )


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (
            f"{LOG}Stage 2 of 8, concurrency 2: TTFT p50 20 ms, 90 tokens/s (time)",
            "sweep, 2 users: TTFT p50 20 ms, 90 tokens/s (time)",
        ),
        # a search does not know how many stages it will have
        (
            f"{LOG}Stage 1, concurrency 1: TTFT p50 20 ms, 50 tokens/s (capacity unknown so far)",
            "sweep, 1 user: TTFT p50 20 ms, 50 tokens/s (capacity unknown so far)",
        ),
        ("locust-llm: error: --host is missing", "--host is missing"),
        (f"{LOG}Waiting for http://h, at most 5 s", ""),
    ],
)
def test_a_line_of_the_log_is_progress_or_nothing(line: str, progress: str) -> None:
    assert read_log_line(line) == progress
