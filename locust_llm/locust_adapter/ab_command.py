"""Command ``locust-llm ab``: two arms, base and candidate, in pairs of blocks; a run of Locust with
options of its own."""

import os

from locust_llm.exit_status import fail

from .start_locust import LOCUSTFILES, start_locust


def run_ab_test(words: list[str]) -> int:
    """Run two arms, base and candidate, in pairs of blocks."""
    given = {word.partition("=")[0] for word in words}
    arms = given & {"--candidate", "--candidate-set", "--aa", "-h", "--help", "--help-all"}
    if not arms and not any(os.environ.get(f"LOCUST_LLM_CANDIDATE{more}") for more in ("", "_SET")):
        return fail("ab needs --candidate URL, --candidate-set KEY=VALUE or --aa")
    return start_locust("ab", ["--headless", *replace_base_by_host(words)], LOCUSTFILES / "run.py")


def replace_base_by_host(words: list[str]) -> list[str]:
    """Replace ``--base`` by its other name."""
    return [
        "--host" + word.removeprefix("--base") if word.partition("=")[0] == "--base" else word
        for word in words
    ]
