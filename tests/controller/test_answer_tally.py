"""Answer tally: what the live page and the progress line show of the checks so far, by pencil."""

import logging
from typing import Any

import pytest
from support.records import UNIX, answered

from locust_llm.answers.reference_answer import AFTER_LOAD, IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.controller.answer_tally import AnswerTally, LivePageRow
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.record import Record


def checked(ended_s: float = 1.0, **checks: Any) -> Record:
    """An answer that ends so many seconds after the start."""
    known: dict[str, Any] = {"marker": 1, "searched": True, **checks}
    return answered(ended_s * 1e3, sent_at=0.0, answer=AnswerChecks(**known))


def reference(
    asked: str, text: str = "one, two", ended_s: float = 1.0, **fields: Any
) -> ReferenceAnswer:
    known: dict[str, Any] = {"prompt": 0, "sent_at": UNIX, "finish_reason": "stop", **fields}
    return ReferenceAnswer(asked=asked, text=text, ended_at=UNIX + ended_s, **known)


@pytest.fixture
def tally() -> AnswerTally:
    return AnswerTally(lambda: UNIX)


def rows(tally: AnswerTally) -> dict[str, str]:
    return {row.label: row.value for row in tally.list_rows()}


def loud(tally: AnswerTally) -> list[str]:
    return [row.label for row in tally.list_rows() if row.is_fault]


def test_before_the_first_answer_nothing_is_known(tally: AnswerTally) -> None:
    assert tally.list_rows() == [
        LivePageRow("Searched", "0"),
        LivePageRow("Own marker repeated", "in - of answers"),
        LivePageRow("Leaks", "none"),
        LivePageRow("Differ under load", "not compared yet"),
    ]


def test_sound_answers_are_counted_with_the_sensitivity(tally: AnswerTally) -> None:
    """One of four was asked for its marker, and repeated it: 25 %."""
    for number in range(1_200):
        is_asked = number % 4 == 0
        tally.add(checked(asked=is_asked, repeated=is_asked, id_hash=number))
    tally.add(answered(1.0))  # of a request that was not checked
    assert rows(tally)["Searched"] == "1,200"
    assert rows(tally)["Own marker repeated"] == "in 25% of answers"
    assert rows(tally)["Leaks"] == "none"
    assert loud(tally) == []


@pytest.mark.parametrize(
    ("marker", "num_asked", "shown"),
    [
        (None, 0, "no prompt has a marker"),
        (1, 9, "in 0% of answers"),  # too few for a warning
        (1, 10, "0%: leaks could hardly be seen"),
    ],
)
def test_where_leaks_can_hardly_be_seen_it_is_said(
    tally: AnswerTally, marker: int | None, num_asked: int, shown: str
) -> None:
    for number in range(50):
        tally.add(checked(marker=marker, asked=number < num_asked))
    assert rows(tally)["Own marker repeated"] == shown


def test_the_first_leak_is_logged_at_once_and_the_earliest_is_shown(
    tally: AnswerTally, caplog: pytest.LogCaptureFixture
) -> None:
    """The second worker hands over its records later, and its leak was earlier."""
    with caplog.at_level(logging.WARNING, "locust_llm"):
        tally.add(checked(70.0, foreign=(7,)))
        assert rows(tally)["Leaks"] == "1, it ended at 1:10"
        tally.add(checked(12.0, foreign=(7, 8)))
        tally.add_reference(reference(UNDER_LOAD, ended_s=90.0, faults=("foreign_marker",)))
    assert caplog.messages == [
        "LEAK: an answer contains the session marker of another session, 70.0 s after the start"
    ]
    assert rows(tally)["Leaks"] == "3, the first at 0:12"
    assert loud(tally) == ["Leaks"]
    assert tally.isolation.all_leaks == 3


def test_a_leak_in_an_idle_answer_counts_too(tally: AnswerTally) -> None:
    tally.add_reference(reference(IDLE, ended_s=4.0, faults=("foreign_marker",)))
    assert rows(tally)["Leaks"] == "1, it ended at 0:04"


def test_answers_under_load_are_compared_with_the_idle_one(tally: AnswerTally) -> None:
    """The first idle answer is compared with nothing, and a failed one neither."""
    for text in ("one, two", "one, two", "one, two"):
        tally.add_reference(reference(IDLE, text))
    for text in ("one, two", "one, three", "one, two"):
        tally.add_reference(reference(UNDER_LOAD, text))
    tally.add_reference(reference(UNDER_LOAD, "", error="timeout"))
    tally.add_reference(reference(UNDER_LOAD, "x", prompt=5))  # it has no idle answer
    tally.add_reference(reference(AFTER_LOAD, "one, three"))
    assert rows(tally)["Differ under load"] == "1 of 3, idle 0 of 2"
    assert loud(tally) == ["Differ under load"]


def test_a_server_that_differs_from_itself_is_not_blamed(tally: AnswerTally) -> None:
    for text in ("one, two", "one, three"):
        tally.add_reference(reference(IDLE, text))
    tally.add_reference(reference(UNDER_LOAD, "one, three"))
    assert rows(tally)["Differ under load"] == "1 of 1, idle 1 of 1"
    assert loud(tally) == []


def test_other_faults_are_named_the_gravest_first(tally: AnswerTally) -> None:
    """Two answers of the load share an id; a reference answer has broken text, too."""
    tally.add(checked(id_hash=4, faults=("broken_text",)))
    tally.add(checked(id_hash=4, faults=("wrong_usage",)))
    tally.add_reference(reference(IDLE, faults=("broken_text",)))
    assert tally.list_rows()[4:] == [
        LivePageRow("duplicate_id", "2", is_fault=True),
        LivePageRow("wrong_usage", "1", is_fault=True),
        LivePageRow("broken_text", "2", is_fault=True),
    ]
