"""Chat with synthetic prompts: each user sends one streamed request after the other."""

from locust import task

from locust_llm import LLMUser


class ChatUser(LLMUser):
    @task
    def ask(self) -> None:
        self.chat()
