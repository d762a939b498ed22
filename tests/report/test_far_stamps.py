"""Far stamps: records that lie years, or thousands of years, apart cost a command no more than
others, and none of them a traceback. Nothing may have a place for each second of a run."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from support.file_kinds import COMMANDS, Case, ending_of, make_whole, words_of, wrong_with
from support.records import UNIX, a_run, answered

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, Run, write_run

MOST_MEGABYTES: Final = 200
NEAR: Final = [
    answered(100, 200, 300, id=f"n{i}", sent_at=10.0 + i, turn=i % 2, session=f"s{i // 2}")
    for i in range(20)
]
RECORDS_OF: Final[Mapping[str, list[Record]]] = {
    "a billion seconds later": [
        *NEAR,
        answered(100, 200, id="f", sent_at=30.0, clock_offset_s=UNIX + 1e9),
    ],
    "before the first year": [
        *NEAR,
        answered(100, 200, id="f", sent_at=30.0, clock_offset_s=-9e10),
    ],
    "in 2,800 years": [*NEAR, answered(100, 200, id="f", sent_at=30.0, clock_offset_s=9e10)],
    "a clock far ahead": [*NEAR, answered(100, 200, id="f", sent_at=9e9)],
    "a clock far behind": [*NEAR, answered(100, 200, id="f", sent_at=-9e9)],
    "an answer of months": [*NEAR, answered(100, 9e9, id="f", sent_at=30.0)],
    "due months before": [*NEAR, replace(answered(100, 200, id="f", sent_at=30.0), due_at=-9e6)],
    "each days apart": [
        answered(100, 200, 300, id=f"n{i}", sent_at=10.0 + i * 1e6) for i in range(400)
    ],
}
RULES: Final = ("ttft p50 < 1s", "delivered > 1%", "output_token_throughput > 1/s")
RUNS: Final[Mapping[str, Run]] = {
    "of today": a_run(slo=RULES),
    "of 3,000 years": replace(
        a_run(slo=RULES), started_at=0.0, profiling_at=1e9, stopping_at=9e10, ended_at=9.9e10
    ),
}
OF_ONE: Final = tuple(
    word
    for word in COMMANDS
    if word.split()[0] != "plan" and ("one" in word.split() or "hist" in word)
)
FEW: Final = (
    "report one",
    "export one --format vllm-bench",
    "export one --format benchmark-report",
    "history .",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_whole(home := tmp_path_factory.mktemp("sound"))
    return home


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("way", "commands"),
    [
        ("before the first year", FEW),
        *(pytest.param(way, OF_ONE, marks=pytest.mark.full) for way in RECORDS_OF),
    ],
)
def test_years_between_two_records_cost_nothing(
    way: str, commands: tuple[str, ...], run: str, sound: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(sound, tmp_path / "home")
    (home / "one" / RECORDS).write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in RECORDS_OF[way])
    )
    write_run(home / "one", RUNS[run])
    for command in commands:
        ending = ending_of(home, words_of(Case("", "", command), home))
        assert wrong_with(ending) == "", command
        assert ending.megabytes < MOST_MEGABYTES, command
