"""The locustfile of ``locust-llm run``: synthetic prompts, one streamed request after the other."""

from locust import task

from locust_llm import LLMUser


class ChatUser(LLMUser):
    """Sends as soon as the last answer is there; the gate and ``-u`` bound it."""

    @task
    def ask(self) -> None:
        self.session()
