"""Other work: models and mean lengths, by shares and standard errors that one can work out with a pencil."""

import pytest

from locust_llm.report.results.work import Length, Work, apart, other_work


@pytest.mark.parametrize(
    ("base", "here", "is_apart"),
    [
        (Length(100), Length(102), False),  # 2 %
        (Length(100), Length(102.1), True),
        (Length(102.1), Length(100), True),  # whichever is the base
        (Length(100, 1.5), Length(105, 2.0), False),  # 5 are two standard errors of 2.5
        (Length(100, 1.5), Length(105.1, 2.0), True),
    ],
)
def test_lengths(base: Length, here: Length, is_apart: bool) -> None:
    assert apart(base, here) == is_apart


def test_what_differs_in_words() -> None:
    base = Work("a", {"input tokens": Length(20_000), "output tokens": None})
    assert other_work(base, base) == []
    here = Work("b", {"input tokens": Length(25_000.5), "output tokens": Length(7)})
    assert [*map(str, other_work(base, here))] == ["model b for a", "input tokens 25,000 for 20,000 on average"]
    assert other_work(base, Work("", {"output tokens": Length(7)})) == []  # what is not known is no reason


def test_what_was_asked_for_decides_and_not_what_came_of_it() -> None:
    """Prompts of 550 tokens are 543.6 and 555 to a server that counts words otherwise: the same work."""
    base = Work("a", {"input tokens asked for": Length(550), "input tokens": Length(543.6)})
    here = Work("a", {"input tokens asked for": Length(550), "input tokens": Length(555.0)})
    assert other_work(base, here) == []
    other = Work("a", {"input tokens asked for": Length(600), "input tokens": Length(543.6)})
    assert [*map(str, other_work(base, other))] == ["input tokens asked for 600 for 550 on average"]
    unknown = Work("a", {"input tokens asked for": None, "input tokens": Length(555.0)})
    assert [*map(str, other_work(base, unknown))] == ["input tokens 555 for 543.6 on average"]


def test_two_load_testers_count_differently() -> None:
    base = Work("a", {"input tokens": Length(100)}, "one")
    for tokens, tool, count in ((104, "one", 1), (104, "two", 0), (106, "two", 1)):
        assert len(other_work(base, Work("a", {"input tokens": Length(tokens)}, tool))) == count
