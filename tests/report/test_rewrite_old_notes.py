"""Notes in the words of this version, by the records."""

from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed
from support.stages import a_stage

from locust_llm.records.outcomes import RETRIED
from locust_llm.records.server_metrics_history import EngineHistory, describe_server_history
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.rewrite_old_notes import renew_notes

OLD = (
    "the host is slow",
    "WARNING: BUFFERED STREAM: a proxy collects 7 of 9 answers.",
    "5 attempts were refused (HTTP 429, 503) and tried again.",
    "The server's own figures: none.",
)
WHOLE = answered(*(2000 + number / 100 for number in range(40)))
STREAMED = answered(*(100 + 20 * number for number in range(40)))


def test_old_notes_get_the_words_and_counts_of_the_records() -> None:
    records = [WHOLE] * 4 + [failed(RETRIED)] * 3 + [answered(10, 20, resent=1)]
    first, buffered, retried, resent, last = renew_notes(replace(a_run(), notes=OLD), records).notes
    assert (first, last) == (OLD[0], OLD[3])
    assert buffered.startswith(
        "WARNING: CHUNKS CAME TOGETHER: 4 of 4 responses examined arrived complete"
    )
    assert retried.startswith(
        "3 attempts were refused (HTTP 429 or 503, or 401 for an expired key) and retried."
    )
    assert resent == (
        "1 request was sent again immediately on a new connection, because the server closed the "
        "kept-alive connection before it read it. Its times start at the second send."
    )


def test_a_warning_that_the_records_do_not_bear_out_is_gone() -> None:
    assert renew_notes(replace(a_run(), notes=OLD), [answered(10, 20)] * 9).notes == (
        OLD[0],
        OLD[3],
    )


def test_an_old_note_on_a_wrong_alarm_is_made_anew() -> None:
    """After twelve seconds of answers that came at once, the others came as they were made."""
    old = (
        "The alarm of a buffered stream was wrong: 48 of 300 responses so far were delayed, and "
        "stalls explain this."
    )
    records = [
        replace(record, closed_at=10.0 + number / 4)
        for number, record in enumerate([WHOLE] * 48 + [STREAMED] * 252)
    ]
    (renewed,) = renew_notes(replace(a_run(), notes=(old,)), records).notes
    assert renewed.startswith("The warning about a buffer no longer holds: of 300 responses 48 ")


def test_other_notes_stay() -> None:
    run = replace(a_run(), notes=(OLD[0], OLD[3]))
    assert renew_notes(run, [WHOLE] * 9) == run


def test_the_rule_that_ended_an_old_run_is_known_by_its_note() -> None:
    note = "The run was ended early: abort: ttft p50 < 20ms is broken: 144 of 144 beyond the limit."
    (broken,) = renew_notes(replace(a_run(), notes=(note,)), []).broken_rules
    assert str(broken) == "abort: ttft p50 < 20ms is broken: 144 of 144 beyond the limit"


def test_old_notes_on_the_servers_metrics_are_made_anew() -> None:
    """Three readings, of which two lie within the load."""
    run = a_run()
    history = EngineHistory()
    for after_s, running in ((-5.0, 9.0), (1.0, 2.0), (2.0, 4.0)):
        history.add(EngineSample(at=run.profiling_at + after_s, engine="vLLM", running=running))
    history.add(EngineSample(at=run.profiling_at + 3, engine="", failure="HTTP 500"))
    old = (
        "the host is slow",
        "The server's own figures (vLLM, means of 2 samples): running 3.0 (at most 4).",
        "WARNING: 9 readings of the metrics of the server failed, the first with HTTP 404.",
    )
    renewed = renew_notes(replace(run, notes=old), [], history).notes
    assert renewed == (
        "the host is slow",
        "The server's own metrics (vLLM, means of 2 readings while the load was "
        "on): running 3.0 (at most 4). Running and waiting count only the requests in its "
        "scheduler.",
        "WARNING: 1 reading of the metrics of the server failed, the first with HTTP 500.",
    )
    # without the readings the words of the older version are all that there is
    assert renew_notes(replace(run, notes=old), [], EngineHistory()).notes == old


def test_a_stage_has_the_servers_metrics_of_its_own_time() -> None:
    """8 run in the stage before, 1 and 3 in this one; a reading failed in each."""
    run = a_stage(a_run(sweep="concurrency=1,2", users=None), 2, 2.0, "concurrency")
    run = replace(run, profiling_at=UNIX + 10, stopping_at=UNIX + 30)
    history = EngineHistory()
    for at, running in ((5.0, 8.0), (15.0, 1.0), (25.0, 3.0)):
        history.add(EngineSample(at=UNIX + at, engine="vLLM", running=running))
    history.add(EngineSample(at=UNIX + 6.0, engine="", failure="HTTP 500"))
    whole = list(describe_server_history(history, [(UNIX, UNIX + 30)], None))
    assert whole[0].startswith(
        "The server's own metrics (vLLM, means of 3 readings while the load was on): running 4.0 "
    )
    (own,) = renew_notes(replace(run, notes=tuple(whole)), [], history).notes
    assert own.startswith(
        "The server's own metrics (vLLM, means of 2 readings while the load was on): running 2.0 "
        "(at most 3)"
    )
    history.add(EngineSample(at=UNIX + 16.0, engine="", failure="HTTP 404"))
    _, failed_one = renew_notes(replace(run, notes=tuple(whole)), [], history).notes
    assert failed_one == (
        "WARNING: 1 reading of the metrics of the server failed, the first with HTTP 404."
    )
