"""Tokens: every prompt has exactly the tokens asked for by the tokenizer itself, and one that is
not there is a sentence."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.workload.length_distributions import combine_lengths, normal_length, uniform_length
from locust_llm.workload.local_tokenizer import (
    MAX_TRIES,
    Tokenizer,
    count_corpus_words,
    cut_corpus_text,
    load_corpus,
    load_tokenizer,
)
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

tokenizers = pytest.importorskip("tokenizers")


def byte_level() -> Any:
    """As of GPT-2, Llama 3, Qwen: a space belongs to the word behind it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1_500,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([load_corpus()[0][:100_000]], trainer)
    return made


def metaspace() -> Any:
    """As of Llama 2, Mistral 7B: the space is a letter of the vocabulary, also in front of the
    first word."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1_000, special_tokens=["<unk>"], show_progress=False
    )
    made.train_from_iterator([load_corpus()[0][:100_000]], trainer)
    return made


def word_level() -> Any:
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return made


def across_words() -> Any:
    """Without any pre-tokenizer: tokens reach from one word into the next, so sums over words are
    wrong."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=[chr(c) for c in range(32, 127)],
        show_progress=False,
        max_token_length=8,
    )
    made.train_from_iterator(
        [load_corpus()[0][at : at + 60] for at in range(0, 60_000, 60)], trainer
    )
    return made


KINDS: dict[str, Callable[[], Any]] = {
    "byte level": byte_level, "metaspace": metaspace, "word level": word_level,
    "across words": across_words
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.fixture(scope="module")
def folder(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    made.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


def truth(made: Any, text: str) -> int:
    return len(made.encode(text, add_special_tokens=False).ids)


def test_it_is_known_which_can_be_summed_up(loaded: Tokenizer, made: Any) -> None:
    assert loaded.by_word == (made.pre_tokenizer is not None)


@pytest.mark.parametrize("tokens", [12, 13, 14, 15, 100, 550, 3_000])
def test_prompts_have_exactly_the_tokens_asked_for(
    loaded: Tokenizer, made: Any, tokens: int
) -> None:
    prompts = Prompts(
        PromptLengthModel(1.3, 0.0),
        combine_lengths(normal_length(tokens), normal_length(1)),
        seed=3,
        tokenizer=loaded,
    )
    off = sum(truth(made, prompts.draw().text) != tokens for _ in range(10))
    assert prompts.off == off  # what is off is known
    assert off == 0 or (not loaded.by_word and tokens < 100)  # a few words give little choice


def test_so_have_prefixes_blocks_and_the_system_prompt(loaded: Tokenizer, made: Any) -> None:
    sizes = combine_lengths(uniform_length(30, 900), normal_length(1))
    prompts = Prompts(
        PromptLengthModel(1.3, 0.0),
        sizes,
        seed=3,
        tokenizer=loaded,
        system_tokens=77,
        prefixes=3,
        prefix_tokens=120,
    )
    assert prompts.system is not None
    assert truth(made, prompts.system["content"]) == 77
    for _ in range(20):
        text, tokens, *_ = prompts.draw()
        assert truth(made, text) + 77 == tokens
    for tokens, ids in [
        (1_024, (4, 5)),
        (1_500, (4, 5)),
        (1_000, (4, 5)),
        (1_027, (4, 5)),
        (200, (4, 5)),
        (514, (4,)),
    ]:
        assert truth(made, prompts.text(tokens, ids)) == tokens
    assert prompts.off == 0


def test_equal_ids_are_equal_tokens_from_the_beginning_on() -> None:
    """What a prefix cache compares: whole blocks are the same tokens, and the next id begins
    otherwise."""
    made = byte_level()
    prompts = Prompts(
        PromptLengthModel(1.3, 0.0),
        combine_lengths(normal_length(9), normal_length(1)),
        seed=3,
        tokenizer=Tokenizer(lambda text: truth(made, text)),
    )
    one, other = (made.encode(prompts.text(1_600, ids)).ids for ids in ((7, 8, 9), (7, 8, 10)))
    assert one[:1024] == other[:1024]
    assert one[1024:1040] != other[1024:1040]


def test_what_begins_a_prompt_begins_a_longer_one_too(loaded: Tokenizer, made: Any) -> None:
    prompts = Prompts(PromptLengthModel(1.3, 12.0, head_tokens=5), seed=3, tokenizer=loaded)
    for shared, tokens in ((40, 300), (295, 600), (1_000, 2_000)):
        (short, its), (long, of_long) = (
            prompts.reused(tokens, 7, shared),
            prompts.reused(tokens + 900, 7, shared + 800),
        )
        assert shared - 10 < its <= shared
        assert shared + 790 < of_long <= shared + 800
        first, other = made.encode(short).ids, made.encode(long).ids
        assert (
            first[: its - 7] == other[: its - 7]
        )  # the head is not in these, and where two words meet a token may differ
        assert truth(made, short) == tokens - 12


@pytest.mark.slow
@examples(30)
@given(st.data())
def test_a_filling_is_what_its_sums_say(data: st.DataObject) -> None:
    """Against the slow twin: word by word until no more fits."""

    def count(text: str) -> int:  # a word has a token for three letters, and a space costs nothing
        return sum((len(word) + 2) // 3 for word in text.split(" "))

    tokenizer = FILLERS.setdefault("one", Tokenizer(count))
    at = data.draw(
        st.integers(0, count_corpus_words() - 1)
        | st.integers(count_corpus_words() - 300, count_corpus_words() - 1)
    )
    tokens = data.draw(st.integers(1, 1_000))
    text, filled = tokenizer.fill("12345", at, tokens, first=data.draw(st.booleans()))
    assert count(text) == filled == max(2, tokens)  # the head stays
    words = text.split(" ")
    expected, left, place = ["12345"], tokens - 2, at
    while left >= count(cut_corpus_text(place, 1)):
        expected.append(cut_corpus_text(place, 1))
        left -= count(expected[-1])
        place = (place + 1) % count_corpus_words()
    assert words[: len(expected)] == expected


FILLERS: dict[str, Tokenizer] = {}


@pytest.mark.parametrize(
    "tokens",
    [
        count_corpus_words() - 1,
        count_corpus_words(),
        count_corpus_words() + 1,
        3 * count_corpus_words() + 7,
    ],
)
def test_a_prompt_may_be_longer_than_the_corpus(tokens: int) -> None:
    tokenizer = Tokenizer(lambda text: len(text.split()))
    assert tokenizer.fill("a", 5, tokens) == (f"a {cut_corpus_text(5, tokens - 1)}", tokens)


def test_of_a_long_head_only_the_beginning_is_taken() -> None:
    tokenizer = Tokenizer(lambda text: len(text.split()))
    assert tokenizer.fill("a b c d", 0, 3) == ("a b c", 3)
    assert tokenizer.fill("a b c d", 0, 1) == ("a", 1)
    assert tokenizer.fill("a b c d", 0, 0) == ("a", 1)
    assert tokenizer.fill("a b", 0, 4) == (f"a b {cut_corpus_text(0, 2)}", 4)


def test_what_ten_tries_do_not_mend_is_counted() -> None:
    """A tokenizer of which no text has the tokens asked for."""
    asked: list[str] = []

    def stubborn(text: str) -> int:
        asked.append(text)
        words = len(text.split())
        return words + (words >= 200)  # no text has 200 tokens

    tokenizer = Tokenizer(stubborn)
    tokenizer.by_word = False
    asked.clear()
    text, tokens = tokenizer.trim(cut_corpus_text(0, 150), 200)
    assert tokens != 200
    assert len(asked) == MAX_TRIES + 1
    prompts = Prompts(
        PromptLengthModel(1.0, 0.0),
        combine_lengths(normal_length(200), normal_length(1)),
        seed=1,
        tokenizer=tokenizer,
    )
    prompts.draw()
    assert prompts.off == 1
    assert abs(stubborn(text) - 200) <= 1


def test_prompts_that_cannot_be_so_short_are_counted() -> None:
    tokenizer = Tokenizer(len)  # a token a letter
    prompts = Prompts(
        PromptLengthModel(1.0, 0.0),
        combine_lengths(normal_length(9), normal_length(1)),
        seed=1,
        tokenizer=tokenizer,
    )
    assert len(prompts.text(9)) == 9
    assert prompts.off == 0
    assert len(prompts.text(4)) == 9  # the number of its own stays
    assert prompts.off == 1


def test_the_template_is_what_the_probe_of_one_word_had_besides_its_number() -> None:
    """The server says 3 tokens for the number, 20 for the template, 1.5 a word: the line is 21.5 +
    1.5 * words."""
    tokenizer = Tokenizer(lambda text: sum(3 if word.isdigit() else 1 for word in text.split(" ")))
    prompts = Prompts(
        PromptLengthModel(1.5, 21.5, True),
        combine_lengths(normal_length(100), normal_length(1)),
        seed=1,
        tokenizer=tokenizer,
    )
    assert tokenizer.count(prompts.text(100)) == 80
    guessed = Prompts(
        PromptLengthModel(1.5, 12.0),
        combine_lengths(normal_length(100), normal_length(1)),
        seed=1,
        tokenizer=tokenizer,
    )
    assert tokenizer.count(guessed.text(100)) == 88


def test_files_that_cut_or_pad_do_neither_here(tmp_path: Path) -> None:
    made = word_level()
    made.enable_truncation(5)
    made.enable_padding(length=50)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[UNK] $A", special_tokens=[("[UNK]", 0)]
    )
    made.save(str(tmp_path / "any.json"))
    tokenizer = load_tokenizer(str(tmp_path / "any.json"))
    assert [tokenizer.count(cut_corpus_text(0, words)) for words in (1, 20, 100)] == [1, 20, 100]


def test_a_name_is_looked_for_in_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--some--model"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    word_level().save(str(snapshot / "tokenizer.json"))
    assert load_tokenizer("some/model").count("to be or not") == 4
    with pytest.raises(
        ValueError, match="neither a folder nor a name in the local Hugging Face cache"
    ):
        load_tokenizer("other/model")


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


def test_without_the_packages_one_sentence_says_what_to_do(
    tmp_path: Path, gone: Callable[[str], None]
) -> None:
    gone("huggingface_hub")
    with pytest.raises(ValueError, match=r"give a folder with tokenizer\.json"):
        load_tokenizer("some/model")
    gone("tokenizers")
    with pytest.raises(ValueError, match=r"^--tokenizer needs the package tokenizers: pip install"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["", "no/such/folder/at/all", "/none", "a b?", "../x"])
def test_a_name_that_is_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^--tokenizer .*tokenizer\.json"):
        load_tokenizer(name)


def test_folders_and_files_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the folder has no tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="cannot be read as a tokenizer") as error:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)
