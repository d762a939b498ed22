"""Rules on answers: PASS, FAIL or INCONCLUSIVE from counts that a pencil can check."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered
from support.stages import a_level

from locust_llm.answers.fault_names import BROKEN_TEXT, FOREIGN_MARKER
from locust_llm.answers.reference_answer import IDLE, UNDER_LOAD, AnswerToken, ReferenceAnswer
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.record import Record
from locust_llm.report.judge_slo import judge_sweep
from locust_llm.report.load_records import collect_columns
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult

LEAK = "leaks == 0"


def checked(number: int, **checks: Any) -> Record:
    usual: dict[str, Any] = {"marker": number, "searched": True}
    return answered(10, 20, sent_at=10.0 + number, answer=AnswerChecks(**(usual | checks)))


def answers(count: int, *, repeated: int, leaks: int = 0, broken: int = 0) -> list[Record]:
    """So many answers, the first ones with their own marker, the last ones with another's."""
    found = list[Record]()
    for number in range(1, count + 1):
        foreign = (0,) if number > count - leaks else ()
        faults = (BROKEN_TEXT,) if number <= broken else ()
        own = number <= repeated
        found.append(checked(number, asked=own, repeated=own, foreign=foreign, faults=faults))
    return found


def reference(asked: str, word: str = "two", margin: float | None = 3.0) -> ReferenceAnswer:
    tokens = () if margin is None else (AnswerToken("one "), AnswerToken(word, -0.1, margin))
    return ReferenceAnswer(
        prompt=0, asked=asked, sent_at=UNIX + 20, ended_at=UNIX + 21, text=f"one {word}",
        finish_reason="stop", tokens=tokens,
    )  # fmt: skip


def judged(
    rule: str, records: Sequence[Record], references: Sequence[ReferenceAnswer] = ()
) -> SloResult:
    run = a_run(slo=(rule,), check_answers=True)
    columns = collect_columns(records)
    return summarise_run(columns, run, 0, records, references=references).slos[0]


def test_no_leak_passes_with_the_bound_that_the_answers_give() -> None:
    """1 - 0.05^(1 / 40) is 7.2%: 40 of 200 answers show their own marker."""
    found = judged(LEAK, answers(200, repeated=40))
    assert (found.status, found.observed, found.count) == (PASS, 0.0, 200)
    assert found.reason == "at most 7.2% of 200 answers were swapped (95%)"


@pytest.mark.parametrize("repeated", [0, 40])
def test_one_leak_fails_however_rarely_the_model_repeats_its_marker(repeated: int) -> None:
    found = judged(LEAK, answers(200, repeated=repeated, leaks=1))
    assert (found.status, found.observed) == (FAIL, 1.0)
    assert found.reason == "1 of 200 answers contains the session marker of another session"


def test_a_leak_into_a_reference_answer_fails_too() -> None:
    leaked = replace(reference(UNDER_LOAD), faults=(FOREIGN_MARKER,))
    found = judged(LEAK, answers(200, repeated=40), [reference(IDLE), leaked])
    assert (found.status, found.observed) == (FAIL, 1.0)
    assert found.reason == ("1 reference answer contains the session marker of another session")


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (answers(200, repeated=1), "1 of 200 answers repeat their own session marker, so leaks could "
            "hardly be seen"),
        ([checked(1, marker=None)], "no prompt has a session marker"),
        ([checked(1, searched=False)], "no answer was searched for session markers"),
    ],
)  # fmt: skip
def test_a_run_that_could_see_no_leak_decides_nothing(records: list[Record], reason: str) -> None:
    found = judged(LEAK, records)
    assert (found.status, found.observed, found.reason) == (INCONCLUSIVE, None, reason)


@pytest.mark.parametrize(
    ("same", "other", "margin", "status", "observed", "worst"),
    [
        (400, 0, 3.0, PASS, 0.0, None),  # 1 - 0.025^(1 / 400) is 0.92%
        (300, 0, 3.0, INCONCLUSIVE, 0.0, None),  # 1.2%
        (360, 40, 3.0, FAIL, 10.0, None),
        (360, 40, 0.01, PASS, 0.0, None),  # near ties are rounding
        (360, 40, None, INCONCLUSIVE, 0.0, 10.0),  # rounding or not: nobody knows
    ],
)
def test_mismatches_count_by_their_margin(
    same: int, other: int, margin: float | None, status: str, observed: float, worst: float | None
) -> None:
    load = [reference(UNDER_LOAD, margin=margin)] * same
    load += [reference(UNDER_LOAD, "six", margin)] * other
    found = judged("mismatch_rate <= 1%", answers(10, repeated=5), [
        reference(IDLE, margin=margin), *load
    ])  # fmt: skip
    assert (found.status, found.count) == (status, 400 if same != 300 else 300)
    assert found.observed == pytest.approx(observed)
    assert found.worst == (None if worst is None else pytest.approx(worst))


@pytest.mark.parametrize(
    ("broken", "status"),
    [(0, PASS), (1, INCONCLUSIVE), (20, FAIL)],  # at most 0.92%; 1 of 400 is at most 1.4%
)
def test_broken_text_is_a_share_of_the_searched_answers(broken: int, status: str) -> None:
    found = judged("broken_text < 1%", answers(400, repeated=80, broken=broken))
    assert (found.status, found.observed) == (status, pytest.approx(100 * broken / 400))


def test_without_reference_answers_nothing_is_decided() -> None:
    found = judged("mismatch_rate <= 1%", answers(10, repeated=5))
    assert found.reason == "no reference prompt was answered under load"


def test_a_leak_in_one_stage_fails_the_sweep() -> None:
    """Other rules hold if one load meets them. A wrong answer is wrong at any load."""
    fine = SloResult(rule=LEAK, status=PASS, observed=0.0)
    leak = replace(fine, status=FAIL, observed=1.0, reason="1 of 9 answers contains a marker")
    levels = (a_level(1.0, slos=(fine,)), a_level(2.0, slos=(leak,)), a_level(4.0, slos=(fine,)))
    run = a_run(slo=(LEAK,), sweep="concurrency=1,2,4", check_answers=True)
    found = judge_sweep(
        SweepSummary(axis="concurrency", unit="users", levels=levels, ended=""), run
    )[0]
    assert (found.status, found.of_stage) == (FAIL, 2.0)
    assert found.reason == "at concurrency 2; 1 of 9 answers contains a marker"


def test_a_sweep_judges_the_answers_of_all_stages_together() -> None:
    """200 answers of each of two stages leave 1.8% for each, and 0.92% together."""
    rule = "broken_text < 1%"
    records = answers(400, repeated=80)
    run = a_run(slo=(rule,), sweep="concurrency=1,2", check_answers=True)
    open_ = SloResult(rule=rule, status=INCONCLUSIVE, observed=0.0)
    levels = (a_level(1.0, slos=(open_,)), a_level(2.0, slos=(open_,)))
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="")
    found = summarise_run(collect_columns(records), run, 0, records, sweep).slos[0]
    assert (found.status, found.count) == (PASS, 400)


def test_rules_on_answers_need_the_checks() -> None:
    refused = [*validate_settings(Settings(slo=(LEAK,)))]
    assert f"SLO {LEAK!r} needs --check-answers" in refused
