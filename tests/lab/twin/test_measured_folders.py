"""Folders: which is the probe, which are loads, and what there cannot be a twin of."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.probing import Noise, Server, probed
from support.records import a_run, answered, failed
from support.twin_folders import probed_folder, swept_folder, write

from locust_llm.lab.probe.scheduler_diagnosis import CHUNKED
from locust_llm.lab.twin.measured_folders import Folder, read_folder_loads, read_measured_server
from locust_llm.records.record import Record

from .models import sweep

SERVER = Server(budget=1024)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(of a probe, of a sweep)."""
    here = tmp_path_factory.mktemp("runs")
    quiet = Noise(steps=0.02)
    return (
        probed_folder(here / "a", probed(SERVER, quiet, 5)),
        swept_folder(here / "b", sweep(SERVER, (1, 2, 4, 8), quiet)),
    )


def closed_loop(
    users: int, each: int, *, pause_s: float = 0.0, ramp_s: float = 0.0, **more: object
) -> list[Record]:
    """Requests of a second each, back to back."""
    return [
        answered(
            500,
            1000,
            sent_at=user * ramp_s + i * (1 + pause_s),
            id=f"{user}-{i}",
            user=user,
            **more,
        )
        for user in range(users)
        for i in range(each)
    ]


def test_the_probe_and_the_sweep_are_found_in_any_order(folders: tuple[Path, Path]) -> None:
    probe, sweep_ = folders
    for given in ([probe, sweep_], [sweep_, probe]):
        seen = read_measured_server(given)
        assert seen.said.name == CHUNKED
        assert [stage.users for stage in seen.stages] == [1, 2, 4, 8]
        assert all(len(stage.requests) == 48 for stage in seen.stages)
        assert (seen.origin.host, seen.origin.model, seen.origin.server) == (
            "http://server:8000",
            "m",
            "simulated 1",
        )
        assert seen.origin.folders == (str(probe), str(sweep_))
        assert seen.origin.notes == ()


def test_what_is_missing_is_said(folders: tuple[Path, Path], tmp_path: Path) -> None:
    probe, sweep_ = folders
    for given, why in (
        ([sweep_], "none of these is a probe"),
        ([probe], "there is no sweep"),
        ([probe, probe, sweep_], "a twin is fitted to one probe, but these are 2"),
        ([tmp_path], "is not a run folder"),
    ):
        with pytest.raises(ValueError, match=why):
            read_measured_server(given)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"host": "http://other"}, "different hosts"),
        ({"endpoint": "/v1/completions"}, "different endpoints"),
    ],
)
def test_runs_of_different_servers_are_no_twin(
    folders: tuple[Path, Path], tmp_path: Path, more: dict[str, str], why: str
) -> None:
    other = swept_folder(tmp_path / "c", sweep(SERVER, (1,)), **more)
    with pytest.raises(ValueError, match=why):
        read_measured_server([folders[0], other])


def test_another_version_of_the_server_is_another_server(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = replace(a_run(), model="m", server="simulated 2")
    with pytest.raises(ValueError, match="different servers: a of simulated 1, c of simulated 2"):
        read_measured_server([folders[0], write(tmp_path / "c", run, closed_loop(2, 10))])


def test_a_server_that_fails_half_of_the_requests_has_no_twin(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = replace(a_run(), model="m", server="simulated 1")
    wrong = [failed(sent_at=float(i), id=f"x{i}") for i in range(30)]
    with pytest.raises(ValueError, match="30 of 50 requests of the sweep failed"):
        read_measured_server(
            [folders[0], write(tmp_path / "c", run, [*closed_loop(2, 10), *wrong])]
        )


def test_a_damaged_run_says_what_to_do(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (write(tmp_path / "c", a_run(), closed_loop(2, 10)) / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="locust-llm report"):
        read_measured_server([folders[0], tmp_path / "c"])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"prefill_concurrency": 2}, "a prefill limit held its requests back"),
        ({"sweep": "prefill-concurrency=1,2"}, "a prefill limit held its requests back"),
        ({"aa": True}, "compares two servers"),
        ({"streaming": False}, "not streamed"),
        ({"model_mix": "a:1,b:1"}, "several models"),
        ({"request_rate": 2.0, "request_rate_ramp_duration": 5.0}, "its rate changes"),
    ],
)
def test_loads_that_no_twin_has_are_refused(
    tmp_path: Path, settings: dict[str, object], why: str
) -> None:
    folder = write(tmp_path / "c", a_run(**settings), closed_loop(2, 10))
    with pytest.raises(ValueError, match=why):
        read_folder_loads(Folder(folder))


def test_a_cached_prompt_was_not_computed(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", a_run(), closed_loop(2, 10, cached_tokens=50))
    with pytest.raises(ValueError, match="50% of its prompt tokens were in the server's cache"):
        read_folder_loads(Folder(folder))


def test_a_run_of_one_load_is_a_stage(tmp_path: Path) -> None:
    (closed,) = read_folder_loads(Folder(write(tmp_path / "c", a_run(), closed_loop(2, 10)))).stages
    assert (closed.users, closed.rate, len(closed.requests), closed.failed) == (2, 0.0, 20, 0)
    (open_,) = read_folder_loads(
        Folder(write(tmp_path / "o", a_run(users=None, request_rate=4.0), closed_loop(2, 10)))
    ).stages
    assert (open_.users, open_.rate, len(open_.requests)) == (0, 4.0, 20)


def test_a_load_begins_when_all_users_are_there_with_what_was_open_then(tmp_path: Path) -> None:
    """The third user comes at second 4.2: until then the others have had eight requests that had
    ended."""
    records = closed_loop(3, 12, ramp_s=2.1)
    (stage,) = read_folder_loads(Folder(write(tmp_path / "c", a_run(users=3), records))).stages
    assert len(stage.requests) == 36 - 4 - 2
    assert sum(one.sent_at < stage.requests[2].sent_at for one in stage.requests) == 2


def test_users_that_pause_are_no_closed_loop(tmp_path: Path) -> None:
    found = read_folder_loads(
        Folder(write(tmp_path / "c", a_run(), closed_loop(2, 10, pause_s=1.0)))
    )
    assert found.stages == []
    assert "1.0 requests were in flight on average, so users paused" in found.notes[0]


def test_too_few_requests_and_cut_answers_are_said(tmp_path: Path) -> None:
    few = read_folder_loads(Folder(write(tmp_path / "c", a_run(), closed_loop(2, 3))))
    assert few.stages == []
    assert "6 answered requests, and 8 are needed" in few.notes[0]
    some = [failed("cut", sent_at=9.5 + i, id=f"x{i}", user=i % 2) for i in range(4)]
    cut = read_folder_loads(Folder(write(tmp_path / "d", a_run(), [*closed_loop(2, 10), *some])))
    assert [stage.failed for stage in cut.stages] == [0]
    assert "4 of 24 responses were unfinished" in cut.notes[0]


def test_of_a_sweep_that_was_killed_the_stages_are_read_from_its_records(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    sweep_ = Folder(folders[1])
    records = (folders[1] / "profile_export.jsonl").read_bytes()
    killed = write(tmp_path / "k", replace(sweep_.run, stages=()), [])
    (killed / "profile_export.jsonl").write_bytes(records)
    assert [stage.users for stage in read_folder_loads(Folder(killed)).stages] == [1, 2, 4, 8]


def test_a_client_that_was_too_slow_is_left_out(tmp_path: Path) -> None:
    verdict = {"level": "DEGRADED", "reasons": ["merged chunks 9%"], "advice": "", "signals": {}}
    found = read_folder_loads(
        Folder(write(tmp_path / "c", a_run(), closed_loop(2, 10), client=verdict))
    )
    assert found.stages == []
    assert "client verdict is DEGRADED (merged chunks 9%)" in found.notes[0]


def test_a_load_in_which_the_server_stood_still_is_left_out(tmp_path: Path) -> None:
    """Four users have answers of a second, back to back for 20 s. Their 11th answers begin at 10 s
    and have a first token at 10.5 s, but no second one before 16 s."""
    usual = closed_loop(4, 10)
    frozen = [
        answered(500, 6000, sent_at=10.0, id=f"frozen {user}", user=user) for user in range(4)
    ]
    later = [
        replace(record, asked_at=record.asked_at + 16, sent_at=(record.sent_at or 0.0) + 16,
                due_at=record.due_at + 16, closed_at=record.closed_at + 16)
        for record in closed_loop(4, 10)
    ]  # fmt: skip
    run = a_run(users=4)
    steady = read_folder_loads(Folder(write(tmp_path / "steady", run, closed_loop(4, 20))))
    assert (len(steady.stages), steady.notes) == (1, [])
    found = read_folder_loads(Folder(write(tmp_path / "frozen", run, [*usual, *frozen, *later])))
    assert found.stages == []
    assert found.notes == [
        "frozen, 4 users, left out: no token came from 10.5 to 16.0 s, which is no speed of the "
        "server. Measure this load again"
    ]
