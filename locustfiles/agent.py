"""An agent asks a question with a tool, calls the tool, and answers from its result.

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
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}


class Agent(LLMUser):
    def on_start(self) -> None:
        # cookies and headers of self.client go along with the chat
        self.client.get("/health", name="login")

    @task
    def ask(self) -> None:
        with self.open_session() as session:
            answer = session.chat(
                "How long do users wait? Use the handbook.",
                max_tokens=40,
                tools=[LOOK_UP],
                name="question",
            )
            calls = [] if answer.failed else answer.tool_calls
            if found := [session.tool(self.look_up, call) for call in calls]:
                session.chat(found, max_tokens=60, tools=[LOOK_UP], name="answer")

    def look_up(self, call: dict[str, Any]) -> dict[str, Any]:
        page = self.client.get("/v1/models", name="look_up").text  # its time is the tool's
        wanted = call["function"]["arguments"]  # JSON, as text
        return {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": f"Of {wanted} there are {len(page)} letters.",
        }
