"""Regions of MLPerf Endpoints against its own worked examples and table (endpoints_rules.md at 00135a0)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.report.sections.published.regions import divide_into_regions, find_uncovered_regions

TABLE = """
64 2 3-6 7-18 19-64 65-71
128 2 3-7 8-27 28-128 129-141
256 2 3-8 9-42 43-256 257-282
256 8 9-14 15-47 48-256 257-282
512 8 9-16 17-71 72-512 513-564
1024 8 9-18 19-109 110-1024 1025-1127
512 16 17-24 25-79 80-512 513-564
1024 16 17-26 27-117 118-1024 1025-1127
2048 16 17-29 30-176 177-2048 2049-2253
1024 32 33-42 43-131 132-1024 1025-1127
2048 32 33-45 46-192 193-2048 2049-2253
4096 32 33-48 49-287 288-4096 4097-4506
8192 32 33-52 53-437 438-8192 8193-9012
16384 32 33-57 58-676 677-16384 16385-18023
"""
"""Appendix B: highest and lowest concurrency; Low, Medium, High, margin."""
EXAMPLES = [
    ("A", 32, 8192, [(33, 52), (53, 437), (438, 8192)], (32, 40, 200, 500, 1000, 2000, 4096)),
    ("B", 1, 256, [(2, 7), (8, 41), (42, 256)], (1, 4, 16, 32, 64, 128, 256)),
    ("C", 16, 1024, [(16, 26), (27, 116), (117, 1024)], (16, 24, 64, 96, 128, 256, 1000)),
]
"""Section 5.4, as printed: C is wrong."""


@pytest.mark.parametrize("row", TABLE.split("\n")[1:-1])
def test_the_table_of_appendix_b(row: str) -> None:
    highest, lowest, *printed = row.split()
    assert [f"{r.low}-{r.high}" for r in divide_into_regions(int(lowest), int(highest))[1:]] == printed


@pytest.mark.parametrize(("name", "lowest", "highest", "printed", "points"), EXAMPLES)
def test_the_worked_examples(
    name: str, lowest: int, highest: int, printed: list[tuple[int, int]], points: tuple[int, ...]
) -> None:
    found = [(r.low, r.high) for r in divide_into_regions(lowest, highest)[1:4]]
    if (
        name == "C"
    ):  # 1008 is 10.03^3: 16 + 10.03 = 26.03, 16 + 100.53 = 116.53, which rounds to 117; and Low begins at 17
        assert pytest.approx((10.0266, 100.533), rel=1e-4) == (1008 ** (1 / 3), 1008 ** (2 / 3))
        assert found == [(17, 26), (27, 117), (118, 1024)] != printed
    else:
        assert found == printed
    assert find_uncovered_regions((*points, highest)) == []
    assert len(points) == 7


def test_a_region_without_a_point_is_named() -> None:
    assert [str(region) for region in find_uncovered_regions((1, 2, 64, 128, 256))] == ["Medium (8 to 41)"]
    assert [region.name for region in find_uncovered_regions((1, 256))] == ["Low", "Medium"]
    with pytest.raises(ValueError, match="lowest concurrency must be 1 to 32, and is 33"):
        find_uncovered_regions((33, 256))
    with pytest.raises(ValueError, match="highest concurrency must be above 32, and is 32"):
        find_uncovered_regions((1, 32))
    with pytest.raises(ValueError, match="no point"):
        find_uncovered_regions(())


@given(st.integers(1, 32), st.integers(33, 10**6))
def test_regions_follow_each_other_and_leave_nothing_out(lowest: int, highest: int) -> None:
    found = divide_into_regions(lowest, highest)
    assert (found[0].low, found[3].high, found[4].low) == (1, highest, highest + 1)
    assert all(after.low == before.high + 1 for before, after in pairwise(found))
    assert find_uncovered_regions((lowest, *(min(r.low, r.high) for r in found[1:4]), highest)) == []
