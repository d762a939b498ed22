"""Open loop: ten requests a second, at most five of them in prefill.

locust -f locustfiles/open_loop.py --host localhost:8000 --headless -t 60s
"""

from typing import Any

from locust import events, task

from locust_llm import LLMUser


@events.init_command_line_parser.add_listener
def defaults(parser: Any, **kw: Any) -> None:
    """Sets defaults, which the command line overrides."""
    parser.set_defaults(request_rate=10.0, prefill_concurrency=5)


class Visitor(LLMUser):
    @task
    def ask(self) -> None:
        self.session()
