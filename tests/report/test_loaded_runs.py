"""Runs to be compared: what is read of a folder, what is wrong with it, and the one that is looked
at before a load."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed
from support.unpatched_locust import get_empty_argument_parser  # noqa: F401  before the options import Locust

from locust_llm.locust_adapter.command_line_parser import look_through_inputs
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.run_facts import OpenLoopSchedule, Run, Stage, write_run
from locust_llm.report.compare.condition_differences import load_matching_base, load_run
from locust_llm.settings.run_options import Settings
from locust_llm.slo.load_generator_health import ClientVerdict

RECORDS = [
    answered(100, 110, phase="warmup"),
    answered(200, 220, sent_at=12.0),
    answered(200, 220, sent_at=20.0),
    failed(sent_at=21.0),
]


def fill(folder: Path, run: Run | None = None, tail: bytes = b"") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in RECORDS) + tail
    )
    write_run(folder, run or a_run(), client=ClientVerdict("OK"))
    return folder


def test_a_run_as_its_folder_has_it(tmp_path: Path) -> None:
    run = replace(
        a_run(request_rate=1.0),
        offer=OpenLoopSchedule(due=4, never_started=0, duration_s=100.0, most_users=2),
    )
    side = load_run(fill(tmp_path, run))
    assert (side.known, side.notes, side.seen.run, side.seen.verdict) == (
        True,
        (),
        run,
        ClientVerdict("OK"),
    )
    assert side.seen.main.size == 3
    assert side.seen.time.span == (UNIX + 12, UNIX + 22)
    assert len(list(side.seen.records)) == 4
    assert side.seen.delivery is not None
    assert side.seen.delivery.share == 0.75


def test_rates_of_a_stage_are_over_its_measured_time(tmp_path: Path) -> None:
    """Of seconds 15 to 30 the last two; of them one succeeded."""
    stage = Stage(number=1, value=2.0, began_at=UNIX, measured_at=UNIX + 15, ended_at=UNIX + 30)
    side = load_run(fill(tmp_path, replace(a_run(), stage=stage)))
    assert side.seen.time.span == (UNIX + 15, UNIX + 30)
    assert side.seen.ended.size == 2


def test_what_is_wrong_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    side = load_run(fill(tmp_path, replace(a_run(), stopping_at=None, records_lost=3), b'{"half'))
    assert [note.split(":")[0] for note in side.notes] == [
        "1 unreadable line of profile_export.jsonl left out (line 5",
        "the run did not end cleanly, so requests that were still running may be missing",
        "3 requests of lost workers have no record",
    ]
    assert side.seen.main.size == 3
    other = load_run(fill(tmp_path, replace(a_run(), schema=2)))
    assert [note.split(",")[0] for note in other.notes] == ["run.json has schema 2"]


@pytest.mark.parametrize(
    ("damage", "why"), [(None, "is missing"), (b'{"run": ', "cannot be read"), (b"{}", "cannot be")]
)
def test_without_a_readable_run_json(tmp_path: Path, damage: bytes | None, why: str) -> None:
    fill(tmp_path)
    if damage is None:
        (tmp_path / "run.json").unlink()
    else:
        (tmp_path / "run.json").write_bytes(damage)
    side = load_run(tmp_path)
    assert not side.known
    assert why in side.notes[0]
    assert side.seen.main.size == 3
    with pytest.raises(ValueError, match=why):
        load_matching_base(tmp_path, a_run())


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    for nothing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            ValueError, match=r"is not a run folder: it has no profile_export\.jsonl"
        ):
            load_run(nothing)


def test_the_partner_of_a_stage_is_the_one_of_its_value(tmp_path: Path) -> None:
    stages = tuple(
        Stage(number=i, value=v, began_at=UNIX, ended_at=UNIX + 50) for i, v in ((1, 8.0), (2, 4.0))
    )
    fill(tmp_path, replace(a_run(sweep="concurrency=4,8"), stages=stages))
    for stage in stages:
        fill(
            tmp_path / "stages" / str(stage.number),
            replace(a_run(users=int(stage.value)), stage=stage),
        )
    for stage in stages:
        side = load_matching_base(tmp_path, replace(a_run(), stage=replace(stage, number=9)))
        assert side is not None
        assert side.folder == tmp_path / "stages" / str(stage.number)
    assert (
        load_matching_base(tmp_path, replace(a_run(), stage=replace(stages[0], value=16.0))) is None
    )
    whole = load_matching_base(tmp_path, a_run())
    assert whole is not None
    assert whole.folder == tmp_path


def test_a_base_that_changed_is_read_again(tmp_path: Path) -> None:
    first = load_matching_base(fill(tmp_path), a_run())
    assert load_matching_base(tmp_path, a_run()) is first
    (tmp_path / "profile_export.jsonl").write_bytes(format_record_line(RECORDS[1]) + b"\n")
    again = load_matching_base(tmp_path, a_run())
    assert again is not None
    assert again.seen.main.size == 1


def test_a_base_is_looked_at_before_any_load(tmp_path: Path) -> None:
    asked = Settings(slo=("ttft p50 < 1s", f'ttft p50 within 5% of "{tmp_path / "last night"}"'))
    with pytest.raises(
        ValueError,
        match=r"^SLO 'ttft p50 within .*last night is not a run folder: it contains no "
        r"profile_export\.jsonl$",
    ):
        look_through_inputs(asked)
    fill(tmp_path / "last night")
    assert look_through_inputs(asked) is None
    (tmp_path / "last night" / "run.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"the run\.json of .*last night cannot be read: Object missing required field",
    ):
        look_through_inputs(asked)
