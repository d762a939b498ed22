"""Notes in the words of this version, by the records."""

from msgspec.structs import replace
from support.records import a_run, answered, failed

from locust_llm.records.record import RETRIED
from locust_llm.report.renew_notes import renew_notes

OLD = (
    "the host is slow",
    "WARNING: BUFFERED STREAM: a proxy collects 7 of 9 answers.",
    "5 attempts were refused (HTTP 429, 503) and tried again.",
    "The server's own figures: none.",
)
WHOLE = answered(*(2000 + number / 100 for number in range(40)))


def test_old_notes_get_the_words_and_counts_of_the_records() -> None:
    records = [WHOLE] * 4 + [failed(RETRIED)] * 3 + [answered(10, 20, resent=1)]
    first, buffered, retried, resent, last = renew_notes(replace(a_run(), notes=OLD), records).notes
    assert (first, last) == (OLD[0], OLD[3])
    assert buffered.startswith("WARNING: BUFFERED STREAM: 4 of 4 answers examined came whole")
    assert retried.startswith("3 attempts were refused (HTTP 429, 503;")
    assert resent.startswith("1 request was sent again at once")


def test_a_warning_that_the_records_do_not_bear_out_is_gone() -> None:
    assert renew_notes(replace(a_run(), notes=OLD), [answered(10, 20)] * 9).notes == (
        OLD[0],
        OLD[3],
    )


def test_other_notes_stay() -> None:
    run = replace(a_run(), notes=(OLD[0], OLD[3]))
    assert renew_notes(run, [WHOLE] * 9) == run


def test_the_rule_that_ended_an_old_run_is_known_by_its_note() -> None:
    note = "The run was ended early: abort: ttft p50 < 20ms is broken: 144 of 144 beyond the limit."
    (broken,) = renew_notes(replace(a_run(), notes=(note,)), []).broken_rules
    assert str(broken) == "abort: ttft p50 < 20ms is broken: 144 of 144 beyond the limit"
