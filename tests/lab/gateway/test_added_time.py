"""The arithmetic of added time, with moments that a pencil can follow."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.lab.gateway.added_time import (
    MS,
    AnswerParts,
    TimedBlock,
    estimate_added_time,
    measure_parts,
)
from locust_llm.lab.gateway.gateway_result import (
    FIRST_TOKEN,
    FURTHER_TOKEN,
    GAP,
    QUANTITIES,
    SETUP,
    WHOLE_ANSWER,
)
from locust_llm.lab.gateway.raw_answer import AnswerTimes, SentWord


def parts(
    ttft: float, *tokens: float, answer: float = 0, setup: float | None = None
) -> AnswerParts:
    """Of times in ms."""
    ns = tuple(round(ms * MS) for ms in tokens)
    gaps = tuple(after - before for before, after in pairwise(ns))
    return AnswerParts(
        round(ttft * MS), ns, gaps, round(answer * MS), None if setup is None else round(setup * MS)
    )


def test_the_parts_of_one_answer() -> None:
    words = (SentWord(0, 1000, 1030), SentWord(2, 3000, 3060), SentWord(1, 2000, 2040))
    times = AnswerTimes(received_ns=110, words=words, end_ns=3070)
    assert measure_parts(times, sent_ns=100, connect_s=5e-6) == AnswerParts(
        ttft=10 + 30,
        tokens=(40, 60),
        gaps=(10, 20),
        answer=10 + 70,
        setup=5000 + 80,
    )


@pytest.mark.parametrize(
    "times",
    [
        AnswerTimes(None, (SentWord(0, 1, 2),), 3),
        AnswerTimes(1, (), 3),
        AnswerTimes(1, (SentWord(0, 1, 2),), None),
    ],
)
def test_an_answer_without_its_moments_has_no_parts(times: AnswerTimes) -> None:
    assert measure_parts(times, 0) is None


def blocks_of(added_ms: float, pairs: int = 5, streams: int = 25) -> list[TimedBlock]:
    """Direct answers take 1.00, 1.01 ... ms; those through the gateway ``added_ms`` more."""
    blocks = list[TimedBlock]()
    for pair in range(pairs):
        for through in (False, True):
            more = added_ms if through else 0.0
            answers = tuple(
                parts(1 + number / 100 + more, 2 + more, 2 + more, answer=3 + more, setup=4 + more)
                for number in range(streams)
            )
            blocks.append(TimedBlock(pair, through, answers))
    return blocks


@pytest.mark.parametrize("added_ms", [0.0, 0.1, 10.0])
def test_a_constant_is_found(added_ms: float) -> None:
    blocks = blocks_of(added_ms)
    for quantity in QUANTITIES:
        found = estimate_added_time(blocks, quantity, np.random.default_rng(1))
        assert found is not None
        expected = 0.0 if quantity == GAP else added_ms
        assert found.p50_ms == pytest.approx(expected, abs=1e-9)
        assert found.p50_interval_ms == pytest.approx((expected, expected), abs=1e-9)


def test_the_spread_of_direct_answers_is_the_error() -> None:
    found = estimate_added_time(blocks_of(1.0), FIRST_TOKEN, np.random.default_rng(1))
    assert found is not None
    assert found.samples == 125
    assert found.direct_p50_ms == pytest.approx(1.12)
    assert found.error_ms == pytest.approx(0.12)
    assert found.direct_p99_ms == pytest.approx(1.24)
    assert found.p50_ms == pytest.approx(1.0)
    assert found.p99_ms == pytest.approx(1.12)


def test_the_interval_spans_blocks_that_differ() -> None:
    """Four pairs that add 1, 2, 3 and 4 ms."""
    blocks = list[TimedBlock]()
    for pair in range(4):
        blocks.append(TimedBlock(pair, False, (parts(1),) * 50))
        blocks.append(TimedBlock(pair, True, (parts(2 + pair),) * 50))
    found = estimate_added_time(blocks, FIRST_TOKEN, np.random.default_rng(1))
    assert found is not None
    assert found.p50_ms == 2.5
    assert found.p50_interval_ms is not None
    low, high = found.p50_interval_ms
    assert low < 1
    assert high > 4


def test_few_pairs_or_values_have_no_interval() -> None:
    few_pairs = estimate_added_time(blocks_of(1.0, pairs=3), FIRST_TOKEN, np.random.default_rng(1))
    assert few_pairs is not None
    assert (few_pairs.p50_interval_ms, few_pairs.p99_interval_ms) == (None, None)
    few_values = estimate_added_time(
        blocks_of(1.0, pairs=5, streams=10), FIRST_TOKEN, np.random.default_rng(1)
    )
    assert few_values is not None
    assert few_values.p50_interval_ms is not None
    assert few_values.p99_interval_ms is None


def test_a_side_without_values_has_no_added_time() -> None:
    blocks = blocks_of(1.0)
    random = np.random.default_rng(1)
    assert estimate_added_time(blocks[:1], FIRST_TOKEN, random) is None
    assert estimate_added_time([TimedBlock(0, True, ()), blocks[0]], FURTHER_TOKEN, random) is None
    no_setup = [TimedBlock(0, True, (parts(1),)), TimedBlock(0, False, (parts(1),))]
    assert estimate_added_time(no_setup, SETUP, random) is None
    assert estimate_added_time(no_setup, WHOLE_ANSWER, random) is not None


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=60),
    st.lists(st.integers(0, 10_000), min_size=1, max_size=60),
    st.integers(1, 10**9),
)
def test_the_added_time_moves_with_the_gateway_and_not_with_the_clock(
    direct: list[int], through: list[int], more: int
) -> None:
    def estimate(shift_through: int, shift_both: int) -> float:
        blocks = [
            TimedBlock(0, False, tuple(AnswerParts(ns + shift_both, (), (), 0) for ns in direct)),
            TimedBlock(
                0,
                True,
                tuple(AnswerParts(ns + shift_through + shift_both, (), (), 0) for ns in through),
            ),
        ]
        found = estimate_added_time(blocks, FIRST_TOKEN, np.random.default_rng(1))
        assert found is not None
        return found.p50_ms

    plain = estimate(0, 0)
    assert estimate(more, 0) - plain == pytest.approx(more / MS, abs=1e-6)
    assert estimate(0, more) == pytest.approx(plain, abs=1e-6)
