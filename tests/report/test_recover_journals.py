"""A run whose master and workers were killed: the report takes what their journals hold, each
record once, and says that the run did not finish."""

import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.records import a_run, answered

from locust_llm.exit_status import ExitStatus
from locust_llm.records.journal import JOURNALS, Journal, lock_file
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import NO_END, RECORDS, Run, read_run, write_run
from locust_llm.report.recover_journals import add_journaled
from locust_llm.report.report_command import run_report_command


def record(number: int, worker: str) -> Record:
    return answered(100, 200, id=f"{worker}-{number}", worker=worker, admitted_at=10.0)


def journal(folder: Path, worker: str, numbers: range, admitted: int, half: bytes = b"") -> None:
    its = Journal(folder / JOURNALS / worker)
    its.count(admitted, 0, 0)
    for number in numbers:
        its.add(number + 1, format_record_line(record(number, worker)))
    its.close(keep=True)
    with its.path.open("ab") as file:
        file.write(half)


def killed(folder: Path, run: Run) -> None:
    """Of worker a three records came to the master, the journal has the last two of them and four
    more, and nine requests were sent. Of worker b none came, and all five have a record."""
    written = [record(number, "a") for number in range(3)]
    (folder / RECORDS).write_bytes(
        b"".join(format_record_line(one) + b"\n" for one in written) + b'{"half'
    )
    write_run(folder, run)
    journal(folder, "a", range(1, 7), admitted=9, half=b"\x07\0\0\0\xff\0\0\0half")
    journal(folder, "b", range(5), admitted=5)


def ids(folder: Path) -> list[str]:
    lines = (folder / RECORDS).read_bytes().splitlines()
    return [
        found["record"]["id"]
        for found in map(json.loads, (one for one in lines if one != b'{"half'))
    ]


def test_what_the_workers_kept_is_added_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    for _ in range(2):
        assert run_report_command([str(tmp_path)]) == ExitStatus.INCOMPLETE
        assert sorted(ids(tmp_path)) == [
            *(f"a-{n}" for n in range(7)),
            *(f"b-{n}" for n in range(5)),
        ]
        found = read_run(tmp_path)
        assert (found.records_lost, found.unread) == (2, (NO_END,))  # of nine seven have a record
        assert [note for note in found.notes if "journals" in note] == [
            "9 records that had not reached the master were found in the journals of its workers"
        ]
    said = capsys.readouterr().out
    assert said.count("INCOMPLETE: the run did not finish") == 2
    assert "2 requests of lost workers have no record" in " ".join(said.split())


def test_what_its_master_had_counted_as_lost_is_lost_too(tmp_path: Path) -> None:
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None, records_lost=3))
    for _ in range(2):
        run_report_command([str(tmp_path)])
        assert read_run(tmp_path).records_lost == 5


def test_a_run_of_one_process_that_was_killed_is_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RECORDS).write_bytes(format_record_line(record(0, "local")) + b"\n")
    write_run(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    assert run_report_command([str(tmp_path)]) == ExitStatus.INCOMPLETE
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "INCOMPLETE: the run did not finish: its load generator ended before it wrote the end, and "
        "why is not known" in words
    )
    # what the load generator measured of itself comes with the end
    assert "client verdict" not in words
    facts = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    assert facts["conditions"]["client_verdict"] is None


def test_a_run_that_ended_has_reports_whatever_became_of_the_first_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of its reports died: its run.json has the end."""
    (tmp_path / RECORDS).write_bytes(format_record_line(record(0, "local")) + b"\n")
    write_run(tmp_path, a_run())
    assert run_report_command([str(tmp_path)]) == ExitStatus.OK
    assert "did not finish" not in capsys.readouterr().out


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Its control holds the lock."""
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    held = lock_file(tmp_path / RECORDS)
    assert held is not None
    run_report_command([str(tmp_path)])
    assert ids(tmp_path) == ["a-0", "a-1", "a-2"]
    assert read_run(tmp_path).unread == ()


def test_records_of_a_run_that_ended_are_not_lost_any_more(tmp_path: Path) -> None:
    """Its master had given a worker up."""
    killed(tmp_path, replace(a_run(), records_lost=11))
    run_report_command([str(tmp_path)])
    assert (len(ids(tmp_path)), read_run(tmp_path).records_lost) == (12, 2)


def test_large_journals_are_not_in_memory_at_once(tmp_path: Path) -> None:
    """A record of 20,000 chunks is a megabyte there."""
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    for worker in ("c", "d"):
        its = Journal(tmp_path / JOURNALS / worker)
        for number in range(30):
            large = answered(*range(100, 20_100), id=f"{worker}-{number}", worker=worker, stage=1)
            its.add(number + 1, format_record_line(large))
        its.close(keep=True)
    stage = tmp_path / "stages" / "1"
    stage.mkdir(parents=True)
    (stage / RECORDS).write_bytes(b"")
    tracemalloc.start()
    add_journaled(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6
    assert len(ids(tmp_path)) == 12 + 60
    assert len(ids(stage)) == 60
