"""Prompts: their length is right to the word, none begins like another, a seed gives them again."""

from collections import Counter
from statistics import mean, stdev

import pytest

from locust_llm.prompts import Lengths, Prompts, corpus, fit


def prompts(*, seed: int | None = 1, worker: int = 0, lengths: Lengths | None = None, **asked: object) -> Prompts:
    sizes: dict[str, object] = {"input_tokens": (550.0, 0.0), "output_tokens": (128.0, 0.0), **asked}
    return Prompts(lengths or Lengths(), seed=seed, worker=worker, **sizes)


def test_the_corpus_is_plain_text_of_single_spaces() -> None:
    text, starts = corpus()
    assert text.isascii()
    assert text.isprintable()
    assert text.rstrip(" ").split(" ") == text.split()
    assert [text[at - 1] for at in starts[1:]] == [" "] * (len(starts) - 1)
    assert len(text.split()) == len(starts) > 80_000  # twice over


def test_a_prompt_has_exactly_the_words_asked_for_and_they_follow_each_other_in_the_corpus() -> None:
    book = corpus()[0].split()
    book = book[: len(book) // 2]
    of_mine = prompts()
    for count in (1, 2, 3, 10, 1_000, len(book), len(book) + 1, len(book) + 2, 2 * len(book) + 500):
        prompt = of_mine.words(count)
        number, *words = prompt.split(" ")
        assert len(words) == count - 1
        assert number.isdigit()
        assert len(number) == 9
        # the slow twin: somewhere in the book, and around its end
        places = [at for at, word in enumerate(book) if words[:1] == [word]] or [0]
        assert any(all(word == book[(at + i) % len(book)] for i, word in enumerate(words)) for at in places)


def test_ten_thousand_prompts_begin_with_as_many_numbers() -> None:
    of_mine = prompts(seed=7)
    assert len({of_mine.words(1) for _ in range(10_000)}) == 10_000


def test_prompts_of_one_moment_differ_from_their_first_token_on() -> None:
    """Llama's tokenizer takes digits by three: no two of 200 neighbours share the first three."""
    of_mine = prompts(seed=7)
    starts = [of_mine.words(1)[:3] for _ in range(1_000)]
    assert all(len(set(starts[at : at + 200])) == 200 for at in range(800))


def some(of: Prompts) -> list[tuple[str, int, int]]:
    return [(*of.prompt(), of.output_tokens()) for _ in range(20)]


def test_a_seed_gives_the_same_prompts_again() -> None:
    spread = {"input_tokens": (550.0, 50.0), "output_tokens": (128.0, 20.0)}
    assert some(prompts(seed=5, worker=2, **spread)) == some(prompts(seed=5, worker=2, **spread))


@pytest.mark.parametrize("other", [{"worker": 3}, {"seed": 6}, {"seed": 52, "worker": 0}, {"seed": None}])
def test_another_worker_and_another_seed_give_others(other: dict[str, int | None]) -> None:
    ours = {text for text, *_ in some(prompts(**{"seed": 5, "worker": 2}))}
    theirs = {text for text, *_ in some(prompts(**{"seed": 5, "worker": 2, **other}))}
    assert not {text.split()[0] for text in ours} & {text.split()[0] for text in theirs}


def test_without_a_seed_no_run_is_like_another() -> None:
    assert some(prompts(seed=None)) != some(prompts(seed=None))


@pytest.mark.parametrize(("size", "deviation"), [(550.0, 0.0), (550.0, 100.0), (16_000.0, 4_000.0), (40.0, 4.0)])
def test_means_are_what_was_asked_within_one_percent(size: float, deviation: float) -> None:
    lengths = Lengths(1.25, 10.0)
    of_mine = prompts(lengths=lengths, input_tokens=(size, deviation), output_tokens=(size, deviation))
    drawn = [of_mine.output_tokens() for _ in range(2_000)]
    assert mean(drawn) == pytest.approx(size, rel=0.01)
    assert stdev(drawn) == pytest.approx(deviation, rel=0.05)
    delivered, meant = [], []
    for _ in range(2_000):
        text, tokens = of_mine.prompt()
        delivered.append(lengths.template_tokens + lengths.tokens_a_word * (text.count(" ") + 1))
        meant.append(tokens)
        assert abs(delivered[-1] - tokens) <= lengths.tokens_a_word / 2  # to the nearest word
    assert mean(delivered) == pytest.approx(mean(meant), rel=0.01)
    assert mean(meant) == pytest.approx(size, rel=0.01)


def test_a_fraction_of_a_token_is_rounded_and_nothing_is_shorter_than_one() -> None:
    assert prompts(output_tokens=(128.4, 0.0)).output_tokens() == 128
    tiny = prompts(lengths=Lengths(1.25, 10.0), input_tokens=(1.0, 0.0), output_tokens=(1.0, 5.0))
    drawn = Counter(tiny.output_tokens() for _ in range(500))
    assert min(drawn) == 1
    assert drawn[1] > 200  # all of the lower half
    assert tiny.prompt()[0].isdigit()  # shorter than the template alone: one word is the least


def test_words_for_tokens_by_pencil() -> None:
    lengths = Lengths(1.5, 20.0)
    assert [lengths.words(tokens) for tokens in (0, 20, 21.5, 23, 170, 16_000)] == [1, 1, 1, 2, 100, 10_653]


@pytest.mark.parametrize(
    ("samples", "a_word", "template"),
    [
        ([(1, 30), (1001, 1530)], 1.5, 28.5),
        ([(10, 25), (30, 55), (30, 55)], 1.5, 10.0),
        # least squares by pencil: means 2 and 7, slope ((-1)(-2) + 0(-1) + 1 * 3) / 2
        ([(1, 5), (2, 6), (3, 10)], 2.5, 2.0),
        ([(100, 50), (200, 150)], 1.0, -50.0),
    ],
)
def test_the_line_through_the_probes_by_pencil(samples: list[tuple[int, int]], a_word: float, template: float) -> None:
    lengths = fit(samples)
    assert (lengths.tokens_a_word, lengths.template_tokens) == pytest.approx((a_word, template))
    assert lengths.measured
    assert not Lengths().measured


@pytest.mark.parametrize(
    "samples",
    [
        [(30, 50)],
        [(30, 50), (30, 60)],  # one size only: any slope
        [(30, 50), (700, 50)],  # flat
        [(30, 900), (700, 50)],  # falling
    ],
)
def test_no_line_is_made_of_samples_that_show_none(samples: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="no line fits"):
        fit(samples)
