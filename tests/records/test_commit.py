"""Commit and labels of a run: of Git, of a CI job, of neither; what is no label."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.records.machine import Commit, find_commit, parse_git_status
from locust_llm.settings.run_labels import parse_labels
from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings

HASH = "a" * 40


def git(folder: Path, *words: str) -> str:
    who = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_commit_and_branch_of_a_working_directory(tmp_path: Path) -> None:
    assert find_commit(tmp_path, {}) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    assert find_commit(tmp_path, {}) is None  # there is no commit yet
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert find_commit(tmp_path / "below", {"PATH": "/usr/bin:/bin"}) == Commit(head, "main", False)
    (tmp_path / "a").write_text("22")
    (tmp_path / "not tracked").touch()
    assert find_commit(tmp_path, {}) == Commit(head, "main", True)
    job = {"GITHUB_SHA": head, "GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "release/1"}
    assert find_commit(tmp_path, job) == Commit(head, "release/1", True)
    # another checkout
    assert find_commit(tmp_path, job | {"GITHUB_SHA": HASH}) == Commit(HASH, "release/1", None)
    git(tmp_path, "checkout", "-q", "--detach")
    assert find_commit(tmp_path, {}) == Commit(head, "", True)


def test_a_job_without_a_checkout(tmp_path: Path) -> None:
    assert find_commit(tmp_path, {"CI_COMMIT_SHA": HASH, "CI_COMMIT_REF_NAME": "main"}) == Commit(
        HASH, "main", None
    )
    (tmp_path / ".git").mkdir()
    # without git, and with a broken one
    assert find_commit(tmp_path, {"PATH": str(tmp_path)}) is None
    assert find_commit(tmp_path, {}) is None


@given(st.text())
def test_what_git_never_says_is_no_commit(text: str) -> None:
    assert parse_git_status(text) is None or "# branch.oid" in text


def test_labels() -> None:
    assert parse_labels(["gpu=h200", "note=a=b", "gpu=b200", "empty="]) == {
        "gpu": "b200",
        "note": "a=b",
        "empty": "",
    }
    for wrong in ("gpu", "=x", "a b=c", "a=\n", "a=" + "x" * 201):
        with pytest.raises(ValueError, match="--label"):
            parse_labels([wrong])
        assert any(
            line.startswith("--label")
            for line in validate_settings(Settings(label=(wrong,), users=1, host="http://a"))
        )
    with pytest.raises(ValueError, match="50 times"):
        parse_labels([f"k{i}=1" for i in range(51)])
