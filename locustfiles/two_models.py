"""Two models behind one address share one prefill gate.

locust-llm simulate --served-model-name small large
locust -f locustfiles/two_models.py --host localhost:8000 --headless -u 10 -t 60s --prefill-concurrency 4
"""

from locust import task

from locust_llm import LLMUser


class Asker(LLMUser):
    model = "small"
    weight = 3

    @task
    def ask(self) -> None:
        self.chat("What is the capital of France?", max_tokens=8, name="small")


class Summariser(LLMUser):
    model = "large"

    @task
    def summarise(self) -> None:
        # a synthetic prompt of --synthetic-input-tokens-mean
        self.chat(max_tokens=60, name="large")
