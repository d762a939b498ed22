"""What earlier versions had: each answers with status 5 and one line that names what takes its
place."""

import subprocess
import sys

import pytest

from locust_llm.__main__ import main
from locust_llm.commands import REMOVED
from locust_llm.exit_status import ExitStatus


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (
            ["manifest", "kubernetes", "--host", "http://h:1", "--workers", "8"],
            "docs/how-to/kubernetes.md",
        ),
        (["export", "reports/x", "--format", "inferencex", "--gpus", "8"], "--format vllm-bench"),
        (["comment", "reports/x", "--post", "--name", "a"], "gh or glab"),
    ],
)
def test_what_was_removed_names_what_takes_its_place(
    words: list[str], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitStatus.REFUSED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("locust-llm: error: ")
    assert instead in err


def test_the_shell_gets_the_status_too() -> None:
    (word, *_) = REMOVED
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", word], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (ExitStatus.REFUSED, "")
