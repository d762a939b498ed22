"""Answers under load: the sentences and tables by pencil, and the bound on swapped answers on runs
of known truth."""

import html
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.records import UNIX, a_run, answered, failed

from locust_llm.answers.reference_answer import (
    AFTER_LOAD,
    IDLE,
    UNDER_LOAD,
    AnswerToken,
    ReferenceAnswer,
)
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.reference_answers_file import (
    REFERENCE_ANSWERS,
    format_reference_answer,
)
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.answer_results import (
    AnswerIsolation,
    AnswersUnderLoad,
    IsolationCounts,
    MarkedPrompts,
    compare_references,
    measure_isolation,
    measure_marked_prompts,
    select_answers,
)
from locust_llm.report.console_summary import format_ending
from locust_llm.report.document_blocks import TableBlock, TextBlock
from locust_llm.report.sections.answers_under_load import (
    describe_leaks,
    describe_marked_prompts,
    describe_references,
    format_answers_line,
    make_answers_blocks,
)
from locust_llm.report.write_report_files import write_reports


def checked(**checks: Any) -> Record:
    return answered(1.0, answer=AnswerChecks(**({"marker": 1, "searched": True} | checks)))


def reference(
    asked: str, text: str = "one, two", at: float = 50.0, **fields: Any
) -> ReferenceAnswer:
    usual: dict[str, Any] = {
        "prompt": 0, "sent_at": UNIX + at, "ended_at": UNIX + at + 1, "finish_reason": "stop",
    }  # fmt: skip
    return ReferenceAnswer(asked=asked, text=text, **(usual | fields))


def isolation(**counts: Any) -> AnswerIsolation:
    usual: dict[str, Any] = {
        "answers": 1240, "marked": 1240, "asked": 240, "asked_repeated": 223, "repeated": 223,
        "leaks": 0,
    }  # fmt: skip
    return AnswerIsolation(**(usual | counts))


# -- isolation -------------------------------------------------------------------------------------


def test_no_leak_is_reported_with_the_bound_that_the_answers_give() -> None:
    """1 - 0.05^(1 / 223) is 1.33%: 223 of 1,240 is 18%."""
    assert describe_leaks(isolation()) == (
        "No leak in 1,240 answers; a swapped answer would have shown in 18% of cases, so at most "
        "1.3% were swapped (95%)."
    )


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"leaks": 3}, "LEAK: 3 of 1,240 answers contain the session marker of another session."),
        ({"leaks": 1}, "LEAK: 1 of 1,240 answers contains the session marker of another session."),
        (
            {"repeated": 12, "asked_repeated": 12},
            "No leak in 1,240 answers, but leaks could hardly be seen: 12 of them repeat their own "
            "session marker.",
        ),
        (
            {"reference_leaks": 1},
            "LEAK: 1 reference answer contains the session marker of another session.",
        ),
        (  # 1 - 0.05^(1 / 40): only 40 texts could have shown, however few prompts had a marker
            {"marked": 80, "asked": 40, "asked_repeated": 40, "repeated": 40},
            "No leak in 1,240 answers; a swapped answer would have shown in 3.2% of cases, so at "
            "most 7.2% were swapped (95%).",
        ),
        ({"answers": 0}, "No answer was searched for session markers of others."),
        (
            {"marked": 0},
            "Isolation was not checked: no prompt of 1,240 answers has a session marker.",
        ),
    ],
)
def test_the_sentence_says_what_the_checks_could_see(counts: dict[str, int], sentence: str) -> None:
    assert describe_leaks(isolation(**counts)) == sentence


def test_checks_of_records_are_counted() -> None:
    found = measure_isolation(
        [
            answered(1.0),  # of a run without checks
            checked(asked=True, repeated=True, id_hash=1),
            checked(asked=True, id_hash=2),
            checked(repeated=True, id_hash=3, faults=("wrong_usage", "lost_delta")),
            checked(foreign=(7, 8), id_hash=2, faults=("wrong_usage",)),
            checked(marker=None, foreign=(7,)),
            checked(searched=False, marker=None, id_hash=4),
        ]
    )
    assert found == AnswerIsolation(
        answers=5,
        marked=4,
        asked=2,
        asked_repeated=1,
        repeated=2,
        leaks=2,
        faults={"duplicate_id": 2, "wrong_usage": 2, "lost_delta": 1},
    )
    assert (found.sensitivity, found.most_swapped) == (0.4, None)


@pytest.mark.parametrize(
    ("ids", "most_ids", "duplicates"),
    [
        ([1, 2, 3, 2, 2, 4, 3], None, 5),
        (range(1_000), None, 0),
        ([1, 2, 1], 2, 2),
        ([1, 2, 3, 1], 2, 0),  # the first one is forgotten
    ],
)
def test_each_answer_with_the_id_of_another_is_counted(
    ids: Iterable[int], most_ids: int | None, duplicates: int
) -> None:
    counts = IsolationCounts(most_ids=most_ids)
    for id_hash in ids:
        counts.add(AnswerChecks(id_hash=id_hash))
    assert counts.summarise().faults.get("duplicate_id", 0) == duplicates


@pytest.mark.parametrize(("swapped", "sensitivity"), [(0.02, 0.18), (0.005, 0.9), (0.1, 0.05)])
def test_the_bound_on_swapped_answers_holds_in_95_of_100_runs(
    swapped: float, sensitivity: float
) -> None:
    """Among 300 answers so many are swapped; a swapped one shows if it holds a marker."""
    dice = random.Random(2_026)
    answers, runs = 300, 2_000
    wrong = 0
    for _ in range(runs):
        seen = [dice.random() < sensitivity for _ in range(answers)]
        leaks = sum(holds and dice.random() < swapped for holds in seen)
        repeated = sum(seen)
        found = isolation(answers=answers, marked=answers, repeated=repeated, leaks=leaks)
        wrong += found.most_swapped is not None and found.most_swapped < swapped
    assert wrong <= 0.05 * runs


# -- the same answer as alone ----------------------------------------------------------------------


def test_equal_answers_have_a_bound_on_others() -> None:
    """1 - 0.025^(1 / 40) is 8.8%."""
    answers = [reference(IDLE, at=1.0)] * 4 + [reference(UNDER_LOAD)] * 40
    found = compare_references(answers, [])
    assert found is not None
    assert describe_references(found) == (
        "40 reference answers under load equal the idle ones, so at most 8.8% differ (95%)."
    )
    assert (found.prompts, found.sent, found.failed) == (1, 44, 0)


def test_mismatches_stand_beside_those_of_the_idle_server() -> None:
    """All 5 of 45 are among the 25 under load: 25 choose 5 of 45 choose 5 is 0.0435."""
    answers = [
        *[reference(IDLE, at=1.0)] * 21,
        *[reference(UNDER_LOAD)] * 20,
        *[reference(UNDER_LOAD, "one, zwei")] * 5,
        reference(UNDER_LOAD, "", error="HTTP 503: busy"),
    ]
    found = compare_references(answers, [])
    assert found is not None
    assert describe_references(found) == (
        "5 of 25 reference answers under load differ from the idle ones; of repeated idle answers "
        "0 of 20 did (p = 0.043). The server gives no margins, so rounding may be the reason."
    )
    whole = AnswersUnderLoad(isolation=isolation(), references=found)
    assert whole.is_alarming
    assert found.failed == 1
    shown = found.differences[0]
    assert (shown.idle_text, shown.text) == ("one, ▸two", "one, ▸zwei")
    loud = [
        block.text
        for block in make_answers_blocks(whole)
        if isinstance(block, TextBlock) and block.loud
    ]
    assert loud == [describe_references(found)]


def test_one_answer_equals() -> None:
    answers = [*[reference(IDLE, "True")] * 2, reference(UNDER_LOAD, "True")]
    found = compare_references(answers, [])
    assert found is not None
    assert describe_references(found).startswith(
        "1 reference answer under load equals the idle ones"
    )


def test_a_near_tie_is_no_mismatch_and_is_named() -> None:
    def with_margin(asked: str, word: str) -> ReferenceAnswer:
        return reference(asked, word, tokens=(AnswerToken(word, -0.7, 0.05),))

    answers = [*[with_margin(IDLE, "True")] * 2, with_margin(UNDER_LOAD, "True")]
    found = compare_references([*answers, with_margin(UNDER_LOAD, "False")], [])
    assert found is not None
    assert describe_references(found) == (
        "2 reference answers under load equal the idle ones, but for 1 near tie, so at most 84% "
        "differ (95%)."
    )
    assert not AnswersUnderLoad(isolation=isolation(), references=found).is_alarming
    assert (found.differences[0].size, found.differences[0].margin) == ("near tie", 0.1)


@pytest.mark.parametrize(("idle_word", "alarming"), [("True", True), ("Maybe", False)])
def test_one_mismatch_with_a_wide_margin_is_an_alarm_unless_idle_answers_have_it(
    idle_word: str, alarming: bool
) -> None:
    def sure(asked: str, word: str, **fields: Any) -> ReferenceAnswer:
        return reference(asked, word, tokens=(AnswerToken(word, -0.1, 4.0),), **fields)

    answers = [sure(IDLE, "True"), sure(IDLE, idle_word), sure(UNDER_LOAD, "False")]
    found = compare_references([*answers, *[sure(UNDER_LOAD, "True")] * 9], [])
    assert AnswersUnderLoad(isolation=isolation(), references=found).is_alarming is alarming


def test_situations_come_from_the_records_of_the_load() -> None:
    """A request was cancelled at second 50.5 and another refused at second 90."""
    records = [
        failed("cancelled", 49.5),
        failed("retried", 89.0),
        answered(1.0, sent_at=60.0),
    ]
    answers = [reference(IDLE, at=1.0)] * 2 + [
        reference(UNDER_LOAD, at=at) for at in (20.0, 50.0, 89.5)
    ]
    found = compare_references(answers, records)
    assert found is not None
    counts = {rate.situation: rate.answers for rate in found.rates}
    assert (counts["next to a cancelled request"], counts["next to a retried request"]) == (1, 1)


def test_faults_of_reference_answers_are_named() -> None:
    answers = [
        reference(IDLE, input_tokens=9),
        reference(IDLE, "one two three", input_tokens=9, prompt=1),
        reference(UNDER_LOAD, input_tokens=12),
        reference(UNDER_LOAD, "one three", prompt=1),
        reference(UNDER_LOAD, faults=("id_switched",)),
    ]
    found = compare_references(answers, [])
    assert found is not None
    assert found.faults == {"id_switched": 1, "prompt_tokens_differ": 1, "lost_delta": 1}
    line = format_answers_line(AnswersUnderLoad(isolation=isolation(), references=found))
    assert "Reference answers with faults: id_switched in 1, prompt_tokens_differ in 1" in line


def test_the_advice_follows_the_answers_that_can_be_replayed() -> None:
    """Reference answers come after it: no worker sent their requests."""
    found = compare_references([reference(IDLE), reference(UNDER_LOAD)], [])
    line = format_answers_line(AnswersUnderLoad(isolation=isolation(leaks=1), references=found))
    leak, advice, compared = map(line.index, ("LEAK", "Reproduce a fault", "1 reference answer"))
    assert leak < advice < compared


@pytest.mark.parametrize(
    ("counts", "has_evidence"),
    [
        ({}, False),
        ({"leaks": 1}, True),
        ({"faults": {"wrong_usage": 1}}, True),
        ({"faults": {"duplicate_id": 2}}, False),  # shows only among all answers
        ({"reference_leaks": 1}, False),  # no worker sent this request
    ],
)
def test_a_wrong_answer_that_was_written_down_can_be_reproduced(
    counts: dict[str, Any], has_evidence: bool
) -> None:
    found = AnswersUnderLoad(isolation=isolation(**counts))
    assert found.isolation.has_evidence == has_evidence
    line = format_answers_line(found)
    assert ("Reproduce a fault: locust-llm verify reproduce DIR." in line) == has_evidence
    texts = [block.text for block in make_answers_blocks(found) if isinstance(block, TextBlock)]
    said = "overlapped with them. Reproduce them: locust-llm verify reproduce DIR."
    assert any(text.endswith(said) for text in texts) == has_evidence


def measured_run(marker_tokens: float) -> Run:
    run = a_run(check_answers=True)
    known = {name: getattr(run, name) for name in run.__struct_fields__}
    return type(run)(**known | {"marker_tokens": marker_tokens})


def test_the_length_of_markers_and_the_cached_share_of_their_prompts_are_measured() -> None:
    """50 of 200 tokens were cached. A prompt without a marker, and one without the count, do not
    count."""
    marked = AnswerChecks(marker=1, searched=True)
    records = [
        answered(1.0, input_tokens=100, cached_tokens=40, answer=marked),
        answered(1.0, input_tokens=100, cached_tokens=10, answer=marked),
        answered(1.0, input_tokens=100, cached_tokens=None, answer=marked),
        answered(1.0, input_tokens=100, cached_tokens=99, answer=AnswerChecks(searched=True)),
    ]
    run = measured_run(16.75)
    found = measure_marked_prompts(records, run)
    assert found == MarkedPrompts(marker_tokens=16.75, replayed=False, cached_share=0.25)
    assert measure_marked_prompts(records[3:], run) is None
    assert measure_marked_prompts(records[2:], run) == MarkedPrompts(
        marker_tokens=16.75, replayed=False, cached_share=None
    )


@pytest.mark.parametrize(
    ("tokens", "replayed", "share", "sentence"),
    [
        (
            16.75, False, 0.25,
            "A marker of 17 tokens is part of the requested length, and follows the shared text. "
            "The server had 25% of the tokens of these prompts in its cache.",
        ),
        (
            None, False, None,
            "A marker is part of the requested length, and follows the shared text.",
        ),
        (
            17.0, True, None,
            "A marker of 17 tokens lengthens a replayed prompt. Only prompts of one session share "
            "the text after their marker.",
        ),
    ],
)  # fmt: skip
def test_what_markers_change_is_said(
    tokens: float | None, replayed: bool, share: float | None, sentence: str
) -> None:
    marked = MarkedPrompts(marker_tokens=tokens, replayed=replayed, cached_share=share)
    assert describe_marked_prompts(marked) == sentence
    blocks = [*make_answers_blocks(AnswersUnderLoad(isolation=isolation(), marked=marked))]
    assert sentence in [block.text for block in blocks if isinstance(block, TextBlock)]


def test_a_stage_has_the_idle_answers_and_its_own() -> None:
    stage = Stage(
        number=1, value=4.0, began_at=UNIX + 40, measured_at=UNIX + 41, ended_at=UNIX + 60, why=""
    )
    run = a_run()
    run_of_stage = type(run)(
        **{name: getattr(run, name) for name in run.__struct_fields__} | {"stage": stage}
    )
    answers = [reference(IDLE, at=1.0), reference(UNDER_LOAD, at=39.0), reference(UNDER_LOAD)]
    assert select_answers(answers, run) == answers
    assert select_answers(answers, run_of_stage) == [answers[0], answers[2]]


def test_texts_are_shown_around_their_first_difference_on_one_line() -> None:
    long = "a" * 40 + "\n"
    found = compare_references(
        [reference(IDLE, long + "b" * 80), reference(AFTER_LOAD, long + "c\x1b[31m")], []
    )
    assert found is not None
    (shown,) = found.differences
    assert shown.idle_text == f"… {'a' * 29} ▸{'b' * 70} …"
    assert "\x1b" not in shown.text
    assert "\n" not in shown.text


def test_the_tables_have_every_situation_and_each_difference() -> None:
    answers = [
        *[reference(IDLE, at=1.0)] * 3,
        reference(UNDER_LOAD, "uno", in_flight=3, question="Count"),
    ]
    found = AnswersUnderLoad(isolation=isolation(), references=compare_references(answers, []))
    tables = [block for block in make_answers_blocks(found) if isinstance(block, TableBlock)]
    rates, differences = tables
    assert [row[0] for row in rates.rows] == ["idle", "under load", "crowded", "streamed"]
    assert rates.rows[1] == ("under load", "1", "0", "1", "0", "100%", "2.5% to 100%", "0.33")
    assert differences.rows == (
        ("1: Count", "3 requests in flight, streamed", "unknown margin", "▸one, two", "▸uno"),
    )


# -- in the report ---------------------------------------------------------------------------------


def write(folder: Path, records: list[Record], answers: list[ReferenceAnswer]) -> tuple[str, str]:
    """(the console's text, the whole summary.md) of a run."""
    lines = [
        format_record_line(msgspec.structs.replace(one, id=str(i))) + b"\n"
        for i, one in enumerate(records)
    ]
    (folder / "profile_export.jsonl").write_bytes(b"".join(lines))
    written = [format_reference_answer(answer) + b"\n" for answer in answers]
    (folder / REFERENCE_ANSWERS).write_bytes(b"".join(written) + b"damaged\n")
    run = a_run(check_answers=True)
    summary = write_reports(folder, run)
    assert summary.unmade == ("1 line of reference_answers.jsonl could not be read",)
    console = format_ending(summary, run, folder)
    return " ".join(console.split()), (folder / "summary.md").read_text()


def test_console_page_and_markdown_have_the_result(tmp_path: Path) -> None:
    records = [checked(repeated=n < 30, asked=n < 40, id_hash=n) for n in range(100)]
    answers = [reference(IDLE, at=1.0)] * 4 + [reference(UNDER_LOAD)] * 40
    console, markdown = write(tmp_path, records, answers)
    sentences = (
        "No leak in 100 answers; a swapped answer would have shown in 30% of cases, so at most "
        "9.5% were swapped (95%).",
        "40 reference answers under load equal the idle ones, so at most 8.8% differ (95%).",
    )
    for sentence in sentences:
        assert sentence in console
        assert sentence in markdown
        assert sentence in html.unescape((tmp_path / "report.html").read_text())
    facts = json.loads((tmp_path / "run.json").read_bytes())
    assert facts["answers"]["isolation"]["leaks"] == 0


def test_a_leak_comes_first_on_console_and_page(tmp_path: Path) -> None:
    records = [checked(repeated=True, asked=True, id_hash=n) for n in range(99)]
    console, markdown = write(tmp_path, [*records, checked(foreign=(5,))], [])
    leak = "LEAK: 1 of 100 answers contains the session marker of another session."
    assert console.index(leak) < console.index("From 100 answered requests")
    assert markdown.index(leak) < markdown.index("## Answers under load")
    assert "answer\\_faults.jsonl has wrong answers with their requests" in markdown
