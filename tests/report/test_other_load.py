"""Requests of others in the server, by its own metrics, from records for a pencil."""

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, WorkerLossCount
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.other_load import OtherLoad, measure_other_load
from locust_llm.report.sections.notes import make_remarks, select_top_remarks
from locust_llm.report.summarise_metrics import summarise_run


def two_in_flight(**other: object) -> list[Record]:
    """From second 10 to second 30 two requests of 10 s each are in the server."""
    return [
        answered(100, 10_000, sent_at=10.0 + at, closed_at=20.0 + at, **other)
        for at in (0.0, 0.0, 10.0, 10.0)
    ]


def measured(
    running: float, records: list[Record], run: Run | None = None, waiting: float = 0.0
) -> OtherLoad | None:
    """Five readings, one each four seconds."""
    history = EngineHistory()
    for at in range(12, 32, 4):
        history.add(EngineSample(at=UNIX + at, engine="vLLM", running=running, waiting=waiting))
    run = run or a_run()
    columns = collect_columns(records)
    return measure_other_load(
        history, columns, compute_occupancy(columns.requests, run.limits), run
    )


def test_what_the_server_had_beside_the_run_is_of_others() -> None:
    assert measured(2.0, two_in_flight()) is None
    assert measured(22.0, two_in_flight()) == OtherLoad(others=20.0, in_server=22.0)
    assert measured(2.0, two_in_flight(), waiting=3.0) == OtherLoad(others=3.0, in_server=5.0)
    # a tenth more may be a gauge that is written rarely
    assert measured(2.15, two_in_flight()) is None
    assert measured(6.0, two_in_flight(choices=3)) is None
    assert measured(8.0, two_in_flight(inputs=4)) is None


@pytest.mark.parametrize(("running", "others"), [(9.0, 8.0), (3.0, 2.0), (2.0, None)])
def test_a_short_run_beside_others_has_one_reading(running: float, others: float | None) -> None:
    """One request from second 10 to second 11. A gauge may still have one of the time before."""
    records = [answered(100, 1000, sent_at=10.0, closed_at=11.0)]
    history, run, columns = EngineHistory(), a_run(), collect_columns(records)
    history.add(EngineSample(at=UNIX + 10.9, engine="vLLM", running=running))
    found = measure_other_load(
        history, columns, compute_occupancy(columns.requests, run.limits), run
    )
    if others is None:
        assert found is None
        return
    assert found == OtherLoad(others=others, in_server=running, of_one_reading=True)
    summary = replace(summarise_run(columns, run), other_load=found)
    (warning,) = (one for one in make_remarks(summary, run) if "other clients" in one)
    assert f"at least {others:.1f} of the {running:.1f} requests in it" in warning
    assert "(one reading of its metrics)" in warning


def test_where_nothing_was_sent_all_is_of_others() -> None:
    assert measured(22.0, []) is None
    assert measured(22.0, [], a_run(limits=((0.0, 3),))) == OtherLoad(others=22.0, in_server=22.0)


def test_a_reference_request_of_the_run_is_of_no_other() -> None:
    checked = a_run(check_answers=True)
    assert measured(3.0, two_in_flight(), checked) is None
    assert measured(5.0, two_in_flight(), checked) == OtherLoad(others=2.0, in_server=5.0)


def test_a_request_of_a_lost_worker_has_no_record_and_is_of_no_other() -> None:
    """The server works on it for as long as it does not notice."""
    lost = replace(a_run(), records_lost=8)
    assert measured(10.0, two_in_flight(), lost) is None
    assert measured(15.0, two_in_flight(), lost) == OtherLoad(others=5.0, in_server=15.0)


def test_only_what_was_lost_by_then_is_subtracted() -> None:
    """Readings at seconds 12, 16, 20, 24, 28; two requests are recorded at each, and a request
    takes 10 s at most. A worker with 8 requests is lost at second 32: they may have come from
    second 22 on, so the 22 in the server are 20 of others three times, and 12 twice."""
    losses = (WorkerLossCount(at=UNIX + 32, requests=8),)
    lost = replace(a_run(), records_lost=8, worker_losses=losses)
    assert measured(22.0, two_in_flight(), lost) == OtherLoad(others=16.8, in_server=22.0)


def test_the_server_still_works_on_what_was_lost_in_the_warmup() -> None:
    losses = (WorkerLossCount(at=UNIX + 5, requests=8, in_warmup=True),)
    run = replace(a_run(), worker_losses=losses)
    assert measured(10.0, two_in_flight(), run) is None


def test_of_several_servers_nobody_knows() -> None:
    several = a_run(hosts=("http://a:8000", "http://b:8000"))
    assert measured(22.0, two_in_flight(), several) is None


@pytest.mark.parametrize("cancelled", [False, True])
def test_others_are_a_warning(cancelled: bool) -> None:
    records = two_in_flight()
    if cancelled:
        records[0] = replace(records[0], outcome="cancelled")
    run = a_run()
    summary = summarise_run(collect_columns(records), run)
    assert not any("The latencies reflect" in remark for remark in make_remarks(summary, run))
    summary = replace(summary, other_load=OtherLoad(others=20.0, in_server=22.0))
    (warning,) = (
        remark for remark in select_top_remarks(summary, run) if "The latencies reflect" in remark
    )
    if cancelled:
        assert "the server had at least 20.0 requests more than this run, of 22.0" in warning
        assert "requests that this run gave up, or other clients'." in warning
        assert "other clients used the server" not in warning
    else:
        assert "other clients used the server: at least 20.0 of the 22.0 requests in it" in warning


def test_without_an_answer_no_latency_reflects_them() -> None:
    run = a_run()
    records = [failed("timeout"), failed("timeout")]
    summary = summarise_run(collect_columns(records), run)
    summary = replace(summary, other_load=OtherLoad(others=2.0, in_server=3.0))
    (warning,) = (remark for remark in make_remarks(summary, run) if "than this run" in remark)
    assert warning.endswith("that this run gave up, or other clients'.")
