"""Compare answers: rounding is told from faults by the margins at the first difference."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.answers.compare_answers import (
    BROKEN_CHARACTERS,
    EMPTY,
    NEAR_TIE,
    OTHER_SCRIPT,
    REPEATED_TOKEN,
    UNKNOWN,
    WIDE,
    compare_answers,
    compare_with_idle,
    find_broken_text,
)
from locust_llm.answers.reference_answer import (
    IDLE,
    UNDER_LOAD,
    AnswerToken,
    AnswerToolCall,
    ReferenceAnswer,
)


def answer(text: str = "", **fields: Any) -> ReferenceAnswer:
    usual: dict[str, Any] = {
        "prompt": 0, "asked": UNDER_LOAD, "sent_at": 1.0, "ended_at": 2.0, "finish_reason": "stop",
    }  # fmt: skip
    return ReferenceAnswer(text=text, **(usual | fields))


def tokens(*margins: tuple[str, float | None]) -> tuple[AnswerToken, ...]:
    return tuple(AnswerToken(text, -0.1, margin) for text, margin in margins)


def joined(*margins: tuple[str, float | None], **fields: Any) -> ReferenceAnswer:
    """An answer whose tokens join to its text."""
    return answer("".join(text for text, _ in margins), tokens=tokens(*margins), **fields)


def test_the_same_answer_has_no_difference() -> None:
    assert compare_answers(answer("one, two"), answer("one, two")) is None


def test_both_margins_at_the_first_difference_add_up() -> None:
    idle = joined(("one", 9.0), (" two", 0.1), (" three", 9.0))
    other = joined(("one", 9.0), (" zwei", 0.2), (" drei", 0.0))
    found = compare_answers(idle, other)
    assert found is not None
    assert (found.at_character, found.at_token, found.size) == (4, 1, NEAR_TIE)
    assert found.margin == pytest.approx(0.3)
    assert not found.is_mismatch


@pytest.mark.parametrize(
    ("margins", "size"),
    [
        ((0.24, 0.25), NEAR_TIE),
        ((0.25, 0.25), WIDE),
        ((0.1, 3.0), WIDE),  # the idle model hesitated, the loaded one is sure of another token
        ((3.0, 0.1), WIDE),
        ((0.1, None), NEAR_TIE),
        ((None, 0.6), WIDE),
        ((None, None), UNKNOWN),
    ],
)
def test_a_near_tie_is_below_half_a_nat(
    margins: tuple[float | None, float | None], size: str
) -> None:
    found = compare_answers(joined(("a", margins[0])), joined(("b", margins[1])))
    assert found is not None
    assert found.size == size


def test_without_logprobs_the_margin_is_unknown_and_counts() -> None:
    found = compare_answers(answer("ab"), answer("ac"))
    assert found is not None
    assert (found.at_character, found.at_token, found.size) == (1, None, UNKNOWN)
    assert found.is_mismatch


def test_of_one_side_without_logprobs_the_other_side_has_the_margin() -> None:
    idle = joined(("one", 9.0), (" two", 0.1))
    found = compare_answers(idle, answer("one tow"))
    assert found is not None
    assert (found.at_token, found.margin) == (1, 0.1)
    wide = compare_answers(idle, answer("onx two"))
    assert wide is not None
    assert (wide.at_token, wide.size) == (0, WIDE)


def test_an_answer_that_ends_earlier_differs_at_its_end() -> None:
    """Reported of a sound server: a full stop and the end of the answer were 0.018 nats apart."""
    found = compare_answers(joined(("4", 9.0)), joined(("4", 9.0), (".", 0.018)))
    assert found is not None
    assert (found.at_token, found.margin, found.size) == (1, 0.018, NEAR_TIE)


def test_a_text_that_its_own_tokens_do_not_have_is_no_rounding() -> None:
    chosen = (("one", 0.1), (" two", 0.1))
    found = compare_answers(joined(*chosen), answer("one", tokens=tokens(*chosen)))
    assert found is not None
    assert (found.size, found.at_token) == (WIDE, None)


def test_reasoning_without_logprobs_has_an_unknown_margin() -> None:
    chosen = (("4", 0.1),)
    idle, other = joined(*chosen, reasoning="Well"), joined(*chosen, reasoning="Hmm")
    found = compare_answers(idle, other)
    assert found is not None
    assert (found.size, found.at_character) == (UNKNOWN, 0)


def test_reasoning_of_one_answer_alone_without_logprobs_has_an_unknown_margin() -> None:
    """The tokens are the text's, and equal: they say nothing of the reasoning."""
    chosen = [("one", 2.0), (" two", 3.0)]
    without, reasoned = joined(*chosen), joined(*chosen, reasoning="one")
    for idle, other in ((without, reasoned), (reasoned, without)):
        found = compare_answers(idle, other)
        assert found is not None
        assert (found.size, found.margin) == (UNKNOWN, None)


def test_tool_calls_and_finish_reasons_are_compared() -> None:
    paris = answer(tool_calls=(AnswerToolCall("get_weather", '{"city": "Paris"}'),))
    rome = answer(tool_calls=(AnswerToolCall("get_weather", '{"city": "Rome"}'),))
    found = compare_answers(paris, rome)
    assert found is not None
    assert found.at_character == len('get_weather({"city": "')
    cut = compare_answers(answer("one"), answer("one", finish_reason="length"))
    assert cut is not None
    assert cut.finish_reasons == ("stop", "length")


@pytest.mark.parametrize(
    ("text", "signs"),
    [
        ("one �two", [BROKEN_CHARACTERS]),
        ("!" * 20, [REPEATED_TOKEN]),
        ("!" * 19, []),
        ("the data " + "the " * 20, [REPEATED_TOKEN]),
        ("", [EMPTY]),
        ("建仓", [OTHER_SCRIPT]),
        ("two", []),
    ],
)
def test_broken_text_has_signs_that_the_idle_answer_has_not(text: str, signs: list[str]) -> None:
    found = compare_answers(answer("one"), answer(text))
    assert found is not None
    assert list(found.broken) == signs
    again = compare_answers(answer(text + "one"), answer(text))
    assert again is not None
    assert set(again.broken) <= {EMPTY}


def test_twenty_equal_tokens_are_broken_though_their_text_is_no_word() -> None:
    assert [*find_broken_text(joined(*[("ab", 1.0)] * 20))] == [REPEATED_TOKEN]
    assert [*find_broken_text(joined(*[("ab", 1.0)] * 19))] == []


def test_each_answer_is_compared_with_the_first_idle_one_of_its_server_and_prompt() -> None:
    idle = answer("one", asked=IDLE)
    answers = [
        answer("", asked=IDLE, error="HTTP 500"),
        idle,
        answer("uno", asked=IDLE),
        answer("one"),
        answer("uno", prompt=1),
        answer("", error="no complete response within 30 s"),
        answer("uno", server="b"),
    ]
    compared = [*compare_with_idle(answers)]
    assert [one.answer.text for one in compared] == ["uno", "one"]
    assert {id(one.idle) for one in compared} == {id(idle)}
    assert [one.difference is None for one in compared] == [False, True]


texts = st.text(max_size=30)
some_tokens = st.lists(
    st.builds(AnswerToken, texts, st.none(), st.none() | st.floats(0, 50)), max_size=6
).map(tuple)
some_answers = st.builds(
    answer,
    texts,
    reasoning=texts,
    tokens=some_tokens,
    finish_reason=st.sampled_from(["stop", "length"]),
)


@given(some_answers, some_answers)
@examples(300)
def test_whatever_the_answers_are_a_comparison_is_sound(
    idle: ReferenceAnswer, other: ReferenceAnswer
) -> None:
    found, back = compare_answers(idle, other), compare_answers(other, idle)
    assert (found is None) == (back is None)
    assert (found is None) == (
        (idle.whole_text, idle.finish_reason) == (other.whole_text, other.finish_reason)
    )
    if found is not None and back is not None:
        at = found.at_character
        assert idle.whole_text[:at] == other.whole_text[:at]
        assert idle.whole_text[at : at + 1] != other.whole_text[at : at + 1] or at == len(
            idle.whole_text
        )
        assert (found.size, found.margin, at) == (back.size, back.margin, back.at_character)
