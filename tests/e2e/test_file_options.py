"""Options that name a file: whatever lies there, a run ends soon, with status 5 and one line."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.file_kinds import KINDS

from locust_llm.exit_status import ExitStatus
from locust_llm.locust_adapter.command_line_parser import OPTIONS

FLAGS: Final = tuple(option.flag for option in OPTIONS if option.unit == "FILE")
PATIENCE_S: Final = 60.0
FEW: Final = ("pipe", "endless device")


@pytest.mark.parametrize(
    ("flag", "kinds"),
    [
        *(pytest.param(flag, tuple(KINDS), marks=pytest.mark.full) for flag in FLAGS),
        *(
            pytest.param(flag, FEW, marks=pytest.mark.slow)
            for flag in ("--client-cert", "--request-rate-series")
        ),
    ],
)
def test_no_kind_of_file_holds_a_run(flag: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    for kind in kinds:
        path = tmp_path / f"{kind}.jsonl"
        KINDS[kind](path)
        words = [
            "run",
            "--headless",
            "--host",
            "http://127.0.0.1:9",
            "-u",
            "1",
            "-t",
            "1",
            "--no-probe",
            flag,
            str(path),
        ]
        more = ["--client-cert", str(path)] if flag == "--client-key" else []
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", *words, *more],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == ExitStatus.REFUSED, (kind, done.stderr[-2000:])
        assert done.stderr.count("\n") == 1, (kind, done.stderr[-2000:])
