"""Two kinds of chat user and a plain HTTP user share one run and one prefill gate.

locust -f locustfiles/mixed.py --host localhost:8000 --headless -u 10 -t 60s --prefill-concurrency 2
"""

from locust import HttpUser, between, task

from locust_llm import LLMUser


class ShortQuestions(LLMUser):
    weight = 3

    @task
    def ask(self) -> None:
        self.chat("What is the capital of France?", max_tokens=8, name="short")


class LongDocuments(LLMUser):
    @task
    def summarise(self) -> None:
        self.chat(max_tokens=60, name="long")  # a synthetic prompt of --synthetic-input-tokens-mean


class Operator(HttpUser):
    wait_time = between(1, 2)

    @task
    def look(self) -> None:
        self.client.get("/v1/models")
