"""Other work: models and mean lengths, by shares and standard errors that one can work out with a
pencil."""

import pytest

from locust_llm.report.compare.same_workload import (
    LengthStatistics,
    RunWork,
    find_work_differences,
    lengths_differ,
)


@pytest.mark.parametrize(
    ("base", "here", "is_apart"),
    [
        (LengthStatistics(100), LengthStatistics(102), False),  # 2 %
        (LengthStatistics(100), LengthStatistics(102.1), True),
        (LengthStatistics(102.1), LengthStatistics(100), True),  # whichever is the base
        # 5 are two standard errors of 2.5
        (LengthStatistics(100, 1.5), LengthStatistics(105, 2.0), False),
        (LengthStatistics(100, 1.5), LengthStatistics(105.1, 2.0), True),
    ],
)
def test_lengths(base: LengthStatistics, here: LengthStatistics, is_apart: bool) -> None:
    assert lengths_differ(base, here) == is_apart


def test_what_differs_in_words() -> None:
    base = RunWork("a", {"input tokens": LengthStatistics(20_000), "output tokens": None})
    assert find_work_differences(base, base) == []
    here = RunWork(
        "b", {"input tokens": LengthStatistics(25_000.5), "output tokens": LengthStatistics(7)}
    )
    assert [*map(str, find_work_differences(base, here))] == [
        "model b instead of a",
        "input tokens 25,000 instead of 20,000 on average",
    ]
    assert (
        find_work_differences(base, RunWork("", {"output tokens": LengthStatistics(7)})) == []
    )  # what is not known is no reason


def test_what_was_asked_for_decides_and_not_what_came_of_it() -> None:
    """Prompts of 550 tokens are 543.6 and 555 to a server that counts words otherwise: the same
    work."""
    base = RunWork(
        "a",
        {"input tokens asked for": LengthStatistics(550), "input tokens": LengthStatistics(543.6)},
    )
    here = RunWork(
        "a",
        {"input tokens asked for": LengthStatistics(550), "input tokens": LengthStatistics(555.0)},
    )
    assert find_work_differences(base, here) == []
    other = RunWork(
        "a",
        {"input tokens asked for": LengthStatistics(600), "input tokens": LengthStatistics(543.6)},
    )
    assert [*map(str, find_work_differences(base, other))] == [
        "input tokens asked for 600 instead of 550 on average"
    ]
    unknown = RunWork(
        "a", {"input tokens asked for": None, "input tokens": LengthStatistics(555.0)}
    )
    assert [*map(str, find_work_differences(base, unknown))] == [
        "input tokens 555 instead of 543.6 on average"
    ]


def test_lengths_drawn_by_the_same_settings_may_differ_by_four_standard_errors() -> None:
    """Errors of 6 and 8 make one of 10: means may differ by 40, without known settings by 20."""

    def count(mean: float, base_settings: tuple[object, ...], settings: tuple[object, ...]) -> int:
        base = RunWork("a", {"input tokens": LengthStatistics(550, 6)}, "", base_settings)
        here = RunWork("a", {"input tokens": LengthStatistics(mean, 8)}, "", settings)
        return len(find_work_differences(base, here))

    drawn = (550.0, 55.0)
    assert count(589.9, drawn, drawn) == 0
    assert count(590.1, drawn, drawn) == 1
    assert count(589.9, drawn, (560.0, 55.0)) == 1
    assert count(589.9, (), ()) == 1
    assert count(570.1, (), ()) == 1
    assert count(569.9, (), ()) == 0


def test_two_load_testers_count_differently() -> None:
    base = RunWork("a", {"input tokens": LengthStatistics(100)}, "one")
    for tokens, tool, count in ((104, "one", 1), (104, "two", 0), (106, "two", 1)):
        assert (
            len(
                find_work_differences(
                    base, RunWork("a", {"input tokens": LengthStatistics(tokens)}, tool)
                )
            )
            == count
        )
