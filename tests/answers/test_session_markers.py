"""Session markers: each worker knows those of all others, whatever a model makes of their form, and
nothing else passes for one."""

import json
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.answers.session_markers import (
    ASKED_SHARE,
    MARKER_WORDS,
    WORDS,
    MarkerKey,
    load_marker_words,
)
from locust_llm.workload.local_tokenizer import load_corpus

KEY = b"0123456789abcdef"
PROSE = " ".join(load_corpus()[0].split()[:5_000])

separators = st.sampled_from(
    [" ", ", ", "-", "\n", "\n\n", "\t", "_", ". ", " / ", "** **", "\n2. ", '", "', "\u00a0"]
)


def test_the_list_has_common_words_of_four_to_eight_letters() -> None:
    words, place_of = load_marker_words()
    assert len(words) == len(place_of) == WORDS == 2048
    assert all(4 <= len(word) <= 8 and word.isascii() and word.islower() for word in words)
    assert all(word.isalpha() for word in words)


def test_no_word_begins_with_another_one() -> None:
    words, _ = load_marker_words()
    ordered = sorted(words)
    assert [pair for pair in pairwise(ordered) if pair[1].startswith(pair[0])] == []


def test_a_marker_is_six_words_of_the_list() -> None:
    marker = MarkerKey(KEY).make()
    words, _ = load_marker_words()
    assert len(marker.text.split(" ")) == MARKER_WORDS == 6
    assert set(marker.text.split(" ")) <= set(words)
    assert marker.sentence == f"Session code: {marker.text}."


def test_another_process_of_the_run_finds_it_without_a_table() -> None:
    made = [MarkerKey(KEY, process).make() for process in range(200)]
    other = MarkerKey(KEY, 999)
    assert [other.find(f"It is {marker.text}, I think.") for marker in made] == [
        [marker.number] for marker in made
    ]


def test_all_markers_of_a_run_are_different() -> None:
    keys = [MarkerKey(KEY, process) for process in (0, 1, 2, 2047)]
    made = [key.make() for key in keys for _ in range(5_000)]
    assert len({marker.number for marker in made}) == 20_000
    assert len({marker.text for marker in made}) == 20_000


def test_another_run_does_not_know_it() -> None:
    """2^-33 of the markers of another key would pass: of 2,000 about none."""
    ours, theirs = MarkerKey(KEY), MarkerKey(b"another key 1234")
    assert [ours.find(theirs.make().text) for _ in range(2_000)] == [[]] * 2_000


@given(
    st.integers(0, 2_047),
    st.integers(0, 30),
    st.lists(separators, min_size=MARKER_WORDS - 1, max_size=MARKER_WORDS - 1),
    st.sampled_from([str.lower, str.upper, str.title]),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_case_punctuation_and_line_breaks_do_not_hide_it(
    process: int,
    skipped: int,
    between: list[str],
    write: Callable[[str], str],
    before: int,
    behind: int,
) -> None:
    key = MarkerKey(KEY, process)
    for _ in range(skipped):
        key.make()
    marker = key.make()
    words = marker.text.split(" ")
    text = words[0] + "".join(
        [separator + word for separator, word in zip(between, words[1:], strict=True)]
    )
    prose = PROSE.split(" ")
    whole = " ".join([*prose[:before], "-", write(text), "-", *prose[:behind]])
    assert MarkerKey(KEY).find(whole) == [marker.number]
    arguments = json.dumps({"code": f"a\n{text}\nb"})
    assert MarkerKey(KEY).find(arguments) == [marker.number]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 4))
def test_it_is_found_among_other_words_of_the_list(before: int, behind: int, count: int) -> None:
    words, _ = load_marker_words()
    key = MarkerKey(KEY)
    markers = [key.make() for _ in range(count)]
    text = " ".join([*words[:before], *[m.text for m in markers], *words[100 : 100 + behind]])
    assert key.find(text) == [marker.number for marker in markers]


def test_a_marker_that_comes_twice_is_found_once() -> None:
    marker = MarkerKey(KEY).make()
    assert MarkerKey(KEY).find(f"{marker.text} {marker.text}") == [marker.number]


@pytest.mark.parametrize("missing", range(MARKER_WORDS))
def test_five_of_its_words_are_no_marker(missing: int) -> None:
    words = MarkerKey(KEY).make().text.split(" ")
    del words[missing]
    assert MarkerKey(KEY).find(" ".join(words)) == []


@given(st.text())
def test_no_text_is_too_strange_to_search(text: str) -> None:
    assert MarkerKey(KEY).find(text) == []


def count_windows(text: str) -> int:
    """The places where six words of the list stand in a row: each passes for a marker once in 2^33
    times."""
    _, place_of = load_marker_words()
    words = [word.strip(".,;:?!'-").lower() for word in text.split()]
    return sum(
        all(word in place_of for word in words[at : at + MARKER_WORDS]) for at in range(len(words))
    )


def test_a_million_answers_of_prose_raise_no_alarm() -> None:
    """Prose has a list word in twenty, and so six in a row less than once in a million words. A
    million answers of 500 words would then pass for a marker with a chance below 10^-7."""
    corpus = load_corpus()[0]
    words = len(corpus.split())
    assert words > 50_000
    windows = count_windows(corpus)
    expected_alarms = (windows + 3) / words * 500 * 1_000_000 / 2**33
    assert expected_alarms < 1e-5
    assert MarkerKey(KEY).find(corpus) == []


def test_even_a_text_of_nothing_but_its_words_raises_no_alarm() -> None:
    """100,000 places of which 2^-33 pass: 0.00001 alarms."""
    words, _ = load_marker_words()
    text = " ".join(random.Random(1).choices(words, k=100_000))
    assert MarkerKey(KEY).find(text) == []


def test_one_request_in_five_is_asked_and_no_user_alone() -> None:
    key = MarkerKey(KEY)
    marker = key.make()
    asked = [key.end_prompt(marker, first=False)[1] for _ in range(10_000)]
    assert abs(sum(asked) / len(asked) - ASKED_SHARE) < 0.001
    for users in (2, 3, 4, 5, 8, 10, 16):
        for user in range(users):
            own = asked[user::users]
            assert 0.15 < sum(own) / len(own) < 0.25


def test_the_first_prompt_brings_the_marker_and_one_that_asks_ends_with_that() -> None:
    key = MarkerKey(KEY)
    marker = key.make()
    firsts = {key.end_prompt(marker, first=True) for _ in range(20)}
    laters = {key.end_prompt(marker, first=False) for _ in range(20)}
    code, ask = f"Session code: {marker.text}.", "Begin your answer with the session code."
    assert firsts == {(code, False), (f"{code} {ask}", True)}
    assert laters == {("", False), (ask, True)}
