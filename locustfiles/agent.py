"""An agent: a login, a question with a tool, the call of the tool, and the answer made of what the tool gave.

locust -f locustfiles/agent.py --host localhost:8000 --headless -u 10 -t 60s
vLLM calls tools where it was started with --enable-auto-tool-choice and --tool-call-parser.
"""

from typing import Any

from locust import task

from locust_llm import LLMUser

LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up in the handbook.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


class Agent(LLMUser):
    def on_start(self) -> None:
        self.client.get("/health", name="login")  # cookies and headers of self.client go along with the chat

    @task
    def ask(self) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "How long do users wait? Use the handbook."}]
        answer = self.chat(messages, max_tokens=40, tools=[LOOK_UP], name="question")
        if answer.failed:
            return
        messages.append(answer.message)
        for call in answer.tool_calls:
            arguments = call["function"]["arguments"]  # JSON, as text
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"Nothing about {arguments}."})
        if answer.tool_calls:
            self.chat(messages, max_tokens=60, tools=[LOOK_UP], name="answer")
