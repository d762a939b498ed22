"""How much longer the first token of a longer prompt takes, by pencil."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered, failed

from locust_llm.records.record import Record
from locust_llm.report.load_records import collect_columns
from locust_llm.report.metrics_by_group import MIN_REQUESTS, fit_ttft_growth
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.summary_rows import TtftGrowth
from locust_llm.slo.binomial_intervals import find_interval_ranks


def of(records: list[Record]) -> TtftGrowth | None:
    requests = collect_columns(records).requests
    return fit_ttft_growth(RequestSelection(requests, np.ones(len(requests), np.bool_)))


def prompts(ttft_ms: dict[int, float], each: int = 25) -> list[Record]:
    return [
        answered(ms, ms + 10, input_tokens=tokens)
        for tokens, ms in ttft_ms.items()
        for _ in range(each)
    ]


def test_by_pencil() -> None:
    """Four lengths, 25 requests each: the shortest quarter are those of 1,000, the longest those of
    8,000 tokens."""
    found = of(prompts({1000: 30, 2000: 40, 3000: 50, 8000: 100}))
    assert found == TtftGrowth(
        short_tokens=1750, long_tokens=4250, short_ttft_ms=30, long_ttft_ms=100, ms_per_1k=10,
        low=10, high=10, count=100
    )  # fmt: skip


def test_its_interval_by_pencil() -> None:
    """TTFT 1 to 25 ms and 101 to 125 ms: medians 13 and 113, whose intervals go from the 8th to the
    18th of 25."""
    assert find_interval_ranks(25, 50) == (8, 18)
    records = [
        answered(base + i, input_tokens=tokens)
        for base, tokens in ((0, 1000), (100, 6000))
        for i in range(1, 26)
    ]
    found = of(records)
    assert found is not None
    assert (found.ms_per_1k, found.low, found.high) == pytest.approx((20, 90 / 5, 110 / 5))


def test_a_stub() -> None:
    draw = np.random.default_rng(1)
    lengths, ttfts_ms = draw.integers(500, 8000, 400).tolist(), draw.uniform(300, 310, 400).tolist()
    found = of(
        [answered(ms, input_tokens=tokens) for ms, tokens in zip(ttfts_ms, lengths, strict=True)]
    )
    assert found is not None
    assert found.low < 0 < found.high < 1


def test_too_few_or_too_much_alike_to_tell() -> None:
    lengths = {1000: 30.0, 8000: 100.0}
    assert of(prompts(lengths, MIN_REQUESTS // 2)) is not None
    assert (
        of([*prompts(lengths, MIN_REQUESTS // 2 - 1), failed(), answered(5, input_tokens=None)])
        is None
    )
    assert of(prompts({1000: 30, 1900: 40})) is None  # less than twice
    assert of(prompts({100: 30, 599: 40})) is None
    assert of([]) is None


@given(
    st.lists(
        st.tuples(st.integers(1, 20_000), st.floats(1, 1000)), min_size=MIN_REQUESTS, max_size=120
    )
)
def test_the_interval_holds_the_figure(pairs: list[tuple[int, float]]) -> None:
    found = of([answered(ms, input_tokens=tokens) for tokens, ms in pairs])
    assert found is None or found.low <= found.ms_per_1k <= found.high
