"""A scenario as a whole run, by name and as a file made of it, and one that the server has no room
for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import Server, records, run

from locust_llm.demo_command import start_simulator
from locust_llm.exit_status import ExitStatus
from locust_llm.records.run_facts import read_run

FAST = (
    "--session-turn-delay-mean",
    "20",
    "--session-turn-delay-stddev",
    "0",
    "--random-seed",
    "3",
    "--inconclusive",
    "warn",
)
DOOR = (sys.executable, "-m", "locust_llm", "scenario")


def squeezed(file: Path) -> str:
    """Its tables without what makes their columns even."""
    return re.sub(" +", " ", file.read_text())


@pytest.mark.slow
def test_a_scenario_by_name_and_the_file_made_of_it_are_one_load(tmp_path: Path) -> None:
    """Of two processes too, of which the second knows the scenario from the master alone."""
    shown = subprocess.run(
        [*DOOR, "show", "interactive-chat"], capture_output=True, text=True, check=True
    ).stdout
    own = tmp_path / "mine.toml"
    rules = '[published]\nrules = "Mine 1"\nloop = "closed"\nseconds = [[1, 600]]\n'
    own.write_text(
        shown.replace("stddev = 2.5", "stddev = 0").replace('"ttft p99 <= 1s", ', "") + rules
    )
    named, other = tmp_path / "named", tmp_path / "other"
    with start_simulator("--ttft-ms", "20", "--itl-ms", "1") as url:
        server = Server(url)
        words = ("-u", "4", "-r", "4", "--num-sessions", "6", *FAST)
        done = run(
            server, named, "--scenario", "interactive-chat", "--session-turns-stddev", "0", *words
        )
        assert done.returncode == ExitStatus.OK, done.stderr
        done = run(
            server,
            other,
            "--scenario",
            str(own),
            "--processes",
            "2",
            "--published-rules",
            "fail",
            *words,
        )
        assert done.returncode == ExitStatus.INCONCLUSIVE, done.stderr
        assert "not valid by Mine 1: " in " ".join(done.stdout.split())  # the console breaks lines
    runs = [read_run(folder) for folder in (named, other)]
    changed = ("session-turns-stddev", "session-turn-delay-mean", "session-turn-delay-stddev")
    assert [one.settings.scenario for one in runs] == ["interactive-chat", str(own)]
    assert sorted(runs[0].settings.scenario_changed) == sorted(changed)
    assert sorted(runs[1].settings.scenario_changed) == sorted(changed[1:])
    assert [one.settings.slo for one in runs] == [
        ("ttft p99 <= 1s", "itl p99 <= 50ms"),
        ("itl p99 <= 50ms",),
    ]
    fields = (
        "seq_dist",
        "user_context_prompt_length",
        "session_turns_mean",
        "shared_system_prompt_length",
    )
    assert len({tuple(getattr(one.settings, field) for field in fields) for one in runs}) == 1
    assert f"| scenario | interactive-chat, except {', '.join(changed)} |" in squeezed(
        named / "summary.md"
    )
    assert "| scenario | mine.toml, except" in squeezed(other / "summary.md")
    for folder in (named, other):
        got = records(folder)
        assert len(got) == 24  # six sessions of four turns
        first = [record for record in got if record.turn == 0]
        assert len(first) == 6
        contexts = {record.session: record.asked_input_tokens - 1000 for record in first}
        assert all(100 < tokens < 40_000 for tokens in contexts.values())
        assert len({*contexts.values()}) == 6  # each of its own length
        for record in got:
            if record.turn:  # what came before, a question of some 50 tokens
                assert record.asked_input_tokens > contexts[record.session] + 1000


@pytest.mark.slow
def test_a_scenario_without_room_is_refused_by_its_name(tmp_path: Path) -> None:
    with start_simulator("--max-model-len", "16384") as url:
        done = run(Server(url), tmp_path / "out", "-u", "2", "--scenario", "code-generation")
        assert done.returncode == ExitStatus.REFUSED
        assert "--scenario code-generation: prompts of " in done.stderr
        assert (
            "also use a shorter --shared-system-prompt-length or --user-context-prompt-length"
            in done.stderr
        )
        less = (
            "--user-context-prompt-length",
            "1000",
            "--session-turns-mean",
            "1",
            "--request-count",
            "4",
        )
        rules = ("--slo", "error_rate < 1%", "--inconclusive", "pass")
        done = run(
            Server(url), tmp_path / "out", "-u", "2", "--scenario", "code-generation", *less, *rules
        )
        assert done.returncode == ExitStatus.OK, done.stderr
    assert read_run(tmp_path / "out").settings.slo == ("error_rate < 1%",)
