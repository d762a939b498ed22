"""File kinds: each file of a run folder replaced by each kind of bad file, for each command. None
hangs, fills the memory or ends with a traceback; what cannot be done is refused in one line."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.file_kinds import (
    KINDS,
    Case,
    cases,
    ending_of,
    make_whole,
    replace_file,
    words_of,
    wrong_with,
)

from locust_llm.exit_status import ExitStatus

ALL: Final = tuple(cases())
SOME: Final = 12
SEED: Final = 20261125


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_whole(home := tmp_path_factory.mktemp("sound"))
    return home


def chosen(share: int | None) -> Iterator[Case]:
    return iter(random.Random(SEED).sample(ALL, SOME) if share is None else ALL[share::8])


def wrong_ones(found: Iterator[Case], sound: Path, tmp_path: Path) -> list[str]:
    wrong = list[str]()
    for case in found:
        home = shutil.copytree(sound, tmp_path / "home")
        replace_file(home, case)
        if why := wrong_with(ending_of(home, words_of(case, home))):
            wrong.append(f"{case}: {why}")
        shutil.rmtree(home)
    return wrong


@pytest.mark.parametrize(
    "share", [None, *(pytest.param(one, marks=pytest.mark.full) for one in range(8))]
)
def test_no_kind_of_file_breaks_a_command(share: int | None, sound: Path, tmp_path: Path) -> None:
    assert wrong_ones(chosen(share), sound, tmp_path) == []


NEEDED: Final = {
    "audit more.jsonl": "more.jsonl",
    "import more.jsonl": "more.jsonl",
    "import evalscope": "evalscope/benchmark_data.db",
    "plan twin.toml --arrivals 1/s --slo ttft\xa0p95<1s": "twin.toml",
    "export one --format vllm-bench": "one/profile_export.jsonl",
    "figure one": "one/profile_export.jsonl",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_a_command_needs_is_refused(kind: str, sound: Path, tmp_path: Path) -> None:
    for command, file in NEEDED.items():
        case = Case(file, kind, command)
        home = shutil.copytree(sound, tmp_path / "home")
        replace_file(home, case)
        ending = ending_of(home, words_of(case, home))
        assert ending.status == ExitStatus.REFUSED, (case, ending)
        assert wrong_with(ending) == "", case
        shutil.rmtree(home)
