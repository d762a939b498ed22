"""What a signal of the client verdict means for a rule: not touched, touched in one direction, or
voided."""

import pytest

from locust_llm.slo.client_verdict import (
    DEGRADED,
    INVALID,
    OK,
    ClientVerdict,
    ProcessEvidence,
    judge_client,
    measure_signals,
)
from locust_llm.slo.grammar import parse_rule
from locust_llm.slo.measurement_bias import (
    DOUBTS,
    EITHER,
    HIGH,
    LOW,
    decision_survives_error,
    explain_void_rule,
    find_rule_error,
    find_touching_signals,
    list_unaffected_metrics,
)
from locust_llm.slo.metrics import BY_WORD

TTFT_HIGH = {"ttft_p99_ms": 200.0, "ttft_p99_least_ms": 190.0}
MERGED = {"merged_share": 0.06}
GAPS_OFF = {"gap_off_ms": 5.0, "gap_p99_ms": 20.0}
LATE = {"send_lag_p99_ms": 101.0}


def verdict(**figures: float) -> ClientVerdict:
    found = judge_client([ProcessEvidence(worker="local", requests=9, **figures)])  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("figures", "rule", "error"),
    [
        (TTFT_HIGH, "ttft p95 < 1s", HIGH),
        (TTFT_HIGH, "ttft_from_due p95 < 1s", HIGH),
        (TTFT_HIGH, "itl p95 < 1s", None),
        (TTFT_HIGH, "request_latency p95 < 1s", None),
        (TTFT_HIGH, "output_tokens_per_s > 9", None),
        (TTFT_HIGH, "attainment > 99% given ttft < 1s", LOW),  # fewer seem to meet it
        (TTFT_HIGH, "attainment > 99% given itl < 1s", None),
        (TTFT_HIGH, "attainment > 99% given ttft < 1s and ttft > 1ms", EITHER),
        (TTFT_HIGH, "ttft p95 within 5% of base", HIGH),
        (MERGED, "longest_stall p99 < 1s", HIGH),
        (MERGED, "itl p99 < 1s", EITHER),
        (MERGED, "requests_per_s > 1", None),
        # it may be the load generator that took no more
        ({"merged_share": 0.3}, "requests_per_s > 1", LOW),
        # so this run may be less worse
        ({"merged_share": 0.3}, "requests_per_s within 5% of base", HIGH),
        (MERGED | TTFT_HIGH, "ttft p99 < 1s", HIGH),
        (GAPS_OFF, "ttft p99 < 1s", None),
        (GAPS_OFF, "icl p99 < 1s", EITHER),
        (GAPS_OFF | TTFT_HIGH, "ttft p99 < 1s", HIGH),
        (LATE, "ttft p99 < 1s", EITHER),
        (LATE, "goodput > 1/s given itl < 1s", EITHER),
        (LATE, "error_rate < 1%", None),
        (LATE, "delivered > 99%", None),
    ],
)
def test_which_metrics_a_signal_touches(
    figures: dict[str, float], rule: str, error: str | None
) -> None:
    assert find_rule_error(verdict(**figures), parse_rule(rule)) == error


@pytest.mark.parametrize(
    ("rule", "holds", "error", "expected"),
    [
        ("ttft p95 < 1s", True, HIGH, True),
        ("ttft p95 < 1s", False, HIGH, False),
        ("ttft p95 < 1s", False, LOW, True),
        ("ttft p95 < 1s", True, LOW, False),
        ("requests_per_s > 1", True, LOW, True),
        ("requests_per_s > 1", False, LOW, False),
        ("requests_per_s within 5% of base", True, HIGH, True),
        ("ttft p95 < 1s", True, EITHER, False),
        ("ttft p95 < 1s", False, EITHER, False),
        ("ttft p95 < 1s", None, HIGH, True),
        ("ttft p95 < 1s", None, EITHER, False),
    ],
)
def test_what_can_only_become_safer_stays(
    rule: str, holds: bool | None, error: str, expected: bool
) -> None:
    assert decision_survives_error(parse_rule(rule), holds, error) == expected  # type: ignore[arg-type]


def test_every_signal_has_a_row_and_every_word_is_one() -> None:
    every = ProcessEvidence(
        worker="local", requests=9, ttft_p99_ms=1.0, ttft_p99_least_ms=1.0, merged_share=0.0,
        read_lag_p99_ms=1.0,
        send_lag_p99_ms=1.0, permit_lag_p99_ms=1.0, loop_lag_p99_ms=1.0, cpu_share=0.1,
        cpu_wait_share=0.1, ttft_off_ms=1.0,
        gap_off_ms=1.0, gap_p99_ms=1.0,
    )  # fmt: skip
    assert {signal.what for signal in measure_signals(every) if signal.decides} <= DOUBTS.keys()
    assert {word for doubt in DOUBTS.values() for word in doubt.errors} <= BY_WORD.keys()


def test_an_unknown_reason_may_be_wrong_either_way() -> None:
    rule = parse_rule("ttft p95 < 1s")
    for some in (
        ClientVerdict(DEGRADED, ("late",)),
        ClientVerdict(INVALID, ("late",), signals={"of another version": INVALID}),
    ):
        assert find_rule_error(some, rule) == EITHER
        assert explain_void_rule(some, rule) == f"the client verdict is {some.level}: late"
    assert (
        find_rule_error(ClientVerdict(DEGRADED, ("late",)), parse_rule("requests_per_s > 1"))
        is None
    )
    assert (
        find_rule_error(ClientVerdict(INVALID, ("late",)), parse_rule("requests_per_s > 1"))
        == EITHER
    )
    assert find_rule_error(ClientVerdict(OK), rule) is find_rule_error(None, rule) is None


def test_which_signals_touch_a_rule() -> None:
    every = verdict(**MERGED, **GAPS_OFF, **LATE)
    assert find_touching_signals(every, parse_rule("ttft p95 < 1s")) == {
        "merged chunks",
        "send after admission p99",
    }
    assert find_touching_signals(every, parse_rule("icl p95 < 1s")) == {*every.signals}
    assert find_touching_signals(every, parse_rule("error_rate < 1%")) == set()
    assert find_touching_signals(
        ClientVerdict(DEGRADED, ("late",)), parse_rule("ttft p95 < 1s")
    ) == {""}


def test_which_main_figures_are_not_in_doubt() -> None:
    assert list_unaffected_metrics(verdict(**TTFT_HIGH)) == ["ITL", "Request Latency", "throughput"]
    assert list_unaffected_metrics(verdict(**MERGED)) == ["throughput"]
    assert (
        list_unaffected_metrics(verdict(**LATE))
        == list_unaffected_metrics(ClientVerdict(INVALID, ("late",)))
        == []
    )


def test_the_reason_names_what_touches_the_rule() -> None:
    both = verdict(**MERGED, **GAPS_OFF)
    assert (
        explain_void_rule(both, parse_rule("ttft p95 < 1s"))
        == "the client verdict is DEGRADED: chunks came merged"
    )
    assert explain_void_rule(both, parse_rule("icl p95 < 1s")) == (
        "the client verdict is DEGRADED: chunks came merged, gaps of sentinel streams are off"
    )
