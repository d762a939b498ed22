"""Disruption runner: runs the commands of ``--disrupt`` at their times, and notes when each began and
ended.

The times count from the start of the profiling phase on the monotonic clock, as ``-t`` does. What is
noted is Unix seconds, as the times of records are. None begins once the run ends, and one that still
runs is killed with all that it started when the open requests are over.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import gevent
from msgspec.structs import replace

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.records.chart_mark_names import name_disruption
from locust_llm.records.run_facts import Disruption
from locust_llm.settings.disruption_schedule import DISRUPT, DisruptionPlan

from .run_context import RunContext
from .shutdown import Shutdown

logger = logging.getLogger("locust_llm")

LIMIT_S: Final = 600.0
"""A command may take so long."""


class DisruptionRunner:
    def __init__(
        self,
        context: RunContext,
        shutdown: Shutdown,
        plans: Sequence[DisruptionPlan],
        secrets: Iterable[str],
        longest_s: float | None = None,
    ) -> None:
        """``secrets`` are the keys of the run, which no command and no report gets. ``longest_s``:
        of the profiling phase, None where nothing limits it."""
        self._context, self._shutdown = context, shutdown
        self._store, self._time = context.store, context.time
        self._longest_s = longest_s
        known = list(secrets)
        self._commands = [(plan, OperatorCommand(DISRUPT, plan.command, known)) for plan in plans]
        self._greenlets: list[gevent.Greenlet] = []

    def begin(self, lead_s: float) -> None:
        """The profiling phase begins in ``lead_s``."""
        began = self._time.monotonic() + lead_s
        for plan, command in self._commands:
            self._greenlets.append(self._context.spawn(self._follow, plan, command, began))

    def end(self) -> None:
        """Kill what still runs."""
        gevent.killall(self._greenlets)
        self._greenlets.clear()
        for _, command in self._commands:
            command.end()

    def _follow(self, plan: DisruptionPlan, command: OperatorCommand, began: float) -> None:
        """Run a command at each of its times, in a greenlet. Times that pass while it still runs are
        left out."""
        free_at = began
        for due_s in plan.list_times(self._longest_s):
            due = began + due_s
            if due < free_at:
                continue
            self._time.sleep(max(0.0, due - self._time.monotonic()))
            if self._shutdown.begun:
                return
            self._run(plan, command)
            free_at = self._time.monotonic()

    def _run(self, plan: DisruptionPlan, command: OperatorCommand) -> None:
        place = len(self._store.disruptions)
        name = name_disruption(place + 1).capitalize()
        made = Disruption(schedule=plan.schedule, command=command.shown, began_at=self._time.now())
        self._store.disruptions.append(made)
        logger.info(f"{name} ({plan.schedule}) begins: {command.shown}")
        try:
            end = command.run(LIMIT_S)
        except CommandFailed as error:
            made = replace(made, ended_at=self._time.now(), why=str(error))
        else:
            why = end.error if end.status else ""
            if end.status is None:
                why = f"it did not end within {LIMIT_S:g} s, or printed too much"
            made = replace(made, ended_at=self._time.now(), status=end.status, why=why)
        self._store.disruptions[place] = made
        if made.status != 0:
            ended = "failed" if made.status is None else f"ended with status {made.status}"
            because = f": {made.why}" if made.why else ""
            self._store.add_note(f"WARNING: the command of {name.lower()} {ended}{because}")
