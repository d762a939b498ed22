"""Rules about a gateway: their grammar, and their verdicts by intervals and counts."""

import pytest
from msgspec.structs import replace

from locust_llm.lab.gateway.cancel_delay import BEFORE_FIRST, CancelDelay
from locust_llm.lab.gateway.gateway_result import (
    CANCELS,
    FAULTS,
    PARTS,
    AddedLevel,
    AddedTime,
    GatewayResult,
    StreamChange,
)
from locust_llm.lab.gateway.gateway_rules import judge_gateway_rules, parse_gateway_rule
from locust_llm.lab.gateway.hidden_failures import HIDDEN, KEPT, STREAMED, FaultVerdict


def added(
    p99_ms: float, low: float | None = None, high: float | None = None, samples: int = 500
) -> AddedTime:
    ends = None if low is None or high is None else (low, high)
    return AddedTime(
        quantity="ttft", samples=samples, p50_ms=p99_ms / 2, p99_ms=p99_ms, p50_interval_ms=ends,
        p99_interval_ms=ends,
    )  # fmt: skip


def result(*levels: AddedLevel, **more: object) -> GatewayResult:
    return GatewayResult(
        name="a",
        url="http://a",
        started="",
        version="",
        levels=levels,
        **more,  # type: ignore[arg-type]
    )


def judge(text: str, found: GatewayResult) -> tuple[str, str]:
    (verdict,) = judge_gateway_rules([parse_gateway_rule(text)], found)
    assert verdict.rule == text
    return verdict.verdict, verdict.value


def test_an_interval_decides() -> None:
    found = result(AddedLevel(streams=16, added=(added(4.0, 3.0, 5.0),)))
    assert judge("added_ttft p99 < 6ms", found) == ("PASS", "4 ms (3 ms to 5 ms) at 16 streams")
    assert judge("added_ttft p99 < 2ms", found)[0] == "FAIL"
    assert judge("added_ttft p99 < 0.002s", found)[0] == "FAIL"
    assert judge("added_ttft p99 < 4500us", found) == (
        "INCONCLUSIVE",
        "4 ms (3 ms to 5 ms) at 16 streams; run longer (-t)",
    )
    assert judge("added_ttft p50 <= 5ms", found)[0] == "PASS"
    assert judge("added_token p99 < 6ms", found) == ("INCONCLUSIVE", "not measured")


def test_without_an_interval_the_rule_names_what_would_give_one() -> None:
    few = result(AddedLevel(streams=1, added=(added(4.0, samples=99),)))
    assert judge("added_ttft p99 < 6ms", few) == (
        "INCONCLUSIVE",
        "4 ms at 1 stream, without an interval: p99 needs 100 values, there are 99; run longer "
        "(-t)",
    )
    without_load = replace(added(4.0, samples=99), quantity="setup")
    assert judge("added_setup p99 < 6ms", result(without_load=(without_load,))) == (
        "INCONCLUSIVE",
        "4 ms without load, without an interval: p99 needs 100 values, there are 99",
    )
    enough = result(AddedLevel(streams=1, added=(added(4.0, samples=100),)))
    assert judge("added_ttft p99 < 6ms", enough) == (
        "INCONCLUSIVE",
        "4 ms at 1 stream, without an interval",
    )


def test_a_p50_beyond_the_limit_breaks_a_rule_on_p99() -> None:
    """Of few values p99 has no interval, but it is not below p50, which is 20 to 21 ms."""
    few = replace(added(33.4, samples=55), p50_ms=20.6, p50_interval_ms=(20.0, 21.0))
    found = result(AddedLevel(streams=1, added=(few,)))
    assert judge("added_ttft p99 < 5ms", found) == (
        "FAIL",
        "33.4 ms at 1 stream; p50 alone is 20 ms to 21 ms",
    )
    assert judge("added_ttft p99 < 20.5ms", found)[0] == "INCONCLUSIVE"
    assert judge("added_ttft p99 > 5ms", found)[0] == "INCONCLUSIVE"


def test_a_rule_is_for_each_load_unless_it_names_some() -> None:
    found = result(
        AddedLevel(streams=16, added=(added(1.0, 0.9, 1.1),)),
        AddedLevel(streams=64, added=(added(9.0, 8.0, 9.9),)),
        AddedLevel(requests_per_s=50, added=(added(2.0, 1.9, 2.1),)),
    )
    assert judge("added_ttft p99 < 5ms", found) == ("FAIL", "9 ms (8 ms to 9.9 ms) at 64 streams")
    assert judge("added_ttft{streams=16} p99 < 5ms", found)[0] == "PASS"
    assert judge("added_ttft{streams=16..64} p99 < 5ms", found)[0] == "FAIL"
    assert judge("added_ttft{streams=100..} p99 < 5ms", found)[0] == "INCONCLUSIVE"


def test_a_rule_on_a_time_without_load() -> None:
    found = result(without_load=(replace(added(4.0, 3.0, 5.0), quantity="setup"),))
    assert judge("added_setup p99 < 6ms", found) == ("PASS", "4 ms (3 ms to 5 ms) without load")
    assert judge("added_embeddings p50 < 6ms", found) == ("INCONCLUSIVE", "not measured")


def test_counts() -> None:
    def verdict(kind: str) -> FaultVerdict:
        return FaultVerdict(
            fault="http_500", mode=STREAMED, verdict=kind, direct="", through="", trials=3,
            agreed=3, requests=1,
        )  # fmt: skip

    cancel = CancelDelay(
        moment=BEFORE_FIRST, sent=5, delays_ms=(1.0,), never=4, unknown=0, waited_s=3.0
    )
    change = StreamChange(kind="merged", what="", seen=3, of=20)
    found = result(
        faults=(verdict(KEPT), verdict(HIDDEN)), cancels=(cancel,), changes=(change,), parts=PARTS
    )
    assert judge("hidden_failures == 0", found) == ("FAIL", "1")
    assert judge("hidden_failures <= 1", found) == ("PASS", "1")
    assert judge("unseen_cancellations == 0", found) == ("FAIL", "4")
    assert judge("changed_streams == 0", found) == ("FAIL", "1")
    assert judge("lost_chunks == 0", replace(found, lost_chunks=7)) == ("FAIL", "7")
    assert judge("lost_chunks == 0", found) == ("INCONCLUSIVE", "not measured")
    assert judge("hidden_failures == 0", result()) == ("INCONCLUSIVE", "not measured")
    # what was not looked at holds no rule
    left_out = replace(verdict(KEPT), blocked_s=None)
    nothing = replace(cancel, sent=0, delays_ms=(), never=0)
    found = result(faults=(left_out,), cancels=(cancel, nothing), parts=(FAULTS, CANCELS))
    for rule in ("hidden_failures == 0", "unseen_cancellations == 0", "changed_streams == 0"):
        assert judge(rule, found) == ("INCONCLUSIVE", "not measured")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "is no rule"),
        ("ttft p99 < 5ms", "unknown metric ttft"),
        ("added_ttf p99 < 5ms", "did you mean added_ttft"),
        ("added_ttft p99 == 5ms", "cannot be compared with =="),
        ("added_ttft < 5ms", "needs p50 or p99 and a time"),
        ("added_ttft p95 < 5ms", "needs p50 or p99 and a time"),
        ("added_ttft p99 < 5", "needs p50 or p99 and a time"),
        ("hidden_failures p99 == 0", "is a count"),
        ("hidden_failures => 0", "cannot be compared with =>"),
        ("added_ttft{streams=a} p99 < 5ms", "is no rule"),
        ("added_ttft{streams=9..1} p99 < 5ms", "no value lies in"),
        ("added_setup{streams=9} p99 < 5ms", "takes no number of streams"),
    ],
)
def test_mistakes_are_explained(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_gateway_rule(text)
