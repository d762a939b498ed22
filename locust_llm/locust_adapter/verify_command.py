"""Command ``locust-llm verify``: whether answers stay right under load, in five minutes; a run that
chooses its load.

The load has what breaks servers: crowds of three sizes, shared prefixes, and requests that are
cancelled. Each word of the user's replaces a choice. ``verify reproduce`` is a command of its own, in
the lab (see commands.py).
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .start_locust import LOCUSTFILES, start_locust


class Choice(NamedTuple):
    """Words that are used unless the user gives one of these options."""

    options: Sequence[str]
    words: Sequence[str]


LOADS: Final = (
    "-u", "--users", "--concurrency", "--sweep", "--request-rate", "--request-rate-series",
    "--user-centric-rate", "--fixed-schedule", "--custom-dataset-type",
)  # fmt: skip
PROMPTS: Final = ("--input-file", "--scenario", "-f", "--locustfile", "--isl")
CHOICES: Final = (
    Choice(LOADS, ("--sweep", "concurrency=4,16,64")),
    Choice(("-t", "--run-time", "--request-count", "--benchmark-duration"), ("-t", "5m")),
    Choice(("--request-cancellation-rate",), ("--request-cancellation-rate", "10")),
    Choice(
        (*PROMPTS, "--synthetic-input-tokens-mean", "--seq-dist"),
        ("--synthetic-input-tokens-mean", "300"),
    ),
    Choice(
        (*PROMPTS, "--prefix-cache-hit-rate", "--seq-dist", "--session-turns-mean"),
        ("--prefix-cache-hit-rate", "50%"),
    ),
    Choice((*PROMPTS, "--output-tokens-mean", "--osl", "--seq-dist"), ("--output-tokens-mean", "60")),
    Choice(
        ("--slo", "--slo-file"),
        (
            "--slo", "leaks == 0", "--slo", "mismatch_rate <= 2%", "--slo", "broken_text < 0.1%",
        ),
    ),
)  # fmt: skip


def run_verify(words: list[str]) -> int:
    """Check answers under a chosen load."""
    chosen = choose_words(words)
    return start_locust(
        "verify", ["--headless", "--check-answers", *chosen, *words], LOCUSTFILES / "run.py"
    )


def choose_words(words: Iterable[str]) -> list[str]:
    """The words of all choices that the user leaves open."""
    given = {name_option(word) for word in words}
    chosen = list[str]()
    for choice in CHOICES:
        if given.isdisjoint(choice.options):
            chosen += choice.words
    return chosen


def name_option(word: str) -> str:
    """``--sweep=concurrency=4`` is ``--sweep``, and ``-u4`` is ``-u``."""
    if word.startswith("--"):
        return word.partition("=")[0]
    return word[:2] if word.startswith("-") else word
