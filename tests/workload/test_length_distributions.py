"""Lengths: each text means what it says, what is drawn has the moments asked for, buckets are few,
whole and readable."""

import math
from collections import Counter
from random import Random
from statistics import NormalDist, fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.metrics_by_group import choose_bucket_edges, label_bucket
from locust_llm.workload.length_distributions import (
    GOLDEN,
    combine_lengths,
    lognormal_length,
    make_even_random,
    normal_length,
    parse_length,
    parse_length_mix,
)

MANY = 20_000


def drawn(text: str, seed: int = 1) -> list[int]:
    draw, random = parse_length(text), Random(seed)
    return [draw(random) for _ in range(MANY)]


# -- one length ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"), [("550", 550), (" 550 ", 550), ("1", 1), ("550|0", 550), ("99.6", 100)]
)
def test_a_fixed_length(text: str, tokens: int) -> None:
    assert {parse_length(text)(Random(seed)) for seed in range(50)} == {tokens}


def test_a_fixed_length_draws_nothing() -> None:
    """So that a stddev of 0 leaves the chance of everything else as it is."""
    random = Random(4)
    parse_length("550")(random)
    assert random.random() == Random(4).random()


@pytest.mark.parametrize(
    ("text", "mean", "stddev"),
    [
        ("550|50", 550, 50),
        ("lognormal:550|300", 550, 300),
        ("lognormal:2000|400", 2000, 400),
        ("uniform:100..2000", 1050, math.sqrt((1901**2 - 1) / 12)),  # of 1,901 whole numbers
    ],
)
def test_mean_and_stddev_are_those_of_the_lengths(text: str, mean: float, stddev: float) -> None:
    """The mean within four standard errors; the stddev within 5 %, four of the widest (the
    lognormal of 300: the fourth moment of its lengths makes it 1.3 %)."""
    lengths = drawn(text)
    assert fmean(lengths) == pytest.approx(mean, abs=4 * stddev / math.sqrt(MANY))
    assert pstdev(lengths) == pytest.approx(stddev, rel=0.05)


def test_a_lognormal_has_the_median_its_formula_says_and_a_tail() -> None:
    """mean / sqrt(1 + (300 / 550)²) = 482.8: half are shorter, which no normal of that mean would
    have."""
    lengths = drawn("lognormal:550|300")
    median = 550 / math.sqrt(1 + (300 / 550) ** 2)
    assert median == pytest.approx(482.8, abs=0.05)
    assert sum(one < median for one in lengths) / MANY == pytest.approx(
        0.5, abs=4 * 0.5 / math.sqrt(MANY)
    )
    assert max(lengths) > 550 + 5 * 300


def test_uniform_has_both_ends() -> None:
    seen = Counter(drawn("uniform:3..6"))
    assert sorted(seen) == [3, 4, 5, 6]
    assert all(
        many == pytest.approx(MANY / 4, abs=4 * math.sqrt(MANY * 3 / 16)) for many in seen.values()
    )


def test_a_normal_is_cut_at_1_and_not_drawn_again() -> None:
    """All that is rounded to less than 1 becomes 1: below 1.5, a share of Φ((1.5 - 10) / 20) = 34
    %."""
    share = drawn("10|20").count(1) / MANY
    p = NormalDist(10, 20).cdf(1.5)
    assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / MANY))


@pytest.mark.parametrize(
    "text",
    [
        "", "abc", "0", "-5", "0.5", "nan", "inf", "1e12", "550|", "550|-1", "550|nan", "|50",
        "550|50|5", "550,50",
        "uniform:100", "uniform:2000..100", "uniform:0..5", "uniform:1.5..3", "uniform:100|200",
        "100..200",
        "lognormal:550", "lognormal:0|5", "gauss:550|50", "uniform:1..2..3",
    ],
)  # fmt: skip
def test_what_is_no_length_is_told_what_is(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"a length is 550, 550\|50 \(mean\|stddev\), uniform:100\.\.2000"
    ) as error:
        parse_length(text)
    assert str(error.value).endswith(f"got {text!r}")


@given(st.text() | st.from_regex(r"(uniform:|lognormal:|)[0-9.|e+-]{1,9}"))
def test_any_text_is_a_length_or_a_value_error(text: str) -> None:
    try:
        draw = parse_length(text)
    except ValueError:
        return
    assert all(draw(Random(seed)) >= 1 for seed in range(5))


# -- input and output ------------------------------------------------------------------------------

MIXED = {(64, 32): 0.7, (256, 128): 0.2, (1024, 512): 0.1}


@pytest.mark.parametrize(
    "text",
    [
        "64,32:70;256,128:20;1024,512:10",
        "64,32:0.7; 256,128:0.2; 1024,512:0.1;",
        "64|0,32:70;256,128|0:20;9,9:0;1024,512:10",
        "[(64,32):70,(256,128):20,(1024,512):10]",
        "[ (64 , 32) : 70, (256,128):20 ,(1024|0,512):10 ]",
        '{"pairs": [{"isl": 64, "osl": 32, "prob": 70}, {"isl": 256, "isl_stddev": 0, "osl": 128, '
        '"prob": 20}, '
        '{"isl": 1024, "osl": 512, "osl_stddev": 0, "prob": 10}]}',
        "64,uniform:32..32:70;256,128:20;1024,512:10",
    ],
)
def test_a_mix_in_each_form(text: str) -> None:
    draw, random = parse_length_mix(text), Random(1)
    seen = Counter(draw(random) for _ in range(MANY))
    assert set(seen) == set(MIXED)
    for sizes, p in MIXED.items():
        assert seen[sizes] / MANY == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / MANY))


def test_a_mix_keeps_input_and_output_together() -> None:
    """Long prompts with short outputs and the other way round, each with its own deviation."""
    draw, random = parse_length_mix("[(64|8,900|20):50,(4000|100,32|4):50]"), Random(2)
    pairs = [draw(random) for _ in range(MANY)]
    short = [pair for pair in pairs if pair[0] < 1000]
    long = [pair for pair in pairs if pair[0] > 1000]
    assert len(short) + len(long) == MANY
    assert all(output > 500 for _, output in short)
    assert all(output < 500 for _, output in long)
    for of, (mean, stddev) in ((short, (64, 8)), (long, (4000, 100))):
        lengths = [tokens for tokens, _ in of]
        assert fmean(lengths) == pytest.approx(mean, abs=4 * stddev / math.sqrt(len(of)))
        assert pstdev(lengths) == pytest.approx(stddev, rel=4 / math.sqrt(2 * len(of)))


def test_json_deviations_count() -> None:
    draw = parse_length_mix(
        '{"pairs": [{"isl": 500, "isl_stddev": 50, "osl": 100, "osl_stddev": 10, "prob": 100}]}'
    )
    twin, a, b = (
        combine_lengths(normal_length(500, 50), normal_length(100, 10)),
        Random(3),
        Random(3),
    )
    b.random()  # which pair
    assert draw(a) == twin(b)


def test_a_seed_gives_the_same_sizes_again() -> None:
    draw = parse_length_mix("550|50,128|20:60;lognormal:2000|900,uniform:10..90:40")
    once, again, other = ([draw(random) for _ in range(50)] for random in map(Random, (5, 5, 6)))
    assert once == again != other


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a mix of lengths is ISL,OSL:PROBABILITY pairs separated by ;"),
        ("[]", "a mix of lengths is ISL,OSL:PROBABILITY pairs"),
        ("64,32", "pair 1: a mix of lengths is .* got '' with probability '64,32'"),
        ("64,32:70;64:30", "pair 2: a mix of lengths is"),
        ("64,32,5:100", "pair 1: a mix of lengths is"),
        ("64,32:x", "pair 1: a mix of lengths is .* with probability 'x'"),
        ("64,32:-5;64,32:105", "pair 1: a mix of lengths is .* with probability '-5'"),
        ("64,32:nan", "pair 1"),
        ("64,32:50;0,32:50", "pair 2: a length is 550, .* got '0'"),
        ("64,32:50;64,32:49", r"must sum to 100 \(percent\) or 1 \(shares\), these sum to 99"),
        ("64,32:0", "these sum to 0"),
        ("64,32:0.7;256,128:20;1024,512:10", r"these sum to 30\.7"),
        ("[64,32:100", "pair 1: a length is"),
        ("{", "a mix of lengths as JSON is"),
        ('{"pair": []}', "a mix of lengths as JSON is"),
        ('{"pairs": []}', "a mix of lengths is"),
        ('{"pairs": 5}', "a mix of lengths as JSON is"),
        ('{"pairs": [5]}', "a mix of lengths as JSON is"),
        ('{"pairs": [{"isl": 64, "osl": 32}]}', "a mix of lengths as JSON is"),
        ('{"pairs": [{"isl": null, "osl": 32, "prob": 100}]}', "pair 1: a length is"),
        ('{"pairs": [{"isl": 64, "osl": 32, "prob": true}]}', "pair 1: a mix of lengths is"),
    ],
)
def test_a_broken_mix_is_named_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_length_mix(text)
    assert "\n" not in str(error.value)


def test_the_lognormal_of_no_deviation_is_fixed() -> None:
    assert {lognormal_length(550, 0)(Random(seed)) for seed in range(20)} == {550}


# -- buckets ---------------------------------------------------------------------------------------


def labels(lengths: list[int], at_most: int = 6) -> list[str]:
    """In order of length, each once."""
    edges = choose_bucket_edges(lengths, at_most)
    return list(dict.fromkeys(label_bucket(one, edges) for one in sorted(lengths)))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([550] * 9, ["550"]),
        ([64, 256, 1024, 2000, 64], ["64", "256", "1024", "2k"]),
        ([7, 8, 9, 10, 11, 12], ["7", "8", "9", "10", "11", "12"]),
        ([999, 1000, 1001, 10_000, 10**6], ["999", "1k", "1001", "10k", "1M"]),
        # more than six, but in two heaps: what a server makes of 500 and 2,000
        ([*range(497, 504), *range(1996, 2005)], ["497-504", "1996-2005"]),
        (list(range(400, 700)), ["200-500", "500-1k"]),
        (list(range(64, 2100)), ["50-100", "100-200", "200-500", "500-1k", "1k-2k", "2k-5k"]),
        # too wide for 1, 2, 5: every second of them, then every third
        (
            list(range(30, 100_000, 7)),
            ["20-100", "100-500", "500-2k", "2k-10k", "10k-50k", "50k-200k"],
        ),
        (
            list(range(1, 1_000_000, 37)),
            ["1-10", "10-100", "100-1k", "1k-10k", "10k-100k", "100k-1M"],
        ),
    ],
)
def test_buckets_one_would_choose_by_hand(lengths: list[int], expected: list[str]) -> None:
    assert labels(lengths) == expected


def test_a_bucket_ends_before_its_end() -> None:
    edges = (500, 1000, 2000)
    assert [label_bucket(one, edges) for one in (500, 999, 1000, 1999)] == [
        "500-1k",
        "500-1k",
        "1k-2k",
        "1k-2k",
    ]


def test_what_the_edges_did_not_know_of_is_outside() -> None:
    edges = (500, 1000, 2000)
    assert [label_bucket(one, edges) for one in (0, 499, 2000, 10**7)] == [
        "<500",
        "<500",
        "2k+",
        "2k+",
    ]


def test_of_no_lengths() -> None:
    assert label_bucket(5, choose_bucket_edges([])) == "2+"
    assert choose_bucket_edges([0, 0]) == choose_bucket_edges([])


@given(
    st.lists(st.integers(1, 3_000_000) | st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 8),
)
def test_buckets_are_few_in_order_and_hold_everything(lengths: list[int], at_most: int) -> None:
    edges = choose_bucket_edges(lengths, at_most)
    assert list(edges) == sorted(set(edges))
    assert all(edges[0] <= one < edges[-1] for one in lengths)
    found = [label_bucket(one, edges) for one in sorted(lengths)]
    assert len(set(found)) <= at_most
    # each label is one run: the table's rows are in order, and no two buckets share a label
    runs = [label for at, label in enumerate(found) if at == 0 or found[at - 1] != label]
    assert len(runs) == len(set(runs))


def test_requests_of_a_sequence_have_an_even_mix() -> None:
    """Of any ten in a row two are long, one more or less; by chance none are in one of ten cases.
    Each request alone is long in one of five sequences."""
    mix = parse_length_mix("100,1:80;2000,1:20")
    long = [
        [mix(make_even_random(f"round {i}", number))[0] == 2000 for number in range(40)]
        for i in range(400)
    ]
    windows = [sum(row[start : start + 10]) for row in long for start in range(30)]
    assert {1, 2, 3} >= set(windows)
    assert sum(row[7] for row in long) / len(long) == pytest.approx(0.2, abs=0.06)


def test_only_the_first_number_of_an_even_sequence_is_chosen() -> None:
    again, other = (make_even_random("a", 3) for _ in range(2))
    assert [again.random() for _ in range(4)] == [other.random() for _ in range(4)]
    first, second = make_even_random("a", 4), make_even_random("a", 5)
    assert (second.random() - first.random()) % 1 == pytest.approx(GOLDEN)
    assert first.random() != second.random()
