"""Rules that end a run: what is certain by pencil, what they say of a run that would fail, and how
often they are wrong."""

import math
import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples
from support.records import a_run, answered, failed

from locust_llm.controller.early_stop import (
    AT_RISK,
    BROKEN_SO_FAR,
    NO_VALUE,
    OK_SO_FAR,
    SURE,
    EarlyStop,
    ExceedanceCounts,
    LoadLeft,
    RuleStanding,
    ShareMonitor,
    certain_standard_errors,
    exceedance_evidence,
)
from locust_llm.controller.requests_in_flight import RequestsInFlight
from locust_llm.records.record import Record
from locust_llm.records.run_facts import BrokenRule
from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo.rules import FAIL, parse_rule, resolve_rules


def fed(
    rules: Iterable[str], records: Iterable[Record], first_wave: int = 0, goodput: str | None = None
) -> EarlyStop:
    abort = EarlyStop(resolve_rules(rules, None, goodput).readable, first_wave)
    for record in records:
        abort.add(record)
    return abort


def some(ttft_ms: float, count: int, **other: object) -> list[Record]:
    return [answered(ttft_ms, ttft_ms + 10, **other) for _ in range(count)]


def mixed(good: int, bad: int, slow_ms: float = 200) -> list[Record]:
    """Fast and slow ones spread evenly: they show no correlation."""
    slow_at = {round((i + 0.5) * (good + bad) / bad) for i in range(bad)} if bad else set()
    return [some(slow_ms if i in slow_at else 50, 1)[0] for i in range(good + bad)]


# -- the evidence ----------------------------------------------------------------------------------


def test_evidence_by_pencil() -> None:
    """One out of one beyond, where half may be: the mean of 2 p over p from 0.5 to 1 is 1.5. None
    out of one: 0.5."""
    assert math.exp(exceedance_evidence(1, 1, 0.5)) == pytest.approx(1.5)
    assert math.exp(exceedance_evidence(0, 1, 0.5)) == pytest.approx(0.5)
    assert exceedance_evidence(1, 7, 0.0) == math.inf
    assert exceedance_evidence(0, 7, 0.0) == 0
    assert exceedance_evidence(7, 7, 1.0) == -math.inf


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("count", [1, 10, 200])
def test_where_the_share_is_just_what_may_be_the_mean_of_the_evidence_is_one(
    share: float, count: int
) -> None:
    logs = [
        math.log(math.comb(count, k))
        + k * math.log(share)
        + (count - k) * math.log(1 - share)
        + exceedance_evidence(k, count, share)
        for k in range(count + 1)
    ]
    assert sum(map(math.exp, logs)) == pytest.approx(1)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_a_rule_that_holds_is_seldom_called_broken_however_often_one_looks(share: float) -> None:
    """Every path of 300 requests, a look after each: those that ever reach the limit are less than
    one in forty."""
    ways = {0: 1.0}
    ever = 0.0
    for count in range(1, 301):
        following: dict[int, float] = {}
        for beyond, probability in ways.items():
            following[beyond] = following.get(beyond, 0.0) + probability * (1 - share)
            following[beyond + 1] = following.get(beyond + 1, 0.0) + probability * share
        ways = {}
        for beyond, probability in following.items():
            if beyond > share * count and exceedance_evidence(beyond, count, share) >= math.log(
                SURE
            ):
                ever += probability
            elif probability > 1e-15:
                ways[beyond] = probability
    assert 0 < ever < 1 / SURE


# -- rules -----------------------------------------------------------------------------------------


def test_a_percentile_is_broken_from_the_requests_on_that_show_their_correlation() -> None:
    """64 of 128 beyond, where 12.8 may be, leave no doubt: one fewer is not looked at."""
    rule = "abort: ttft p90 < 100ms"
    assert fed([rule], mixed(63, 64)).broken() is None
    said = str(fed([rule], mixed(64, 64)).broken())
    assert said == "abort: ttft p90 < 100ms is broken: 64 of 128 beyond the limit; 10% allowed"
    assert fed([rule], mixed(120, 8)).broken() is None


def test_what_comes_in_one_long_wave_is_worth_few_requests() -> None:
    """The same 64 of 128, one after the other: a queue that filled once, and may have emptied."""
    rule = "abort: ttft p90 < 100ms"
    assert not fed([rule], some(50, 64) + some(200, 64)).broken()
    assert fed([rule], some(200, 128)).broken()


def test_a_failure_is_beyond_every_latency_but_not_beyond_a_wait() -> None:
    records = [failed(admitted_at=10.0, connect_s=0.001) for _ in range(40)]
    assert fed(["abort: ttft p90 < 9s"], records).broken()
    assert fed(["abort: output_tokens_per_s_per_user p10 > 1"], records).broken()
    assert not fed(["abort: gate_wait p90 < 9s"], records).broken()
    assert not fed(["abort: rtt p90 < 9s"], records).broken()


def test_throughput_a_user_has_its_bad_end_below() -> None:
    """10 ms a token: 100 a second."""
    records = some(50, 128)
    assert fed(["abort: output_tokens_per_s_per_user p10 > 150"], records).broken()
    assert not fed(["abort: output_tokens_per_s_per_user p10 > 50"], records).broken()


def test_shares() -> None:
    bad = [answered(20), failed()] * 64
    assert str(fed(["abort: error_rate < 10%"], bad).broken()).startswith(
        "abort: error_rate < 10% is broken: 64 of 128"
    )
    assert not fed(["abort: error_rate < 40%"], bad).broken()
    slow = mixed(64, 64)
    assert fed(["abort: attainment >= 90% given ttft < 100ms"], slow).broken()
    assert not fed(["abort: attainment >= 90% given ttft < 300ms and itl < 11ms"], slow).broken()
    assert fed(["abort: attainment >= 90%"], slow, goodput="time_to_first_token:100").broken()
    assert not fed(["abort: attainment < 90% given ttft < 100ms"], slow).broken()
    assert fed(["abort: attainment < 10% given ttft < 100ms"], slow).broken()


def died(at_s: float, back_s: float = math.inf) -> Iterator[tuple[float, Record]]:
    """Of a minute, each second: three requests that are answered until ``at_s`` and from ``back_s``
    on, and are refused between."""
    for second in range(60):
        sent_at = float(second)
        lost = at_s <= second < back_s
        one = failed("refused", sent_at) if lost else answered(20, 1000, sent_at=sent_at)
        for _ in range(3):
            yield sent_at + 1, one


def broken_at(
    rule: str, load: Iterable[tuple[float, Record]], lasts_s: float | None = None
) -> float | None:
    """The second at which the rule ends a run of this length, looked at each second. None: it is
    not known when the run ends."""
    now_s = [0.0]

    def find_left() -> LoadLeft:
        return LoadLeft(None if lasts_s is None else lasts_s - now_s[0])

    abort = EarlyStop([parse_rule(rule)], find_left=find_left)
    for ended_at, record in load:
        now_s[0] = ended_at
        abort.add(record)
        if abort.broken():
            return ended_at
    return None


@pytest.mark.parametrize("rule", ["abort: error_rate < 5%", "abort: ttft p95 < 1s"])
def test_a_server_that_died_breaks_a_rule_when_it_was_silent_for_longer_than_it_answered(
    rule: str,
) -> None:
    """It answered for 20 s, so the failures count one by one after 20 s of silence."""
    assert broken_at(rule, died(20)) == 40


def test_a_silence_of_less_than_ten_seconds_breaks_nothing() -> None:
    """It answered for 4 s only."""
    assert broken_at("abort: error_rate < 5%", died(4)) == 14
    assert broken_at("abort: error_rate < 5%", died(30, back_s=39), 60) is None


@pytest.mark.parametrize("rule", ["abort: error_rate < 5%", "abort: ttft p95 < 1s"])
@pytest.mark.parametrize("at_s", [20, 30, 40, 50])
def test_a_server_that_died_late_breaks_a_rule_that_the_rest_of_the_run_cannot_mend(
    rule: str, at_s: float
) -> None:
    """After 10 s without an answer 30 requests have failed. If it came back, at most 9 a second would
    follow: of 60 s with 3 a second that died at 20 s, 90 + 270. Half as many again as 5% of these
    are 27."""
    assert broken_at(rule, died(at_s), 60) == at_s + 10


def test_the_rest_of_a_run_may_mend_a_rule() -> None:
    """Of an hour 5% may fail: 30 of 120 + 9 x 3560 are few. Of a minute 20% may: 3 x 22 of
    156 + 9 x 8 are no more than 0.3 times 228, and 3 x 23 of 159 + 9 x 7 are."""
    assert broken_at("abort: error_rate < 5%", died(30), 3600) == 60  # silent as long as before
    assert broken_at("abort: error_rate < 20%", died(30), 60) == 53
    assert broken_at("abort: error_rate < 90%", died(30), 60) is None
    assert broken_at("abort: itl avg < 2s", died(30), 60) is None


def test_a_hanging_server_breaks_a_rule_on_a_latency_by_what_is_under_way() -> None:
    """100 requests were answered. 16 of the 166 at the end are under way for longer than the limit,
    and half as many again as 5% are 12.45."""
    left, silent_s = LoadLeft(requests=50), [9.0]
    sends = RequestsInFlight()
    abort = EarlyStop(
        [parse_rule("abort: ttft p95 < 1s")], sends=sends,
        find_left=lambda: left, find_silent_s=lambda: silent_s[0],
    )  # fmt: skip
    for record in some(50, 100):
        abort.add(record)
    sends.report("local", 0.0, admitted=0, over=0)
    sends.report("local", 1.0, admitted=16, over=0)
    sends.report("local", 20.0, admitted=16, over=0)
    assert abort.broken() is None
    silent_s[0] = 10.0
    assert str(abort.broken()).endswith(
        " is broken: 0 of 100 beyond the limit; 5% allowed; 16 in flight, 16 of them beyond the limit already; "
        "no answer for 10 s"
    )


def test_failures_with_a_status_of_the_server_are_no_missing_answers() -> None:
    """30 s of answers, then HTTP 500 alone: the server answers, and no request succeeds."""
    abort = EarlyStop([parse_rule("abort: error_rate < 20%")])
    for _, record in died(30):
        if record.failed:
            record = replace(record, outcome="http_status", status=500)
        abort.add(record)
    assert "; no request succeeded for " in str(abort.broken())
    assert "no answer" not in str(abort.broken())


def test_a_burst_of_failures_that_ends_breaks_nothing() -> None:
    """19 s of failures in a row after 20 s of answers are one burst, as are 9 s after 4 s."""
    assert broken_at("abort: error_rate < 5%", died(20, back_s=39)) is None
    assert broken_at("abort: error_rate < 5%", died(4, back_s=13)) is None
    assert broken_at("abort: error_rate < 90%", died(20)) is None
    assert broken_at("abort: itl avg < 2s", died(20)) is None


def test_one_failure_of_few_is_no_share_yet() -> None:
    invalid = [answered(5, schema_valid=False), answered(5), failed()] * 100
    assert "schema_valid_rate > 50% is broken" in str(
        fed(["abort: schema_valid_rate > 50%"], invalid).broken()
    )
    assert not fed(
        ["abort: schema_valid_rate > 50%"], [answered(5, schema_valid=True), answered(5)] * 100
    ).broken()
    assert not fed(["abort: error_rate < 1%"], [failed()]).broken()
    assert not fed(["abort: error_rate < 1%"], [failed()] + [answered(5)] * 20).broken()


def test_a_condition_on_what_no_answer_has_breaks_nothing() -> None:
    """Not streamed: no first token, which is inconclusive, not broken. One token, though, is never
    too slow."""
    unstreamed = [answered(streamed=False, output_tokens=3)] * 40
    assert not fed(["abort: attainment >= 90% given ttft < 1s"], unstreamed).broken()
    mixed = [answered(5)] * 39 + [answered(5, 5000)]
    assert not fed(["abort: attainment >= 90% given itl < 1s"], mixed).broken()


def test_the_largest_and_the_smallest_decide_at_once() -> None:
    assert str(fed(["abort: ttft max < 100ms"], some(50, 3) + some(200, 1)).broken()) == (
        "abort: ttft max < 100ms is broken: 1 of 4 beyond the limit; none allowed"
    )
    assert fed(["abort: request_latency min > 100ms"], some(50, 1)).broken()
    assert fed(["abort: icl max < 20ms"], [answered(5, 15, 40)]).broken()
    assert not fed(["abort: icl max < 20ms"], [answered(5), answered(5, 15, 30)]).broken()


def test_an_average_is_broken_from_128_requests_on() -> None:
    rule = ["abort: ttft avg < 100ms"]
    slow = [answered(200 + i % 3) for i in range(128)]
    assert not fed(rule, slow[:127]).broken()
    assert str(fed(rule, slow).broken()) == (
        "abort: ttft avg < 100ms is broken: over 128 requests it is 201ms, and its interval lies "
        "beyond the limit"
    )
    in_seconds = str(fed(["abort: ttft avg < 0.1s"], slow).broken())
    assert "over 128 requests it is 201ms" in in_seconds  # as in the report
    assert not fed(rule, slow[:64] + some(1, 64)).broken()  # one long wave
    assert not fed(rule, [failed()] * 128).broken()  # failures are in no average


def test_an_average_lies_beyond_by_so_many_standard_errors() -> None:
    """Values of 90 and 120 ms by turns, 105 on average, with a standard deviation of 15: of 128,
    worth 85, by 4.55 of their errors beyond 97.6 ms and by 3.1 beyond 100."""
    assert certain_standard_errors(128 / 1.5) == pytest.approx(
        math.sqrt(2 * (1 + 50 / 85.3) * math.log(1 + 1.645 / 0.05)), rel=1e-3
    )
    turns = [answered(90 + 30 * (i % 2)) for i in range(128)]
    assert not fed(["abort: ttft avg < 100ms"], turns).broken()
    assert fed(["abort: ttft avg < 97.6ms"], turns).broken()
    assert not fed(["abort: ttft avg < 106ms"], turns).broken()


def test_a_queue_that_fills_counts_in_full() -> None:
    """Each request 2 ms slower than the one before: from the 50th on beyond 100 ms, 111 of 160, all
    in one wave."""
    filling = [answered(2 * (i + 1)) for i in range(160)]
    for rule in (
        "ttft p50 < 100ms",
        "ttft p95 < 100ms",
        "ttft avg < 100ms",
        "attainment > 90% given ttft < 100ms",
    ):
        assert fed([f"abort: {rule}"], filling).broken(), rule
        assert not fed([f"abort: {rule}"], filling[::-1]).broken(), rule
    slower = [answered(5, 5 + 1000 / (100 - i / 2)) for i in range(128)]
    assert fed(["abort: output_tokens_per_s_per_user p10 > 80"], slower).broken()


def queue(load: float, count: int, seed: int) -> Iterator[Record]:
    """How long requests are in an M/M/1 queue with a mean service of 1 ms, from its steady state
    on."""
    draw = random.Random(seed)
    wait = draw.expovariate(1 - load) if load < 1 and draw.random() < load else 0.0
    for _ in range(count):
        inside = wait + draw.expovariate(1)
        yield answered(inside)
        wait = max(inside - draw.expovariate(load), 0.0)


def test_a_queue_at_95_percent_is_seldom_called_broken_where_the_limit_is_the_truth() -> None:
    """20 ln 2 = 13.86 ms is its median, and 20 its mean: 20 runs of 1,000 requests, a look every
    50."""
    wrong = dict.fromkeys(
        ("ttft p50 < 13.86ms", "ttft avg < 20ms", "attainment > 50% given ttft < 13.86ms"), 0
    )
    for seed in range(20):
        stops = {rule: fed([f"abort: {rule}"], []) for rule in wrong}
        called = set()
        for i, record in enumerate(queue(0.95, 1000, seed), 1):
            for rule, stop in stops.items():
                stop.add(record)
                if i % 50 == 0 and stop.broken():
                    called.add(rule)
        for rule in called:
            wrong[rule] += 1
    assert max(wrong.values()) <= 2, wrong


def test_gaps_are_averaged_request_by_request() -> None:
    """Of ten gaps one of 200 ms, the others of 10 ms: a tenth beyond 100 ms, 29 ms on average."""
    us = [answered(*[10 * i for i in range(1, 11)], 300.0) for _ in range(128)]
    assert fed(["abort: icl p95 < 100ms"], us).broken()
    assert not fed(["abort: icl p85 < 100ms"], us).broken()
    assert fed(["abort: icl avg < 28ms"], us).broken()
    assert not fed(["abort: icl avg < 30ms"], us).broken()


def test_only_the_requests_that_a_rule_selects() -> None:
    both = zip(
        some(200, 128, user_class="Long", turn=1, input_tokens=2000),
        some(50, 128, user_class="Short"),
        strict=True,
    )
    slow = [record for pair in both for record in pair]
    for where in ("class=Short", "turn=first", "input=..1k", "name=other"):
        assert not fed([f"abort: ttft{{{where}}} p90 < 100ms"], slow).broken()
    for where in (
        "class=Long",
        "turn=later",
        "input=1k..4k",
        "name=chat",
        "class=Long, input=2000",
    ):
        assert fed([f"abort: ttft{{{where}}} p90 < 100ms"], slow).broken()


def test_what_does_not_count() -> None:
    rule = ["abort: ttft p90 < 100ms", "abort: error_rate < 1%"]
    for other in ({"phase": "warmup"}, {"outcome": "cut"}, {"outcome": "cancelled"}):
        assert not fed(rule, some(200, 60, **other)).broken()


def test_the_first_wave_is_left_out_but_one_value_counts_all_the_same() -> None:
    wave = [answered(200, 210, user=user) for user in range(128)]
    assert fed(["abort: ttft p90 < 100ms"], wave).broken()
    assert not fed(["abort: ttft p90 < 100ms"], wave + some(50, 128), first_wave=128).broken()
    assert fed(["abort: ttft max < 100ms"], wave[:1], first_wave=128).broken()


def test_only_rules_that_say_abort_end_a_run_and_all_that_decide_are_told() -> None:
    rules = [
        "ttft p90 < 100ms",
        "warn: ttft p90 < 1ms",
        "request_latency max < 1s",
        "requests_per_s > 1e9",
        "itl p9 < 1s",
    ]
    abort = fed(rules, some(200, 40))
    assert abort.broken() is None
    assert abort.standing() == RuleStanding(broken=1, known=3, later=1, all=4)
    assert fed(rules, []).standing() == RuleStanding(broken=0, known=0, later=1, all=4)


@pytest.mark.parametrize(
    "text",
    ["requests_per_s > 5", "goodput > 5 given ttft < 1s", "output_tokens_per_s > 5",
        "delivered > 98%", "ttft max > 1s",
     "ttft min < 1s"],
)  # fmt: skip
def test_what_can_be_met_until_the_end_cannot_abort(text: str) -> None:
    assert not parse_rule(text).early
    assert list(validate_settings(Settings(slo=(text,)))) == []
    (said,) = validate_settings(Settings(slo=(f"abort: {text}",)))
    assert said.startswith(f"SLO 'abort: {text}': ")
    assert said.endswith(
        "can still meet the limit until the end of the run: leave out abort:, the rule is judged "
        "then"
    )


# -- against the judgement of the whole run --------------------------------------------------------

RULES = (
    "ttft p50 < 100ms", "ttft p95 < 150ms", "itl p90 <= 12ms", "request_latency p80 > 120ms",
    "error_rate < 5%",
    "attainment >= 80% given ttft < 150ms and itl < 12ms", "ttft avg < 90ms", "ttft max < 300ms",
    "late p90 < 4ms",
    "output_tokens_per_s_per_user p20 >= 90", "ttft{class=A} p75 < 120ms",
    "attainment{turn=later} < 30% given ttft < 1s",
)  # fmt: skip


@pytest.mark.slow
@given(st.integers(0, 10**9), st.floats(20, 250), st.sampled_from([0.0, 0.03, 0.3]))
@example(794, 20.0, 0.0)  # an interval of 73.4 to 90.3 for a limit of 90
@examples(12)
def test_what_is_called_broken_fails(seed: int, ttft_ms: float, failing: float) -> None:
    """The run is held to end the moment that a rule is broken: the judgement of what came until
    then says FAIL."""
    draw = random.Random(seed)
    aborts = {text: fed([f"abort: {text}"], []) for text in RULES}
    records: list[Record] = []
    at: dict[str, int] = {}
    for i in range(200):
        other = {
            "user_class": draw.choice("AB"),
            "turn": draw.choice((0, 1)),
            "sent_at": 10.0 + i / 10,
            "id": str(i),
        }
        first = draw.expovariate(1 / ttft_ms)
        ok = answered(
            first,
            first + draw.uniform(5, 15),
            due_at=10.0 + i / 10 - draw.uniform(0, 0.006),
            **other,
        )
        records.append(failed(**other) if draw.random() < failing else ok)
        for text, abort in aborts.items():
            abort.add(records[-1])
            if text not in at and abort.broken():
                at[text] = i + 1
    for count in sorted(set(at.values())):
        # as early_stop writes them: with the unit of the limit
        broken = tuple(str(parse_rule(f"abort: {text}")) for text in at if at[text] == count)
        ended = replace(
            a_run(slo=broken),
            broken_rules=tuple(BrokenRule(rule=text, why="it was counted") for text in broken),
        )
        results = summarise_run(collect_columns(records[:count]), ended, 0, records[:count]).slos
        assert [result.status for result in results] == [FAIL] * len(broken), (
            broken,
            count,
            results,
        )


def test_nothing_is_asked_of_the_formula_while_the_count_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look costs nothing in a run of a million requests that goes well."""
    monkeypatch.setattr(
        "locust_llm.controller.early_stop.exceedance_evidence",
        lambda *counts: pytest.fail("it was asked"),
    )
    count = ShareMonitor(0.05, 1)
    for _ in range(100):
        count.add(False)
    assert not count.broken()


def test_requests_under_way_stand_beside_those_that_are_counted() -> None:
    """All 221 that are over are beyond the limit; of the 6 others nothing is known, or that they
    are late too."""
    count = ShareMonitor(0.05, 1)
    for _ in range(221):
        count.add(True)
    count.broken(open_=6)
    assert str(count) == "221 of 221 beyond the limit; 5% allowed; 6 in flight"
    count.broken(open_=6, beyond=2)
    assert (
        str(count)
        == "221 of 221 beyond the limit; 5% allowed; 6 in flight, 2 of them beyond the limit already"
    )
    count.broken()
    assert str(count) == "221 of 221 beyond the limit; 5% allowed"


def test_progress_counts_the_first_requests_that_are_left_out() -> None:
    stop = fed(["ttft p50 < 150ms", "ttft max < 500ms"], [*some(100, 5)], first_wave=1)
    progress = stop.progress()
    half = ExceedanceCounts(over=0, done=4, allowed=0.5, what="beyond the limit")
    assert progress["ttft p50 < 150ms"] == (OK_SO_FAR, half, 1)
    none = ExceedanceCounts(over=0, done=5, allowed=0.0, what="beyond the limit")
    assert progress["ttft max < 500ms"] == (OK_SO_FAR, none, 0)


def test_progress_by_pencil() -> None:
    texts = (
        "ttft p50 < 150ms",
        "ttft p50 < 110ms",
        "ttft max < 150ms",
        "ttft avg < 1s",
        "goodput >= 1/s given ttft < 1s",
    )
    abort = EarlyStop([parse_rule(text) for text in texts])
    assert {text: known.state for text, known in abort.progress().items()} == dict.fromkeys(
        texts[:4], NO_VALUE
    )
    for ms in (100, 120, 200):
        abort.add(answered(ms))
    progress = abort.progress()
    assert progress["ttft p50 < 150ms"].state == OK_SO_FAR
    assert progress["ttft p50 < 150ms"].counts == (1, 3, 0.5, "beyond the limit", 0, 0)
    assert progress["ttft p50 < 110ms"].state == AT_RISK
    assert progress["ttft max < 150ms"].state == BROKEN_SO_FAR
    assert progress["ttft avg < 1s"] == (OK_SO_FAR, None, 0)
