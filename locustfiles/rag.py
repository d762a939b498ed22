"""Retrieval and answer: a plain HTTP step (here vLLM's /tokenize) selects passages for a chat.

locust -f locustfiles/rag.py --host localhost:8000 --headless -u 10 -t 60s --prefill-concurrency 2
"""

from random import choice

from locust import task

from locust_llm import LLMUser

QUESTIONS = (
    "How does a cache help?",
    "What is a prefill?",
    "Why do users wait?",
    "Who decides what runs next?",
)
PASSAGES = (
    "A prefix cache keeps the attention keys and values of prompts that were seen before.",
    "The prefill reads the whole prompt at once, and at its end there is a first token.",
    "Users wait in a queue when more requests arrive than the server can begin.",
    "A scheduler divides each step between new prompts and running answers.",
)


class Reader(LLMUser):
    @task
    def look_up_and_ask(self) -> None:
        question = choice(QUESTIONS)
        found = self.client.post("/tokenize", json={"prompt": question}, name="retrieve")
        if not found.ok:
            return
        picked = {PASSAGES[token % len(PASSAGES)] for token in found.json()["tokens"]}
        self.chat(
            [
                {
                    "role": "system",
                    "content": "Answer from these passages.\n" + "\n".join(sorted(picked)),
                },
                {"role": "user", "content": question},
            ],
            max_tokens=60,
            name="answer",
        )
