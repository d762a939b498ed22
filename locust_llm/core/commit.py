"""Commit: what the working directory of a run is of, by Git or by the CI job, and the labels that a run is found by."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

PATIENCE_S: Final = 2.0
"""For Git to look through the working directory: after that the run goes on without."""
STATUS: Final = (
    "git", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch", "--untracked-files=no",
    "--ignore-submodules=all",
)  # fmt: skip
OF_CI: Final = (
    ("GITHUB_SHA", ("GITHUB_HEAD_REF", "GITHUB_REF_NAME")),
    ("CI_COMMIT_SHA", ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_REF_NAME")),
)
"""Variables of GitHub and GitLab: the commit, and the branch, that of a pull request first; their checkout has no branch."""
KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
MAX_VALUE: Final = 200
MAX_LABELS: Final = 50


class Commit(msgspec.Struct, frozen=True):
    """Where a run was started. None and empty: unknown."""

    hash: str
    branch: str = ""
    dirty: bool | None = None
    """Files that Git tracks were changed; those that it does not track are not asked about."""


def commit_of(folder: Path, environment: Mapping[str, str] = os.environ) -> Commit | None:
    """Of the job, else as Git says; None: neither knows one."""
    there = any((above / ".git").exists() for above in (folder, *folder.parents))
    found = parsed(_status(folder, environment)) if there else None
    for name, branches in OF_CI:
        if value := environment.get(name):
            branch = next(filter(None, map(environment.get, branches)), "")
            return Commit(value, branch, None if found is None or found.hash != value else found.dirty)
    return found


def _status(folder: Path, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            STATUS, cwd=folder, env={**environment, "GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def parsed(status: str) -> Commit | None:
    """Of ``git status --porcelain=v2 --branch``; None: there is no commit."""
    lines = status.splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:])
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    if not re.fullmatch("[0-9a-f]{40,64}", commit):  # "(initial)"
        return None
    return Commit(commit, "" if branch == "(detached)" else branch, any(not line.startswith("#") for line in lines))


def labels(given: Iterable[str]) -> dict[str, str]:
    """Of ``key=value`` each; the last of a key counts. Raises ValueError of one sentence."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not KEY.fullmatch(key):
            raise ValueError(f"--label takes KEY=VALUE, the key of letters, digits and _.-, got {text[:MAX_VALUE]!r}")
        if len(value) > MAX_VALUE or not value.isprintable():
            raise ValueError(f"--label {key}: its value is longer than {MAX_VALUE} characters, or not printable")
        found[key] = value
    if len(found) > MAX_LABELS:
        raise ValueError(f"--label can be given {MAX_LABELS} times at most")
    return found
