"""Once: users of this locustfile send one request each, so all their streams are open at once."""

from locust import task
from locust.exception import StopUser

from locust_llm import LLMUser


class ChatUser(LLMUser):
    @task
    def ask(self) -> None:
        self.chat()
        raise StopUser
