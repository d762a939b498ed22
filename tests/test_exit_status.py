"""Exit statuses: which one wins where several apply."""

import pytest

from locust_llm.exit_status import ExitStatus, worst

OWN = 77
"""Of --exit-code-on-error."""


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], 0),
        ([0, 6], 6),  # a PASS on incomplete records
        ([4, 6], 6),  # undecided, because records are missing
        ([3, 6], 3),  # a rule that fails on what is there stays broken
        ([1, 6], 1),
        ([6, OWN], OWN),
        ([0, OWN], OWN),
        ([3, 2, 6], 2),  # a load generator that broke has measured nothing
        ([2, 5], 5),
    ],
)
def test_what_is_certain_wins(statuses: list[int], expected: int) -> None:
    assert worst(statuses) == worst(reversed(statuses)) == expected


def test_numbers_that_users_know_stay() -> None:
    assert [(one.name, one.value) for one in ExitStatus] == [
        ("OK", 0), ("FAILED_REQUESTS", 1), ("BROKEN", 2), ("RULE_FAILED", 3), ("INCONCLUSIVE", 4), ("REFUSED", 5),
        ("INCOMPLETE", 6),
    ]  # fmt: skip
