"""Disruption runner: when commands run, in virtual time."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.virtual_time import UNIX, VirtualTime, turn

# isort: split
import gevent

from locust_llm.access.operator_command import CommandEnd, CommandFailed
from locust_llm.controller import disruption_runner
from locust_llm.controller.disruption_runner import DisruptionRunner
from locust_llm.records.run_facts import Disruption
from locust_llm.settings.disruption_schedule import parse_disruption


class Command:
    """Takes as many seconds as its text says, and ends with status 0; ``fails``: with 1."""

    ended: ClassVar[list[str]] = []
    time: ClassVar[VirtualTime]

    def __init__(self, flag: str, text: str, secrets: Any = ()) -> None:
        self.text, self.shown = text, f"{text} ***"

    def run(self, limit_s: float) -> CommandEnd:
        if self.text == "absent":
            raise CommandFailed("--disrupt cannot be started: No such file or directory")
        status = int(self.text == "fails")
        seconds = 0.0 if status else float(self.text)
        if seconds:
            self.time.sleep(min(seconds, limit_s))
        return CommandEnd(None if seconds > limit_s else status, seconds, "", "no process" * status)

    def end(self) -> None:
        self.ended.append(self.text)


class Store:
    def __init__(self) -> None:
        self.disruptions: list[Disruption] = []
        self.notes: list[str] = []

    def add_note(self, note: str) -> None:
        self.notes.append(note)


class Site:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *texts: str, longest_s: float | None = None
    ) -> None:
        self.time, self.store = VirtualTime(), Store()
        Command.time, Command.ended = self.time, []
        monkeypatch.setattr(disruption_runner, "OperatorCommand", Command)
        self.shutdown = SimpleNamespace(begun=False)
        context: Any = SimpleNamespace(
            store=self.store,
            time=self.time.source,
            spawn=lambda run, *args: gevent.spawn(run, *args),
        )
        plans = [parse_disruption(text) for text in texts]
        self.runner = DisruptionRunner(
            context,
            self.shutdown,  # type: ignore[arg-type]
            plans,
            (),
            longest_s,
        )

    def after(self, seconds: float) -> list[tuple[str, float, float | None, int | None]]:
        """Lets time pass, and returns what was noted: text, begin, end, status."""
        self.time.advance(seconds)
        turn()
        return [
            (
                made.command.removesuffix(" ***"),
                round(made.began_at - UNIX, 6),
                None if made.ended_at is None else round(made.ended_at - UNIX, 6),
                made.status,
            )
            for made in self.store.disruptions
        ]


def test_times_count_from_the_start_of_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins in 2 s."""
    site = Site(monkeypatch, "at 60s: 10", "at 5s: 0")
    site.runner.begin(2.0)
    assert site.after(6.9) == []
    assert site.after(0.2) == [("0", 7.0, 7.0, 0)]
    assert site.after(55.0)[1] == ("10", 62.0, None, None)
    assert site.after(10.0)[1] == ("10", 62.0, 72.0, 0)
    assert site.store.disruptions[1].command == "10 ***"
    assert site.store.disruptions[1].schedule == "at 60s"


def test_times_that_pass_while_a_command_runs_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each 10 s, and it takes 25 s: at 10, 40 and 70 s."""
    site = Site(monkeypatch, "every 10s: 25")
    site.runner.begin(0.0)
    begins = [begin for _, begin, _, _ in site.after(80.0)]
    assert begins == [10.0, 40.0, 70.0]


@pytest.mark.parametrize(
    ("longest_s", "begins"),
    [(None, [10, 20, 30, 40]), (40, [10, 20, 30]), (39.9, [10, 20]), (10, [10])],
)
def test_a_repeated_command_leaves_a_period_for_the_recovery(
    longest_s: float | None, begins: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each 10 s: the last one begins at 30 of 40 s, and the first one in any case."""
    site = Site(monkeypatch, "every 10s: 1", longest_s=longest_s)
    site.runner.begin(0.0)
    assert [begin for _, begin, _, _ in site.after(45.0)] == begins


def test_none_begins_once_the_run_ends_and_what_runs_is_killed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch, "at 10s: 100", "at 20s: 0")
    site.runner.begin(0.0)
    site.after(15.0)
    site.shutdown.begun = True
    assert site.after(15.0) == [("100", 10.0, None, None)]  # it still runs
    site.runner.end()
    assert sorted(Command.ended) == ["0", "100"]
    assert site.after(200.0) == [("100", 10.0, None, None)]


def test_a_command_that_fails_is_noted_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, "at 1s: fails", "at 2s: absent", "at 3s: 700")
    site.runner.begin(0.0)
    assert site.after(800.0) == [
        ("fails", 1.0, 1.0, 1),
        ("absent", 2.0, 2.0, None),
        ("700", 3.0, 603.0, None),
    ]
    assert site.store.notes == [
        "WARNING: the command of disruption 1 ended with status 1: no process",
        "WARNING: the command of disruption 2 failed: --disrupt cannot be started: No such file or "
        "directory",
        "WARNING: the command of disruption 3 failed: it did not end within 600 s, or printed too "
        "much",
    ]
