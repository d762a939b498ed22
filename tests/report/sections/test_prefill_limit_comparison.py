"""The answer about prefill limits, in words, and its tables: of regrets by hand, and of a run."""

import math
from random import Random

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered

from locust_llm.records.limit_blocks import LimitBlock
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.report.document_blocks import TableBlock, TextBlock
from locust_llm.report.load_records import collect_columns
from locust_llm.report.open_loop_delivery import format_outage_line
from locust_llm.report.sections.prefill_limit_comparison import (
    BEST_LIMIT,
    LimitComparison,
    compare_limits,
    describe_answer,
    describe_method,
    make_limit_blocks,
    name_limits,
    plot_limits,
)
from locust_llm.report.sections.section import ReportMaterial
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.users_and_limit_over_time import describe_arm_limits
from locust_llm.slo.best_prefill_limit import (
    GOODPUT,
    SHORT_TTFT,
    Limit,
    LimitRegret,
    find_likely_best,
)

GOOD = (0.0, 0.02)
BAD = (1.0, 1.5)
OPEN = (0.0, 0.2)
TIMES = (2.3, 1.9, 2.8)


def a_regret(limit: Limit, ends: tuple[float, float], rounds: int = 8) -> LimitRegret:
    low, high = ends
    return LimitRegret(limit, 1.0, rounds, low, low, high, low, high)


def answer(
    ends: dict[Limit, tuple[float, float]],
    without: tuple[float, float, float] | None = TIMES,
    objective: str = SHORT_TTFT,
    *,
    apart: float = 0.001,
) -> str:
    """``apart``: what the regret of each limit is above the one before."""
    regrets = [
        a_regret(limit, pair)._replace(regret=pair[0] + apart * place)
        for place, (limit, pair) in enumerate(ends.items())
    ]
    return describe_answer(regrets, objective, without, seconds=120.0)


def test_equals_and_what_it_is_without_one() -> None:
    assert answer({None: BAD, 1: BAD, 2: GOOD, 3: GOOD, 4: GOOD}) == (
        "Limits 2 to 4 are equally good (within 3%); without a limit short prompts wait 2.3 times "
        "as long as with limit 2 (95% interval 1.9 to 2.8 times)."
    )


def test_one_is_the_best_and_another_not_told_apart() -> None:
    assert answer({None: BAD, 1: GOOD, 2: OPEN}).startswith(
        "Limit 1 is the best (within 3%); limit 2 is not distinguished from that; without a limit "
    )


def test_a_limit_whose_own_interval_says_that_it_is_worse() -> None:
    """2 to 140 % is worse, for this limit, and 0 to 200 % for all of them."""
    likely = a_regret(1, (0.02, 1.4))._replace(surely_low=0.0, surely_high=2.0)
    others = [a_regret(None, OPEN), a_regret(2, OPEN)]
    text = describe_answer([likely, *others], SHORT_TTFT, None, seconds=120.0)
    assert text.startswith("Limit 2 and no limit are not distinguished; limit 1 is likely worse.")
    text = describe_answer([likely, a_regret(2, OPEN)], SHORT_TTFT, None, seconds=120.0)
    assert text.startswith("Limit 2 is likely the best; limit 1 is likely worse.")
    assert text.endswith(" About 75 min more would make it certain.")
    assert find_likely_best([likely, a_regret(2, OPEN)]) == a_regret(2, OPEN)
    assert find_likely_best([likely, *others]) is None
    assert find_likely_best([likely, a_regret(2, GOOD)]) is None  # it is the best for certain


def test_all_alike_advises_none() -> None:
    assert answer({None: GOOD, 1: GOOD, 8: GOOD}, None) == (
        "All prefill limits are as good as no limit (within 3%), so no limit is needed."
    )


def test_no_limit_as_good_as_one_advises_none() -> None:
    text = answer({None: GOOD, 1: BAD, 8: GOOD}, None)
    assert text == (
        "Limit 8 and no limit are equally good (within 3%). There is no evidence that a limit "
        "helps."
    )


def test_not_told_apart_names_the_time_that_would_tell() -> None:
    """From 20 % to 3 % the interval shrinks 6.2 times: 38 times as long in all."""
    text = answer({None: BAD, 2: OPEN, 4: OPEN})
    assert text.startswith("Limits 2 and 4 are not distinguished; without a limit ")
    assert text.endswith(
        " Limit 2 looks best, and is at most 20% worse than the best one (95%). About 75 min more "
        "would decide it."
    )


def test_equal_values_look_no_better_than_each_other() -> None:
    text = answer({None: OPEN, 2: OPEN, 4: OPEN}, apart=0.0)
    assert "looks best" not in text
    assert " The values of the best ones are equal. About 75 min more would decide it." in text


def test_too_few_rounds() -> None:
    regrets = [a_regret(limit, (0.0, math.inf), rounds=2) for limit in (None, 1)]
    text = describe_answer(regrets, SHORT_TTFT, None, seconds=60.0)
    assert text == (
        "The prefill limits are not distinguished: 3 rounds at each limit are needed, 2 were done. Use "
        "at least -t 90s, or fewer limits."
    )


def test_the_report_repeats_the_time_of_the_log() -> None:
    """Three rounds of 30 s are 90 s, but the log has said 113."""
    blocks = [
        LimitBlock(
            round=number, limit=limit, began_at=UNIX + at, settled_at=UNIX + at + 2,
            counted_until=UNIX + at + 13, ended_at=UNIX + at + 15,
        )
        for number, limit, at in ((1, 1, 0), (1, None, 15), (2, 1, 30), (2, None, 45))
    ]  # fmt: skip
    records = [answered(100, 5.0, 5.0, sent_at=at + 2.5) for at in (0.0, 15.0, 30.0, 45.0)]
    settings = a_run(sweep="prefill-concurrency=1", request_rate=1.0, run_time_s=60.0)
    run = replace(settings, limit_blocks=tuple(blocks), stopping_at=UNIX + 60)
    told = "WARNING: -t 60 is too short to name the best: use at least -t 113s, or fewer limits"
    for notes, seconds in (((), 90), ((told,), 113)):
        found = compare_limits(replace(run, notes=notes), records)
        assert found is not None
        assert found.answer.endswith(f", 2 were done. Use at least -t {seconds}s, or fewer limits.")


def test_a_stopped_comparison_needs_more_than_it_was_to_have() -> None:
    """It was stopped after 20 of 60 s and one round: three take three times as long as was asked
    for."""
    blocks = [
        LimitBlock(
            round=1, limit=limit, began_at=UNIX + at, settled_at=UNIX + at + 1,
            counted_until=UNIX + at + 9, ended_at=UNIX + at + 10,
        )
        for limit, at in ((1, 0), (None, 10))
    ]  # fmt: skip
    records = [answered(100, 5.0, 5.0, sent_at=at + 2.5) for at in (0.0, 10.0)]
    settings = a_run(sweep="prefill-concurrency=1", request_rate=1.0, run_time_s=60.0)
    found = compare_limits(
        replace(settings, limit_blocks=tuple(blocks), stopping_at=UNIX + 20), records
    )
    assert found is not None
    assert found.answer.endswith(", one was done. Use at least -t 180s, or fewer limits.")


def test_without_a_round_nothing_tells_how_long_three_take() -> None:
    regrets = [a_regret(limit, (0.0, math.inf), rounds=0) for limit in (None, 1)]
    text = describe_answer(regrets, SHORT_TTFT, None, seconds=12.0)
    assert text == (
        "The prefill limits are not distinguished: 3 rounds at each limit are needed, none was done. "
        "Use a longer run (-t), or fewer limits."
    )
    method = describe_method(LimitComparison(objective=SHORT_TTFT, answer=text, rounds=0))
    assert "A round has a block at each limit, " in method
    assert "blocks last" not in method


def test_a_limit_with_fewer_rounds_is_named_behind_them() -> None:
    regrets = [a_regret(1, (0.0, math.inf), rounds=1), a_regret(2, (0.0, math.inf), rounds=2)]
    text = describe_answer(regrets, SHORT_TTFT, None, seconds=60.0)
    assert "3 rounds at each limit are needed, but only one was done at limit 1. " in text
    assert text.endswith(" Use at least -t 180s, or fewer limits.")


def test_a_block_that_the_end_of_the_run_cut_is_in_no_table() -> None:
    """Limit 1 counts from 2 to 8 s and from 22 to 28 s, of which the run saw 2 s: four of its
    requests had 100 ms, two of 900 ms are of the cut block. Four in 6 s have 12 tokens."""
    blocks = [
        LimitBlock(
            round=number, limit=limit, began_at=UNIX + at, settled_at=UNIX + at + 2,
            counted_until=UNIX + at + 8, ended_at=UNIX + at + 10,
        )
        for number, limit, at in ((1, 1, 0), (1, None, 10), (2, 1, 20))
    ]  # fmt: skip
    settings = a_run(sweep="prefill-concurrency=1", request_rate=1.0)
    run = replace(settings, limit_blocks=tuple(blocks), stopping_at=UNIX + 24)
    whole = [answered(100, 5.0, 5.0, sent_at=at) for at in (2.5, 3.5, 4.5, 5.5)]
    other = [answered(300, 5.0, 5.0, sent_at=at) for at in (12.5, 13.5)]
    cut = [answered(900, 5.0, 5.0, sent_at=at) for at in (22.5, 23.0)]
    found = compare_limits(run, [*whole, *other, *cut])
    assert found is not None
    (row,) = (row for row in found.rows if row.limit == 1)
    (length,) = (row for row in found.lengths if row.limit == 1)
    assert (row.rounds, row.figure) == (1, pytest.approx(0.1))
    assert (length.requests, length.ttft_from_due_p95_s) == (4, pytest.approx(0.1))
    assert length.output_tokens_per_s == pytest.approx(4 * 3 / 6)


def test_one_round_is_no_several_rounds() -> None:
    regrets = [a_regret(limit, (0.0, math.inf), rounds=1) for limit in (None, 1)]
    text = describe_answer(regrets, SHORT_TTFT, None, seconds=60.0)
    assert "3 rounds at each limit are needed, one was done. " in text
    found = LimitComparison(objective=SHORT_TTFT, answer="", rounds=1, block_s=(12.01, 12.04))
    method = describe_method(found)
    assert "The round has a block at each limit, " in method
    assert "; blocks last 12.0 s. " in method
    several = describe_method(replace(found, rounds=3, block_s=(11.0, 12.0)))
    assert "Each of the 3 rounds has a block at each limit, " in several
    assert "; blocks last 11.0 to 12.0 s. " in several


def test_too_few_requests() -> None:
    """20 of 14 in 60 s are 86 s, and 1.5 times that is 129 s."""
    regrets = [
        a_regret(None, (0.0, math.inf), rounds=3)._replace(values=18),
        a_regret(1, (0.0, math.inf), rounds=3)._replace(values=14),
    ]
    text = describe_answer(regrets, SHORT_TTFT, None, seconds=60.0)
    assert text == (
        "The prefill limits are not distinguished: a p95 needs 20 requests with short prompts at "
        "each limit, but at limit 1 there were 14 in 3 rounds. Use at least -t 129s, or fewer "
        "limits."
    )


def test_more_time_than_anyone_has_is_named_too() -> None:
    """(ln 2 / ln 1.03)^2 = 550 times 120 s are 18 h."""
    text = answer({None: (0.0, 1.0), 2: (0.0, 1.0)}, (1.04, 0.7, 1.5))
    assert text.endswith("(95%). More than 8 h more would be needed to decide it.")


def test_no_limit_that_is_about_as_good() -> None:
    text = answer({2: OPEN, None: OPEN}, (1.04, 0.7, 1.5))
    assert (
        "without a limit short prompts wait about as long as with limit 2 (95% interval 0.7 to 1.5 "
        "times)." in text
    )


def test_of_goodput_it_is_how_much_lower() -> None:
    text = answer({None: BAD, 1: GOOD}, (1.25, 1.0, 2.0), GOODPUT)
    assert text.endswith(
        "without a limit goodput is 20.0% lower than with limit 1 (95% interval -50.0% to 0.0%)."
    )


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ((1, 2, 3), "limits 1 to 3"),
        ((1, 2, 4), "limits 1, 2 and 4"),
        ((1, 4), "limits 1 and 4"),
        ((2,), "limit 2"),
        ((None,), "no limit"),
        ((None, 1, 2, 4), "limits 1, 2 and 4, and no limit"),
        ((1, 4, 8, 16), "limits 1, 4, 8 and 16"),
    ],
)
def test_limits_are_named(limits: tuple[Limit, ...], name: str) -> None:
    assert name_limits(limits) == name


# -- of a run --------------------------------------------------------------------------------------

ROUNDS = 6
LIMITS: tuple[Limit, ...] = (None, 1, 2)


def compared(factors: dict[Limit, float]) -> LimitComparison:
    """A short prompt waits 100 ms times the factor of its limit, give or take what a round does."""
    blocks = list[LimitBlock]()
    records = list[Record]()
    random = Random(1)
    for number in range(1, ROUNDS + 1):
        weather = random.uniform(0.8, 1.2)
        for limit in LIMITS:
            at = UNIX + 10.0 * len(blocks)
            blocks.append(
                LimitBlock(
                    round=number, limit=limit, began_at=at, settled_at=at + 2,
                    counted_until=at + 8, ended_at=at + 10,
                )
            )  # fmt: skip
            for place in range(20):
                long = place % 4 == 0
                ttft_ms = 100 * weather * factors[limit] * (3 if long else 1)
                records.append(
                    answered(
                        ttft_ms, 5.0, 5.0, sent_at=at - UNIX + 2.1 + place / 4,
                        asked_input_tokens=8000 if long else 200,
                    )
                )  # fmt: skip
    run = a_run(sweep="prefill-concurrency=1,2", request_rate=4.0)
    run = run.__class__(**{name: getattr(run, name) for name in run.__struct_fields__} | {
        "limit_blocks": tuple(blocks), "sweep_end": "the best one was known",
        "stopping_at": blocks[-1].ended_at, "ended_at": blocks[-1].ended_at,
    })  # fmt: skip
    found = compare_limits(run, records)
    assert found is not None
    return found


def test_a_run_without_limit_blocks_has_none() -> None:
    assert compare_limits(a_run(), []) is None


def test_the_limit_that_is_half_as_long_is_advised() -> None:
    found = compared({None: 1.0, 1: 0.5, 2: 0.8})
    assert (found.best, found.advises) == (1, True)
    assert found.answer == (
        "Limit 1 is the best (within 3%); without a limit short prompts wait 2 times as long as with "
        "limit 1 (95% interval 2 to 2 times)."
    )
    regrets = {row.limit: (row.regret, row.verdict) for row in found.rows}
    assert regrets[1] == (0.0, "best")
    assert regrets[None] == (pytest.approx(1.0, rel=1e-3), "worse")
    assert regrets[2] == (pytest.approx(0.6, rel=1e-3), "worse")
    lengths = {(row.limit, row.prompts): row for row in found.lengths}
    assert (lengths[1, "short"].requests, lengths[1, "long"].requests) == (15 * ROUNDS, 5 * ROUNDS)
    assert lengths[1, "long"].goodput_per_s is None


def test_limits_of_a_sweep_are_named_in_the_conditions() -> None:
    block = LimitBlock(
        round=1, limit=1, began_at=UNIX, settled_at=UNIX, counted_until=UNIX, ended_at=UNIX
    )
    run = replace(a_run(sweep="prefill-concurrency=1,2,4"), limit_blocks=(block,))
    assert describe_arm_limits(run) == "none, 1, 2 and 4 in turn"


def test_a_standstill_is_named_with_the_block_that_counts_it() -> None:
    """Two answers pause from 15.1 to 21 s, in the block of limit 1, which counts from 12 to 18 s,
    and in the washout of limit 2, from 20 to 22 s."""
    blocks = [
        LimitBlock(
            round=1, limit=limit, began_at=UNIX + at, settled_at=UNIX + at + 2,
            counted_until=UNIX + at + 8, ended_at=UNIX + at + 10,
        )
        for limit, at in ((None, 0), (1, 10), (2, 20))
    ]  # fmt: skip
    run = replace(a_run(sweep="prefill-concurrency=1,2"), limit_blocks=tuple(blocks))
    records = [
        answered(100, 200, sent_at=float(at)) for at in (*range(15), *range(22, 30)) for _ in "ab"
    ]
    records += [answered(100, 6000, sent_at=15.0) for _ in "ab"]
    material = ReportMaterial(run, collect_columns(records), records, EngineHistory())
    found = BEST_LIMIT.find(material)
    assert found is not None
    assert found.silent_blocks == ("limit 1 in round 1",)
    summary = summarise_run(collect_columns(records), run)
    summary.sections[BEST_LIMIT.name] = found
    assert format_outage_line(summary) == (
        "NO ANSWER: no token came from 15.1 to 21.0 s: 2 requests were in flight all the while. It "
        "counts at limit 1 in round 1."
    )


def test_alike_ones_advise_none() -> None:
    found = compared({None: 1.0, 1: 1.0, 2: 1.0})
    assert (found.best, found.advises) == (None, False)
    assert "no limit is needed" in found.answer


def test_document_and_chart() -> None:
    found = compared({None: 1.0, 1: 0.5, 2: 0.8})
    blocks = list(make_limit_blocks(found))
    tables = [block for block in blocks if isinstance(block, TableBlock)]
    assert [row[0] for row in tables[0].rows] == ["none", "1", "2"]
    assert [row[0] for row in tables[1].rows][:2] == ["none, short", "none, long"]
    texts = " ".join(block.text for block in blocks if isinstance(block, TextBlock))
    assert "with the same arrivals and lengths" in texts
    objective, ttft = plot_limits(found)
    assert [text for _, text in objective.x.ticks] == ["1", "2", "none"]
    line = objective.series[0]
    figures = {row.limit: row.figure for row in found.rows}
    expected = [(figures[limit] or 0.0) * 1e3 for limit in (1, 2, None)]
    assert line.y == pytest.approx(expected, rel=1e-4)
    assert line.y[0] is not None
    assert line.low[0] is None or line.low[0] <= line.y[0]
    assert [line.name for line in ttft.series] == ["p95, short prompts", "p95, long prompts"]
