"""Rule cards: the value now and so far, and the words of a rule, by pencil."""

import pytest
from support.records import answered, failed

from locust_llm.controller.early_stop import (
    AT_RISK,
    BROKEN_SO_FAR,
    NO_VALUE,
    OK_SO_FAR,
    EarlyStop,
    ExceedanceCounts,
    LoadLeft,
    RuleProgress,
)
from locust_llm.controller.run_progress import RunProgress
from locust_llm.records.record import Record
from locust_llm.slo.rules import parse_rule
from locust_llm.web.alerts import LiveMark
from locust_llm.web.rule_cards import (
    AT_THE_END,
    CANNOT_PASS,
    RuleBoard,
    RuleCard,
    can_no_longer_pass,
    describe_counts,
    make_final_card,
)


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def card_of(text: str, records: list[Record], clock: Seconds | None = None) -> RuleCard:
    """The card after these requests, one after the other at one moment."""
    rule = parse_rule(text)
    board, stop = RuleBoard([rule], clock or Seconds()), EarlyStop([rule])
    for record in records:
        board.add(record)
        stop.add(record)
    board.look(12.0, stop.progress())
    (card,) = board.cards()
    return card


def test_a_percentile_by_pencil() -> None:
    """20 first tokens after 10, 20, ..., 200 ms: p50 is 105, and 16 are not under 50 ms."""
    records = [answered(10.0 * rank) for rank in range(1, 21)]
    card = card_of("ttft p50 < 50ms", records)
    assert (card.name, card.now, card.so_far, card.limit) == (
        "TTFT p50 < 50 ms", "105 ms", "105 ms", "50 ms",
    )  # fmt: skip
    assert (card.state, card.since) == (AT_RISK, 12.0)
    assert card.counts == "16 of 20 over the limit, 50% allowed"
    assert card.share == 1.6


def test_failures_are_beyond_every_limit() -> None:
    records = [answered(10.0) for _ in range(8)] + [failed() for _ in range(2)]
    assert card_of("ttft p95 < 50ms", records).now == "no value"
    assert card_of("ttft p50 < 50ms", records).now == "10 ms"
    assert card_of("ttft avg < 50ms", records).now == "10 ms"
    errors = card_of("error_rate < 1%", records)
    assert (errors.name, errors.now, errors.state) == ("error rate < 1%", "20%", AT_RISK)
    assert errors.counts == "2 of 10 failed, 1% allowed"


def test_the_value_now_is_of_the_last_seconds() -> None:
    clock = Seconds()
    rule = parse_rule("ttft p50 < 1s")
    board = RuleBoard([rule], clock)
    board.add(answered(100.0))
    clock.now += 30
    board.add(answered(300.0))
    board.look(30.0, {})
    (card,) = board.cards()
    assert (card.now, card.so_far) == ("300 ms", "200 ms")
    clock.now += 30
    board.look(60.0, {})
    (card,) = board.cards()
    assert (card.now, card.so_far) == ("", "200 ms")


@pytest.mark.parametrize(("failures", "now"), [(0, "4.5 s"), (1, "4.55 s"), (9, "no value")])
def test_ttft_now_is_of_the_first_tokens_that_came(failures: int, now: str) -> None:
    """Three tokens came 4.4, 4.5 and 4.6 s after due, while requests end that had theirs after
    0.1 s. With one failure the median is between 4.5 and 4.6, with nine it is a failure."""
    clock = Seconds()
    stats = RunProgress(clock)
    rule = parse_rule("ttft_from_due p50 < 1s")
    board = RuleBoard([rule], clock, stats)
    for record in [answered(100.0)] * 5 + [failed()] * failures:
        board.add(record)
    stats.update("a", used=0, waiting=0, decoding=3, ttfts_from_due_s=(4.4, 4.5, 4.6))
    board.look(30.0, {})
    (card,) = board.cards()
    assert card.now == now


@pytest.mark.parametrize(("has_waits", "now"), [(False, "5.3 s"), (True, "4.5 s")])
def test_card_and_chart_have_the_same_ttft_of_the_last_seconds(has_waits: bool, now: str) -> None:
    """Three tokens came after 4.4, 4.5 and 4.6 s, and three requests have waited for 6, 7 and 8 s:
    the median of all six is 5.3 s. Where requests wait before they are sent, these waits are from
    due: the chart is, too."""
    clock = Seconds()
    stats = RunProgress(clock)
    board = RuleBoard([parse_rule("ttft p50 < 1s")], clock, stats, has_waits=lambda: has_waits)
    board.add(answered(100.0))
    ttfts_s, waits = (4.4, 4.5, 4.6), {600: 1, 700: 1, 800: 1}
    stats.update("a", used=0, waiting=0, decoding=3, ttfts_s=ttfts_s, awaited=waits)
    board.look(30.0, {})
    (card,) = board.cards()
    assert card.now == now
    if not has_waits:
        chart_ms = stats.first_token_ms(50, from_due=False)
        assert chart_ms is not None
        assert card.now == f"{chart_ms[0] / 1e3:g} s"


def test_a_rate_is_of_whole_and_recent_seconds() -> None:
    """One request a second with 5 tokens for 20 s."""
    clock = Seconds()
    rules = [parse_rule(text) for text in ("requests_per_s > 2/s", "output_tokens_per_s > 4/s")]
    board = RuleBoard(rules, clock)
    for _ in range(20):
        board.add(answered(10, 20, 30, 40, 50))
        clock.now += 1
    clock.now -= 0.001  # the last second is over but for a moment
    board.look(20.0, {})
    requests, tokens = board.cards()
    assert (requests.now, requests.state) == ("1/s", AT_RISK)
    assert (tokens.now, tokens.state) == ("5/s", OK_SO_FAR)


def test_selectors_and_conditions_choose_the_requests() -> None:
    records = [answered(100.0, name="chat"), answered(900.0, name="long"), failed(name="chat")]
    assert card_of("ttft{name=long} p50 < 1s", records).now == "900 ms"
    assert card_of("attainment >= 60% given ttft < 500ms", records).now == "33.3%"


def test_warmup_and_cut_requests_do_not_count() -> None:
    records = [answered(100.0, phase="warmup"), failed("cut"), failed("cancelled")]
    card = card_of("ttft p50 < 50ms", records)
    assert (card.now, card.state) == ("", NO_VALUE)


@pytest.mark.parametrize("text", ["ttft p95 within 5% of reports/base", "delivered >= 95%"])
def test_what_the_report_alone_knows_is_checked_at_the_end(text: str) -> None:
    assert card_of(text, [answered(100.0)]).state == AT_THE_END


def test_counts_in_words() -> None:
    counts = ExceedanceCounts(47, 77, 0.05, "beyond the limit", running=24, running_over=3)
    assert describe_counts(counts) == (
        "47 of 77 over the limit, 5% allowed; 24 running, 3 of them over the limit already"
    )
    none = ExceedanceCounts(0, 9, 0.0, "beyond the limit")
    assert describe_counts(none) == "0 of 9 over the limit, none allowed"


def test_running_requests_over_the_limit_put_a_rule_at_risk() -> None:
    """None of 48 is over the limit, and five of five that run are: 9.4% of 53, where 5% may be."""
    counts = ExceedanceCounts(0, 48, 0.05, "beyond the limit", running=5, running_over=5)
    assert counts.is_beyond_with_running
    assert not counts._replace(running_over=2).is_beyond_with_running  # 3.8%


def test_a_rule_can_no_longer_pass_where_too_few_requests_are_left() -> None:
    """31 of 400 are over the limit, and 5 % may be: of 410 at the end 20.5, half as many again are
    30.75; with 430 at the end 32.25."""
    counts = ExceedanceCounts(31, 400, 0.05, "beyond the limit", running=10)
    assert can_no_longer_pass(counts, 0)
    assert not can_no_longer_pass(counts, 20)
    assert not can_no_longer_pass(counts, None)
    assert not can_no_longer_pass(None, 0)
    assert not can_no_longer_pass(counts, 0, left_out=20)  # the first requests of 20 users
    assert can_no_longer_pass(
        ExceedanceCounts(1, 400, 0.0, "beyond the limit"), None
    )  # of a maximum


def test_a_queue_that_drains_was_broken_so_far_and_passes() -> None:
    """Of the first 200 requests each fifth is over the limit, certainly more than 5 %. In a run without an
    end 800 more within it make them 4 %, which the report passes."""
    rule = parse_rule("ttft p95 < 1s")
    board, stop = RuleBoard([rule], Seconds()), EarlyStop([rule])
    states = []
    for ms in ([2000.0] + [100.0] * 4) * 40 + [100.0] * 800:
        record = answered(ms)
        board.add(record)
        stop.add(record)
        board.look(1.0, stop.progress())
        states.append(board.cards()[0].state)
    assert CANNOT_PASS not in states
    assert BROKEN_SO_FAR in states
    assert states[-1] == OK_SO_FAR


def test_the_highest_rate_so_far_bounds_what_may_still_come() -> None:
    """2 requests a second for 10 s, so at most 3 x 2 x 20 = 120 in the 20 s that are left: of 140
    at the end 1.4 may fail, and half as many again are 2.1. Of a run of 2 s nobody knows."""
    rule = parse_rule("error_rate < 1%")
    text, board = str(rule), RuleBoard([rule], Seconds())

    def look(second: int, over: int) -> str:
        counts = ExceedanceCounts(over, 2 * second, 0.01, "failed")
        board.look(second, {text: RuleProgress(AT_RISK, counts)}, LoadLeft(20))
        return board.cards()[0].state

    for second in range(1, 11):
        for _ in range(2):
            board.add(answered(100.0))
        state = look(second, 4 if second == 2 else 0)
        assert state == AT_RISK
    assert (look(10, 2), look(10, 3)) == (AT_RISK, CANNOT_PASS)


def test_a_failing_rule_is_named_once_and_keeps_its_time() -> None:
    """It is over its limit from second 28 on, and certainly broken from 40 on."""
    rule = parse_rule("itl p95 < 60ms")
    text, clock = str(rule), Seconds()
    board = RuleBoard([rule], clock)
    counts = ExceedanceCounts(121, 171, 0.05, "beyond the limit")
    for now, state in ((20, OK_SO_FAR), (28, AT_RISK), (40, BROKEN_SO_FAR), (41, BROKEN_SO_FAR)):
        if now == 28:
            board.add(answered(100, 241))
        board.look(now, {text: RuleProgress(state, counts)})
        assert len(board.newly_failing()) == (now == 40)
    (alert,) = board.alerts([LiveMark(27, "40 users", "users", "the users went from 24 to 40")])
    assert alert.text == (
        "ITL p95 is clearly beyond its limit: 141 ms against 60 ms; 121 of 171 over the limit, 5% "
        "allowed. Beyond the limit since 0:28, after the users went from 24 to 40"
    )
    assert alert.since == 28


def test_a_warning_rule_is_no_alert() -> None:
    rule = parse_rule("warn: itl p95 < 60ms")
    board = RuleBoard([rule], Seconds())
    board.look(5, {str(rule): RuleProgress(BROKEN_SO_FAR)})
    assert board.alerts([]) == []


def test_the_card_of_an_ended_run() -> None:
    rule = parse_rule("ttft p95 < 1s")
    card = make_final_card(rule, str(rule), "INCONCLUSIVE", "812 ms", "too few requests")
    assert (card.name, card.state, card.now, card.limit, card.reason) == (
        "TTFT p95 < 1 s", "inconclusive", "812 ms", "1 s", "too few requests",
    )  # fmt: skip
    passed = make_final_card(None, "x", "PASS", "0%", "at most 910ms by the largest values")
    assert (passed.state, passed.now, passed.reason) == ("passed", "0%", "")
    failed = make_final_card(rule, str(rule), "FAIL", "1.2s", "at least 1.1s")
    assert (failed.now, failed.reason) == ("1.2 s", "at least 1.1 s")
