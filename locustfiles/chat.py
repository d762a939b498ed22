"""Chat: each user sends one streamed request with a synthetic prompt after the other.

locust -f locustfiles/chat.py --host localhost:8000 --headless -u 10 -t 60s
"""

from locust import task

from locust_llm import LLMUser


class ChatUser(LLMUser):
    @task
    def ask(self) -> None:
        self.session()
