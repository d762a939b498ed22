"""A run whose master and workers were killed: the report takes what their journals hold, each
record once, and says that the run did not finish."""

import json
import os
import tracemalloc
from collections.abc import Callable
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


def be_empty(path: Path) -> None:
    path.write_bytes(b"")


def be_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def be_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def be_garbage(path: Path) -> None:
    path.write_bytes(b"\xa5garbage" * 99)


def be_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def be_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def be_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


DAMAGES = {
    be_empty: "it is empty",
    be_zeros: "its counts are damaged",
    be_cut: "it ends in its head",
    be_garbage: "its counts are damaged",
    be_folder: "Is a directory",
    be_pipe: "a is a pipe: use a regular file",
    be_loop: "Too many levels of symbolic links",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_journal_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    """How much of it is lost is not known. All of worker b have a record."""
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    damage(tmp_path / JOURNALS / "a")
    text = f"journal/a cannot be read ({DAMAGES[damage]})"
    for _ in range(2):
        assert run_report_command([str(tmp_path)]) == ExitStatus.INCOMPLETE
        found = read_run(tmp_path)
        assert (len(ids(tmp_path)), found.records_lost) == (3 + 5, 0)
        assert found.unread == (
            NO_END,
            f"{text}: how many requests of its worker are lost is unknown",
        )
    assert " ".join(capsys.readouterr().out.split()).count(text) >= 2


def test_no_flipped_byte_of_a_journals_head_is_believed(tmp_path: Path) -> None:
    """Its records are whole."""
    for place in range(28):
        folder = tmp_path / str(place)
        folder.mkdir()
        killed(folder, replace(a_run(), ended_at=None, stopping_at=None))
        path = folder / JOURNALS / "a"
        data = bytearray(path.read_bytes())
        data[place] ^= 0x81
        path.write_bytes(data)
        add_journaled(folder)
        found = read_run(folder)
        assert (len(ids(folder)), found.records_lost) == (12, 0)
        assert found.unread[1].startswith("journal/a cannot be read (its counts are damaged)")


def test_a_count_that_no_worker_reaches_is_not_believed(tmp_path: Path) -> None:
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    journal(tmp_path, "c", range(0), admitted=2**41)
    add_journaled(tmp_path)
    assert read_run(tmp_path).records_lost == 2
    assert "journal/c cannot be read" in read_run(tmp_path).unread[1]


def test_a_journal_that_can_be_read_later_is_counted_then(tmp_path: Path) -> None:
    """Worker b lost two of seven, and the report before knew it."""
    killed(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    (tmp_path / JOURNALS / "b").unlink()
    journal(tmp_path, "b", range(5), admitted=7)
    path = tmp_path / JOURNALS / "a"
    data = path.read_bytes()
    be_empty(path)
    add_journaled(tmp_path)
    assert (read_run(tmp_path).records_lost, len(read_run(tmp_path).unread)) == (2, 2)
    path.write_bytes(data)
    for _ in range(2):
        add_journaled(tmp_path)
        assert (read_run(tmp_path).records_lost, read_run(tmp_path).unread) == (4, (NO_END,))
        assert len(ids(tmp_path)) == 12


def test_a_folder_of_journals_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(format_record_line(record(0, "a")) + b"\n")
    write_run(tmp_path, replace(a_run(), ended_at=None, stopping_at=None))
    (tmp_path / JOURNALS).touch()
    add_journaled(tmp_path)
    assert "journal cannot be read (Not a directory)" in read_run(tmp_path).unread[1]


def test_an_unreadable_journal_of_a_run_that_ended_is_a_note(tmp_path: Path) -> None:
    """Its master had counted all that was lost."""
    killed(tmp_path, replace(a_run(), records_lost=6))
    path = tmp_path / JOURNALS / "a"
    data = path.read_bytes()
    be_empty(path)
    for _ in range(2):
        add_journaled(tmp_path)
        found = read_run(tmp_path)
        assert (found.records_lost, found.unread) == (1, ())
        warning = "WARNING: journal/a cannot be read (it is empty): its records were not added"
        assert [note for note in found.notes if "journal/" in note] == [warning]
    path.write_bytes(data)
    add_journaled(tmp_path)
    found = read_run(tmp_path)
    assert (found.records_lost, "cannot be read" in str(found.notes)) == (0, False)


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
