"""Trace replay sends the requests of a trace in Mooncake's format at their own times.

locust -f locustfiles/trace_replay.py --host localhost:8000 --headless
"""

from pathlib import Path
from typing import Any

from locust import events, task

from locust_llm import LLMUser


@events.init_command_line_parser.add_listener
def defaults(parser: Any, **kw: Any) -> None:
    """Sets defaults. On the command line --input-file names another trace, and --replay-speedup
    replays it faster."""
    trace = Path(__file__).parent / "traces" / "sample.jsonl"
    parser.set_defaults(input_file=str(trace), fixed_schedule=True)


class Replayed(LLMUser):
    @task
    def send(self) -> None:
        self.session()
