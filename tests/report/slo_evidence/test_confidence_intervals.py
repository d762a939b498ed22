"""What correlated requests are worth: with a pencil, against slow twins, and how often the
intervals hold a known truth."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import a_run, answered, mixed

from locust_llm.records.record import Record
from locust_llm.report.array_types import Floats
from locust_llm.report.compare.metric_differences import difference_ends
from locust_llm.report.load_records import collect_columns
from locust_llm.report.slo_evidence import long_run_error
from locust_llm.report.slo_evidence.confidence_intervals import (
    FALLS,
    MIN_VALUES,
    NONE,
    RISES,
    ConfidenceInterval,
    EndBasis,
    ShareEvidence,
    UpperEnd,
    ValueLevels,
    bound_above,
    bound_by_fastest,
    bound_by_slowest,
    bound_tail,
    detect_trend,
    estimate_effective_size,
    estimate_mean_interval,
    estimate_percentile_interval,
    estimate_rate_interval,
    estimate_ratio_interval,
    estimate_share_interval,
    find_room,
    level_of_share,
    share_ends,
    weigh_share,
)
from locust_llm.report.slo_evidence.long_run_error import (
    LongRunError,
    cosine_coefficients,
    measure_long_run,
    power_law_factor,
    slow_part_factor,
    weigh_shapes,
)
from locust_llm.report.slo_evidence.observed_rule_values import ObservedValue
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo import binomial_intervals
from locust_llm.slo.rules import INCONCLUSIVE, PASS

RUNS = 150
FEW_ENOUGH = 0.07
"""Where 2.5 % of 150 are too low, more than 7 % of them (ten) are in one of 400."""


def waiting(phi: float, count: int, runs: int, seed: int) -> Floats:
    """(runs, count): standard normal values that each have ``phi`` of the one before
    (autoregressive of order 1). As many independent ones as count x (1 - phi) / (1 + phi) say as
    much of the mean."""
    noise = np.random.default_rng(seed).normal(size=(count, runs))
    for i in range(1, count):
        noise[i] = phi * noise[i - 1] + math.sqrt(1 - phi * phi) * noise[i]
    return noise.T.copy()


def queue(load: float, count: int, runs: int, seed: int) -> Floats:
    """(runs, count): how long requests are in an M/M/1 queue of mean service time 1 (Lindley's
    recursion). Below full load it has run for ever: the times are exponential with mean 1 / (1 -
    load). Above it was empty."""
    random = np.random.default_rng(seed)
    service, between = (
        random.exponential(1.0, (count, runs)),
        random.exponential(1 / load, (count, runs)),
    )
    wait = np.where(
        random.random(runs) < load, random.exponential(1 / max(1 - load, 1e-9), runs), 0.0
    ) * (load < 1)
    inside = np.empty((count, runs))
    for i in range(count):
        inside[i] = wait + service[i]
        wait = np.maximum(inside[i] - between[i], 0.0)
    return inside.T.copy()


def drift(count: int, runs: int, seed: int) -> Floats:
    """(runs, count): noise of variance 1 on a level of variance 0.2 with a correlation time of
    20."""
    level = math.sqrt(0.2) * waiting(math.exp(-1 / 20), count, runs, seed)
    return level + waiting(0, count, runs, seed + 1000)


def whole(count: int) -> Floats:
    """1 to ``count`` in an order of no correlation."""
    return np.array(mixed(count), np.float64)


# -- what a series is worth ------------------------------------------------------------------------


@pytest.mark.parametrize("which", [1, 2, 5])
def test_the_coefficient_of_a_single_cosine(which: int) -> None:
    """Of a cos(pi j (t + 1/2) / n) the sum over its own cosine is a n / 2; times sqrt(2 / n): a
    sqrt(n / 2) = 3 x 10."""
    count = 200
    series = 3 * np.cos(np.pi * which * (np.arange(count) + 0.5) / count)
    expected = np.zeros(50)
    expected[which - 1] = 30
    assert cosine_coefficients(series + 7, 50) == pytest.approx(expected, abs=1e-9)


def test_what_the_mean_has_of_a_slow_part() -> None:
    """Of a run of one correlation time 1 - (1 - 1/e) = 0.368, of a thousand all; of noise without
    memory all, and of d = 1/4 gamma(1/2) sin(pi/4) sqrt(pi) / (pi/4 x 3/2) = pi / sqrt(2) / (3 pi /
    8) = 1.886."""
    assert slow_part_factor(1 / math.pi) == pytest.approx(math.exp(-1))
    assert slow_part_factor(1000 / math.pi) == pytest.approx(0.999)
    assert power_law_factor(1e-9) == pytest.approx(1)
    assert power_law_factor(0.25) == pytest.approx(8 / (3 * math.sqrt(2)))


def test_the_reach_of_shapes() -> None:
    """Of one shape Student's t: with ten cosines 2.228 deviations. Of two, where one has half the
    weight and next to no deviation, the other has to give twice the tail: 1.812."""
    one = LongRunError(10, 1.0, np.array([1.0]), np.array([3.0]))
    assert one.reach(0.025) == pytest.approx(3 * 2.228, rel=0.01)
    assert one.deviation == pytest.approx(3)
    two = LongRunError(10, 1.0, np.array([0.5, 0.5]), np.array([3.0, 0.03]))
    assert two.reach(0.025) == pytest.approx(3 * 1.812, rel=0.01)
    assert two.deviation == pytest.approx(0.3)


def test_independent_values_are_worth_about_their_number() -> None:
    sizes = [estimate_effective_size(values) for values in waiting(0, 1000, 20, 9)]
    assert np.median(sizes) > 700
    assert max(sizes) <= 1000


@pytest.mark.parametrize("phi", [0.5, 0.8, 0.95])
def test_values_that_wait_for_each_other_are_worth_a_known_share(phi: float) -> None:
    expected = 4000 * (1 - phi) / (1 + phi)
    sizes = [estimate_effective_size(values) for values in waiting(phi, 4000, 30, 7)]
    assert 0.6 * expected < np.median(sizes) < 1.3 * expected


def test_a_drift_below_the_noise_is_seen() -> None:
    """Noise of variance 1 on a level of variance 0.2 that has a correlation time of 20: of the mean
    1 + 0.2 x 40 = 9 times the variance. The correlation of neighbours, 0.17, is not to be seen in a
    single one."""
    deviations = [measure_long_run(one).deviation for one in drift(2000, 30, 1)]
    assert 2 < np.median(deviations) < 4.5


def test_equal_values_show_no_correlation() -> None:
    for count in (12, 30, 400):
        for found in (
            estimate_mean_interval(np.full(count, 0.1)),
            estimate_rate_interval(np.full(count, 0.1)),
        ):
            assert found.low == found.high == pytest.approx(0.1)
            assert found.size == count
        assert estimate_percentile_interval(np.full(100, 0.1), 50).ends == (0.1, 0.1)
    nothing = estimate_share_interval(np.zeros(400))
    assert nothing[:2] == (0, pytest.approx(1 - 0.025 ** (1 / 400), rel=1e-3))
    assert estimate_share_interval(np.ones(400))[:2] == (
        pytest.approx(0.025 ** (1 / 400), rel=1e-3),
        1,
    )


def test_a_long_series_is_worth_what_it_would_be_without_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """24,000 and one in cells of three."""
    values = waiting(0.9, 24_001, 1, 5)[0]
    in_cells = estimate_effective_size(values)
    monkeypatch.setattr(long_run_error, "MAX_CELLS", 10**9)
    assert in_cells == pytest.approx(estimate_effective_size(values), rel=0.05)


# -- intervals with a pencil -----------------------------------------------------------------------


def test_intervals_of_independent_values() -> None:
    """1 to 400: the number below the median has a standard deviation of 10, the mean one of 5.77,
    the share of a tenth one of 1.5 %; 2.5 % may lie 1.96 of them off on either side. In this order
    nothing is slow, and they are no surer for it."""
    values = whole(400)
    off = 1.96
    assert estimate_percentile_interval(values, 50).ends == pytest.approx(
        (200.5 - 10 * off, 200.5 + 10 * off), abs=1
    )
    assert estimate_percentile_interval(values, 90).ends == pytest.approx(
        (360.5 - 6 * off, 360.5 + 6 * off), abs=1
    )
    assert estimate_percentile_interval(values, 10).ends == pytest.approx(
        (40.5 - 6 * off, 40.5 + 6 * off), abs=1
    )
    reach = math.exp(5.7735 * off / 200.5)
    assert estimate_mean_interval(values).ends == pytest.approx(
        (200.5 / reach, 200.5 * reach), abs=0.1
    )
    for ones, share in ((values <= 40, 0.1), (values > 40, 0.9)):
        assert estimate_share_interval(ones * 1.0).ends == pytest.approx(
            (share - 0.015 * off, share + 0.015 * off), abs=0.004
        )


def test_the_ends_of_a_share() -> None:
    """None of 400 that are worth 100: 0.025^(1 / 100) on the other side. A quarter of 800 that are
    worth 200: a standard deviation of sqrt(0.25 x 0.75 / 200) = 3.06 %, of which the ends are two
    off."""
    errors = 1.959964
    assert share_ends(ShareEvidence(0.0, 4.0, errors), 400) == pytest.approx(
        (0, 1 - 0.025**0.01), abs=1e-6
    )
    assert share_ends(ShareEvidence(0.25, 4.0, 2.0), 800) == pytest.approx(
        (0.25 - 0.0612, 0.25 + 0.0612), abs=0.004
    )


def test_a_limit_that_most_values_break_is_broken() -> None:
    """69 of 112 above it, in groups of eight: that these are one in twenty in the long run is out
    of the question."""
    groups = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 1])
    values = np.where(np.repeat(groups, 8) > 0, 0.115, 0.085) + whole(112) / 1e5
    low, _ = estimate_percentile_interval(values, 95).ends
    assert low is not None
    assert low > 0.1


def test_a_limit_far_beyond_values_that_hardly_vary_is_kept() -> None:
    """However they are correlated: 450 values of 40 to 66 ms, that wander."""
    values = 0.053 + 0.004 * np.clip(waiting(0.97, 450, 1, 4)[0], -3, 3)
    for percentile in (50, 95, 99):
        _, high = estimate_percentile_interval(values, percentile).ends
        assert high is not None
        assert high < 0.1


def test_what_half_of_a_run_shows_is_seen() -> None:
    """Of 40 values the second half is above 9: one phase, or the end of a server. As of six
    independent ones, three of which are above, 20 p^3 (1 - p)^3 and what follows is 0.6 % at p =
    7.6 %: more than one in twenty are. A tenth shows nothing."""
    for later, above in ((20, True), (4, False)):
        values = np.append(whole(40 - later) / 40, 9 + whole(later) / 40)
        low, _ = estimate_percentile_interval(values, 95).ends
        assert low is not None
        assert (low > 9) is above
        share, _ = estimate_share_interval((values > 9).astype(np.float64)).ends
        assert share is not None
        assert (share > 0.05) is above


def test_a_bound_beyond_the_largest_of_too_few_values() -> None:
    """Of 40 exponential values, 2 are above p95, ln 20 = 3.0, and ten above p75, by 1 on average.
    Their share is known to sqrt(0.75 / 10) of it and that 1 to sqrt(1 / 10), which counts ln 5 =
    1.61 times: together 0.58. 1.96 of that is 1.13, and 1.96 / (2 sqrt(10)) more, as few values show
    too small an error: 1.48."""
    values = -np.log(1 - (whole(40) - 0.5) / 40)
    found = estimate_percentile_interval(values, 95)
    assert found.extrapolated
    assert found.high == pytest.approx(3 + 1.48, abs=0.1)
    mirrored = estimate_percentile_interval(-values, 5)
    assert found.high is not None
    assert (mirrored.low, mirrored.extrapolated) == (-found.high, True)
    failing = estimate_percentile_interval(np.where(whole(50) > 49, np.inf, whole(50)), 95)
    assert (failing.high, failing.extrapolated) == (math.inf, False)
    assert not estimate_percentile_interval(whole(400), 95).extrapolated


def levels_of(
    inflations: dict[float, float], slow_variances: dict[float, float] | None = None
) -> ValueLevels:
    """400 values, whose shares are their levels."""
    slow = slow_variances or {}
    return ValueLevels(
        400,
        lambda level: ShareEvidence(level, inflations.get(level, 1.0), 2.0, slow.get(level, 1.0)),
        lambda share: share,
    )


def test_a_queue_of_few_excursions_counts_as_a_shorter_run() -> None:
    """Its large values have four times the slow variance of independent ones, and the others less than
    half of it: certainly a queue, of (1 - 1 / 4) squared = 0.5625. Of 50 independent values 40 x
    0.5625 of 50 may be too many."""
    queue = levels_of({0.5: 4.0}, {0.5: 2.0, 0.9: 4.0, 0.95: 4.0})
    assert queue.half_size == 50
    assert queue.queue == pytest.approx(0.5625)
    assert queue.few_excursions(50) == pytest.approx(1 + 40 * 0.5625 / 50)
    assert levels_of({}).queue == 0


def test_a_level_that_wanders_is_no_queue() -> None:
    """Usual values then have more slow variance than large ones: 5 against 4 is a logarithm of 0.223,
    more than 0.2. Equal ones are in between: 0.2 of 0.3."""
    usual, large = (0.25, 0.5, 0.75), (0.9, 0.95)
    equal = dict.fromkeys((*usual, *large), 4.0)
    assert levels_of({}, equal | dict.fromkeys(usual, 5.0)).queue == 0
    assert levels_of({}, equal).queue == pytest.approx(0.5625 * 0.2 / 0.3)


def test_the_slow_variance_of_a_share() -> None:
    """The first half of 200 are zeros, the second half ones. Over a half, cosine j (odd) sums up to
    200 / (pi j), so its square is 2 / 200 of that squared: 40.5 / j^2. The sum over the odd of 32 is
    1.218 of 40.5, their mean 1.542, and over the variance of 1 / 4 that is 6.17. By turns zeros and
    ones have none, and count as independent ones."""
    halves = np.repeat([0.0, 1.0], 100)
    turns = np.array([0.0, 1.0] * 100)
    assert weigh_share(halves).slow_variance == pytest.approx(6.17, abs=0.02)
    assert weigh_share(turns).slow_variance == 1.0


def test_the_large_values_of_a_queue_tell_of_it() -> None:
    """Those of a level that wanders do not."""

    def typical(runs: Floats) -> float:
        found = []
        for values in runs:
            ordered, shown = np.sort(values), weigh_shapes(values)
            levels = ValueLevels(
                len(values),
                lambda level, values=values, shown=shown: weigh_share(
                    (values <= level) * 1.0, 1, shown
                ),
                lambda share, ordered=ordered: float(ordered[int(share * len(ordered))]),
            )
            found.append(levels.queue)
        return float(np.median(found))

    assert typical(queue(0.7, 1000, 30, 3)) > 0.8
    assert typical(waiting(0.9, 1000, 30, 3)) < 0.4


def test_the_tail_begins_where_five_independent_values_are_beyond() -> None:
    """Of 400 values that are worth 100, beyond p95: five. The level of a share is the share, so
    their mean excess is 0.025. There are 20 values too, so p99 is ln 5 = 1.61 times as much
    further: 0.025 sqrt((0.95 + 1.61^2) / 5), of which 2 reach 1 + 2 / (2 sqrt(5)) times as far."""
    four = levels_of({0.5: 4.0, 0.9: 3.0, 0.95: 4.0, 0.98: 4.0})
    error = 0.025 * math.sqrt((0.95 + math.log(5) ** 2) / 5)
    assert bound_tail(four, 0.99) == pytest.approx(0.99 + 2 * error * (1 + 1 / math.sqrt(5)))


def test_what_all_values_show_makes_a_level_surer() -> None:
    """How correlated large values are varies less from run to run, and a drift below the noise is
    seen there too."""
    alone, together = [], []
    for values in drift(1000, 40, 8):
        ones = (values > np.quantile(values, 0.9)) * 1.0
        alone.append(math.log(weigh_share(ones).inflation))
        together.append(math.log(weigh_share(ones, 1, weigh_shapes(values)).inflation))
    assert np.std(together) < 0.9 * np.std(alone)
    assert np.mean(together) > np.mean(alone)


def test_what_decided_the_ones_shows_their_correlation() -> None:
    """All of 500 are within the limit, of a queue: less sure than of 500 independent ones."""
    values = queue(0.8, 500, 1, 6)[0]
    ones = np.ones(500)
    alone, with_values = (
        estimate_share_interval(ones, margins=some).low
        for some in (None, values / (1.01 * values.max()))
    )
    assert alone == pytest.approx(0.025 ** (1 / 500))
    assert with_values is not None
    assert with_values < alone - 0.01


def test_the_mean_of_skewed_values_reaches_further_up() -> None:
    """Of exponential ones; and never below 0."""
    values = -np.log(1 - (whole(400) - 0.5) / 400)
    found = estimate_mean_interval(values)
    assert found.low is not None
    assert found.high is not None
    mean, error = float(values.mean()), float(values.std()) / 20
    assert found.high - mean > 1.96 * error
    assert mean - found.low < 1.96 * error
    low = estimate_mean_interval(np.where(whole(20) > 19, 100.0, 0.0)).low
    assert low is not None
    assert low > 0


def test_a_ratio_of_sums() -> None:
    """Of amounts that are twice their weights nothing is uncertain; of equal weights it is the
    mean."""
    weights = whole(64)
    assert estimate_ratio_interval(2 * weights, weights).ends == pytest.approx((2, 2))
    low, high = estimate_ratio_interval(weights, np.full(64, 2.0)).ends
    assert low is not None
    assert high is not None
    assert (low + high) / 2 == pytest.approx(weights.mean() / 2)
    reach = measure_long_run(weights - weights.mean()).reach(0.025) / 8
    assert (high - low) / 2 == pytest.approx(reach / 2)
    assert estimate_ratio_interval(weights, np.zeros(64)) is NONE


def test_what_one_second_has_too_many_the_next_has_too_few() -> None:
    """By turns 3 and 5: not independent, and so much surer than they would be."""
    turns, drawn = np.array([3.0, 5.0] * 100), 4 + waiting(0, 200, 1, 1)[0]
    widths = [
        high - low
        for low, high in (estimate_rate_interval(some).ends for some in (turns, drawn))
        if low is not None and high
    ]
    assert widths[0] < widths[1] / 3


def assert_end(end: UpperEnd, level: float, basis: EndBasis, slowest: float) -> None:
    assert (end.level, end.slowest) == pytest.approx((level, slowest))
    assert end.basis == basis


def test_no_end_is_far_beyond_the_slowest_values() -> None:
    """400 values from 0 to 1, as correlated as can be. Those above the median are 0.75 on average,
    0.25 above it, so the median is taken to be at most 0.25 higher. Those beyond p95 are 0.975, 0.475
    above the median: 1.45. 1 / 0.7 of the largest is less, 1.43."""
    levels = levels_of(dict.fromkeys((0.5, 0.75, 0.9, 0.95, 0.98), 400.0))
    assert_end(bound_by_slowest(levels, 0.95), 1 / 0.7, EndBasis.LARGEST, 0)
    assert_end(bound_by_slowest(levels, 0.5), 0.75 + 0.25, EndBasis.MEAN, 0.5)
    assert bound_above(levels, 0.95) == bound_by_slowest(levels, 0.95)
    assert bound_by_slowest(replace(levels, room=2.0), 0.95).level == pytest.approx(2 / 0.7 - 1)
    # four values are beyond p99, so ten over four times the room
    assert bound_by_slowest(levels, 0.99).level == pytest.approx(0.995 + 2.5 * 0.495)


def test_the_largest_values_of_a_queue_may_be_of_one_burst() -> None:
    """Twenty are beyond p95. In a queue of 0.5625 they count as 20 / (1 + 40 x 0.5625 / 20) = 9.41: too
    few for the largest, 1.43. Those beyond p95 are 0.975 on average, and 10 / 9.41 = 1.0625 times 0.475
    is left above. Beyond p90 40 count as 40 / 1.5625 = 25.6, of which the largest is enough."""
    correlated = dict.fromkeys((0.5, 0.75, 0.9, 0.95, 0.98), 400.0)
    bursts = levels_of(correlated, {0.5: 2.0, 0.9: 4.0, 0.95: 4.0})
    one_burst = 0.975 + 1.0625 * 0.475
    assert_end(bound_by_slowest(bursts, 0.95), one_burst, EndBasis.MEAN_OF_BURST, 0.05)
    assert_end(bound_by_slowest(bursts, 0.9), 0.95 + 0.45, EndBasis.MEAN, 0.1)


def test_no_median_is_far_below_the_fastest_values() -> None:
    """The lower half of 400 values from 0 to 1 are 0.25 on average, half of the median. So it is taken
    to be at least a quarter of that, with twice the room a sixteenth, and of negative values nothing
    is known."""
    levels = levels_of({})
    assert bound_by_fastest(levels) == pytest.approx(0.5 / 4)
    assert bound_by_fastest(replace(levels, room=2.0)) == pytest.approx(0.5 / 16)
    below_zero = replace(levels, level_at=lambda share: share - 1)
    assert bound_by_fastest(below_zero) == -math.inf


def test_a_median_far_above_its_limit_breaks_it() -> None:
    """600 values of 200 ms, and two phases of 25 at 90 ms: 100 ms are exceeded by 92 %."""
    values = np.where(np.arange(600) % 300 < 25, 0.09, 0.2) + whole(600) / 1e6
    low, _ = estimate_percentile_interval(values, 50).ends
    assert low is not None
    assert low > 0.15


def test_the_room_beyond_the_slowest_values() -> None:
    """Of 400 values and more they are shown, of a quarter a quarter as well. At each of ten looks the
    error is 2.807 standard errors in place of 1.96."""
    assert [find_room(count, 1) for count in (100, 400, 4000)] == [4, 1, 1]
    assert find_room(400, 10) == pytest.approx(2.807 / 1.96, abs=1e-3)


def test_slowest_values_that_hardly_vary_leave_a_tenth() -> None:
    """The larger half are 1.02 s and the others 1 s: twice as far as 0.02 is less."""
    levels = ValueLevels(
        200,
        lambda level: ShareEvidence(level, 1.0, 2.0),
        lambda share: 1.02 if share > 0.5 else 1.0,
    )
    assert bound_by_slowest(levels, 0.95).level == pytest.approx(1.1 * 1.02)


@pytest.mark.parametrize(("failures", "known"), [(2, True), (4, False)])
def test_failures_of_one_cause_leave_the_slowest_values_known(failures: int, known: bool) -> None:
    """Of 400 the slowest 5 % are 20, of which a sixth are 3.3."""
    values = np.where(whole(400) > 400 - failures, np.inf, whole(400))
    levels = ValueLevels(
        400,
        lambda level: ShareEvidence(level, 1.0, 2.0),
        lambda share: level_of_share(np.sort(values), share),
    )
    assert math.isfinite(bound_by_slowest(levels, 0.95).level) is known


def test_a_mean_is_not_far_above_the_larger_half() -> None:
    """400 values: a half at 1 and then a half at 3, which may be one phase of many. The larger half
    is 3 on average, and the median 2."""
    found = estimate_mean_interval(np.where(np.arange(400) < 200, 1.0, 3.0))
    assert (found.high, found.basis, found.slowest) == (pytest.approx(4.0), EndBasis.MEAN, 0.5)


def test_few_values_break_a_limit_that_all_are_far_beyond() -> None:
    """Four of 30: they are all in the largest 5 % in 0.05^4 of cases, in the larger half in 0.5^4 =
    6 %, and of six in 1.6 %. At least 0.025^(1 / 4) = 39.8 % of all are that large. A fifth is left
    as room."""
    four, six = np.full(4, 30.0), np.full(6, 30.0)
    assert estimate_percentile_interval(four, 95).ends == (24, None)
    assert estimate_percentile_interval(four, 5).ends == (None, 36)
    assert estimate_percentile_interval(four, 50) is NONE
    assert estimate_percentile_interval(six, 50).ends == (24, 36)
    assert estimate_mean_interval(four).ends == (pytest.approx(24 * 0.3976, rel=1e-3), None)
    assert estimate_percentile_interval(np.full(4, np.inf), 95).ends == (np.inf, None)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_too_few_nothing_is_said(count: int) -> None:
    few = np.arange(float(count))
    for percentile in (5, 50, 95):
        assert estimate_percentile_interval(few, percentile) is NONE
    if count:
        assert estimate_mean_interval(few) is NONE


@pytest.mark.parametrize("count", [0, 1, MIN_VALUES - 1])
def test_of_few_no_rate_and_no_trend_is_said(count: int) -> None:
    few = np.arange(float(count))
    if count:
        assert estimate_rate_interval(few) is NONE
        assert estimate_ratio_interval(few, few + 1) is NONE
    assert detect_trend(few) == ""


def test_a_share_of_few_is_that_of_independent_ones() -> None:
    assert estimate_share_interval(np.empty(0)) is NONE
    assert estimate_share_interval(np.zeros(5))[:2] == (
        0,
        pytest.approx(1 - 0.025 ** (1 / 5), rel=0.01),
    )
    assert weigh_share(np.array([0.0, 1.0, 1.0])).inflation == 1


def test_failures_are_values_like_any_other() -> None:
    """Five of a hundred are infinite: p50 does not reach them, p93 may, p99 does."""
    values = whole(400)
    values[values > 380] = np.inf
    assert (
        estimate_percentile_interval(values, 50).ends
        == estimate_percentile_interval(whole(400), 50).ends
    )
    low, high = estimate_percentile_interval(values, 93).ends
    assert low is not None
    assert math.isfinite(low)
    assert high == math.inf
    assert estimate_percentile_interval(values, 99).ends == (math.inf, math.inf)
    assert estimate_mean_interval(values).ends == (math.inf, math.inf)


def test_ties() -> None:
    """Three different values: the ends are of them."""
    values = np.ceil(whole(300) / 100)
    assert estimate_percentile_interval(values, 50).ends == (2, 2)
    assert estimate_percentile_interval(values, 33).ends == (1, 2)


LADDER = (50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9)

SERIES = st.builds(
    lambda seed, count, phi: np.round(waiting(phi, count, 1, seed)[0] * 1000),
    st.integers(0, 1000), st.integers(40, 200), st.sampled_from([0.0, 0.5, 0.9]),
)  # fmt: skip


@given(SERIES, st.sampled_from([1.0, 50.0, 90.0, 95.0]), st.sampled_from([0.5, 2.0, 8.0]))
def test_other_units_change_nothing(values: Floats, percentile: float, times: float) -> None:
    found, other = (
        estimate_percentile_interval(values, percentile),
        estimate_percentile_interval(values * times, percentile),
    )
    for end, scaled in zip(found.ends, other.ends, strict=True):
        assert scaled == (None if end is None else pytest.approx(end * times))
    assert other.size == pytest.approx(found.size)
    mean, other = (
        estimate_mean_interval(values + 9000),
        estimate_mean_interval((values + 9000) * times),
    )
    assert other.ends == pytest.approx([end * times for end in mean.ends if end is not None])


LATENCIES = st.builds(
    lambda seed, count, phi, heavy: np.round(np.exp(heavy * waiting(phi, count, 1, seed)[0]), 3),
    st.integers(0, 10_000), st.integers(MIN_VALUES, 400), st.sampled_from([0.0, 0.5, 0.95]),
    st.sampled_from([0.1, 0.5, 1.5]),
)  # fmt: skip


@given(LATENCIES, st.sampled_from([0, 1, 7]))
def test_what_a_higher_percentile_passes_a_lower_one_passes_too(
    values: Floats, failures: int
) -> None:
    """And what a lower one fails, a higher one fails."""
    values[len(values) - failures :] = np.inf
    found = [estimate_percentile_interval(values, percentile) for percentile in LADDER]
    lows = [-math.inf if one.low is None else one.low for one in found]
    highs = [math.inf if one.high is None else one.high for one in found]
    assert lows == sorted(lows)
    assert highs == sorted(highs)


@given(SERIES, st.sampled_from([51.0, 60.0, 90.0, 95.0]))
def test_negated_values_mirror(values: Floats, percentile: float) -> None:
    low, high = estimate_percentile_interval(values, percentile).ends
    assert estimate_percentile_interval(-values, 100 - percentile).ends == (
        None if high is None else -high,
        None if low is None else -low,
    )


@given(SERIES, st.sampled_from([50.0, 75.0, 90.0, 95.0]))
def test_the_figure_lies_inside(values: Floats, percentile: float) -> None:
    at = float(np.sort(values)[math.ceil(percentile / 100 * len(values)) - 1])
    low, high = estimate_percentile_interval(values, percentile).ends
    assert low is None or low <= at
    assert high is None or high >= at
    lower, upper = estimate_mean_interval(values + 9000).ends
    assert lower is not None
    assert upper is not None
    assert lower <= values.mean() + 9000 <= upper


def test_the_same_values_in_an_order_of_correlation_are_less_certain() -> None:
    steady = whole(2000)
    slow = np.sort(steady)[np.argsort(np.argsort(waiting(0.9, 2000, 1, 2)[0]))]
    for interval in (
        lambda v: estimate_percentile_interval(v, 50),
        lambda v: estimate_percentile_interval(v, 90),
        estimate_mean_interval,
    ):
        (low, high), (wide_low, wide_high) = interval(steady).ends, interval(slow).ends
        assert low is not None
        assert high is not None
        assert wide_low is not None
        assert wide_high is not None
        assert wide_low < low < high < wide_high
        assert wide_high - wide_low > 2 * (high - low)


# -- against known truth ---------------------------------------------------------------------------

NORMAL_90, NORMAL_95 = 1.281552, 1.644854
OF_NORMAL = {"p50": 10.0, "p95": 10 + NORMAL_95, "avg": 10.0, "share": 10 + NORMAL_90}
"""``share``: above this a tenth lies."""
OF_QUEUE = {"p50": 2 * math.log(2), "p95": 2 * math.log(20), "avg": 2.0, "share": 2 * math.log(10)}
OF_DRIFT = {
    "p50": 10.0,
    "p95": 10 + NORMAL_95 * math.sqrt(1.2),
    "avg": 10.0,
    "share": 10 + NORMAL_90 * math.sqrt(1.2),
}
KNOWN: dict[str, tuple[Callable[[], Floats], dict[str, float]]] = {
    "independent": (lambda: waiting(0, 1000, RUNS, 1) + 10, OF_NORMAL),
    "autoregressive": (lambda: waiting(0.9, 2000, RUNS, 2) + 10, OF_NORMAL),
    "queue at half its capacity": (lambda: queue(0.5, 1000, RUNS, 3), OF_QUEUE),
    "drift below noise": (lambda: drift(1000, RUNS, 4) + 10, OF_DRIFT),
}


def intervals_of(figure: str, runs: Floats, truth: float) -> Iterator[ConfidenceInterval]:
    for values in runs:
        if figure == "share":
            yield estimate_share_interval((values > truth) * 1.0)
        else:
            yield (
                estimate_mean_interval(values)
                if figure == "avg"
                else estimate_percentile_interval(values, float(figure[1:]))
            )


@pytest.fixture(scope="module", params=KNOWN)
def known(request: pytest.FixtureRequest) -> tuple[Floats, dict[str, float]]:
    make, truth = KNOWN[request.param]
    return make(), truth


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["p50", "p95", "avg", "share"])
def test_how_often_an_interval_holds_the_truth(
    figure: str, known: tuple[Floats, dict[str, float]]
) -> None:
    """Of 150 runs at least 92 % (of 95 %, 1.7 standard errors). Whose upper end lies below the
    truth would pass a rule that does not hold."""
    runs, truth = known
    true = 0.1 if figure == "share" else truth[figure]
    found = list(intervals_of(figure, runs, truth[figure]))
    too_high = sum(one.low is not None and one.low > true for one in found)
    false_passes = sum(one.high is not None and one.high < true for one in found)
    assert false_passes <= FEW_ENOUGH * RUNS
    assert 1 - (too_high + false_passes) / RUNS >= 0.92
    # not held by having no ends
    assert sum(one.low is None or one.high is None for one in found) <= RUNS / 2


@pytest.mark.parametrize("percentile", [50.0, 90.0, 95.0])
def test_a_limit_30_percent_off_is_decided(percentile: float) -> None:
    """Of 60 runs of 400 independent requests with a spread of 30 %, whose p95 has a standard error
    of 3 %: in 95 % on either side."""
    runs = np.exp(0.3 * waiting(0, 400, 60, 12))
    truth = math.exp(0.3 * {50.0: 0.0, 90.0: NORMAL_90, 95.0: NORMAL_95}[percentile])
    found = [estimate_percentile_interval(values, percentile) for values in runs]
    assert sum(one.high is not None and one.high < 1.3 * truth for one in found) >= 57
    assert sum(one.low is not None and one.low > 0.7 * truth for one in found) >= 57


def test_order_statistics_as_of_independent_requests_hold_it_seldom() -> None:
    """The test above can fail: the same runs, with intervals that know of no correlation."""
    runs = KNOWN["autoregressive"][0]()
    for percentile, true in ((50, OF_NORMAL["p50"]), (95, OF_NORMAL["p95"])):
        held = 0
        for values in runs:
            low, high = binomial_intervals.find_interval_ranks(len(values), percentile)
            held += np.sort(values)[low - 1] <= true <= np.sort(values)[high - 1]
        assert held / RUNS < 0.7


@pytest.mark.slow
def test_two_equal_runs_are_seldom_called_different() -> None:
    """Of 100 pairs of autoregressive runs at most 8 %; were one of them slower by a standard
    deviation, at least 80 % would be."""
    pairs = (waiting(0.9, 2000, 200, 11) + 10).reshape(100, 2, 2000)
    for percentile in (50, 90):
        different = found = 0
        for one, other in pairs:
            ends = [
                estimate_percentile_interval(values, percentile).ends for values in (one, other)
            ]
            if any(None in pair for pair in ends):
                continue
            base, here = (
                ObservedValue(float(np.percentile(values, percentile)), pair)
                for values, pair in zip((one, other), ends, strict=True)
            )
            low, high = difference_ends(base, here)
            assert low is not None
            assert high is not None
            different += not low <= 0 <= high
            found += low + 1 > 0
        assert different <= 8
        assert found >= 80


# -- trends ----------------------------------------------------------------------------------------


def test_steady_runs_have_no_trend(known: tuple[Floats, dict[str, float]]) -> None:
    """But for one in fifty: of 150 more than 5 % (seven) are one in fifty of such tests, and the
    seeds are fixed."""
    assert sum(detect_trend(values) != "" for values in known[0]) <= 0.05 * RUNS


def test_a_queue_that_fills_rises() -> None:
    """At 120 % of the capacity, 500 requests."""
    runs = queue(1.2, 500, RUNS, 5)
    assert sum(detect_trend(values) == RISES for values in runs) >= 0.85 * RUNS
    assert sum(detect_trend(-values) == FALLS for values in runs) >= 0.85 * RUNS


def test_the_direction_of_a_trend() -> None:
    slope = np.arange(1000) * 0.5
    assert [detect_trend(whole(1000) + sign * slope) for sign in (-1, 0, 1)] == [FALLS, "", RISES]
    failing = np.where(whole(1000) > 1000 - slope, np.inf, whole(1000))
    assert detect_trend(failing) == RISES


@pytest.mark.parametrize(
    "rule", ["ttft p50 < 80s", "ttft avg < 80s", "attainment > 50% given ttft < {p60}s"]
)
def test_a_rule_does_not_pass_in_a_queue_that_fills_though_its_figure_is_within_the_limit(
    rule: str,
) -> None:
    def status(inside_s: Floats, rule: str) -> str:
        records: list[Record] = [
            answered(1e3 * s, sent_at=10.0 + i) for i, s in enumerate(inside_s.tolist())
        ]
        return (
            summarise_run(collect_columns(records), a_run(slo=(rule,)), 0, records).slos[0].status
        )

    full, half = queue(1.2, 400, 6, 5), queue(0.5, 400, 6, 5)
    rule = rule.format(p60=round(float(np.percentile(full, 60)), 3))
    assert PASS not in [status(values, rule) for values in full]
    assert [status(values, rule) for values in half].count(PASS) >= 5
    assert INCONCLUSIVE in [status(values, rule) for values in full]


def test_more_than_half_is_seen_no_less_often_than_half() -> None:
    """A server that fails from the middle on: what 50 % of the requests show, 52 % show too. A rule
    on the error rate is decided like one on p95, of the same requests."""

    def low_of(failed: int) -> float:
        ones = np.concatenate([np.zeros(228 - failed), np.ones(failed)])
        return estimate_share_interval(ones).low or 0.0

    assert low_of(119) >= low_of(114) > 0.05
    values = np.concatenate([np.full(109, 0.1), np.full(119, math.inf)])
    assert estimate_percentile_interval(values, 95).low == math.inf
