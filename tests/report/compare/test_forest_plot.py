"""The forest of differences: its sentence, and the places of its rows, with a pencil."""

import re

import pytest

from locust_llm.report.compare.forest_plot import (
    NOT_SIGNIFICANT,
    Difference,
    describe_differences,
    draw_forest,
)


def one(
    metric: str, stat: str, percent: float, word: str = NOT_SIGNIFICANT, **more: object
) -> Difference:
    fields: dict[str, object] = {"low": None, "high": None, **more}
    return Difference(metric, stat, f"{metric} {stat}", percent=percent, word=word, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("differences", "sentence"),
    [
        (
            [
                one("ttft", "p95", -60.0, "better"),
                one("ttft_from_due", "p99", 2.0),
                one("longest_stall", "p99", -87.0, "better"),
            ],
            "chatB: longest stall p99 87% shorter; TTFT from due: no significant difference.",
        ),
        (
            [one("ttft", "p95", 12.0), one("itl", "p50", 220.0, "worse")],
            "chatB: ITL p50 3.2 times as long; TTFT: no significant difference.",
        ),
        (
            [one("ttft", "p50", -30.0, "better"), one("output_tokens_per_s", "", 150.0, "better")],
            "chatB: TTFT p50 30% shorter; output token throughput 2.5 times as high.",
        ),
        (
            [one("ttft", "p95", 50.0, "worse", where="concurrency 8")],
            "chatB: TTFT p95 50% longer at concurrency 8.",
        ),
        (
            [one("ttft_from_due", "p95", -97.2, "better", is_bound=True), one("itl", "p50", 60.0)],
            "chatB: TTFT from due p95 at least 97% shorter; ITL: no significant difference.",
        ),
        (
            [one("itl", "p95", 150.0, "worse", is_bound=True)],
            "chatB: ITL p95 at least 2.5 times as long.",
        ),
        (
            [one("ttft", "p95", 12.0, "too few to tell"), one("ttft", "p50", 1.0)],
            "chatB: TTFT: too few to tell.",
        ),
        (
            [one("ttft", "p95", 12.0), one("ttft", "p50", 1.0, "not concluded")],
            "chatB: TTFT: not concluded.",
        ),
        ([], ""),
    ],
)
def test_the_sentence(differences: list[Difference], sentence: str) -> None:
    assert describe_differences("chatB", differences) == sentence


def test_where_requests_waited_ttft_alone_is_not_named() -> None:
    """Even if the wait has no known difference: it may have moved to the client."""
    known = [one("ttft", "p95", -60.0, "better"), one("itl", "p95", 20.0, "worse")]
    assert describe_differences("b", known, has_waits=True) == "b: ITL p95 20% longer."


def test_an_end_near_0_keeps_its_sign() -> None:
    """It decides whether the difference is significant."""
    drawn = draw_forest([one("ttft", "p95", 12.3, "worse", low=0.04, high=25.0)])
    assert "[+0.04, +25]" in drawn
    assert "[-12, -0.3]" in draw_forest([one("itl", "p95", -6.0, "better", low=-12.0, high=-0.3)])


def test_a_bound_has_its_sign() -> None:
    drawn = draw_forest(
        [
            one("ttft", "p95", -97.2, "better", is_bound=True),
            one("itl", "p95", 150.0, "worse", is_bound=True),
        ]
    )
    texts = [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<b>(.*?)<span", drawn)]
    assert texts[1:] == [
        "\N{LESS-THAN OR EQUAL TO} -97.2% ",
        "\N{GREATER-THAN OR EQUAL TO} +150.0% ",
    ]


def test_worse_is_to_the_right_and_twice_is_as_far_as_half() -> None:
    """The scale goes to twice as much: TTFT of twice is at 50 + 46, and so is half the rate."""
    drawn = draw_forest(
        [
            one("ttft", "p50", 100.0, "worse", low=0.0, high=100.0),
            one("output_tokens_per_s", "", -50.0, "worse"),
            one("itl", "p50", -50.0, "better"),
            one("itl", "p95", 0.0, "no significant difference"),
        ]
    )
    assert re.findall(r'cx="([\d.]+)%"', drawn) == ["96.0", "96.0", "4.0", "50.0"]
    assert re.findall(r'reach x1="([\d.]+)%" x2="([\d.]+)%"', drawn) == [("50.0", "96.0")]
    kinds = re.findall(r"<li class=(\w+)[> ]", drawn)
    assert kinds == ["sides", "loud", "loud", "pass", "open"]
    assert "no significant difference" in drawn


def test_large_differences_are_factors_of_two_digits() -> None:
    """+2,097,400 % is 20,975 times as much; an end of +1,114,479 % is 11,146 times."""
    drawn = draw_forest(
        [
            one("gate_wait", "p99", 2_097_400.0, "worse", low=1_114_479.0, high=9_494_649.0),
            one("ttft", "p50", 999.0, "worse", low=900.0, high=1000.0),
        ]
    )
    texts = [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<b>(.*?)<span", drawn)]
    # the first row names the sides
    assert texts[1:] == ["×21,000 [×11,000, ×95,000]", "+999.0% [+900, ×11]"]


def test_text_from_outside_is_escaped() -> None:
    drawn = draw_forest([Difference("ttft", "p50", "<b>\x1b", 1.0, None, None, "")])
    assert "&lt;b&gt;" in drawn
    assert "<b>\x1b" not in drawn
