"""Prompts have the length asked for, the same in every run, whatever way a server counts."""

import re
from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

import pytest
from support.tiny_server import TinyServer, tiny_server

from locust_llm.answers.session_markers import ASK_SENTENCE, MarkerKey
from locust_llm.server.discovery import Discovery, discover_server
from locust_llm.server.tokenizer_calibration import _sums_of
from locust_llm.settings.run_options import Settings
from locust_llm.workload.local_tokenizer import count_corpus_words, cut_corpus_text
from locust_llm.workload.marked_session import MarkedSession
from locust_llm.workload.prompt_length_model import SUMS_EACH, PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

TEMPLATE = 20
PIECES = re.compile(r" ?[A-Za-z]{1,6}|[0-9]{1,3}| ?[^ A-Za-z0-9]")


def pieces(text: str) -> list[str]:
    """Unlike English, a word of more letters has more tokens, so stretches of the corpus differ."""
    return PIECES.findall(text)


def count(text: str) -> int:
    return TEMPLATE + len(pieces(text))


def vllm(body: dict[str, Any]) -> dict[str, Any]:
    texts = pieces(body["prompt"])
    shown = [text.replace(" ", "\u0120") for text in texts] if body["return_token_strs"] else None
    return {"count": len(texts), "tokens": [*range(len(texts))], "token_strs": shown}


def llamacpp(body: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [{"id": 1, "piece": piece} for piece in pieces(body["content"])]}


def sglang(body: dict[str, Any]) -> dict[str, Any]:
    """No pieces, but several texts at once."""
    if isinstance(body["prompt"], list):
        return {
            "count": [len(pieces(text)) for text in body["prompt"]],
            "tokens": [],
            "max_model_len": 4096,
        }
    return {
        "count": len(pieces(body["prompt"])),
        "tokens": [1] * len(pieces(body["prompt"])),
        "max_model_len": 4096,
    }


def sentencepiece(body: dict[str, Any]) -> dict[str, Any]:
    """It adds a blank before each text."""
    if isinstance(body["prompt"], list):
        return {"count": [1 + len(pieces(text)) for text in body["prompt"]]}
    return {"count": 1 + len(pieces(body["prompt"]))}


def one_text(body: dict[str, Any]) -> Any:
    if isinstance(body["prompt"], list):
        return {"error": "a text is needed"}
    return {
        "count": len(pieces(body["prompt"])),
        "tokens": [1] * len(pieces(body["prompt"])),
        "max_model_len": 4096,
    }


def another(body: dict[str, Any]) -> dict[str, Any]:
    """Of a gateway: not the tokenizer of the model that answers."""
    return {"count": 3 * len(pieces(body["prompt"]))}


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        server.count = count
        yield server


def found(server: TinyServer) -> Discovery:
    return discover_server(Settings(host=server.url, model="tiny"), {})


def delivered(
    lengths: PromptLengthModel, seed: int | None, many: int, tokens: float = 550
) -> list[int]:
    prompts = Prompts(lengths, input_tokens=(tokens, 0), output_tokens=(1, 0), seed=seed)
    return [count(prompts.draw().text) for _ in range(many)]


@pytest.mark.parametrize(
    ("messages", "plain"),
    [(count, vllm), (None, vllm), (None, llamacpp), (None, sglang)],
    ids=["vLLM", "texts", "llama.cpp", "SGLang"],
)
@pytest.mark.parametrize("tokens", [100.0, 550.0, 8_000.0])
def test_every_prompt_is_as_long_as_asked_where_the_server_counts_word_by_word(
    server: TinyServer,
    messages: Callable[[str], int] | None,
    plain: Callable[[dict[str, Any]], Any],
    tokens: float,
) -> None:
    server.tokenize, server.tokenize_plain = messages, plain
    lengths = found(server).lengths
    assert len(lengths.sums) == 1 + -(-count_corpus_words() // SUMS_EACH)
    assert lengths.sums[-1] == len(pieces(cut_corpus_text(0, count_corpus_words())))
    each = delivered(lengths, 1, 40, tokens)
    assert mean(each) == pytest.approx(tokens, rel=0.004)
    assert each == pytest.approx([tokens] * 40, rel=0.01, abs=5)


@pytest.mark.parametrize(
    "plain", [one_text, None, another], ids=["whole texts", "chat alone", "another tokenizer"]
)
def test_the_mean_is_as_long_as_asked_where_it_counts_whole_texts(
    server: TinyServer, plain: Callable[[dict[str, Any]], Any] | None
) -> None:
    server.tokenize_plain = plain
    assert mean(delivered(found(server).lengths, 1, 400)) == pytest.approx(550, rel=0.01)


@pytest.mark.parametrize("plain", [vllm, sglang, None], ids=["vLLM", "SGLang", "chat alone"])
def test_a_server_is_counted_alike_in_every_run(
    server: TinyServer, plain: Callable[[dict[str, Any]], Any] | None
) -> None:
    server.tokenize_plain = plain
    first, *others = [found(server) for _ in range(3)]
    assert all(other.lengths == first.lengths and other.probes == first.probes for other in others)


def test_twenty_runs_of_twenty_prompts_are_within_one_percent(server: TinyServer) -> None:
    server.tokenize, server.tokenize_plain = count, vllm
    means = [mean(delivered(found(server).lengths, None, 20)) for _ in range(20)]
    assert means == pytest.approx([550] * 20, rel=0.01)


def test_so_are_thirty_runs_without_pieces(server: TinyServer) -> None:
    server.tokenize_plain = sglang
    means = [mean(delivered(found(server).lengths, None, 20)) for _ in range(30)]
    assert means == pytest.approx([550] * 30, rel=0.01)


@pytest.mark.parametrize("plain", [one_text, None], ids=["whole texts", "chat alone"])
def test_so_are_thirty_runs_where_stretches_are_counted(
    server: TinyServer, plain: Callable[[dict[str, Any]], Any] | None
) -> None:
    server.tokenize_plain = plain
    lengths = found(server).lengths
    means = [mean(delivered(lengths, seed, 20)) for seed in range(30)]
    assert means == pytest.approx([550] * 30, rel=0.015)


@pytest.mark.parametrize("plain", [True, False])
def test_a_server_that_counts_words_or_letters_gets_what_was_asked_for(
    server: TinyServer, plain: bool
) -> None:
    """Two tokens for each word, or one for each letter: the profile of the corpus that fits."""
    server.tokenize_plain = None

    def count_alike(text: str) -> int:
        return TEMPLATE + (2 * len(text.split(" ")) if plain else len(text))

    server.count = count_alike
    prompts = Prompts(found(server).lengths, input_tokens=(4000, 0), output_tokens=(1, 0), seed=2)
    each = [count_alike(prompts.draw().text) for _ in range(20)]
    assert each == pytest.approx([4000] * 20, rel=0.012)


def test_what_counts_another_tokenizer_is_not_believed(server: TinyServer) -> None:
    server.tokenize_plain = another
    kinds = [probe.kind for probe in found(server).probes if not probe.kind.startswith("length")]
    assert kinds == ["chat"] * (3 + 8)


def test_where_each_text_gets_more_tokens_the_whole_counts(server: TinyServer) -> None:
    server.tokenize_plain = sentencepiece
    lengths = found(server).lengths
    requests = -(-count_corpus_words() // 5_000)  # each of them has one more, too
    assert lengths.sums[-1] == len(pieces(cut_corpus_text(0, count_corpus_words()))) + requests
    assert delivered(lengths, 1, 40) == pytest.approx([550] * 40, rel=0.015)


@pytest.mark.parametrize("wrong", [[1], [0] * 100, "soon", [], None, [-1] * 100, [2**70] * 100])
def test_counts_of_parts_that_cannot_be_are_not_taken(server: TinyServer, wrong: Any) -> None:
    def plain(body: dict[str, Any]) -> dict[str, Any]:
        return {"count": wrong} if isinstance(body["prompt"], list) else one_text(body)

    server.tokenize_plain = plain
    lengths = found(server).lengths
    assert lengths.measured
    # of the whole texts, and by what stretches of words have in common
    assert lengths.sums[-1] == len(pieces(cut_corpus_text(0, count_corpus_words())))
    assert mean(delivered(lengths, 1, 40)) == pytest.approx(550, rel=0.01)


def test_tokens_before_every_fifty_words_by_pencil() -> None:
    words = ["be"] * 120
    # a token a word, but the word 60 has three: 50 before the word 50, 102 before the word 100, 122
    # in all
    tokens = ["be", *[" be"] * 59, " b", "e", "e", *[" be"] * 59]
    words[60] = "bee"
    assert [*_sums_of(" ".join(words), tokens)] == [50, 102, 122]
    assert [*_sums_of("not the text", tokens)] == []


def test_words_between_two_sums_by_pencil() -> None:
    # the first 50 words have two tokens each, all others one
    sums = (
        0,
        100,
        *range(150, 100 + count_corpus_words() - 50, 50),
        100 + count_corpus_words() - 50,
    )
    lengths = PromptLengthModel(1.0, 0.0, True, sums=sums)
    text, tokens = lengths.fill("1", 0, 41)  # a token for the number leaves 40: 20 words
    assert (len(text.split()), tokens) == (1 + 20, 41)
    # 20 for the last ten words of the first fifty, 20 for as many more
    text, tokens = lengths.fill("1", 40, 41)
    assert (len(text.split()), tokens) == (1 + 30, 41)
    text, tokens = lengths.fill(
        "1", count_corpus_words() - 5, 26
    )  # the corpus begins again: five words, then ten of two tokens
    assert (len(text.split()), tokens) == (1 + 15, 26)


def deliver_marked(lengths: PromptLengthModel, many: int) -> list[int]:
    """The lengths of prompts of 200 tokens with markers, by the server's count."""
    prompts = Prompts(lengths, input_tokens=(200, 0), output_tokens=(1, 0), seed=1)
    key = MarkerKey(b"0123456789abcdef")
    texts = []
    for _ in range(many):
        drawn, _ = MarkedSession(key).draw(
            lambda endings: prompts.draw(endings=endings), first=True
        )
        assert "Session code: " in drawn.text
        texts.append(drawn.text)
    return [count(text) for text in texts]


@pytest.mark.parametrize("way", ["messages", "chat"])
def test_prompts_with_a_marker_are_as_long_as_asked(server: TinyServer, way: str) -> None:
    """The server counts the colon, the full stop and long words apart: a marker has more tokens
    than as many words of the corpus."""
    if way == "messages":
        server.tokenize, server.tokenize_plain = count, vllm
    settings = Settings(host=server.url, model="tiny", check_answers=True)
    lengths = discover_server(settings, {}).lengths
    assert sorted(lengths.endings) == [7, 8, 15]
    assert lengths.endings[7] == len(pieces(f"\n\n{ASK_SENTENCE}"))
    assert lengths.endings[15] == lengths.endings[8] + lengths.endings[7]
    assert mean(deliver_marked(lengths, 200)) == pytest.approx(200, abs=1.5)


def test_without_the_option_no_marker_is_counted(server: TinyServer) -> None:
    server.tokenize, server.tokenize_plain = count, vllm
    assert found(server).lengths.endings == {}
