"""The same figure of two runs: its difference, the interval of that, and rules that are held
against a base."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, every, failed, mixed

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, Run, Stage, write_run
from locust_llm.report.compare.condition_differences import load_run
from locust_llm.report.compare.metric_differences import (
    BETTER,
    FEW,
    SAME,
    WORSE,
    MetricChange,
    change_ends,
    difference_ends,
    measure_change,
    possible_ends,
    ratio_ends,
)
from locust_llm.report.load_records import collect_columns
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation, ObservedValue
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.write_report_files import write_reports
from locust_llm.slo.rules import SloResult, parse_rule


def a_folder(path: Path, records: Sequence[Record], run: Run | None = None) -> Path:
    """What is read again of a run's folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    run = run or a_run()
    write_run(path, run, client=summarise_run(collect_columns(records), run).client)
    return path


def seen(path: Path, records: Sequence[Record], run: Run | None = None) -> Evaluation:
    return load_run(a_folder(path, records, run)).seen


def steps(count: int, more_ms: float = 0.0, every_s: float = 1.0, **other: object) -> list[Record]:
    """A second apart, TTFT 101, 102, ... 110 ms as often each, in an order of no correlation, then
    a chunk each 10 ms."""
    return [
        answered(
            *(101 + rank % 10 + more_ms + 10 * k for k in range(3)),
            sent_at=10.0 + i * every_s,
            **other,
        )
        for i, rank in enumerate(mixed(count))
    ]


def drawn(count: int, seed: int, slower: float = 1.0) -> list[Record]:
    """A second apart, TTFT lognormal around 100 ms."""
    ttft_ms = np.random.default_rng(seed).lognormal(math.log(100), 0.3, count) * slower
    return [
        answered(round(ms, 3), round(ms, 3) + 20, sent_at=10.0 + i)
        for i, ms in enumerate(ttft_ms.tolist())
    ]


EVERY = (
    "ttft p50", "ttft p95", "itl p50", "ttft avg", "icl p90", "longest_stall p50",
    "request_latency p50",
    "requests_per_s", "output_tokens_per_s", "error_rate", "output_tokens_per_s_per_user p50",
    "attainment", "goodput",
)  # fmt: skip


def found(figure: str, base: Evaluation, here: Evaluation) -> MetricChange:
    """Of ``ttft p95``, say."""
    room = "1pp" if figure in ("error_rate", "attainment", "delivered") else "5%"
    given = " given ttft < 105ms" if figure in ("attainment", "goodput") else ""
    return measure_change(parse_rule(f"{figure} within {room} of base{given}"), base, here)


@pytest.mark.parametrize("figure", EVERY)
def test_a_run_differs_from_itself_by_nothing(figure: str, tmp_path: Path) -> None:
    one = seen(tmp_path, steps(100))
    same = found(figure, one, one)
    assert (same.difference, same.ratio, same.note) == (0, 1, "")
    assert same.ends is not None
    low, high = same.ends
    assert low is not None
    assert high is not None
    assert low <= 0 <= high
    assert (
        same.word(
            parse_rule(f"{figure} within 1pp of b" if figure == "error_rate" else "ttft p50 < 1s")
        )
        == SAME
    )


def test_what_is_shifted_is_shifted(tmp_path: Path) -> None:
    """Each TTFT of 101 to 110 ms is 10 ms longer: the standard deviation of a mean of 100 is 0.29
    ms, so that the difference is sure to 0.8 ms, and of a median to a little more."""
    base, slow = seen(tmp_path / "a", steps(100)), seen(tmp_path / "b", steps(100, 10))
    for figure in ("ttft p50", "ttft p95", "ttft avg", "request_latency p50"):
        slower = found(figure, base, slow)
        assert slower.difference == pytest.approx(0.01)
        assert slower.ends == pytest.approx((0.01, 0.01), abs=0.0015)
        assert slower.ends is not None
        assert slower.ends[0] is not None
        assert slower.ends[1] is not None
        assert slower.ends[0] <= 0.01 + 1e-9
        assert slower.ends[1] >= 0.01 - 1e-9
        assert slower.word(parse_rule("ttft p50 < 1s")) == WORSE
        assert found(figure, slow, base).word(parse_rule("ttft p50 < 1s")) == BETTER
    assert found("itl p50", base, slow).word(parse_rule("itl p50 < 1s")) == SAME
    average = found("ttft avg", base, slow).ends
    # 0.287 x hypot(1.919, 2.054), of the ratio up to 3 % more
    assert average == pytest.approx((0.01 - 0.00082, 0.01 + 0.00082), abs=3e-5)


def test_squares_of_both_reaches_add_up() -> None:
    """10 (8 to 13) and 20 (17 to 24): 10 - hypot(3, 3) to 10 + hypot(4, 2); of the ratio the same
    in logarithms."""
    old, new = ObservedValue(10.0, (8.0, 13.0)), ObservedValue(20.0, (17.0, 24.0))
    assert difference_ends(old, new) == pytest.approx((10 - math.sqrt(18), 10 + math.sqrt(20)))
    low, high = ratio_ends(old, new)
    assert low == pytest.approx(2 / math.exp(math.hypot(math.log(20 / 17), math.log(1.3))))
    assert high == pytest.approx(2 * math.exp(math.hypot(math.log(1.2), math.log(1.25))))
    exact = ObservedValue(20.0, (20.0, 20.0))
    assert difference_ends(old, exact) == pytest.approx((20 - 13, 20 - 8))
    assert ratio_ends(old, exact) == pytest.approx((20 / 13, 20 / 8))


@pytest.mark.parametrize(
    ("rule", "old", "new", "low", "high"),
    [
        # a fall: of the difference -5 - hypot(1, 2.5) to -5 + hypot(1.25, 2), which hold
        # 10 (0.5 e^-0.316 - 1) to 10 (0.5 e^0.316 - 1) of the ratio, 0.316 = hypot(ln 1.25, ln 1.25)
        ("ttft p50", (10.0, 8.0, 12.5), (5.0, 4.0, 6.25), -7.693, -2.642),
        # a rise: of the ratio 10 (3 e^-0.1348 - 1) to 10 (3 e^0.1348 - 1), 0.1348 = hypot(ln 1.1,
        # ln 1.1); they hold 20 - hypot(2.73, 1) to 20 + hypot(3, 0.91)
        ("ttft p50", (10.0, 10 / 1.1, 11.0), (30.0, 30 / 1.1, 33.0), 16.217, 24.329),
        # -1 - hypot(2, 16) is more than all that was there: the value cannot fall below 0
        ("ttft p50", (4.0, 3.0, 20.0), (3.0, 1.0, 6.0), -4.0, 2.354),
        # the base may be 0.001, so no ratio has an end: 1 - hypot(1, 0.5) to 1 + hypot(1, 0.999)
        ("gate_wait p50", (1.0, 0.001, 1.5), (2.0, 1.0, 3.0), -0.118, 2.414),
        # of a share 0.3 - hypot(0.1, 0.1), up to 1
        ("error_rate", (0.6, 0.5, 0.7), (0.9, 0.8, 1.0), 0.1586, 0.4),
        ("ttft p50", (10.0, 8.0, 13.0), (20.0, 17.0, math.inf), 3.077, math.inf),
    ],
)  # fmt: skip
def test_a_change_has_one_interval(
    rule: str,
    old: tuple[float, float, float],
    new: tuple[float, float, float],
    low: float,
    high: float,
) -> None:
    unit = "1pp" if rule == "error_rate" else "1%"
    base, here = (ObservedValue(one[0], one[1:]) for one in (old, new))
    ends, of_ratio = change_ends(base, here, parse_rule(f"{rule} within {unit} of base"))
    assert ends == pytest.approx((low, high), abs=0.001)
    assert of_ratio == pytest.approx((1 + low / old[0], 1 + high / old[0]), abs=0.001)


def test_no_end_takes_the_other_figure_below_nothing_or_a_share_above_all() -> None:
    time, share = (
        parse_rule("ttft p50 within 5% of base"),
        parse_rule("attainment within 5pp of base given ttft < 1s"),
    )
    assert possible_ends((-0.078, 0.008), 0.054, time) == (-0.054, 0.008)
    assert possible_ends((-0.078, 1.2), 0.1, time) == (-0.078, 1.2)
    assert possible_ends((-0.02, 0.04), 0.99, share) == (-0.02, pytest.approx(0.01))


def test_what_cut_requests_leave_open_is_open_in_the_difference() -> None:
    """Here 20 to 30, whatever the cut ones become, (17 to 34): from 20 - 10 - hypot(3, 3) to 30 -
    10 + hypot(4, 2)."""
    old, new = ObservedValue(10.0, (8.0, 13.0)), ObservedValue(20.0, (17.0, 34.0), worst=30.0)
    assert difference_ends(old, new) == pytest.approx((10 - math.sqrt(18), 20 + math.sqrt(20)))
    endless = ObservedValue(20.0, (17.0, math.inf), worst=math.inf)
    assert difference_ends(old, endless) == (4.0, math.inf)
    assert ratio_ends(old, endless) == (pytest.approx(17 / 13), math.inf)
    nothing = ObservedValue(0.0, (0.0, 1.0))
    assert difference_ends(nothing, nothing) == pytest.approx((-1, 1))
    assert ratio_ends(nothing, nothing) == (0.0, math.inf)


def by_users(path: Path, seconds: float) -> Evaluation:
    """20 users, 0.8 s a request: one is sent each 0.04 s."""
    sends = [0.04 * i for i in range(round(seconds / 0.04))]
    return seen(path, [answered(400, 800, sent_at=10.0 + at) for at in sends])


def test_rates_of_like_runs_are_alike_whatever_their_start(tmp_path: Path) -> None:
    """Both are 24.4 a second with their start and their end, 25 between them; of 120 s it is 24.8
    with them."""
    one, same = by_users(tmp_path / "a", 30.0), by_users(tmp_path / "b", 30.0)
    longer = by_users(tmp_path / "c", 120.0)
    for other in (same, longer):
        change = found("requests_per_s", one, other)
        assert change.ratio_ends is not None
        assert change.ratio_ends == pytest.approx((1.0, 1.0), abs=0.03)
        assert change.ends == pytest.approx((0.0, 0.0), abs=0.7)
    assert found("requests_per_s", one, longer).ratio == pytest.approx(
        (3000 / 120.76) / (750 / 30.76)
    )


def test_less_is_worse_of_rates_and_shares(tmp_path: Path) -> None:
    """One of two tokens is missing, and then one of two requests fails."""
    base, short = (
        seen(tmp_path / "a", steps(100)),
        seen(tmp_path / "b", steps(100, output_tokens=1)),
    )
    less = found("output_tokens_per_s", base, short)
    assert less.ratio == pytest.approx(1 / 3)
    assert less.ratio_ends == pytest.approx((1 / 3, 1 / 3), rel=0.06)
    assert less.word(parse_rule("output_tokens_per_s > 1")) == WORSE
    broken = seen(
        tmp_path / "c", [r if i % 2 else failed(sent_at=10.0 + i) for i, r in enumerate(steps(100))]
    )
    assert found("requests_per_s", base, broken).word(parse_rule("requests_per_s > 1")) == WORSE
    errors = found("error_rate", base, broken)
    assert errors.difference == 0.5
    assert errors.word(parse_rule("error_rate < 1%")) == WORSE
    assert found("error_rate", broken, base).word(parse_rule("error_rate < 1%")) == BETTER


def test_chance_and_what_is_more_than_chance(tmp_path: Path) -> None:
    base = seen(tmp_path / "a", drawn(400, 1))
    again, slow = seen(tmp_path / "b", drawn(400, 2)), seen(tmp_path / "c", drawn(400, 3, 1.3))
    rule = parse_rule("ttft p50 < 1s")
    for p in (50, 95, 99):
        assert found(f"ttft p{p}", base, again).word(rule) == SAME
    slower = found("ttft p50", base, slow)
    assert slower.word(rule) == WORSE
    assert slower.ratio_ends is not None
    low, high = slower.ratio_ends
    assert low is not None
    assert high is not None
    assert 1.1 < low < 1.3 < high < 1.5
    assert found("ttft p50", base, slow) == slower  # the same folders, the same interval


def test_less_than_a_hundredth_is_hardly_a_difference(tmp_path: Path) -> None:
    """99, 100 or 101 ms here, 0.5 ms more there: of 900 sure enough."""

    def around(ms: float) -> list[Record]:
        return [
            answered(ms + rank % 3, ms + rank % 3 + 10, sent_at=10.0 + i)
            for i, rank in enumerate(mixed(900))
        ]

    base, slow = seen(tmp_path / "a", around(99)), seen(tmp_path / "b", around(99.5))
    assert found("ttft avg", base, slow).word(parse_rule("ttft avg < 1s")) == "hardly worse"
    assert found("ttft avg", slow, base).word(parse_rule("ttft avg < 1s")) == "hardly better"
    twice = seen(tmp_path / "c", around(101.5))
    assert found("ttft avg", base, twice).word(parse_rule("ttft avg < 1s")) == WORSE


def test_a_rate_of_few_requests_is_told_apart_only_where_it_is_clear(tmp_path: Path) -> None:
    """16 requests have 4 / sqrt(16) = 1 as the reach of their logarithm, a factor of e. A fifth of
    the base's rate is 0.2 / e to 0.2 e = 0.07 to 0.54 of it; half of it is 0.18 to 1.36."""
    rule = parse_rule("requests_per_s within 5% of base")
    base = seen(tmp_path / "base", steps(400, every_s=0.2))
    fifth = seen(tmp_path / "fifth", steps(16, every_s=1.0))
    half = seen(tmp_path / "half", steps(16, every_s=0.4))
    clear, open_ = (found("requests_per_s", base, here) for here in (fifth, half))
    assert clear.word(rule) == WORSE
    assert clear.ratio_ends is not None
    assert clear.ratio_ends == pytest.approx((0.2 / math.e, 0.2 * math.e), rel=0.08)
    assert open_.word(rule) == SAME
    seven = seen(tmp_path / "seven", steps(7, every_s=10.0))
    assert found("requests_per_s", base, seven).word(rule) == FEW


def in_waves(path: Path, waves: int) -> Evaluation:
    """10 users, 2.5 s a request, all at the same time."""
    sends = [2.5 * wave for wave in range(waves) for _ in range(10)]
    return seen(path, [answered(500, 2500, sent_at=10.0 + at) for at in sends])


def test_runs_that_are_too_short_for_a_rate_are_named(tmp_path: Path) -> None:
    """Four waves take 10 s. Between the first answers and the last send, 5 s, 30 requests end;
    32 take 5.33 s, so the run takes 10.33 s, written as 20 s."""
    short, same = in_waves(tmp_path / "a", 4), in_waves(tmp_path / "b", 4)
    for figure in ("requests_per_s", "output_tokens_per_s"):
        change = found(figure, short, same)
        assert (change.difference, change.ends, change.ratio_ends) == (
            0.0,
            (None, None),
            (None, None),
        )
        assert change.word(parse_rule("requests_per_s > 1")) == FEW
        assert change.note == "too short for a rate: 10 s in the base, 10 s here; at least 20 s"
    longer = in_waves(tmp_path / "c", 8)
    assert found("requests_per_s", longer, longer).word(parse_rule("requests_per_s > 1")) == SAME
    silent = seen(tmp_path / "d", [failed(sent_at=10.0 + i) for i in range(100)])
    assert found("requests_per_s", longer, silent).word(parse_rule("requests_per_s > 1")) == WORSE


def test_too_few_values_have_no_interval(tmp_path: Path) -> None:
    base = seen(tmp_path / "a", drawn(400, 1))
    seven = seen(tmp_path / "c", drawn(7, 2))
    least = "too few samples: its interval takes 8 requests, there are 7"
    few = found("ttft avg", seven, base)
    assert (few.ends, few.note, few.word(parse_rule("ttft avg < 1s"))) == (
        (None, None),
        f"in the base, {least}",
        FEW,
    )
    of_median = "too few samples: an interval of p50 needs 8 requests, there are 7"
    assert found("icl p50", base, seven).note == f"here, {of_median}"


def test_what_is_absent_cannot_be_compared(tmp_path: Path) -> None:
    base = seen(tmp_path / "a", steps(20))
    none = seen(tmp_path / "b", [answered(5, sent_at=10.0 + i) for i in range(20)])
    missing = found("itl p50", base, none)
    assert (missing.difference, missing.note) == (
        None,
        "here, it is absent: no request has a value of itl",
    )
    assert missing.word(parse_rule("itl p50 < 1s")) == "-"
    assert (
        found("icl p50", none, base).note
        == "in the base, no request has two chunks with exact timestamps"
    )


def test_a_percentile_that_lands_on_a_failure(tmp_path: Path) -> None:
    """A tenth of the requests fails: p95 lands on a failure, p50 does not."""
    base = seen(tmp_path / "a", steps(200))
    broken = seen(
        tmp_path / "b", every(20, steps(200), [failed(sent_at=10.0 + i) for i in range(200)])
    )
    rule = parse_rule("ttft p95 < 1s")
    lands = found("ttft p95", base, broken)
    assert (lands.difference, lands.ratio, lands.word(rule)) == (math.inf, math.inf, WORSE)
    assert found("ttft p95", broken, base).word(rule) == BETTER
    assert found("ttft p95", broken, broken).word(rule) == SAME
    assert found("ttft p50", base, broken).difference == pytest.approx(0.0, abs=0.002)


def test_shares_of_none_are_as_uncertain_as_independent_requests(tmp_path: Path) -> None:
    """No failure in 100 requests: at most 1 - 0.025 ** (1 / 100) failed, on either side."""
    one = seen(tmp_path, steps(100))
    most = 1 - 0.025 ** (1 / 100)
    assert found("error_rate", one, one).ends == pytest.approx((-most, most), rel=1e-3)


def test_pooled_gaps(tmp_path: Path) -> None:
    """By turns requests with gaps of 10 and of 30 ms: 20 on average; the others twice that."""
    base = seen(tmp_path / "a", [answered(1, *(1 + g * k for k in range(1, 31)), sent_at=10.0 + i)
                                 for i, g in enumerate([10, 30] * 100)])  # fmt: skip
    slow = seen(tmp_path / "b", [answered(1, *(1 + g * k for k in range(1, 31)), sent_at=10.0 + i)
                                 for i, g in enumerate([20, 60] * 100)])  # fmt: skip
    twice = found("icl avg", base, slow)
    assert (twice.base.value, twice.here.value, twice.base.count) == (
        pytest.approx(0.02),
        pytest.approx(0.04),
        6000,
    )
    assert twice.ends == pytest.approx((0.02, 0.02), abs=0.001)
    assert twice.word(parse_rule("icl avg < 1s")) == WORSE


def test_the_gaps_of_few_requests_that_vary(tmp_path: Path) -> None:
    """399 requests have three gaps of 10 ms, the one in the middle ten of 400 ms: 0.8 % of the
    gaps, from one request. With another such one it were 1.6 %, so that p99 may be either."""
    some = [answered(1, 11, 21, 31, sent_at=10.0 + i) for i in range(400)]
    some[200] = answered(1, *(1 + 400 * k for k in range(1, 11)), sent_at=210.0)
    one = seen(tmp_path / "a", some)
    _, most = found("icl p99", one, one).ends or (None, None)
    assert most is not None
    assert most > 0.39
    # 10 requests have 30 gaps: p99 takes 100 of them
    short = seen(tmp_path / "b", some[:10])
    few = "in the base, too few samples: p99 of 30 gaps of 10 requests"
    assert found("icl p99", short, one).note == few


def test_what_was_delivered_is_a_fact(tmp_path: Path) -> None:
    run = replace(
        a_run(request_rate=1.0),
        offer=OpenLoopSchedule(due=100, never_started=0, duration_s=100.0, most_users=2),
    )
    base, late = seen(tmp_path / "a", steps(100), run), seen(tmp_path / "b", steps(90), run)
    less = found("delivered", base, late)
    assert (less.difference, less.ends) == (pytest.approx(-0.1), None)
    assert less.word(parse_rule("delivered > 1%")) == WORSE


# -- a rule that is held against a base ------------------------------------------------------------


def judged(rule: str, records: Sequence[Record]) -> SloResult:
    return summarise_run(collect_columns(records), a_run(slo=(rule,)), 0, records).slos[0]


@pytest.mark.parametrize(
    ("rule", "status", "observed"),
    [
        ("ttft p50 within 12% of base", "PASS", 100 * 10 / 105.5),
        ("ttft p50 within 8% of base", "FAIL", 100 * 10 / 105.5),
        ("ttft p50 within 12ms of base", "PASS", 10),
        ("ttft p50 within 8ms of base", "FAIL", 10),
        ("ttft avg within 0.011s of base", "PASS", 0.01),
        ("itl p50 within 0% of base", "PASS", 0),
        ("requests_per_s within 5% of base", "PASS", 0.01),
        ("error_rate within 1pp of base", "INCONCLUSIVE", 0),
        ("error_rate within 2pp of base", "INCONCLUSIVE", 0),
        ("error_rate within 4pp of base", "PASS", 0),
        ("warn: ttft p50 within 8% of base", "FAIL", 100 * 10 / 105.5),
        ("ttft{input=100} p50 within 8% of base", "FAIL", 100 * 10 / 105.5),
    ],
)
def test_by_how_much_a_run_is_worse_than_its_base(
    rule: str, status: str, observed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 100 requests take 10 ms longer; p50 of TTFT is 105.5 ms in the base. Of no failure in
    100 at most 3.8 %."""
    monkeypatch.chdir(tmp_path)
    a_folder(Path("base"), steps(100))
    result = judged(rule, steps(100, 10))
    assert (result.status, result.decides) == (status, not rule.startswith("warn"))
    assert result.observed == pytest.approx(observed, abs=0.01)
    if rule.startswith("ttft p50 within 8%"):
        assert result.reason == "115.5ms here, 105.5ms in base"
        assert (result.limit, result.unit, result.count) == (8, "%", 100)
        assert result.low == pytest.approx(observed, abs=1.5)
        assert result.high == pytest.approx(observed, abs=1.5)


def test_what_is_better_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_folder(Path("base"), steps(100, 10, 1.5))
    for rule in ("ttft p50 within 1% of base", "output_tokens_per_s within 1% of base"):
        result = judged(rule, steps(100))
        assert result.status == "PASS"
        assert result.observed is not None
        assert result.observed < -5
    a_folder(Path("base"), steps(100))
    slow = judged("output_tokens_per_s within 30% of base", steps(100, 0, 1.5))
    assert (slow.status, slow.observed) == ("FAIL", pytest.approx(100 / 3, rel=0.01))


def test_an_interval_across_the_limit_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_folder(Path("base"), drawn(400, 1))
    result = judged("ttft p95 within 1% of base", drawn(400, 2))
    assert result.status == "INCONCLUSIVE"
    # the interval of the base stays as wide as it is, however long this run would be
    assert result.reason.startswith(
        "its 95% interval crosses the limit, a longer run and a longer base may decide it; "
    )
    assert result.longer_s is None
    assert judged("ttft p99 within 5% of base", drawn(300, 2)).status == "INCONCLUSIVE"
    nothing = judged("gate_wait p50 within 5% of base", drawn(400, 2))
    assert (nothing.status, nothing.observed) == ("INCONCLUSIVE", None)


def test_there_is_no_percentage_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at_once = [replace(record, admitted_at=record.sent_at) for record in steps(50)]
    waited = [replace(record, asked_at=(record.sent_at or 0) - 0.5) for record in at_once]
    a_folder(Path("base"), at_once)
    assert (
        "a percentage of 0 has no meaning"
        in judged("gate_wait p50 within 5% of base", waited).reason
    )
    assert judged("gate_wait p50 within 20ms of base", waited).status == "FAIL"
    same = judged("gate_wait p50 within 5% of base", at_once)
    assert same.status == "PASS"


@pytest.mark.parametrize(
    ("run", "records", "why"),
    [
        (
            a_run(users=3),
            steps(50),
            "the runs differ in load (closed loop, 3 users in base, closed loop, 2 users here)",
        ),
        (a_run(model="other"), steps(50), "the runs differ in model (other in base, m here)"),
        (
            a_run(prefill_concurrency=1),
            steps(50),
            "the runs differ in prefill limit (1 in base, none here)",
        ),
        (
            a_run(),
            steps(50, input_tokens=200),
            "the runs differ in input tokens (200.0 on average in base, 100.0",
        ),
        # 0 ms at the soonest
        (
            a_run(),
            steps(50, merged=((0, 0), (1, 0), (2, 0))),
            "which reaches the limit: merged chunks",
        ),
        (replace(a_run(), stopping_at=None), steps(50), "base: the run did not end cleanly"),
        (
            replace(a_run(), records_lost=2),
            steps(50),
            "base: 2 requests of lost workers have no record",
        ),
    ],
)
def test_a_base_that_is_no_measure(
    run: Run, records: list[Record], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_folder(Path("base"), records, run)
    result = judged("ttft p50 within 5% of base", steps(50))
    assert result.status == "INCONCLUSIVE"
    assert why in result.reason


def test_a_base_that_is_damaged_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = 'ttft p50 within 5% of "the base"'
    gone = judged(rule, steps(50))
    assert gone.status == "INCONCLUSIVE"
    assert (
        gone.reason
        == "it cannot be compared: the base is not a run folder: it has no profile_export.jsonl"
    )
    a_folder(Path("the base"), steps(50))
    assert judged(rule, steps(50)).status == "PASS"
    Path("the base/run.json").write_text("{")
    assert "run.json cannot be read" in judged(rule, steps(50)).reason


def test_each_stage_is_held_against_the_one_of_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base of 1 and 2 users, a sweep of 2 and 4: slower at 2, and 4 has nothing to be held
    against."""
    monkeypatch.chdir(tmp_path)

    def swept(
        folder: Path, slower_ms: dict[int, float], rules: tuple[str, ...] = ()
    ) -> SloResult | None:
        stages = [Stage(number=i, value=float(users), began_at=UNIX, measured_at=UNIX + 9.5,
            ended_at=UNIX + 70)
                  for i, users in enumerate(slower_ms, 1)]  # fmt: skip
        for stage, ms in zip(stages, slower_ms.values(), strict=True):
            run = replace(a_run(users=int(stage.value), slo=rules), stage=stage)
            a_folder(folder / "stages" / str(stage.number), steps(50, ms), run)
        whole = replace(a_run(users=None, sweep="concurrency=1,2", slo=rules), stages=tuple(stages))
        (folder / "profile_export.jsonl").write_bytes(b"")
        slos = write_reports(folder, whole).slos
        return slos[0] if slos else None

    swept(Path("base"), {1: 0, 2: 0})
    result = swept(Path("here"), {2: 20, 4: 0}, ("ttft p50 within 5% of base",))
    assert result is not None
    assert result.status == "FAIL"
    assert "at concurrency 2" in result.reason
    assert "125.5ms here, 105.5ms in base" in result.reason
    assert "not compared: 4" in result.reason
    alone = swept(Path("other"), {4: 0, 8: 0}, ("ttft p50 within 5% of base",))
    assert alone is not None
    assert (alone.status, alone.reason) == (
        "INCONCLUSIVE",
        "base has none of the measured stages",
    )
