"""User turnaround in a real run: what the locustfile asked for is a pause, in each record."""

from itertools import pairwise
from pathlib import Path
from statistics import median

from support.runs import Server, records, run

LOCUSTFILE = """
from locust import constant, task
from locust_llm import LLMUser


class ChatUser(LLMUser):
    wait_time = constant(0.2)

    @task
    def ask(self):
        self.chat("hello", max_tokens=1)
"""


def test_a_wait_of_a_locustfile_is_a_pause(server: Server, tmp_path: Path) -> None:
    """At least 200 ms lie between two requests: the wait, some code, and the load generator's own part."""
    file = tmp_path / "locustfile.py"
    file.write_text(LOCUSTFILE)
    done = run(server, tmp_path, "-u", "1", "--request-count", "6", locustfile=str(file))
    assert done.returncode == 0, done.stderr
    found = records(tmp_path)
    later = [record for record in found if record.turnaround_us is not None]
    assert len(later) == len(found) - 1  # the first one follows on nothing
    pauses = [record.paused_us or 0 for record in later]
    assert min(pauses) >= 200_000
    between_us = [
        round((after.asked_at - before.closed_at) * 1e6) for before, after in pairwise(found)
    ]
    whole = [
        pause + (record.turnaround_us or 0) for pause, record in zip(pauses, later, strict=True)
    ]
    assert abs(median(whole) - median(between_us)) < 20_000
