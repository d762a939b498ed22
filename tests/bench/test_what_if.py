"""What-if: tests the table of make what-if: predictions within the aim, and values within the
intervals."""

import json
from pathlib import Path
from typing import Any

from what_if import AS_IT_WAS, SHOWN, table


def row(setting: str, stall_p95: float, measured: float) -> dict[str, Any]:
    """Makes a row that predicts 1 s of everything, with an interval of 0.1, and measured 1 s,
    except one figure."""
    said = {name: [0.9, 1.0, 1.1] for name in SHOWN} | {
        "stall p95": [0.9 * stall_p95, stall_p95, 1.1 * stall_p95]
    }
    found = dict.fromkeys(SHOWN, 1.0) | {"stall p95": measured}
    return {"workload": "own", "set": setting, "users": 8, "said": said, "measured": found}


def test_what_is_within_the_aim_and_what_intervals_hold() -> None:
    near = row("a=1", 1.24, 1.0)
    far = row("a=2", 1.26, 1.0)
    as_it_was = row(AS_IT_WAS, 9.0, 1.0)
    _, held, medians, stalls = table({"predictions": [near, far, as_it_was]})
    assert held == "The intervals hold 15 of 18."  # none of 1.24, 1.26 and 9 does
    assert medians == "ttft p50 and stall p50 with other flags: 4 of 4 within 25%."
    assert stalls == "stall p95 with other flags: 1 of 2 within 25%."


def test_before_anything_is_measured() -> None:
    only = row("a=1", 1.0, 1.0)
    del only["measured"]
    text, held, *_ = table({"predictions": [only]})
    assert "1,000" in text
    assert held == "The intervals hold 0 of 0."


def test_what_docs_say_of_the_fourth_twin_of_vllm() -> None:
    found = json.loads((Path(__file__).parents[1] / "data/twin/vllm_what_if_4.json").read_text())
    text, held, medians, stalls = table(found)
    assert "110 / 111 (-1%)" in text
    assert (held[-9:], medians[-20:], stalls[-19:]) == (
        "46 of 48.",
        "11 of 12 within 25%.",
        " 5 of 6 within 25%.",
    )
