"""Disruption options: commands come from the command line of this process alone."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import sys
from argparse import Namespace

from locust.rpc.protocol import Message

import pytest
from support.command_line import parse

from locust_llm.locust_adapter.command_line_parser import build_settings
from locust_llm.locust_adapter.disruption_options import (
    find_shown_disruptions,
    read_disruption_plans,
)
from locust_llm.locust_adapter.withheld_options import strip_secrets
from locust_llm.settings.disruption_schedule import DisruptionPlan
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused

TEXT = "at 60s: kill -9 7"


def given(monkeypatch: pytest.MonkeyPatch, *words: str, headless: bool = True) -> Namespace:
    """The command line has these words, and they are parsed."""
    monkeypatch.setattr(sys, "argv", ["locust", *words])
    return parse(*words, headless=headless)


def test_plans_are_read_from_the_command_line_and_taken_off_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = given(monkeypatch, "--disrupt", TEXT, "--disrupt=every 2m: true")
    assert read_disruption_plans(options, build_settings(options)) == (
        DisruptionPlan("at 60s", 60.0, None, "kill -9 7"),
        DisruptionPlan("every 2m", 120.0, 120.0, "true"),
    )
    assert options.disrupt == []
    assert read_disruption_plans(given(monkeypatch), Settings()) == ()


def test_an_option_that_something_else_has_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = given(monkeypatch)
    options.disrupt = [TEXT]  # as a configuration file does
    with pytest.raises(RunRefused, match="command line only, not in a configuration file"):
        read_disruption_plans(options, Settings())
    more = given(monkeypatch, "--disrupt", TEXT)
    more.disrupt = [TEXT, "at 1s: touch victim"]
    with pytest.raises(RunRefused, match="not in a configuration file"):
        read_disruption_plans(more, Settings())
    monkeypatch.setenv("LOCUST_LLM_DISRUPT", TEXT)
    with pytest.raises(RunRefused, match="not in LOCUST_LLM_DISRUPT"):
        read_disruption_plans(given(monkeypatch), Settings())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--disrupt", "now: true"), "must be 'at 60s: COMMAND'"),
        (("--disrupt", "at 1s: no-such-program-here x"), "no program 'no-such-program-here'"),
        (("--disrupt", "at 1s: echo 'x"), "is not a valid command"),
        (("--disrupt", "at 60s: true", "-t", "30"), "the run ends before"),
    ],
)
def test_an_impossible_one_is_refused(
    words: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = given(monkeypatch, *words)
    options.run_time = None if "-t" not in words else 30
    with pytest.raises(RunRefused, match=why):
        read_disruption_plans(options, build_settings(options))


def test_a_web_page_and_a_worker_start_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = given(monkeypatch, "--disrupt", TEXT, headless=False)
    with pytest.raises(RunRefused, match="a web page starts no commands"):
        read_disruption_plans(waiting, Settings())
    worker = given(monkeypatch, "--disrupt", TEXT, "--worker")
    with pytest.raises(RunRefused, match="not to a worker"):
        read_disruption_plans(worker, Settings())


@pytest.mark.parametrize("rule", ["recovery_time < 30s", "truncated_silently == 0"])
def test_a_rule_on_disruptions_needs_one(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = given(monkeypatch, "--slo", rule)
    with pytest.raises(RunRefused, match="needs --disrupt"):
        read_disruption_plans(options, build_settings(options))
    options = given(monkeypatch, "--slo", rule, "--disrupt", TEXT)
    assert len(read_disruption_plans(options, build_settings(options))) == 1


def test_no_message_to_a_worker_has_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    options = given(monkeypatch, "--disrupt", TEXT)
    sent = strip_secrets(Message("spawn", {"parsed_options": vars(options)}, "w"))
    assert "disrupt" not in sent.data["parsed_options"]
    assert b"kill -9" not in sent.serialize()


def test_the_command_of_a_run_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-of-the-environment-0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    words = ("--disrupt", f"at 1s: curl -H 'Authorization: Bearer abcdefgh' http://a:b@c?x={key}")
    options = given(monkeypatch, *words)
    (shown,) = find_shown_disruptions().values()
    settings = build_settings(options)
    for text in (shown, settings.command):
        assert "at 1s: curl -H" in text
        for secret in (key, "abcdefgh", "a:b@"):
            assert secret not in text
