"""Owners against the truth of the simulator, in virtual time; the whole table is that of ``make owners``."""

import pytest
from support.owners import Load, off, rows_of, seen


@pytest.mark.parametrize(
    "load",
    [
        Load("chunked", rate_per_s=9.0, seconds=25, budget=2048, output_tokens=(20, 60)),
        Load("prefill-first", rate_per_s=14.0, seconds=20, output_tokens=(20, 60)),
    ],
)
def test_parts_are_near_the_truth(load: Load) -> None:
    found = seen(rows_of(load))
    assert len(found.records) > 200
    for one in off(found.estimated(spans=True), found.truth):
        assert one.near, one
    for one in off(found.estimated(spans=False), found.truth):
        assert one.held is None or one.held >= 0.9, one


def test_planted_delays_are_found_where_they_were_planted() -> None:
    """The same load with 50 ms more on the way, and once more with 200 ms more in the queue."""
    rows = rows_of(Load("chunked", rate_per_s=2.0, seconds=60, budget=8192, output_tokens=(5, 20)))
    plain = seen(rows).estimated(spans=True)
    for part, more_ms in (("network", 50), ("queue", 200)):
        found = seen(rows, network_ms=more_ms if part == "network" else 0, queue_ms=more_ms if part == "queue" else 0)
        there = found.estimated(spans=True)
        for name in ("network", "queue", "prefill", "others"):
            apart_ms = (there[f"{name}_s"] - plain[f"{name}_s"]) * 1e3
            assert abs(apart_ms - (more_ms if name == part else 0)).max() < 1, name
