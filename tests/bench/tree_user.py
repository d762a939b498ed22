"""Tree user: runs a session of five turns: one, three side by side, and one that waits for all."""

from locust import task

from locust_llm import LLMUser


class TreeUser(LLMUser):
    @task
    def work(self) -> None:
        with self.open_session() as session:
            session.chat()
            session.gather(*[session.fork().chat() for _ in range(3)])
            session.chat()
