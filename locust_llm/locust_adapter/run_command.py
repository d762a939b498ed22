"""Command ``locust-llm run``: Locust with synthetic prompts, or with a locustfile of the user's
own. Its options are in settings/run_options.py."""

from .start_locust import LOCUSTFILES, start_locust


def run_load_test(words: list[str]) -> int:
    """Run Locust with synthetic prompts."""
    return start_locust("run", words, LOCUSTFILES / "run.py")
