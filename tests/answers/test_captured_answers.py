"""The bytes of real servers: their sound answers give no alarm."""

import pytest
from support.captured_answers import CAPTURES, parse_capture
from support.checked_answers import received_answer

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.received_answer import AnswerRequested

MAX_TOKENS = {"llamacpp_schema": 16}
"""The lengths asked for, where an answer reached them."""


def test_there_are_captures_of_sound_answers():
    found = [path.name for path in CAPTURES.glob("*.http") if parse_capture(path)]
    assert len(found) > 15
    assert {name.partition("_")[0] for name in found} >= {"vllm", "llamacpp", "litellm"}


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.http")), ids=lambda path: path.stem)
def test_captured_answers_have_no_faults(path):
    parsed = parse_capture(path)
    if parsed is None:
        return
    answer, reader = parsed
    received = received_answer(answer, reader)
    assert reader.ids
    asked = AnswerRequested(model="tiny", max_tokens=MAX_TOKENS.get(path.stem))
    assert find_answer_faults(received, asked, ModelNames()) == ()
