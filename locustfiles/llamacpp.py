"""A protocol of your own reads the native API of llama.cpp, /completion.

locust -f locustfiles/llamacpp.py --host localhost:8080 --endpoint-type llamacpp --headless -u 10 -t 60s
"""

from typing import Any

from locust import task

import msgspec

from locust_llm import LLMUser
from locust_llm.protocols.protocol import Completion, Messages, Protocol, text_of
from locust_llm.protocols.protocol_registry import PROTOCOLS


class LlamaCpp(Protocol[dict[str, Any]]):
    path, length_fields = "/completion", ("n_predict",)
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def prompt(self, messages: Messages) -> dict[str, Any]:
        return {"prompt": "\n\n".join(map(text_of, messages))}

    def event(self, answer: Completion, message: dict[str, Any], data: bytes) -> bool:
        if message.get("stop"):
            answer.count(input_=message["tokens_evaluated"], output=message["tokens_predicted"])
            answer.finish("length" if message["stop_type"] == "limit" else "stop")
        return answer.add_text(message.get("content"))  # True: a chunk, whose time counts


PROTOCOLS["llamacpp"] = LlamaCpp()  # before the command line is read, which names it


class ChatUser(LLMUser):
    @task
    def ask(self) -> None:
        self.session()
