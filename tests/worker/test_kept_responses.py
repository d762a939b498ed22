"""Kept responses: what a turn sends where the server keeps the answers, and what it sends when one
is lost or has no id."""

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.records import answered, failed

from locust_llm.server.http_get import FetchedResponse
from locust_llm.server.refusals import advise_on_error, explain_forgotten_responses
from locust_llm.server.refusals import find_answered_protocols as spoken
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.worker.kept_responses import KeptResponses

SERVER = Settings(endpoint_type="responses", endpoint="/v1/responses", responses_state="server")
CLIENT = Settings(endpoint_type="responses", endpoint="/v1/responses")
ASKS: dict[str, Any] = {"role": "user", "content": "a"}
KEPT: dict[str, Any] = {"role": "assistant", "content": "b", "response_id": "r1"}
TURN = [ASKS, KEPT, ASKS]


def of_run(epoch: int, settings: Settings = SERVER) -> Any:
    return SimpleNamespace(settings=settings, epoch=epoch)


def said(id_: str | None, *, calls: bool = False) -> Any:
    return SimpleNamespace(
        answer=SimpleNamespace(response_id=id_, calls={0: True} if calls else {})
    )


def test_a_turn_sends_what_is_new(caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptResponses()
    assert kept.asked(TURN, CLIENT) == (TURN, {})
    assert kept.asked(TURN, SERVER) == ([ASKS], {"previous_response_id": "r1"})
    kept.ended(answered(1), said("r2"), of_run(-1))
    assert (kept.id, kept.mark(of_run(-1))) == ("r2", {"response_id": "r2"})
    assert caplog.records == []


def test_what_falls_back_to_the_whole_conversation_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, lost = KeptResponses(), failed("http_status", status=404, error="HTTP 404: not found")
    with caplog.at_level(logging.WARNING, logger="locust_llm"):
        for _ in range(2):
            kept.asked(TURN, SERVER)
            kept.ended(lost, None, of_run(-2))
            assert (kept.id, kept.asked(TURN, SERVER)) == (None, (TURN, {}))
            kept.ended(answered(1), said(None), of_run(-2))
            assert kept.mark(of_run(-2)) == {}
            kept.ended(answered(1), said("r2", calls=True), of_run(-2))
            assert kept.mark(of_run(-2)) == {}
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "the server no longer has the response r1", "a response has no id",
        "a response calls a tool without a result in any later turn"
    ]  # fmt: skip
    kept.asked(TURN, SERVER)  # a failure of another kind loses nothing
    other = KeptResponses()
    other.asked(TURN, SERVER)
    other.ended(failed("reset"), None, of_run(-2))
    assert other.asked(TURN, SERVER)[1] == {"previous_response_id": "r1"}


class Server:
    """Answers each request with the next of these; keeps what it was asked."""

    def __init__(self, *answers: tuple[int, dict[str, Any]]) -> None:
        self.answers, self.bodies, self.kinds = list(answers), list[dict[str, Any]](), list[str]()

    def ask(
        self, method: str, path: str, data: bytes, *, timeout_s: float, kind: str = ""
    ) -> FetchedResponse:
        self.bodies.append(msgspec.json.decode(data))
        self.kinds.append(kind)
        status, body = self.answers.pop(0)
        return FetchedResponse(status=status, body=msgspec.json.encode(body), server="")


def response(input_tokens: int, id_: str | None = "r1") -> tuple[int, dict[str, Any]]:
    usage = {"input_tokens": input_tokens, "output_tokens": 1}
    return 200, {"id": id_, "status": "incomplete", "output": [], "usage": usage}


@pytest.mark.parametrize(("answers", "why"), [
    ((response(9), response(20, "r2")), ""),
    ((response(9), response(9, "r2")),
        "the server ignores previous_response_id: both turns had 9 input tokens; "),
    ((response(9), (404, {"error": {"message": "Response with id 'r1' not found."}})),
     "a turn was answered with HTTP 404, Response with id 'r1' not found; "),
    ((response(9, None),), "its responses have no id; "),
])  # fmt: skip
def test_whether_the_server_keeps_answers_is_asked_before_the_load(answers: Any, why: str) -> None:
    server = Server(*answers)
    assert explain_forgotten_responses(server.ask, SERVER, "m").partition("vLLM keeps")[0] == why
    assert [body.get("previous_response_id") for body in server.bodies] == [None, "r1"][
        : len(answers)
    ]
    assert server.bodies[0]["max_output_tokens"] == 16


def test_each_protocol_is_asked_with_its_own_headers() -> None:
    server = Server(*[(404, {})] * 5)
    assert spoken(server.ask, SERVER, "m") == []
    assert server.kinds == ["chat", "completions", "messages", "embeddings", "rerank"]


def test_refusals() -> None:
    assert not list(validate_settings(SERVER))
    wrong = (
        msgspec.structs.replace(SERVER, endpoint_type="chat"),
        msgspec.structs.replace(SERVER, candidate="http://b"),
    )
    found = [next(validate_settings(settings)) for settings in wrong]
    assert found[0] == "--responses-state server needs --endpoint-type responses: chat has no state"
    assert found[1].startswith("--responses-state server and --candidate exclude each other")
    todo = advise_on_error(404, "HTTP 404: Response with id 'r1' not found.", SERVER, key=False)
    assert todo.startswith(
        "the server no longer has the response that this turn continues: vLLM keeps"
    )
