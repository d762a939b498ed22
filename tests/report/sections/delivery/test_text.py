"""What of an open loop was completed, in sentences whose figures add up."""

import pytest

from locust_llm.report.sections.delivery.model import Delivery
from locust_llm.report.sections.delivery.text import describe_completed

IN_FLIGHT = "of the others were in flight at the stop, as in any server that keeps up"


@pytest.mark.parametrize(
    ("answered", "expected", "share", "said"),
    [
        (66, 158.0, 66 / 158, "41.8%: 3.30/s in the 20 s to the stop, 66 of 158 that were due"),
        (
            134, 136.0, 134 / 136,
            f"98.5%: 6.70/s in the 20 s to the stop, 134 of 158 that were due. 22 {IN_FLIGHT}: the share is of the "
            "remaining 136",
        ),
        (
            20, 60.0, None,
            f"1.00/s in the 20 s to the stop, 20 of 158 that were due. 98 {IN_FLIGHT}: too short a run for a share",
        ),
        (158, 158.0, 1.0, "100.0%: 7.90/s in the 20 s to the stop, 158 of 158 that were due"),
    ],
)  # fmt: skip
def test_what_was_completed(answered: int, expected: float, share: float | None, said: str) -> None:
    delivery = Delivery(
        duration_s=20.0,
        due=158,
        sent=158,
        completed=answered,
        never_started=0,
        offered_per_s=7.9,
        sent_per_s=7.9,
        completed_per_s=answered / 20,
        share=1.0,
        users=100,
        expected=expected,
        completed_share=share,
    )
    assert describe_completed(delivery) == said
