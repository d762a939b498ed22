"""Command: ``locust-llm probe``, the interference of prefills with decodes and the scheduler of the
server."""

from locust_llm.locust_adapter.locust_command import LOCUSTFILES, start_locust


def run_probe(words: list[str]) -> int:
    return start_locust(
        "probe", words, LOCUSTFILES / "probe.py", "--headless", users="locust_llm.lab.probe.user"
    )
