"""Prompts: their length is right to the word, none begins like another but where it should, a seed
gives them again."""

from collections import Counter
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.workload.length_distributions import combine_lengths, parse_length, parse_length_mix
from locust_llm.workload.local_tokenizer import count_corpus_words, load_corpus
from locust_llm.workload.prompt_length_model import PromptLengthModel, fit_prompt_lengths
from locust_llm.workload.synthetic_prompts import BLOCK_TOKENS, DrawnPrompt, Prompts

PLAIN = PromptLengthModel(1.0, 0.0)
"""A token a word, so that tokens can be counted by eye."""


def prompts(
    lengths: PromptLengthModel = PLAIN,
    *,
    seed: int | None = 1,
    worker: int = 0,
    tokens: str = "550",
    output: str = "128",
    **shared: Any,
) -> Prompts:
    return Prompts(
        lengths,
        combine_lengths(parse_length(tokens), parse_length(output)),
        seed=seed,
        worker=worker,
        **shared,
    )


def test_a_prompt_has_exactly_the_words_asked_for_and_they_follow_each_other_in_the_corpus() -> (
    None
):
    book = load_corpus()[0].split()[: count_corpus_words()]
    of_mine = prompts()
    for count in (
        1,
        2,
        3,
        10,
        1_000,
        count_corpus_words(),
        count_corpus_words() + 1,
        count_corpus_words() + 2,
        2 * count_corpus_words() + 500,
    ):
        for prompt in (of_mine.words(count), of_mine.text(count)):
            number, *words = prompt.split(" ")
            assert len(words) == count - 1
            assert number.isdigit()
            assert len(number) == 9
            # the slow twin: somewhere in the book, and around its end
            places = [at for at, word in enumerate(book) if words[:1] == [word]] or [0]
            assert any(
                all(word == book[(at + i) % len(book)] for i, word in enumerate(words))
                for at in places
            )


def test_ten_thousand_prompts_begin_with_as_many_numbers() -> None:
    of_mine = prompts(seed=7)
    assert len({of_mine.words(1) for _ in range(10_000)}) == 10_000


def test_prompts_of_one_moment_differ_from_their_first_token_on() -> None:
    """Llama's tokenizer takes digits by three: no two of 200 neighbours share the first three."""
    of_mine = prompts(seed=7)
    starts = [of_mine.words(1)[:3] for _ in range(1_000)]
    assert all(len(set(starts[at : at + 200])) == 200 for at in range(800))


SPREAD: dict[str, Any] = {
    "tokens": "550|50",
    "output": "128|20",
    "system_tokens": 30,
    "prefixes": 5,
    "prefix_tokens": 20,
}


def some(of: Prompts) -> list[DrawnPrompt]:
    return [of.draw() for _ in range(20)]


def test_a_seed_gives_the_same_prompts_again() -> None:
    assert some(prompts(seed=5, worker=2, **SPREAD)) == some(prompts(seed=5, worker=2, **SPREAD))


def own(text: str) -> str:
    return next(word for word in text.split() if word.isdigit())


@pytest.mark.parametrize(
    "other", [{"worker": 3}, {"seed": 6}, {"seed": 52, "worker": 0}, {"seed": None}]
)
def test_another_worker_and_another_seed_give_others(other: dict[str, Any]) -> None:
    ours = {own(text) for text, *_ in some(prompts(**{"seed": 5, "worker": 2}))}
    theirs = {own(text) for text, *_ in some(prompts(**{"seed": 5, "worker": 2, **other}))}
    assert not ours & theirs


def test_without_a_seed_no_run_is_like_another() -> None:
    assert some(prompts(seed=None)) != some(prompts(seed=None))


@pytest.mark.parametrize(
    ("size", "deviation"), [(550.0, 0.0), (550.0, 100.0), (16_000.0, 3_000.0), (60.0, 6.0)]
)
def test_means_are_what_was_asked_within_one_percent(size: float, deviation: float) -> None:
    lengths = PromptLengthModel(1.25, 10.0)
    drawn = prompts(lengths, tokens=f"{size}|{deviation}", output=f"{size}|{deviation}")
    delivered, meant, outputs = [], [], []
    for _ in range(2_000):
        text, tokens, output_tokens, *_ = drawn.draw()
        delivered.append(lengths.template_tokens + lengths.tokens_a_word * (text.count(" ") + 1))
        meant.append(tokens)
        outputs.append(output_tokens)
        assert abs(delivered[-1] - tokens) <= lengths.tokens_a_word / 2  # to the nearest word
    assert mean(delivered) == pytest.approx(mean(meant), rel=0.01)
    for lengths_drawn in (meant, outputs):
        assert mean(lengths_drawn) == pytest.approx(size, rel=0.01)
        assert stdev(lengths_drawn) == pytest.approx(deviation, rel=0.06)


def test_pairs_of_a_mix_stay_pairs() -> None:
    of_mine = Prompts(PLAIN, parse_length_mix("40,900:60;700,8:40"), seed=2)
    drawn = Counter(
        (tokens, output_tokens, text.count(" ") + 1)
        for text, tokens, output_tokens, *_ in (of_mine.draw() for _ in range(1_000))
    )
    assert set(drawn) == {(40, 900, 40), (700, 8, 700)}
    assert drawn[40, 900, 40] / 1_000 == pytest.approx(0.6, abs=0.06)  # four standard errors
    assert {of_mine.output_tokens() for _ in range(50)} == {900, 8}


def test_without_a_mix_both_lengths_are_normal() -> None:
    of_mine = Prompts(PLAIN, input_tokens=(550.0, 50.0), output_tokens=(128.0, 20.0), seed=1)
    assert some(of_mine) == some(prompts(tokens="550|50", output="128|20"))


def test_a_fraction_of_a_token_is_rounded_and_nothing_is_shorter_than_one() -> None:
    assert prompts(output="128.4").output_tokens() == 128
    tiny = prompts(PromptLengthModel(1.25, 10.0), tokens="1", output="1|5")
    drawn = Counter(tiny.output_tokens() for _ in range(500))
    assert min(drawn) == 1
    assert drawn[1] > 200  # all of the lower half
    assert tiny.draw().text.isdigit()  # shorter than the template alone: one word is the least


# -- what is shared --------------------------------------------------------------------------------


def test_the_system_prompt_is_the_same_everywhere_and_comes_on_top() -> None:
    here, there = (prompts(seed=5, worker=worker, system_tokens=300) for worker in (0, 3))
    assert here.system == there.system
    assert here.system is not None
    assert here.system["role"] == "system"
    assert len(here.system["content"].split()) == 300
    text, tokens, *_ = here.draw()
    assert (len(text.split()), tokens) == (550, 850)
    text, tokens, *_ = here.draw(first=False)  # its history has it
    assert (len(text.split()), tokens) == (550, 550)
    assert prompts(seed=6, system_tokens=300).system != here.system
    assert prompts().system is None


def test_each_first_prompt_begins_with_one_of_the_pool_and_then_its_own_number() -> None:
    begun: dict[int, Counter[str]] = {}
    numbers = []
    for worker in (0, 1):
        of_mine = prompts(seed=5, worker=worker, prefixes=4, prefix_tokens=60)
        begun[worker] = Counter()
        for _ in range(400):
            text, tokens, *_ = of_mine.draw()
            words = text.split()
            assert tokens == len(words) == 610
            begun[worker][" ".join(words[:60])] += 1
            assert words[60].isdigit()
            numbers.append(words[60])
        text, tokens, *_ = of_mine.draw(first=False)
        assert tokens == len(text.split()) == 550
        assert text.split()[0].isdigit()
    assert set(begun[0]) == set(begun[1])
    assert (
        len({prefix.split()[0] + prefix.split()[1] + prefix.split()[2] for prefix in begun[0]}) == 4
    )
    # more than four standard errors
    assert all(count == pytest.approx(100, abs=40) for count in begun[0].values())
    assert len(set(numbers)) == 800


def test_a_context_makes_the_first_prompt_longer_and_nothing_of_it_is_shared() -> None:
    lengths = iter((1000, 2000))
    of_mine = prompts(seed=5, context=lambda random: next(lengths), system_tokens=30)
    first, later, second = of_mine.draw(), of_mine.draw(first=False), of_mine.draw()
    assert [len(one.text.split()) for one in (first, later, second)] == [1550, 550, 2550]
    assert [one.input_tokens for one in (first, later, second)] == [1580, 550, 2580]
    # each begins with its number
    assert len({one.text.split()[0] for one in (first, later, second)}) == 3
    assert next(lengths, None) is None  # drawn for first prompts alone


def test_without_a_seed_processes_agree_all_the_same() -> None:
    shared = {"system_tokens": 50, "prefixes": 1, "prefix_tokens": 40}
    one, other = (prompts(seed=None, **shared) for _ in range(2))
    assert one.system == other.system
    assert one.draw().text.split()[:40] == other.draw().text.split()[:40]
    assert one.text(600, (1,)).split()[:500] == other.text(600, (1,)).split()[:500]


def blocks(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[at : at + BLOCK_TOKENS]) for at in range(0, len(words), BLOCK_TOKENS)]


def test_a_block_follows_from_its_id_alone() -> None:
    here, there = prompts(seed=5, worker=0), prompts(seed=5, worker=1)
    first, second = (
        here.text(3 * BLOCK_TOKENS + 100, (0, 1, 2)),
        there.text(2 * BLOCK_TOKENS + 300, (0, 1)),
    )
    assert [len(block.split()) for block in blocks(first)] == [512, 512, 512, 100]
    assert blocks(first)[:2] == blocks(second)[:2]
    assert blocks(first)[3].split()[0].isdigit()
    assert blocks(first)[3].split()[0] != blocks(second)[2].split()[0]
    assert blocks(prompts(seed=6).text(512, (0,))) != blocks(first)[:1]


def test_a_prompt_of_many_blocks_lets_others_run_in_between() -> None:
    """96,000 tokens are 1,500 blocks of 64, in slices of 64. What others do meanwhile changes no
    block."""
    pauses = list[str]()

    def begin_another_block() -> None:
        pauses.append(paused.salt)
        paused.salt = f"[{len(pauses)}]"

    paused = prompts(seed=5, pause=begin_another_block)
    text = paused.text(96_000, range(1_500), block_tokens=64)
    assert text == prompts(seed=5).text(96_000, range(1_500), block_tokens=64)
    assert len(pauses) == 1_500 // 64
    assert paused.text(64, (0,)) != prompts(seed=5).text(64, (0,))  # with the salt of the last


@pytest.mark.slow
def test_ids_that_differ_differ_from_the_first_words_on() -> None:
    of_mine = prompts()
    assert (
        len({" ".join(of_mine.text(512, (hash_id,)).split()[:6]) for hash_id in range(20_000)})
        == 20_000
    )


def test_the_last_block_may_be_there_in_part() -> None:
    of_mine = prompts()
    whole = blocks(of_mine.text(1_536, (5, 6, 7)))
    for tokens in (1_025, 1_030, 1_500, 1_536):
        assert blocks(of_mine.text(tokens, (5, 6, 7))) == [
            *whole[:2],
            " ".join(whole[2].split()[: tokens - 1_024]),
        ]
    # more ids than room
    assert blocks(of_mine.text(600, (5, 6, 7))) == [whole[0], " ".join(whole[1].split()[:88])]
    assert of_mine.text(1, (5,)) == whole[0].split()[0]
    assert len(of_mine.text(1_536 + 5, (5, 6, 7)).split()) == 1_541  # too short for a number
    with_number = of_mine.text(1_536 + 16, (5, 6, 7)).split()
    assert with_number[1_536].isdigit()


@given(
    st.integers(1, 40_000),
    st.lists(st.integers(0, 2**63), max_size=80),
    st.floats(0.5, 4),
    st.floats(-20, 60),
    st.booleans(),
)
def test_whatever_it_is_made_of_the_length_is_right_to_the_word(
    tokens: int, ids: list[int], a_word: float, template: float, prefix: bool
) -> None:
    of_mine = prompts(
        PromptLengthModel(a_word, template), tokens=str(tokens), prefixes=1, prefix_tokens=50
    )
    text = of_mine.draw().text if prefix else of_mine.text(tokens, ids)
    words = len(text.split())
    assert text == " ".join(text.split())
    wanted = (tokens + 50 * prefix - template) / a_word
    least = max(1, round(50 / a_word)) + 1 if prefix else 1
    # the rest behind blocks is left out below one token
    assert words == least or abs(words - wanted) <= 0.5 + 1 / a_word
    assert words >= least


def test_tokens_of_a_text_are_estimated_from_its_words() -> None:
    assert prompts(PromptLengthModel(1.5, 20.0)).tokens("to be\nor  not") == 6.0
    assert prompts().tokens("") == 0


# -- lengths ---------------------------------------------------------------------------------------


def test_words_for_tokens_by_pencil() -> None:
    lengths = PromptLengthModel(1.5, 20.0)
    assert [lengths.words(tokens) for tokens in (0, 20, 21.5, 23, 170, 16_000)] == [
        1,
        1,
        1,
        2,
        100,
        10_653,
    ]


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
def test_the_line_through_the_probes_by_pencil(
    samples: list[tuple[int, int]], a_word: float, template: float
) -> None:
    lengths = fit_prompt_lengths(samples)
    assert (lengths.tokens_a_word, lengths.template_tokens) == pytest.approx((a_word, template))
    assert lengths.measured
    assert not PromptLengthModel().measured


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
    with pytest.raises(ValueError, match="tokens for prompts of"):
        fit_prompt_lengths(samples)


def test_a_batch_has_texts_of_lengths_of_their_own() -> None:
    made = Prompts(
        PLAIN, input_tokens=(100.0, 30.0), output_tokens=(1.0, 0.0), seed=1, batch=4
    ).batch()
    assert len({one.text for one in made}) == 4
    assert len({one.input_tokens for one in made}) > 1
    assert len(Prompts(PLAIN, input_tokens=(100.0, 30.0), seed=1).batch()) == 1


def test_fresh_words_have_the_lengths_and_the_order_of_their_seed() -> None:
    def drawn(seed: int | None, salt: str) -> list[DrawnPrompt]:
        made = Prompts(
            PLAIN, input_tokens=(60, 20), output_tokens=(9, 3), seed=seed, salt=salt,
            system_tokens=10, prefixes=2,
            prefix_tokens=5,
        )  # fmt: skip
        return [made.draw() for _ in range(20)]

    seeded, again, fresh, others = drawn(7, ""), drawn(7, ""), drawn(7, "a"), drawn(7, "b")
    assert seeded == again
    for other in (fresh, others):
        assert [(one.input_tokens, one.output_tokens) for one in other] == [
            (one.input_tokens, one.output_tokens) for one in seeded
        ]
        assert not {one.text[:20] for one in other} & {one.text[:20] for one in seeded}
    assert not {one.text[:20] for one in fresh} & {one.text[:20] for one in others}
    assert not {one.text for one in drawn(None, "")} & {one.text for one in drawn(None, "")}
