"""The arithmetic of accuracy, by pencil: differences of intervals, bounds by counting, the ends of
a percentile."""

import math
from fractions import Fraction
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered

from locust_llm.records.histogram import Histogram
from locust_llm.records.timing_accuracy import (
    DOUBT,
    LEAST,
    SHARES,
    ErrorBounds,
    OrderedValues,
    ReferenceTimes,
    TimingDifferences,
    combine_worst_bounds,
    compute_error_bounds,
    count_surely_beyond,
    first_chunk_bounds,
    largest_difference_us,
    largest_error_ms,
    parse_reference_times,
    percentile_error_ends,
)

MS = 1_000_000


def test_a_difference_is_the_end_further_from_zero() -> None:
    """True: 20.000 to 20.030 ms; reported in whole microseconds, so one more."""
    assert largest_difference_us(20_010, 20 * MS, 20_030_000) == 20 + 1
    assert largest_difference_us(20_050, 20 * MS, 20_030_000) == 50 + 1
    assert largest_difference_us(19_900, 20 * MS, 20_030_000) == 130 + 1
    assert largest_difference_us(20_000, 20 * MS, 20_000_001) == 1 + 1  # rounded up


@given(st.integers(0, 10**7), st.integers(0, 10**10), st.integers(0, 10**8))
def test_no_truth_within_the_interval_lies_further(
    reported_us: int, low_ns: int, width_ns: int
) -> None:
    found = largest_difference_us(reported_us, low_ns, low_ns + width_ns)
    for true_ns in (low_ns, low_ns + width_ns // 2, low_ns + width_ns):
        assert abs(Fraction(true_ns - reported_us * 1000, 1000)) <= found


def test_one_stream() -> None:
    """Asked at 0; sends at 10, 30 and 50 ms, each within 0.1 ms. The second chunk is reported 1 ms
    late."""
    found = TimingDifferences()
    sends = tuple((ms * MS, ms * MS + 100_000) for ms in (10, 30, 50))
    found.add(answered(10.05, 31.05, 50.05), ReferenceTimes(0, sends))
    assert found.ttft.counts == {51: 1}  # 10.05 in 10.0 to 10.1: 50 µs either way, and one
    # 21 in 19.9 to 20.1, 19 in the same: 1.1 ms, and one
    assert found.gap.counts == {three(1101): 2}
    assert (found.streams, found.chunks, found.merged) == (1, 3, 0)


def three(us: int) -> int:
    """As the histogram rounds."""
    return round(us, -1) if us >= 1000 else us


def test_what_came_merged_is_in_no_difference() -> None:
    found = TimingDifferences()
    sends = tuple((ms * MS, ms * MS) for ms in (10, 30, 50, 70))
    found.add(answered(30, 30, 50, 70, merged=((0, 5_000), (1, 5_000))), ReferenceTimes(0, sends))
    assert not found.ttft.counts
    assert found.gap.counts == {1: 1}  # from 50 to 70
    assert (found.chunks, found.merged) == (4, 2)


def test_a_stream_with_other_chunks_is_left_out() -> None:
    found = TimingDifferences()
    found.add(answered(10.0), ReferenceTimes(0, ((1, 2), (3, 4))))
    found.add(answered(), ReferenceTimes(0, ()))
    assert (found.streams, found.chunks) == (0, 0)
    assert found.certificate().missing


def test_the_truth_of_an_event() -> None:
    assert parse_reference_times(
        b'{"choices":[],"truth":{"arrived":5,"sends":[[6,7],[8,9]]}}'
    ) == ReferenceTimes(5, ((6, 7), (8, 9)))


@given(
    st.one_of(
        st.binary(max_size=200),
        st.from_regex(rb'\{"truth":\{"arrived":-?\d{1,30},"sends":\[.{0,20}\]\}\}'),
    )
)
def test_no_event_of_anybody_else_raises(event: bytes) -> None:
    found = parse_reference_times(event)
    assert found is None or found.arrived >= 0


def test_how_many_surely_lie_beyond() -> None:
    """0.95^71 is above 0.025, 0.95^72 below: from 72 values on the largest is a bound of the 95th
    percentile."""
    assert count_surely_beyond(71, 0.05) is None
    assert count_surely_beyond(72, 0.05) == 0
    assert count_surely_beyond(1000, 0.05) == 34  # 50 - 2 * sqrt(50) - 1 = 34.9


@pytest.mark.parametrize("share", SHARES)
def test_a_bound_fails_in_one_run_of_forty(share: float) -> None:
    """Exactly, by the binomial distribution."""
    for count in (72, 200, 1000):
        beyond = count_surely_beyond(count, share)
        if beyond is not None:
            exactly = Fraction(share).limit_denominator(1000)
            fails = sum(
                math.comb(count, k) * exactly**k * (1 - exactly) ** (count - k)
                for k in range(beyond + 1)
            )
            assert fails <= DOUBT * 1.001


def test_a_truth_that_is_hardly_known_says_nothing_unless_it_is_contradicted() -> None:
    """The second chunk was sent between 120 and 121 ms. At 120.5 ms nobody knows how far it is off;
    at 119 ms it is off by 1 to 2 ms (to three digits)."""
    ms = 1_000_000
    truth = ReferenceTimes(0, ((100 * ms, 100 * ms), (120 * ms, 121 * ms)))
    for at_us, known in ((120_500, []), (119_000, [2_000])):
        found = TimingDifferences()
        found.add(answered(100, at_us / 1e3), truth)
        assert (list(found.gap.counts), found.ttft.count) == (known, 1)


def test_bounds_of_differences() -> None:
    """1 to 100 µs, each ten times: of 1,000, 34 surely lie beyond the bound of 5 %, so it is the
    35th from the top."""
    found = compute_error_bounds(Histogram(dict.fromkeys(range(1, 101), 10)))
    assert found is not None
    assert (found.count, found.max_ms, found.within[0.05]) == (1000, 0.1, 0.097)
    assert found.pairs[0] == (0.0, 0.1)
    assert 0.001 not in found.within  # 0.999^1000 is 0.37
    assert compute_error_bounds(Histogram({5: LEAST - 1})) is None


@pytest.mark.parametrize(("count", "p99_ms"), [(8, 0.01), (40, 0.01), (100, 0.09)])
def test_one_difference_of_few_is_no_p99(count: int, p99_ms: float) -> None:
    """All but one are 10 µs, one is 8 ms: of 100 p99 lies a hundredth of the way to it."""
    found = compute_error_bounds(Histogram({10: count - 1, 8000: 1}))
    assert found is not None
    assert (found.p99_ms, found.max_ms) == (pytest.approx(p99_ms, abs=1e-3), 8.0)


@pytest.mark.parametrize(
    ("count", "p95_ms", "p99_ms"),
    [(12, 0.011, 0.011), (21, 0.02, 0.02), (22, 0.02095, 0.021), (101, 0.096, 0.1)],
)
def test_no_p95_of_few_differences_is_above_their_p99(
    count: int, p95_ms: float, p99_ms: float
) -> None:
    """1, 2, 3, ... µs, once each. Of 12 both are the second largest; of 22 p95 is 0.95 of the way
    from 1 to 22 µs."""
    found = compute_error_bounds(Histogram(dict.fromkeys(range(1, count + 1), 1)))
    assert found is not None
    assert (found.p95_ms, found.p99_ms) == (pytest.approx(p95_ms), pytest.approx(p99_ms))


def test_of_two_processes_the_worse_one_counts() -> None:
    one = ErrorBounds(count=100, p50_ms=1, p95_ms=2, p99_ms=3, max_ms=9, within={0.05: 2, 0.02: 3})
    two = ErrorBounds(count=80, p50_ms=2, p95_ms=2, p99_ms=2, max_ms=4, within={0.05: 4})
    assert combine_worst_bounds([one, two]) == ErrorBounds(
        count=180, p50_ms=2, p95_ms=2, p99_ms=3, max_ms=9, within={0.05: 4}
    )


def test_a_first_chunk_has_a_stamp_like_any_other() -> None:
    ttft = ErrorBounds(count=20, p50_ms=1, p95_ms=2, p99_ms=2, max_ms=2, within={0.2: 1.5})
    gap = ErrorBounds(
        count=900, p50_ms=1, p95_ms=1, p99_ms=1, max_ms=9, within={0.2: 1, 0.02: 3, 0.05: 1}
    )
    found = first_chunk_bounds(ttft, gap)
    assert (found.count, found.max_ms, found.within) == (20, 9, {0.2: 1.5, 0.02: 3, 0.05: 2})


def bounds(max_ms: float, **within: float) -> ErrorBounds:
    """``of_05=0.5``: at most 5 % lie beyond 0.5 ms."""
    shares = {float(f"0.{name[3:]}"): ms for name, ms in within.items()}
    return ErrorBounds(
        count=100, p50_ms=max_ms, p95_ms=max_ms, p99_ms=max_ms, max_ms=max_ms, within=shares
    )


def test_the_ends_of_a_percentile() -> None:
    """0 to 100 ms in steps of 1, of which a median has 50 on either side. All within 5 ms: 50 ± 5.
    Where 99 of 100 lie within 0.5 ms, one of the five values within 5 ms may cross the median: one
    rank, and 0.5 ms. Above p99 lies a single value, too few to expect that of it."""
    values = OrderedValues(list(range(101)))
    ends = [
        percentile_error_ends(p, values, values, values, found)
        for p, found in ((50, bounds(5)), (50, bounds(5, of_01=0.5)), (99, bounds(5, of_01=0.5)))
    ]
    assert ends == [pytest.approx((5, 5)), pytest.approx((1.5, 1.5)), pytest.approx((0.5, 1.5))]


def test_a_rare_error_hardly_moves_a_median() -> None:
    """Four in five are off by 1 ms at most, the others by up to 40. The median of 1,000 equal
    values is within 1 ms, however 200 of them are off. Of values 1 ms apart 39 are near enough to
    cross it, one in five of them: 7.8, so 14 at most (7.8 + 2 * 2.8, and one): 14 ranks and 1
    ms."""
    equal, spread = OrderedValues([100.0] * 1000), OrderedValues(list(range(1000)))
    some = bounds(40, of_2=1.0)
    assert percentile_error_ends(50, equal, equal, equal, some) == pytest.approx((1, 1))
    assert percentile_error_ends(50, spread, spread, spread, some) == pytest.approx((15, 15), abs=1)


def test_what_came_merged_may_have_come_sooner() -> None:
    values, sooner = OrderedValues(list(range(20, 121))), OrderedValues(list(range(101)))
    assert percentile_error_ends(50, sooner, values, values, bounds(1)) == pytest.approx((21, 1))
    assert percentile_error_ends(50, sooner, values, values, None) == pytest.approx((20, 0))


def test_a_percentile_of_failures_has_ends() -> None:
    """A failed request counts with 10^15 ms, beside which the next double is 0.125 ms away."""
    values = OrderedValues([10.0] * 5 + [1e15] * 95)
    low, high = percentile_error_ends(50, values, values, values, bounds(0.3, of_2=0.1))
    assert {low, high} <= {0.125, 0.25}


def test_values_with_counts_are_ordered_like_values() -> None:
    alone, counted = OrderedValues([1.0, 2.0, 2.0, 5.0]), OrderedValues([1.0, 2.0, 5.0], [1, 3, 4])
    for found in (alone, counted):
        assert [found.count_within(ms) for ms in (0.9, 1, 2, 4.9, 9)] == [0, 1, 3, 3, 4]
        assert [found.at_rank(rank) for rank in (-1, 0, 1, 2, 3, 9)] == [1, 1, 2, 2, 5, 5]


def test_an_average_is_off_by_the_mean_of_the_errors() -> None:
    some = bounds(10, of_5=1.0, of_1=2.0)  # half 1, four in ten 2, one in ten 10
    assert largest_error_ms(some, average=True) == pytest.approx(0.5 * 1 + 0.4 * 2 + 0.1 * 10)
    assert largest_error_ms(some, average=False) == 10


@pytest.mark.slow
def test_the_true_percentile_lies_within() -> None:
    """400 runs: 300 values each, 2 of 100 off by up to 30 ms, the others by up to 0.05; the bounds
    from 400 others."""
    random = Random(5)
    inside = 0
    for _ in range(400):
        found = compute_error_bounds(histogram(off_us(random) for _ in range(400)))
        assert found is not None
        true = [random.uniform(100, 300) for _ in range(300)]
        reported = [value + random.choice((-1, 1)) * off_us(random) / 1e3 for value in true]
        at = {p: (np.percentile(true, p), np.percentile(reported, p)) for p in (50, 99)}
        kept = []
        for p, (really, said) in at.items():
            ordered = OrderedValues(sorted(reported))
            low, high = percentile_error_ends(p, ordered, ordered, ordered, found)
            kept.append(said - low <= really <= said + high)
        inside += all(kept)
    assert inside >= 0.95 * 400


def off_us(random: Random) -> int:
    return random.randrange(30_000) if random.random() < 0.02 else random.randrange(50)


def histogram(values: object) -> Histogram:
    found = Histogram({})
    found.add(*values)  # type: ignore[misc]
    return found


def test_a_certificate_is_read_as_it_was_written() -> None:
    found = TimingDifferences()
    for _ in range(12):
        found.add(answered(10, 30), ReferenceTimes(0, ((10 * MS, 10 * MS), (30 * MS, 30 * MS))))
    certificate = found.certificate(0.5)
    assert certificate.ttft is not None
    assert certificate.server_cpu_s == 0.5
    assert (
        msgspec.json.decode(msgspec.json.encode(certificate), type=type(certificate)) == certificate
    )
