"""The bytes of real servers: their sound answers give no alarm."""

from pathlib import Path

import pytest
from support.checked_answers import received_answer

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.received_answer import AnswerRequested, EventReader
from locust_llm.client.sse import EventDecoder
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.records.outcomes import OK

CAPTURES = Path(__file__).parents[1] / "captures"
KINDS = ("completions", "messages", "responses")
MAX_TOKENS = {"llamacpp_schema": 16}
"""The lengths asked for, where an answer reached them."""


def parse(path):
    """(what the protocol of the client makes of it, its events), or None for a refusal."""
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    if head.split()[1] != b"200":
        return None
    kind = next((kind for kind in KINDS if kind in path.name), "chat")
    answer, reader = Completion(PROTOCOLS[kind], keep_text=True), EventReader()
    if body.lstrip().startswith(b"{"):
        reader.add(body)
        answer.whole(body)
    else:
        for event in EventDecoder().feed([(0, body)]):
            reader.add(event[2])
            answer.add(event)
    return (answer, reader) if answer.outcome()[0] == OK else None


def test_there_are_captures_of_sound_answers():
    found = [path.name for path in CAPTURES.glob("*.http") if parse(path)]
    assert len(found) > 15
    assert {name.partition("_")[0] for name in found} >= {"vllm", "llamacpp", "litellm"}


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.http")), ids=lambda path: path.stem)
def test_captured_answers_have_no_faults(path):
    parsed = parse(path)
    if parsed is None:
        return
    answer, reader = parsed
    received = received_answer(answer, reader)
    assert reader.ids
    asked = AnswerRequested(model="tiny", max_tokens=MAX_TOKENS.get(path.stem))
    assert find_answer_faults(received, asked, ModelNames()) == ()
