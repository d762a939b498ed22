"""The result of several rounds: the method of each situation, rules, and the text."""

import pytest
from msgspec.structs import replace

from locust_llm.lab.disconnect.disconnect_result import (
    COUNTERS,
    WITNESS,
    DisconnectResult,
    SituationResult,
    describe_ghosts,
    format_disconnect_result,
    judge_ghost_rules,
    summarise_ghosts,
    summarise_rounds,
)
from locust_llm.lab.disconnect.disconnect_rounds import DECODE, UNSTREAMED, DisconnectRound
from locust_llm.lab.disconnect.ghost_tokens import CounterRound, GhostEstimate
from locust_llm.records.run_facts import SIMULATED
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, parse_rule


def make_round(situation: str, ghosts: float | None) -> DisconnectRound:
    counters = None if ghosts is None else CounterRound(8, 8 * ghosts, 0.0, 0.0, ghosts / 100)
    return DisconnectRound(situation, 8, counters, None, True, others=False)


def make_situation(low: float, high: float, situation: str = DECODE) -> SituationResult:
    ghosts = GhostEstimate(tokens=(low + high) / 2, tokens_interval=(low, high))
    return SituationResult(
        situation=situation, rounds=2, left=16, method=COUNTERS, ghosts=ghosts, kv_returned=True
    )


def test_counters_come_first_and_a_day_has_its_tokens() -> None:
    rounds = [make_round(DECODE, 1.0), make_round(DECODE, 1.0), make_round(UNSTREAMED, None)]
    decode, unstreamed = summarise_rounds(rounds, 1000.0)
    assert (decode.method, decode.rounds, decode.left, decode.kv_returned) == (
        COUNTERS,
        2,
        16,
        True,
    )
    assert decode.ghosts is not None
    assert (decode.ghosts.tokens, decode.ghosts.tokens_interval) == (1.0, (1.0, 1.0))
    assert decode.tokens_per_day == 1000.0
    assert (unstreamed.method, unstreamed.ghosts, unstreamed.tokens_per_day) == (
        WITNESS,
        None,
        None,
    )


def test_no_ghosts_are_at_most_so_many_a_day() -> None:
    """1.08 tokens each (0 to 3.16): at 20,000 cancellations a day at most 63,200. 5 (4 to 6) are
    100,000."""
    few = GhostEstimate(tokens=1.08, tokens_interval=(0.0, 3.16))
    many = GhostEstimate(tokens=5.0, tokens_interval=(4.0, 6.0))
    situations = tuple(
        replace(
            make_situation(0, 1),
            ghosts=ghosts,
            tokens_per_day=20_000 * ghosts.tokens,
            tokens_per_day_interval=(0.0, 20_000 * high),
        )
        for ghosts, high in ((few, 3.16), (many, 6.0))
    )
    result = DisconnectResult(
        url="http://a:1", server="", started="", version="1", clients=8, situations=situations
    )
    text = format_disconnect_result(result)
    assert "none above 3.16" in text
    assert "at most 63,200" in text
    assert "100,000" in text


@pytest.mark.parametrize(
    ("situations", "verdict"),
    [
        ([make_situation(0, 2), make_situation(1, 9)], PASS),
        ([make_situation(0, 2), make_situation(10, 12)], FAIL),
        ([make_situation(0, 2), make_situation(8, 12)], INCONCLUSIVE),
        ([make_situation(8, 12), make_situation(60, 64)], FAIL),
    ],
)
def test_a_rule_holds_in_each_situation_over_its_interval(
    situations: list[SituationResult], verdict: str
) -> None:
    (found,) = judge_ghost_rules([parse_rule("ghost_tokens < 10")], situations)
    assert found.verdict == verdict


@pytest.mark.parametrize("rule", ["ghost_tokens < 10", "ghost_tokens < 5"])
def test_the_value_of_a_rule_is_of_the_worst_situation(rule: str) -> None:
    situations = (make_situation(-0.5, 3.73), make_situation(-3.0, 6.58, UNSTREAMED))
    (found,) = judge_ghost_rules([parse_rule(rule)], situations)
    assert found.value == "none above 6.58 without a stream"


def test_what_is_unknown_decides_no_rule() -> None:
    (unknown,) = summarise_rounds([make_round(UNSTREAMED, None)], None)
    (found,) = judge_ghost_rules([parse_rule("ghost_tokens < 10")], [unknown])
    assert (found.verdict, found.value) == (INCONCLUSIVE, "cannot tell without a stream")


def test_text() -> None:
    situations = (make_situation(0.0, 1.5), make_situation(79.0, 81.0, UNSTREAMED))
    result = DisconnectResult(
        url="http://a:1", server="vLLM 0.32", started="", version="1", clients=8,
        situations=situations, notes=("one",),
        rules=judge_ghost_rules([parse_rule("ghost_tokens < 10")], situations),
    )  # fmt: skip
    assert format_disconnect_result(result).splitlines() == [
        "clients leave     clients  ghost tokens each  for  by        KV cache",
        "in mid-decode     16       none above 1.5     -    counters  free again",
        "without a stream  16       80 (79 to 81)      -    counters  free again",
        "note: one",
        "SLO FAIL: ghost_tokens < 10 (80 (79 to 81) without a stream)",
    ]
    simulated = format_disconnect_result(replace(result, simulated=True))
    assert simulated == f"{SIMULATED}\n{format_disconnect_result(result)}"
    assert summarise_ghosts(situations) == (
        "The server works on for clients who left: 80 (79 to 81) tokens for each client who left "
        "without a stream."
    )
    (once,) = summarise_rounds([make_round(DECODE, 1.0)], None)
    assert summarise_ghosts([once]) == "One round of a situation has no interval."
    assert summarise_ghosts(situations[:1]) == (
        "The server stops when clients leave: at most 1.5 tokens each."
    )


def test_a_wide_interval_shows_no_server_that_stops() -> None:
    wide = make_situation(0.0, 389.0, UNSTREAMED)
    assert describe_ghosts(wide.ghosts) == "194 (0 to 389)"
    assert summarise_ghosts([make_situation(0.0, 1.5), wide]) == (
        "Ghost tokens are not known well: up to 389 for each client who left without a stream. "
        "A longer test (-t) narrows it."
    )
