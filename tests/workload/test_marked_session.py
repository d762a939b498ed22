"""Marked session: the marker stands at the end of the first prompt, within its length, and is the
same in all branches; prompts of a file stay as they are."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.answers.session_markers import ASK_SENTENCE, MarkerKey
from locust_llm.workload.conversation import Conversation, ConversationRequest, ConversationSource
from locust_llm.workload.dataset_formats import DatasetSession, Turn
from locust_llm.workload.length_distributions import combine_lengths, parse_length
from locust_llm.workload.local_tokenizer import Tokenizer
from locust_llm.workload.marked_session import MarkedSession
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

KEY = b"0123456789abcdef"
CODE_WORDS = 8
"""Session code: and six words."""
ASK_WORDS = 7


def make_prompts(tokens: str = "100", **shared: Any) -> Prompts:
    """A token a word, so that tokens can be counted by eye."""
    sizes = combine_lengths(parse_length(tokens), parse_length("7"))
    return Prompts(PromptLengthModel(1.0, 0.0), sizes, seed=1, **shared)


def contents(request: ConversationRequest | None) -> list[str]:
    assert request is not None
    return [str(message["content"]) for message in request.messages if message["role"] != "system"]


@given(st.integers(1, 400), st.booleans())
def test_the_marker_is_within_the_length_that_was_asked(tokens: int, shared: bool) -> None:
    prefix = {"system_tokens": 30, "prefixes": 2, "prefix_tokens": 50} if shared else {}
    extra = 50 if shared else 0
    prompts = make_prompts(str(tokens), **prefix)
    marked = MarkedSession(MarkerKey(KEY))
    drawn, asks = marked.draw(lambda endings: prompts.draw(endings=endings), first=True)
    assert len(drawn.text.split()) == tokens + extra
    needed = CODE_WORDS + 1 + (ASK_WORDS if drawn.text.endswith(ASK_SENTENCE) else 0)
    assert asks == drawn.text.endswith(ASK_SENTENCE)
    if marked.number is None:
        assert tokens < CODE_WORDS + 1
        assert "Session code" not in drawn.text
    else:
        assert tokens >= needed
        assert MarkerKey(KEY).find(drawn.text) == [marked.number]
        assert "\n\nSession code: " in drawn.text


def test_what_prompts_share_comes_before_the_marker() -> None:
    """The same begin as without a marker, so a prefix cache finds as much."""
    shared: dict[str, Any] = {"prefixes": 1, "prefix_tokens": 40}
    plain = make_prompts("60", **shared).draw().text.split()
    prompts = make_prompts("60", **shared)
    marked = MarkedSession(MarkerKey(KEY))
    drawn, _ = marked.draw(lambda endings: prompts.draw(endings=endings), first=True)
    words = drawn.text.split()
    assert words[:70] == plain[:70]
    assert len(words) == len(plain) == 100


def test_a_prompt_that_reuses_a_prefix_has_as_much_of_it_in_common() -> None:
    prompts = make_prompts()
    marked = MarkedSession(MarkerKey(KEY))
    (text, shared), _ = marked.draw(
        lambda endings: prompts.reused(200, 3, 100, endings), first=True
    )
    plain, plain_shared = make_prompts().reused(200, 3, 100)
    assert shared == plain_shared
    assert text.split()[:100] == plain.split()[:100]
    assert len(text.split()) == len(plain.split()) == 200
    assert MarkerKey(KEY).find(text) == [marked.number]


@pytest.mark.parametrize(
    ("room", "has_marker", "asks"),
    [(CODE_WORDS, 0, 0), (9, 1, 0), (CODE_WORDS + ASK_WORDS, 1, 0), (16, 1, 1)],
)
@pytest.mark.parametrize("reuses", [True, False])
def test_without_room_for_the_question_a_prompt_keeps_its_marker(
    room: int, has_marker: int, asks: int, reuses: bool
) -> None:
    """A word of the prompt's own needs room as well. The fifth session would ask."""
    key = MarkerKey(KEY)
    shared = 100 if reuses else 0
    prompts = make_prompts(str(room))
    for session in range(5):
        marked = MarkedSession(key)
        if reuses:
            (text, _), asked = marked.draw(
                lambda endings: prompts.reused(shared + room, 3, shared, endings), first=True
            )
        else:
            drawn, asked = marked.draw(lambda endings: prompts.draw(endings=endings), first=True)
            text = drawn.text
        assert len(text.split()) == shared + room
        assert MarkerKey(KEY).find(text) == ([session] if has_marker else [])
        assert marked.number == (session if has_marker else None)
        assert text.endswith(ASK_SENTENCE) == asked == (session == 4 and bool(asks))


def test_with_a_tokenizer_the_length_is_as_exact_as_without_a_marker() -> None:
    """Its tokens are words, and the signs behind words."""
    tokenizer = Tokenizer(lambda text: len(text.split()) + text.count(".") + text.count(":"))
    lengths = PromptLengthModel(1.0, 0.0)
    for tokens in range(40, 80):
        sizes = combine_lengths(parse_length(str(tokens)), parse_length("7"))
        prompts = Prompts(lengths, sizes, seed=1, tokenizer=tokenizer)
        marked = MarkedSession(MarkerKey(KEY))
        drawn, _ = marked.draw(lambda endings: prompts.draw(endings=endings), first=True)  # noqa: B023
        assert tokenizer.count(drawn.text) == tokens
        assert marked.number is not None


def test_only_the_first_prompt_brings_the_marker() -> None:
    talk = Conversation(make_prompts(), id="a", random=Random(1), turns=12, markers=MarkerKey(KEY))
    asked = []
    for number in range(12):
        request = talk.next()
        assert request is not None
        asked.append(request.asked)
        last = contents(request)[-1]
        assert last.endswith(ASK_SENTENCE) == request.asked
        assert MarkerKey(KEY).find(last) == ([talk.marked.number] if number == 0 else [])
        assert len(last.split()) == 100
        talk.add_answer("fine", 1)
    assert 2 <= sum(asked) <= 3  # a fifth of twelve


def test_a_session_without_markers_is_as_ever() -> None:
    plain = Conversation(make_prompts(), id="a", random=Random(1), turns=3)
    assert "Session code" not in contents(plain.next())[0]
    assert plain.marked.number is None


def test_replayed_sessions_stay_as_they_are() -> None:
    """Also those that have only lengths: their texts follow from the trace."""
    turns = (
        Turn(messages=[{"role": "user", "content": "from a file"}], row=1),
        Turn(input_tokens=50, row=1, output_tokens=5),
    )
    for turn in turns:
        texts = []
        for markers in (None, MarkerKey(KEY)):
            source = ConversationSource(make_prompts(), seed=1, markers=None)
            item = DatasetSession(id="a", turns=(turn,), row=1)
            talk = source.begin(item)
            assert markers is None or talk.marked.number is None
            texts.append(contents(talk.next()))
        assert texts[0] == texts[1]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_replayed_session_is_marked_on_request_and_else_unchanged() -> None:
    """The first message of the user has the marker, and a last one asks for it, one time in five."""
    rows = [
        Turn(messages=[{"role": "system", "content": "s"}, user("one")], input_tokens=9, row=1),
        *(Turn(messages=[user(f"next {n}")], input_tokens=9, row=1) for n in range(9)),
    ]
    item = DatasetSession(id="a", turns=tuple(rows), row=1)
    talk = ConversationSource(make_prompts(), seed=1, markers=MarkerKey(KEY)).begin(item)
    asked = 0
    for number in range(10):
        request = talk.next()
        assert request is not None
        asked += request.asked
        text = contents(request)[-1]
        ending = f"\n\n{ASK_SENTENCE}" if request.asked else ""
        if number:
            assert text == f"next {number - 1}{ending}"
        else:
            assert talk.marked.number == 0
            assert text == f"one\n\n{MarkerKey(KEY).make().sentence}{ending}"
        talk.add_answer("fine", 1)
    assert asked == 2
    assert request is not None
    # a token a word: ten turns, nine answers, the marker, and two sentences that ask for it
    assert request.input_tokens == 90 + 9 + CODE_WORDS + 2 * ASK_WORDS


def test_a_row_with_the_whole_conversation_has_the_marker_where_the_row_before_had_it() -> None:
    """So a prefix cache finds the conversation again."""
    history = [user("one"), {"role": "assistant", "content": "1"}, user("two")]
    turns = tuple(Turn(messages=history[: 2 * n + 1], whole=True, row=1) for n in range(2))
    item = DatasetSession(id="a", turns=turns, row=1)
    talk = ConversationSource(make_prompts(), seed=1, markers=MarkerKey(KEY)).begin(item)
    requests = []
    for _ in turns:
        requests.append(talk.next())
        talk.add_answer("fine", 1)
    first, second = map(contents, requests)
    assert second[0].startswith("one\n\nSession code: ")
    assert first[0].startswith(second[0])
    assert second[1] == "1"
    assert second[2].startswith("two")
    assert MarkerKey(KEY).find(second[2]) == []


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "content": "7", "tool_call_id": "a"}],
        [{"role": "user", "content": None}],
        [],
    ],
)
def test_a_session_that_begins_without_a_text_of_the_user_has_no_marker(
    messages: list[dict[str, Any]],
) -> None:
    marked = MarkedSession(MarkerKey(KEY))
    assert marked.mark_messages(messages, first=True) == (messages, "", False)
    assert marked.mark_messages([user("later")], first=False).added == ""
    assert marked.number is None


def test_what_was_read_from_a_file_is_not_changed_in_place() -> None:
    """Its rows are sent again. Parts get one more part; a tool's answer is not asked."""
    parts = [{"type": "text", "text": "one"}]
    messages = [user(parts), {"role": "tool", "content": "7", "tool_call_id": "a"}]
    marked = MarkedSession(MarkerKey(KEY)).mark_messages(messages, first=True)
    assert messages == [user([{"type": "text", "text": "one"}]), messages[1]]
    sentence = MarkerKey(KEY).make().sentence
    assert marked == (
        [user([*parts, {"type": "text", "text": sentence}]), messages[1]],
        sentence,
        False,
    )


def test_a_trace_of_lengths_is_marked_behind_its_blocks() -> None:
    turn = Turn(input_tokens=50, hash_ids=(1,), row=1, output_tokens=5)
    item = DatasetSession(id="a", turns=(turn,), row=1)
    plain = contents(ConversationSource(make_prompts(), seed=1).begin(item).next())
    talk = ConversationSource(make_prompts(), seed=1, markers=MarkerKey(KEY)).begin(item)
    (text,) = contents(talk.next())
    assert text.startswith(f"{plain[0]}\n\nSession code: ")


def test_two_sessions_have_two_markers_and_a_session_keeps_its_own() -> None:
    key = MarkerKey(KEY)
    prompts = make_prompts()
    one, other = MarkedSession(key), MarkedSession(key)
    first, _ = one.draw(lambda endings: prompts.draw(endings=endings), first=True)
    other.draw(lambda endings: prompts.draw(endings=endings), first=True)
    again, _ = one.draw(lambda endings: prompts.draw(endings=endings), first=True)
    assert one.number != other.number
    assert key.find(first.text) == key.find(again.text) == [one.number]


@pytest.mark.parametrize("first", [True, False])
def test_a_session_that_began_with_a_prompt_of_its_own_has_no_marker(first: bool) -> None:
    marked = MarkedSession(MarkerKey(KEY) if not first else None)
    drawn, asks = marked.draw(
        lambda endings: make_prompts().draw(first=first, endings=endings), first=first
    )
    assert (marked.number, asks) == (None, False)
    assert "Session code" not in drawn.text
