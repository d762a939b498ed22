"""A fault that needs three requests at once, in a whole run: it is found, reduced to the requests that
it needs, and shown by the script."""

from pathlib import Path

import pytest
from support.planted_trio import reproduce_trio


@pytest.mark.full
def test_a_planted_fault_of_three_requests_is_reduced_and_shown(tmp_path: Path) -> None:
    """A run of 400 requests has two such faults on average, so three runs have none once in 400
    times."""
    for seed in (1, 2, 3):
        found = reproduce_trio(tmp_path, seed, 400, "-t", "6m")
        if found["faults"]:
            break
    assert found["fault"] == "foreign_marker"
    assert found["replayed"] > 100
    assert found["result"] in ("smallest", "time")
    assert len(found["requests"]) <= 5
    assert found["shown"] > 0
