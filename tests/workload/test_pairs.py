"""Both blocks of a pair have the same lengths and other texts; prompts of a file and blocks of hash
ids differ by a salt."""

from random import Random

from locust_llm.workload.conversation import Conversation, ConversationSource, add_salt
from locust_llm.workload.dataset_formats import DatasetSession, Turn
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts


def some() -> Prompts:
    return Prompts(
        PromptLengthModel(),
        input_tokens=(300, 80),
        output_tokens=(50, 20),
        seed=1,
        prefixes=3,
        prefix_tokens=40,
    )


def test_the_same_lengths_and_prefixes_and_no_text_twice() -> None:
    prompts, blocks = some(), []
    for seed in ("pair 1", "pair 1", "pair 2"):
        prompts.begin_block(seed, "")
        blocks.append([prompts.draw() for _ in range(20)])
    sizes = [[(one.input_tokens, one.output_tokens) for one in block] for block in blocks]
    assert sizes[0] == sizes[1] != sizes[2]
    heads = [[one.text.split()[:5] for one in block] for block in blocks]
    assert heads[0] == heads[1] != heads[2]  # of the prefix
    texts = [one.text for block in blocks for one in block]
    assert len(set(texts)) == len(texts)


def test_without_blocks_prompts_are_what_they_were() -> None:
    one, other = some(), some()
    assert [one.draw() for _ in range(5)] == [other.draw() for _ in range(5)]


def test_turns_are_the_same_in_both_blocks_and_sessions_have_other_names() -> None:
    prompts = some()
    sessions, found = ConversationSource(prompts, turns=(5, 3), seed=1), []
    for salt in ("[001]", "[002]"):
        prompts.begin_block("pair 1", salt)
        sessions.begin_block("pair 1")
        found.append([sessions.begin() for _ in range(10)])
    turns = [[one.turns for one in block] for block in found]
    assert turns[0] == turns[1]
    assert not {one.id for one in found[0]} & {one.id for one in found[1]}


def test_a_salt_begins_what_a_file_says() -> None:
    assert add_salt([{"role": "user", "content": "a"}, {"content": "b"}], "[007]") == [
        {"role": "user", "content": "[007] a"}, {"content": "b"},
    ]  # fmt: skip
    assert add_salt([{"content": [{"type": "image"}]}], "[007]")[0]["content"][0] == {
        "type": "text",
        "text": "[007]",
    }
    prompts = some()
    turns = [
        Turn(messages=[{"role": "user", "content": said}], output_tokens=5, row=1)
        for said in ("first", "second")
    ]
    prompts.begin_block("pair 1", "[007]")
    talk = Conversation(
        prompts, DatasetSession(id="s", turns=tuple(turns), row=1), id="s", random=Random(1)
    )
    ask = talk.next()
    assert ask is not None
    assert ask.messages[-1]["content"] == "[007] first"
    talk.add_answer("yes", 1)
    ask = talk.next()
    assert ask is not None
    assert [message["content"] for message in ask.messages] == ["[007] first", "yes", "second"]


def test_blocks_of_hash_ids_are_shared_within_a_salt_only() -> None:
    prompts, texts = some(), []
    for salt in ("[001]", "[001]", "[002]"):
        prompts.begin_block("pair 1", salt)
        texts.append(prompts.text(600, (4,)).split()[:6])
    assert texts[0] == texts[1] != texts[2]
