"""The tokens that a server generated for cancelled requests: columns and counters by hand, and the
rule on them."""

from typing import Any

import numpy as np
import pytest
from support.records import UNIX, a_run, answered

from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.cancelled_work import (
    CancelledWork,
    bound_by_total,
    find_ratio_interval,
    measure_cancelled_work,
)
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.cancelled_work_text import describe_cancelled_work
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS

CHECKED = a_run(
    check_cancellations=True, request_cancellation_rate=50.0, slo=("ghost_tokens < 10",)
)


def cancel(*chunk_ms: float, **other: object) -> Record:
    return answered(*chunk_ms, outcome=CANCELLED, tokens_from="chunks", **other)


def read_counters(*tokens: float, begin: float = 9.0, **last: Any) -> EngineHistory:
    """A reading each second."""
    history = EngineHistory()
    for number, count in enumerate(tokens):
        fields = last if number == len(tokens) - 1 else {}
        history.add(
            EngineSample(at=UNIX + begin + number, engine="vLLM", generated=count, **fields)
        )
    return history


TWO_LEFT = [answered(100, 200, 300), cancel(100, 200), cancel(150)]
"""Six tokens were received, three of them by clients who left."""


def test_ghosts_are_the_tokens_that_nobody_received() -> None:
    """The server restarted between two readings: it counted 10, then 16 tokens."""
    found = measure_cancelled_work(
        read_counters(100.0, 110.0, 6.0, 16.0), collect_columns(TWO_LEFT), CHECKED
    )
    assert found == CancelledWork(
        cancelled=2,
        generated=26.0,
        received=6.0,
        estimated=3.0,
        ghost_tokens=10.0,
        still_running=0.0,
    )
    assert describe_cancelled_work(found) == (
        "The server generated 26 tokens, and the run received roughly 6 (roughly 3 of them in "
        "answers without a count): 10 ghost tokens for each of 2 cancelled requests, if nobody "
        "else used the server. There is no interval, as clients left at too few moments: a longer run may have one. Prefill for clients who left "
        "makes no tokens, so it is not counted."
    )
    counted = a_run(check_cancellations=True, request_count=3)
    found = measure_cancelled_work(
        read_counters(100.0, 110.0, 6.0, 16.0), collect_columns(TWO_LEFT), counted
    )
    assert found is not None
    assert ": more requests (--request-count) may have one." in describe_cancelled_work(found)


def test_a_chunk_has_as_many_tokens_as_in_complete_answers() -> None:
    records = [answered(100, 200, output_tokens=8), cancel(100)]
    found = measure_cancelled_work(read_counters(0.0, 20.0), collect_columns(records), CHECKED)
    assert found is not None
    assert (found.received, found.ghost_tokens) == (12.0, 8.0)


@pytest.mark.parametrize(
    ("history", "records", "problem"),
    [
        (read_counters(0.0, 9.0), [answered(100)], "no request was cancelled"),
        (EngineHistory(), TWO_LEFT, "no metrics of the server"),
        (read_counters(0.0, 9.0, begin=11.0), TWO_LEFT, "no metrics of the server"),
        (
            read_counters(0.0, 9.0),
            [answered(100, tokens_from="chunks"), cancel(100)],
            "the server counts no tokens of its answers",
        ),
    ],
)
def test_why_ghosts_are_unknown(
    history: EngineHistory, records: list[Record], problem: str
) -> None:
    found = measure_cancelled_work(history, collect_columns(records), CHECKED)
    assert found is not None
    assert found.ghost_tokens is None
    assert problem in describe_cancelled_work(found)


def test_a_run_without_the_check_has_none() -> None:
    assert (
        measure_cancelled_work(read_counters(0.0, 9.0), collect_columns(TWO_LEFT), a_run()) is None
    )


GHOSTS_OF_WINDOWS = (8, 10, 12, 10, 10)
MEAN, LOW, HIGH = 10.0, 8.244, 11.756
"""Their mean is off by t(4) = 2.776 times the root of 2 / 5."""


def leave_each_four_seconds(ghosts: tuple[int, ...]) -> tuple[list[Record], list[float]]:
    """Records, and the counter at each second from 9 to 30. A client leaves at 10.1 s with one token,
    one at 14.1 s and so on, and the server generates so many more in the same second."""
    records = [answered(100, 200, 300)]
    grown = [0.0] * 22
    grown[2] += 3
    for number, count in enumerate(ghosts):
        records.append(cancel(100, sent_at=10.0 + 4 * number))
        grown[2 + 4 * number] += 1 + count
    return records, list(np.cumsum(grown))


def test_the_interval_is_that_of_the_windows() -> None:
    """An answer takes 0.3 s, so the 20 s have 20 windows, and each fourth one has a cancellation."""
    records, counter = leave_each_four_seconds(GHOSTS_OF_WINDOWS)
    found = measure_cancelled_work(read_counters(*counter), collect_columns(records), CHECKED)
    assert found is not None
    assert found.ghost_tokens == MEAN
    assert found.interval == pytest.approx((LOW, HIGH), abs=0.001)
    assert "10 (8.24 to 11.8) ghost tokens for each of 5 cancelled requests" in (
        describe_cancelled_work(found)
    )


def test_those_who_left_together_are_no_sample() -> None:
    """All of them left in one window, or in four."""
    for together in (1, 4):
        left = np.array([5.0] * together + [0.0] * (20 - together))
        assert find_ratio_interval(10.0 * left, left) is None


def test_tokens_after_a_window_belong_to_its_clients() -> None:
    """The server works for them in the next window, too."""
    left = np.array([1.0, 0.0] * 5)
    ghosts = np.array([8.0, 0, 4, 6, 12, 0, 0, 10, 3, 7])
    assert find_ratio_interval(ghosts, left) == pytest.approx((LOW, HIGH), abs=0.001)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_interval_holds_the_truth(spread: float) -> None:
    """200 runs of 20 windows, with about four clients a window, who share what the window adds or takes
    away, and leave a third of their tokens to the next one."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        left = draw.poisson(4.0, 20).astype(float)
        each = draw.normal(100.0, 30.0 * spread, 20)
        ghosts = left * each * 2 / 3
        ghosts[1:] += (left * each / 3)[:-1]
        interval = find_ratio_interval(ghosts, left)
        assert interval is not None
        held += interval[0] <= 100.0 <= interval[1]
    assert held >= 184


def test_the_total_bounds_the_interval() -> None:
    """19 tokens for 19 clients who left at 19 moments: if one has them all, the mean is off by t(18) =
    2.101 times the root of 1 x (19 - 1) / 18 = 1. Of 38 estimated tokens each has two."""
    left = np.ones(19)
    assert bound_by_total(19.0, left, uncertain=0.0, most=128.0) == pytest.approx(
        (0.0, 3.101), abs=0.001
    )
    assert bound_by_total(19.0, left, uncertain=38.0, most=128.0) == pytest.approx(
        (0.0, 5.101), abs=0.001
    )
    # 100 of at most 128 tokens each: t(18) times the root of 100 x 28 / 18
    assert bound_by_total(1_900.0, left, uncertain=0.0, most=128.0) == pytest.approx(
        (73.8, 126.2), abs=0.1
    )


def test_counters_that_lack_received_tokens_bound_it_too() -> None:
    """The run received 38 tokens more than the server counted, which may be wrong by as many."""
    bound = bound_by_total(-38.0, np.ones(19), uncertain=0.0, most=128.0)
    assert bound == (0.0, 2.0)


def test_those_who_left_together_count_once() -> None:
    """Four moments with five clients each are too few. 12 + 4 x 1 are worth 16² / 148 = 1.7."""
    assert bound_by_total(9.0, np.full(4, 5.0), uncertain=0.0, most=128.0) is None
    together = np.array([12.0, 1, 1, 1, 1])
    assert bound_by_total(9.0, together, uncertain=0.0, most=128.0) is None


def test_the_bound_by_the_total_holds_the_truth() -> None:
    """200 runs of 20 clients, of whom each fourth one leaves 80 tokens and others none: 20 each."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        total = 80.0 * draw.binomial(20, 0.25)
        bound = bound_by_total(total, np.ones(20), uncertain=0.0, most=128.0)
        assert bound is not None
        held += bound[0] <= 20.0 <= bound[1]
    assert held >= 190


def test_a_short_run_with_few_ghosts_is_decided() -> None:
    """Answers of 4 s need windows of 8 s, of which 24 s have three. The clients left at six moments,
    and the server generated a token for each of them: t(5) = 2.571 times the root of 1 x (2 - 1) / 5,
    as no request has more than two tokens."""
    records = [answered(100, 4000, sent_at=10.0 + 4 * number) for number in range(6)]
    records += [cancel(100, sent_at=11.0 + 4 * number) for number in range(6)]
    columns = collect_columns(records)
    work = measure_cancelled_work(read_counters(*np.linspace(0, 24, 26)), columns, CHECKED)
    assert work is not None
    assert (work.generated, work.received, work.ghost_tokens) == (24.0, 18.0, 1.0)
    assert work.interval == pytest.approx((0.0, 2.150), abs=0.001)
    (found,) = summarise_run(columns, CHECKED, cancelled_work=work).slos
    assert found.status == PASS


FEW = (9, 9, 9, 9, 9)
MANY = (11, 11, 11, 11, 11)


@pytest.mark.parametrize(
    ("ghosts", "last", "status", "observed"),
    [
        (FEW, {}, PASS, 9.0),
        (MANY, {}, FAIL, 11.0),
        (GHOSTS_OF_WINDOWS, {}, INCONCLUSIVE, MEAN),
        (FEW, {"running": 1.0}, INCONCLUSIVE, 9.0),
        (MANY, {"running": 1.0}, FAIL, 11.0),
        (MANY[:4], {}, INCONCLUSIVE, 11.0),
    ],
)
def test_the_rule(
    ghosts: tuple[int, ...], last: dict[str, float], status: str, observed: float
) -> None:
    records, counter = leave_each_four_seconds(ghosts)
    columns = collect_columns(records)
    work = measure_cancelled_work(read_counters(*counter, **last), columns, CHECKED)
    (found,) = summarise_run(columns, CHECKED, cancelled_work=work).slos
    assert (found.status, found.observed) == (status, observed)


def test_the_rule_of_unknown_tokens() -> None:
    columns = collect_columns(TWO_LEFT)
    work = measure_cancelled_work(EngineHistory(), columns, CHECKED)
    (found,) = summarise_run(columns, CHECKED, cancelled_work=work).slos
    assert (found.status, found.observed) == (INCONCLUSIVE, None)
