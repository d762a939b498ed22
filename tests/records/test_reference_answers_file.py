"""Reference answers file: what is written comes back, and damaged lines are counted."""

from pathlib import Path

from locust_llm.answers.reference_answer import IDLE, AnswerToken, AnswerToolCall, ReferenceAnswer
from locust_llm.records.reference_answers_file import (
    REFERENCE_ANSWERS,
    format_reference_answer,
    read_reference_answers,
)

ANSWER = ReferenceAnswer(
    prompt=3,
    asked=IDLE,
    sent_at=1.5,
    ended_at=2.25,
    kind="tool",
    text="one\ntwo \ufffd",
    tool_calls=(AnswerToolCall("get_weather", "{}"),),
    tokens=(AnswerToken("one", -0.5, 2.0), AnswerToken("two")),
    response_ids=("chatcmpl-1",),
    without=("logprobs",),
)


def test_an_answer_comes_back_as_it_was_written(tmp_path: Path) -> None:
    failed = ReferenceAnswer(prompt=0, asked=IDLE, sent_at=0.0, ended_at=1.0, error="HTTP 500: no")
    lines = [format_reference_answer(answer) + b"\n" for answer in (ANSWER, failed)]
    (tmp_path / REFERENCE_ANSWERS).write_bytes(b"".join(lines))
    assert read_reference_answers(tmp_path) == ([ANSWER, failed], 0)


def test_damaged_lines_are_counted_and_a_missing_file_has_no_answers(tmp_path: Path) -> None:
    assert read_reference_answers(tmp_path) == ([], 0)
    line = format_reference_answer(ANSWER)
    (tmp_path / REFERENCE_ANSWERS).write_bytes(b"\n{}\n" + line + b"\n" + line[:-5])
    assert read_reference_answers(tmp_path) == ([ANSWER], 2)


def test_a_stage_has_the_answers_of_its_run(tmp_path: Path) -> None:
    stage = tmp_path / "stages" / "1"
    stage.mkdir(parents=True)
    (tmp_path / REFERENCE_ANSWERS).write_bytes(format_reference_answer(ANSWER))
    assert read_reference_answers(stage) == ([ANSWER], 0)
