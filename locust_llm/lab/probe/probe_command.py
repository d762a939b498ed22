"""Command ``locust-llm probe``: measures the interference of prefills with decodes, and finds the
server's scheduler."""

from locust_llm.locust_adapter.start_locust import LOCUSTFILES, start_locust


def run_probe(words: list[str]) -> int:
    return start_locust(
        "probe",
        words,
        LOCUSTFILES / "probe.py",
        "--headless",
        users="locust_llm.lab.probe.probe_user",
    )
