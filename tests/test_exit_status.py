"""Exit statuses: which one wins where several apply."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from locust_llm import exit_status
from locust_llm.__main__ import main
from locust_llm.commands import COMMANDS, LOCUST_COMMANDS
from locust_llm.exit_status import (
    BY_PROBE,
    BY_RULES,
    ExitStatus,
    RunOutcome,
    decide_exit_status,
    tolerates_inconclusive,
    worst_exit_status,
)
from locust_llm.records.run_facts import NAMED, UNDECIDED
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, INCONCLUSIVE_POLICIES, PASS

ROOT = Path(__file__).parents[1]
OTHER_WORDS = re.compile(r"undecided|rule (?:that is |is )?not decided", re.IGNORECASE)
OWN = 77
"""Of --exit-code-on-error."""


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], 0),
        ([0, 6], 6),  # a PASS on incomplete records
        ([4, 6], 6),  # undecided, because records are missing
        ([3, 6], 3),  # a rule that fails on what is there stays broken
        ([1, 6], 1),
        ([6, OWN], OWN),
        ([0, OWN], OWN),
        ([3, 2, 6], 2),  # a load generator that broke has measured nothing
        ([2, 5], 5),
    ],
)
def test_what_is_certain_wins(statuses: list[int], expected: int) -> None:
    assert worst_exit_status(statuses) == worst_exit_status(reversed(statuses)) == expected


BROKEN_RULE = RunOutcome(has_rules=True, slo_status="FAIL")
PASSED = RunOutcome(has_rules=True, slo_status="PASS")
OPEN = RunOutcome(has_rules=True, slo_status="INCONCLUSIVE")
NEAR = OPEN._replace(close_to_limit=True)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RunOutcome(), None),  # Locust's own rule
        (RunOutcome(failed=True), None),
        (RunOutcome(failed=True, failure_status=OWN, incomplete=True), OWN),
        (RunOutcome(incomplete=True), 6),
        (RunOutcome(set_by_code=OWN), OWN),
        (RunOutcome(failed=True, only_stopped=True), 0),
        (RunOutcome(failed=True, only_stopped=True, set_by_code=OWN), OWN),
        (PASSED, 0),
        (PASSED._replace(failed=True), 0),  # rules alone decide
        (PASSED._replace(set_by_code=1), 0),
        (PASSED._replace(incomplete=True), 6),
        (PASSED._replace(not_valid=True), 4),
        (PASSED._replace(greenlet_failed=True), 2),
        (PASSED._replace(broke=True), 2),
        (PASSED._replace(refused=True, incomplete=True), 5),
        (BROKEN_RULE, 3),
        (BROKEN_RULE._replace(incomplete=True), 3),
        (BROKEN_RULE._replace(inconclusive="pass"), 3),
        (OPEN, 4),
        (OPEN._replace(inconclusive="warn"), 0),
        (OPEN._replace(inconclusive="warn", incomplete=True), 6),
        (OPEN._replace(inconclusive="close"), 4),  # no value, or nobody knows how far off
        (NEAR._replace(inconclusive="close"), 0),
        (NEAR._replace(inconclusive="close", incomplete=True), 6),
        (NEAR._replace(inconclusive="close", not_valid=True), 4),
        (NEAR._replace(inconclusive="close", greenlet_failed=True), 2),
        (NEAR._replace(inconclusive="fail"), 4),
        (NEAR._replace(inconclusive="pass"), 0),
        (RunOutcome(has_rules=True, probe="named"), 4),  # no verdict on rules is no pass
        (RunOutcome(probe="named", failed=True), 0),
        (RunOutcome(probe="untold"), 4),
        (RunOutcome(probe="untold", inconclusive="close"), 4),
        (RunOutcome(probe="untold", inconclusive="warn"), 0),
        (RunOutcome(probe="broken"), None),
    ],
)
def test_the_exit_status_of_a_run(outcome: RunOutcome, expected: int | None) -> None:
    assert decide_exit_status(outcome) == expected


def test_each_word_of_inconclusive_is_known_here() -> None:
    tolerated = {
        policy: [tolerates_inconclusive(policy, close_to_limit=close) for close in (False, True)]
        for policy in INCONCLUSIVE_POLICIES
    }
    assert tolerated == {
        "fail": [False, False],
        "close": [False, True],
        "warn": [True, True],
        "pass": [True, True],
    }


def test_the_words_of_an_outcome_are_those_of_rules_and_of_probes() -> None:
    assert set(BY_RULES) == {PASS, FAIL, INCONCLUSIVE}
    assert set(BY_PROBE) == {NAMED, UNDECIDED}


def test_inconclusive_is_the_one_word_for_it() -> None:
    """In all texts of the code, docstrings aside, and in the pages of the documentation."""
    found = set[str]()
    for file in (ROOT / "locust_llm").rglob("*.py"):
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docstrings:
                found |= {f"{file.name}: {word}" for word in OTHER_WORDS.findall(str(node.value))}
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy" / "ci").iterdir(),
    ]
    for page in pages:
        if page.name != "changelog.md" and page.is_file():
            found |= {f"{page.name}: {word}" for word in OTHER_WORDS.findall(page.read_text())}
    assert found == set()


def test_numbers_that_users_know_stay() -> None:
    assert [(one.name, one.value) for one in ExitStatus] == [
        ("OK", 0), ("FAILED_REQUESTS", 1), ("BROKEN", 2), ("RULE_FAILED", 3), ("INCONCLUSIVE", 4),
        ("REFUSED", 5),
        ("INCOMPLETE", 6),
    ]  # fmt: skip


def status_of(*words: str) -> int | str | None:
    try:
        return main(words)
    except SystemExit as ended:
        return ended.code


OTHERS = [name for name in COMMANDS if name not in LOCUST_COMMANDS]


@pytest.mark.parametrize("command", OTHERS)
def test_a_wrong_option_of_a_command_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(command, "--no-such-option", "x") == ExitStatus.REFUSED
    assert "error: " in capsys.readouterr().err
    assert status_of(command, "--help") == ExitStatus.OK


@pytest.mark.parametrize(
    "words",
    [("report",), ("compare",), ("audit",), ("import",), ("export",), ("plan",), ("figure",),
        ("twin", "nothing"),
     ("twin", "fit"), ("twin", "predict"), ("twin", "drift"), ("simulate", "--port", "x"),
     ("history", "--last", "x"),
     ("pareto",), ("comment",), ("upload",), ("import", "a", "--load", "x")],
)  # fmt: skip
def test_so_is_what_is_missing_or_no_value(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*words) == ExitStatus.REFUSED


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("run", "-u", "x"),
        ("run", "-u"),
        ("run", "--ui", "none"),
        ("run", "--no-such-option"),
        ("ab", "--aa", "--no-such-option"),
        ("probe", "--no-such-option"),
        ("demo", "--no-such-option"),
        ("probe", "--rounds", "x"),
        ("ab",),
        ("run", "-q"),
    ],
)
def test_so_is_it_in_a_run(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert "locust-llm: error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "ends_with", "ends_now"),
    [({}, [], False), ({"LOCUST_LLM_PARENT": "7"}, [signal.SIGTERM], False),
     ({"LOCUST_LLM_PARENT": "8"}, [signal.SIGTERM], True)],
)  # fmt: skip
def test_a_load_ends_in_order_with_the_command_that_began_it(
    environment: dict[str, str],
    ends_with: list[int],
    ends_now: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parent is process 7."""
    asked = list[int]()
    sent = list[tuple[int, int]]()
    monkeypatch.setattr(exit_status, "end_with_parent", asked.append)
    monkeypatch.setattr(os, "getppid", lambda: 7)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    exit_status.follow_parent(environment)
    assert asked == ends_with
    assert sent == [(os.getpid(), signal.SIGTERM)] * ends_now
    assert environment == {}  # its own children have another parent
