"""Conversation: the history holds what was asked and what was really answered; it ends when it
should."""

from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.workload.conversation import Conversation, ConversationRequest, ConversationSource
from locust_llm.workload.dataset_formats import DatasetSession, Turn, parse_json_row
from locust_llm.workload.length_distributions import combine_lengths, parse_length, parse_length_mix
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

SHARED = {"system_tokens": 10, "prefixes": 2, "prefix_tokens": 20}


def prompts(tokens: str = "100", output: str = "7", **shared: int) -> Prompts:
    """A token a word, so that tokens can be counted by eye."""
    return Prompts(
        PromptLengthModel(1.0, 0.0),
        combine_lengths(parse_length(tokens), parse_length(output)),
        seed=1,
        **shared,
    )


def of(
    *turns: Turn, from_: Prompts | None = None, delay_ms: tuple[float, float] = (0, 0)
) -> Conversation:
    item = DatasetSession(id="a", turns=turns, row=1)
    return Conversation(from_ or prompts(), item, id="a", random=Random(1), delay_ms=delay_ms)


def user(content: str, **more: Any) -> Turn:
    return Turn(messages=[{"role": "user", "content": content}], row=1, **more)


def said(ask: ConversationRequest | None) -> list[tuple[str, str]]:
    assert ask is not None
    return [(message["role"], message["content"]) for message in ask.messages]


def words(ask: ConversationRequest) -> int:
    return sum(len(message["content"].split()) for message in ask.messages)


def test_the_history_grows_by_the_real_answers() -> None:
    talk = of(user("one", reference="never sent"), user("two", output_tokens=5))
    first = talk.next()
    assert said(first) == [("user", "one")]
    talk.add_answer("really")
    second = talk.next()
    assert said(second) == [("user", "one"), ("assistant", "really"), ("user", "two")]
    assert second is not None
    assert (second.turn, second.output_tokens) == (1, 5)
    talk.add_answer("end")
    assert talk.next() is None
    assert talk.left == 0


def test_an_output_is_as_long_as_the_file_says_else_as_its_answer_else_as_the_run_asks() -> None:
    talk = of(
        user("a", reference="one two three", output_tokens=9),
        user("b", reference="one two three"),
        user("c"),
    )
    asked = []
    while ask := talk.next():
        asked.append(ask.output_tokens)
        talk.add_answer("")
    assert asked == [9, 3, 7]


def test_a_session_ends_with_a_turn_that_failed() -> None:
    talk = of(user("one"), user("two"), user("three"))
    talk.next()
    assert talk.next() is None
    assert talk.next() is None
    assert talk.left == 2


def test_a_whole_turn_takes_nothing_along() -> None:
    talk = of(user("one"), user("two", whole=True, input_tokens=30), user("three", input_tokens=4))
    talk.next()
    talk.add_answer("first")
    second = talk.next()
    assert said(second) == [("user", "two")]
    assert second is not None
    assert second.input_tokens == 30
    talk.add_answer("second answer")
    third = talk.next()
    assert said(third) == [("user", "two"), ("assistant", "second answer"), ("user", "three")]
    assert third is not None
    assert third.input_tokens == 30 + 2 + 4


def test_the_file_is_left_as_it_is() -> None:
    """A dataset may give its sessions again."""
    turns = (
        Turn(
            messages=[{"role": "system", "content": "be"}, {"role": "user", "content": "x"}], row=1
        ),
        user("y", whole=True),
        user("z"),
    )
    before = repr(turns)
    for _ in range(2):
        talk = of(*turns, from_=prompts(system_tokens=3))
        while talk.next():
            talk.add_answer("answer")
    assert repr(turns) == before


def test_a_system_message_of_the_file_joins_the_shared_one() -> None:
    source = prompts(system_tokens=3)
    assert source.system is not None
    shared = source.system["content"]
    own = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "x"}]
    talk = of(
        Turn(messages=own, row=1), Turn(messages=own, row=1), user("y", whole=True), from_=source
    )
    assert said(talk.next()) == [("system", f"{shared}\n\nbe kind"), ("user", "x")]
    talk.add_answer("ok")
    assert said(talk.next())[2:] == [("assistant", "ok"), ("system", "be kind"), ("user", "x")]
    talk.add_answer("ok")
    assert said(talk.next()) == [("system", shared), ("user", "y")]
    parts = [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": "x"},
    ]
    ask = of(Turn(messages=parts, row=1), from_=source).next()
    assert ask is not None
    assert ask.messages == [source.system, *parts]  # a list of parts has no text to join


def test_input_tokens_count_all_that_is_sent() -> None:
    """Made-up prompts of a token a word: prefix and system prompt come once, answers as the server
    counted them."""
    source = prompts(**SHARED)
    talk = Conversation(source, id="x", random=Random(1), turns=3)
    first = talk.next()
    assert first is not None
    assert first.input_tokens == words(first) == 10 + 20 + 100
    assert [message["role"] for message in first.messages] == ["system", "user"]
    talk.add_answer("five words in this answer")
    second = talk.next()
    assert second is not None
    assert second.input_tokens == words(second) == 130 + 5 + 100
    talk.add_answer("two words", tokens=50)
    third = talk.next()
    assert third is not None
    assert third.input_tokens == 235 + 50 + 100


def test_tokens_of_a_file_are_known_as_long_as_all_of_them_are() -> None:
    source = prompts(**SHARED)
    talk = of(
        user("a", input_tokens=40),
        user("b"),
        user("c", input_tokens=9),
        user("d", whole=True, input_tokens=8),
        from_=source,
    )
    asked = []
    while ask := talk.next():
        asked.append(ask.input_tokens)
        talk.add_answer("one two")
    assert asked == [10 + 40, None, None, 10 + 8]


def test_a_trace_gets_made_up_prompts_of_its_lengths_and_blocks() -> None:
    rows = [{"timestamp": 1500, "input_length": 1100, "output_length": 3, "hash_ids": [4, 5]},
            {"delay": 250, "input_length": 600, "hash_ids": [4]}]  # fmt: skip
    turns = [
        turn
        for row in rows
        for turn in parse_json_row("mooncake_trace", str(row).replace("'", '"').encode(), 1)[1]
    ]
    source = prompts(**SHARED)
    talk = of(*turns, from_=source, delay_ms=(9_000, 0))
    first = talk.next()
    assert first is not None
    assert (first.at_s, first.delay_s, first.output_tokens, first.input_tokens) == (
        1.5,
        0,
        3,
        10 + 1100,
    )
    assert words(first) == 1110
    text = first.messages[1]["content"].split()
    talk.add_answer("yes")
    second = talk.next()
    assert second is not None
    assert (second.at_s, second.delay_s, second.output_tokens, second.input_tokens) == (
        None,
        0.25,
        7,
        1110 + 1 + 600,
    )
    again = second.messages[3]["content"].split()
    assert again[:512] == text[:512]
    assert again[512].isdigit()


def test_a_turn_without_text_and_length_is_made_up_as_the_run_asks() -> None:
    ask = of(Turn(row=1)).next()
    assert ask is not None
    assert ask.input_tokens == words(ask) == 100


def test_more_fields_of_a_turn_are_passed_on() -> None:
    ask = of(user("a", body={"temperature": 0})).next()
    assert ask is not None
    assert ask.body == {"temperature": 0}


# -- think time ------------------------------------------------------------------------------------


def delays(talk: Conversation) -> list[float]:
    found = []
    while ask := talk.next():
        found.append(ask.delay_s)
        talk.add_answer("")
    return found


def test_think_times_are_the_files_else_drawn_and_none_comes_first() -> None:
    turns = (user("a", delay_s=5.0), user("b", delay_s=2.0), user("c"), user("d", delay_s=0.0))
    assert delays(of(*turns, delay_ms=(300, 0))) == [0, 2.0, 0.3, 0]
    assert delays(of(*turns)) == [0, 2.0, 0, 0]


def test_think_times_are_normal_and_cut_at_zero() -> None:
    def drawn(mean_ms: float, stddev_ms: float) -> list[float]:
        talk = Conversation(
            prompts("1"), id="", random=Random(3), turns=4_001, delay_ms=(mean_ms, stddev_ms)
        )
        return delays(talk)[1:]

    wide = drawn(2_000, 300)
    assert fmean(wide) == pytest.approx(2.0, abs=4 * 0.3 / 4_000**0.5)
    assert pstdev(wide) == pytest.approx(0.3, rel=0.05)
    cut = drawn(0, 1_000)
    assert min(cut) == 0
    assert sum(one == 0 for one in cut) / 4_000 == pytest.approx(0.5, abs=4 * 0.5 / 4_000**0.5)


# -- sessions --------------------------------------------------------------------------------------


def transcript(talk: Conversation) -> list[Any]:
    asks = []
    while ask := talk.next():
        asks.append(
            (ask.turn, list(ask.messages), ask.input_tokens, ask.output_tokens, ask.delay_s)
        )
        talk.add_answer(f"answer {ask.turn}")
    return [talk.id, *asks]


def sessions(
    seed: int | None = 4, worker: int = 0, turns: tuple[float, float] = (3.0, 1.5)
) -> ConversationSource:
    made = Prompts(
        PromptLengthModel(), parse_length_mix("40,900:60;70,8:40"), seed=seed, worker=worker
    )
    return ConversationSource(made, turns=turns, delay_ms=(100, 30), seed=seed, worker=worker)


def test_a_seed_gives_the_same_sessions_again() -> None:
    one, same, other, neighbour = sessions(), sessions(), sessions(seed=5), sessions(worker=1)
    first = [transcript(one.begin()) for _ in range(20)]
    assert first == [transcript(same.begin()) for _ in range(20)]
    for unlike in (other, neighbour, sessions(seed=None)):
        assert not {talk[0] for talk in first} & {transcript(unlike.begin())[0] for _ in range(20)}


def test_turns_are_normal_and_at_least_one() -> None:
    source = sessions(turns=(5.0, 1.0))
    drawn = [source.begin().turns for _ in range(4_000)]
    assert fmean(drawn) == pytest.approx(5.0, abs=4 * 1.05 / 4_000**0.5)
    # rounding adds a twelfth to the variance
    assert pstdev(drawn) == pytest.approx((1 + 1 / 12) ** 0.5, rel=0.05)
    short = sessions(turns=(1.0, 2.0))
    assert min(short.begin().turns for _ in range(100)) == 1
    assert {sessions(turns=(1.0, 0.0)).begin().turns for _ in range(5)} == {1}


def test_names_come_once_and_a_file_keeps_its_own() -> None:
    source = sessions()
    assert len({source.begin().id for _ in range(5_000)}) == 5_000
    talk = source.begin(DatasetSession(id="theirs", turns=(user("x"), user("y")), row=1))
    assert (talk.id, talk.turns) == ("theirs", 2)


def test_pairs_of_a_mix_stay_pairs_in_every_turn() -> None:
    talk = sessions(turns=(400.0, 0.0)).begin()
    before, pairs = 0, set()
    while ask := talk.next():
        assert ask.input_tokens is not None
        pairs.add((ask.input_tokens - before, ask.output_tokens))
        talk.add_answer("x", tokens=11)
        before = ask.input_tokens + 11
    assert pairs == {(40, 900), (70, 8)}


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.text(max_size=5), st.text(max_size=5)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_roles_alternate_whatever_the_turns(
    kinds: list[tuple[bool, bool, str, str]], system: bool
) -> None:
    """Whole or not, given or made up: one system message at most, then user and assistant by turns,
    the user last."""
    turns = tuple(
        user(text, whole=whole) if given_ else Turn(input_tokens=5, whole=whole, row=1)
        for whole, given_, text, _ in kinds
    )
    talk = of(*turns, from_=SOURCES[system])
    since = 0
    for number, (whole, _, _, answer) in enumerate(kinds):
        since = 1 if whole else since + 1
        ask = talk.next()
        assert ask is not None
        assert ask.turn == number
        roles = [message["role"] for message in ask.messages]
        assert roles == ["system"] * system + ["user", "assistant"] * (since - 1) + ["user"]
        talk.add_answer(answer)
    assert talk.next() is None


SOURCES = {False: prompts(), True: prompts(system_tokens=3)}
