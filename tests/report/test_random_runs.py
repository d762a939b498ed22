"""Random runs: no statement of their reports contradicts another one, the records or the server's
counters."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.random_runs import Made, complaints, random_run, reported

FEW = 16
MANY = 500
"""Of each seed a run."""


@pytest.mark.parametrize("seed", range(FEW))
def test_statements_of_a_random_run_are_true(seed: int, tmp_path: Path) -> None:
    assert complaints(reported(random_run(seed), tmp_path)) == []


@pytest.mark.full
@pytest.mark.parametrize("first", range(FEW, MANY, 22))
def test_statements_of_many_random_runs_are_true(first: int, tmp_path: Path) -> None:
    found = {}
    for seed in range(first, min(first + 22, MANY)):
        wrong = complaints(reported(random_run(seed), tmp_path / str(seed)))
        if wrong:
            found[seed] = wrong
    assert found == {}


def is_plain(made: Made) -> bool:
    return not (made.gated or made.told or made.samples) and len(made.answered) > 40


@pytest.mark.parametrize(
    ("true", "wrong", "check"),
    [
        (r"From \d+ answered", "From 9999 answered", "counts_are_those_of_the_records"),
        (
            r"TTFT( from Due)? p\d+: ",
            "TTFT from Due p95: 51% waiting for a prefill slot, ",
            "no_part_exists_that_the_run_did_not_have",
        ),
        (
            r"A metrics page or tracing",
            "Queue or prefill? A metrics page or tracing",
            "what_could_split_the_servers_time",
        ),
    ],
)
def test_a_wrong_statement_is_found(true: str, wrong: str, check: str, tmp_path: Path) -> None:
    """Of a run without a gate and of a server that reports nothing."""
    plain = (made for made in map(random_run, range(MANY)) if is_plain(made))
    reports = (reported(made, tmp_path / str(made.seed)) for made in plain)
    # there may be no room for it
    report = next(one for one in reports if re.search(true, one.console))
    assert complaints(report) == []
    console = re.sub(true, wrong, report.console)
    assert any(one.startswith(check) for one in complaints(replace(report, console=console)))


def test_a_wrong_time_without_answers_is_found(tmp_path: Path) -> None:
    seed = next(seed for seed in range(MANY) if random_run(seed).dead_at < 20.0)
    report = reported(random_run(seed), tmp_path)
    console, count = re.subn(
        r"no request was answered from [\d.]+ s on",
        "no request was answered from 0.1 s on",
        report.console,
    )
    assert count
    for text in (console, console.replace(" s on", "")):
        assert any(
            one.startswith("nothing_answered") for one in complaints(replace(report, console=text))
        )


def test_a_headline_that_begins_with_the_send_is_found(tmp_path: Path) -> None:
    made = next(
        one
        for one in map(random_run, range(MANY))
        if one.run.settings.open_loop and not one.run.settings.slo
    )
    report = reported(made, tmp_path)
    wrong = report.console.replace("of TTFT from due is", "of what is")
    assert wrong != report.console
    assert any(
        one.startswith("what_users_waited") for one in complaints(replace(report, console=wrong))
    )


def test_a_decode_that_is_called_the_servers_queue_is_found(tmp_path: Path) -> None:
    """Behind a proxy that sends whole answers, of a server that reports each decode."""
    proxied = (
        made
        for made in map(random_run, range(MANY))
        if made.decode_told and made.told == len(made.answered) > 40
    )
    reports = (reported(made, tmp_path / str(made.seed)) for made in proxied)
    report = next(one for one in reports if "% decode before the first chunk" in one.console)
    assert complaints(report) == []
    wrong = report.console.replace(
        "decode before the first chunk", "the server's queue and front end"
    )
    assert any(
        one.startswith("decode_before_the_first_chunk")
        for one in complaints(replace(report, console=wrong))
    )
