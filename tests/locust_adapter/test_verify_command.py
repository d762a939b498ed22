"""What ``locust-llm verify`` chooses, and what the user's words replace."""

import pytest

from locust_llm.locust_adapter.verify_command import choose_words, name_option


def test_without_words_it_chooses_crowds_shared_prefixes_and_cancelled_requests() -> None:
    assert choose_words(["--host", "localhost:8000"]) == [
        "--sweep", "concurrency=4,16,64", "-t", "5m", "--request-cancellation-rate", "10",
        "--synthetic-input-tokens-mean", "300", "--prefix-cache-hit-rate", "50%",
        "--output-tokens-mean", "60", "--slo", "leaks == 0", "--slo", "mismatch_rate <= 2%",
        "--slo", "broken_text < 0.1%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "replaced"),
    [
        (["-u", "8"], ["--sweep"]),
        (["-u8"], ["--sweep"]),
        (["--request-rate=4"], ["--sweep"]),
        (["-t", "1m"], ["-t"]),
        (["--slo", "leaks == 0"], ["--slo"]),
        (
            ["--input-file", "prompts.jsonl"],
            ["--synthetic-input-tokens-mean", "--prefix-cache-hit-rate", "--output-tokens-mean"],
        ),
    ],
)
def test_words_of_the_user_replace_a_choice(words: list[str], replaced: list[str]) -> None:
    usual = [word for word in choose_words([]) if word.startswith("-")]
    chosen = [word for word in choose_words(words) if word.startswith("-")]
    assert chosen == [word for word in usual if word not in replaced]


def test_names_of_options() -> None:
    assert [name_option(word) for word in ("--sweep=a=b", "-u4", "-t", "leaks == 0")] == [
        "--sweep", "-u", "-t", "leaks == 0",
    ]  # fmt: skip
