"""Conversations: sessions of four turns with think time, whose history is the server's answers.

locust -f locustfiles/conversations.py --host localhost:8000 --headless -u 20 -t 60s
"""

from typing import Any

from locust import events, task

from locust_llm import LLMUser


@events.init_command_line_parser.add_listener
def defaults(parser: Any, **kw: Any) -> None:
    """Sets defaults, which the command line overrides."""
    parser.set_defaults(
        session_turns_mean=4.0,
        session_turn_delay_mean=500.0,  # ms
        session_header="X-Session-Id",  # for a router that keeps a session where its cache is
        synthetic_input_tokens_mean=200.0,  # of each turn, on top of what was said before
    )


class Chatter(LLMUser):
    @task
    def talk(self) -> None:
        self.session()
