"""Worker process: it greets the master, sends its status and records, and ends in order, also
without a master."""

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from locust.env import Environment

import gevent
import msgspec

from locust_llm.exit_status import ExitStatus
from locust_llm.integrations.otel.telemetry_sender import Telemetry
from locust_llm.locust_adapter.forked_workers import outlive_master
from locust_llm.locust_adapter.signals import interrupt_main, listen_for_signals
from locust_llm.locust_adapter.stop_and_quit import detach_end
from locust_llm.locust_adapter.withheld_options import list_secret_names
from locust_llm.records.control_message import ControlMessage
from locust_llm.records.journal import JOURNALS, Journal, lock_file
from locust_llm.records.profile_export_jsonl import add_records
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS
from locust_llm.settings.run_options import Settings
from locust_llm.text.format import format_count
from locust_llm.text.sanitise import sanitise_text
from locust_llm.wire.critical_greenlets import spawn_critical
from locust_llm.wire.handshake import make_hello
from locust_llm.wire.worker_messages import (
    GONE_S,
    HELD_S,
    STATUS_S,
    TO_CONTROL,
    Ack,
    Begin,
    Cut,
    EndRun,
    Refused,
    Renewal,
    pack_message,
)
from locust_llm.worker.worker_context import receive_from_control

from .records_to_master import RecordOutbox
from .worker_context import WorkerContext, attach_worker_context

logger = logging.getLogger("locust_llm")

BEHIND_S: Final = 0.75
"""The longest interval of statuses to a master that is behind with its answers. After a second
without one it takes a worker for silent."""
AT_ONCE_S: Final = 0.005
"""The least interval of urgent statuses."""
DELIVER_S: Final = 10.0
"""The longest wait at the end until the master acknowledges further records."""
LATE_S: Final = 30.0
"""The same where the master may be unreachable: networks come back."""
LOCK_S: Final = 3.0
"""The longest wait for other workers of a dead master, which write their records."""


def start_worker(
    environment: Environment, runner: Any, settings: Settings, *, forked: bool = False
) -> None:
    """Make this process a worker. ``forked``: its master forked it, so both get the terminal's
    Ctrl-C."""
    if forked:
        outlive_master()
    worker = _Worker(environment, runner, settings, os.getppid() if forked else None)
    attach_worker_context(environment, worker.sender)
    listen_for_signals(
        lambda number: worker.interrupted(leave_to_master=forked and number != signal.SIGTERM),
        lambda: cut_open_requests(environment),
    )
    detach_end(runner, leave=worker.leave)
    receive_from_control(runner, worker.sender, worker.receive, worker.begin)
    environment.events.test_stopping.add_listener(lambda **kw: worker.sender.close())
    environment.events.test_stop.add_listener(lambda **kw: _ready_at_once(environment))
    environment.events.quitting.add_listener(lambda **kw: worker.end())
    spawn_critical(worker.fail, 0.0, worker.report)
    # else a master that refuses it before this is never found to be silent
    if runner.last_heartbeat_timestamp is None:
        runner.last_heartbeat_timestamp = time.time()
    hello = make_hello(environment.user_classes, list_secret_names(environment.parsed_options))
    runner.send_message(TO_CONTROL, pack_message(0, hello))


def _ready_at_once(environment: Environment) -> None:
    """Locust's worker would sleep for another stop_timeout before it is ready again. The next spawn
    restores the value."""
    environment.stop_timeout = 0


class _Worker:
    def __init__(
        self, environment: Environment, runner: Any, settings: Settings, master: int | None = None
    ) -> None:
        """``master`` is the process that forked this one. None: none did."""
        self._environment, self._runner, self._master = environment, runner, master
        self.outbox = RecordOutbox(lambda records: self.sender.send(records))
        self._telemetry = Telemetry(environment.parsed_options, runner.client_id)
        self.sender = WorkerContext(
            environment,
            settings,
            (self.outbox.add, self._telemetry.record),
            self.outbox.count,
            worker=runner.client_id,
            shared=True,
        )
        self._folder = self._here = Path()
        """The run's folder on the master's machine, or its counterpart here."""
        self._status_s = STATUS_S
        """The interval of statuses, as the master has it."""
        self._sent_at = self._answered_at = 0.0
        """When the last status was sent, and when the last one that is answered was."""
        self._busy = False
        """A run is on, or its records are not all handed over."""
        self._leaves = False
        """A user of this process ends it."""

    def begin(self, order: Begin) -> None:
        """Begin a run. Its records are kept in its folder if that is on this machine, else in a
        folder of the same name."""
        self._busy = True
        self._answered_at = self._sent_at
        self._folder = Path(order.folder)
        self._here = here = (
            self._folder if self._folder.is_dir() else Path("reports") / self._folder.name
        )
        self.outbox.close(keep=self.outbox.waiting > 0)
        try:
            self.outbox.begin(Journal(here / JOURNALS / self._runner.client_id))
        except OSError as error:
            self.outbox.begin(None)
            logger.warning(
                f"this worker cannot copy records to disk, so some are lost if it dies: {error}"
            )
        self._telemetry.begin(order)

    def receive(self, message: ControlMessage) -> None:
        """Handle a message of the master that is not for the sender."""
        match message:
            case Renewal():
                self._status_s = message.next_s
                self._answered_at = message.at
                self.outbox.acknowledged(message.recorded)
                self.outbox.answered(message.at)
            case Ack():
                self.outbox.acknowledged(message.number)
            case EndRun():
                # it takes its time; not guarded: it catches what fails in it
                gevent.spawn(self.end)
            case Cut():
                cut_open_requests(self._environment)
            case Refused():
                logger.error(f"the master refuses this worker: {sanitise_text(message.reason)}")
                self._environment.process_exit_code = ExitStatus.REFUSED
                gevent.spawn(self._runner.quit)

    def report(self) -> None:
        """Send the status of this process in a greenlet, with the records since the last one: in its
        interval, and when others wait for its share."""
        sender = self.sender
        due = time.monotonic()
        while True:
            sender.urgent.wait(max(0.0, due - time.monotonic()))
            sender.urgent.clear()
            now = time.monotonic()
            if now - due > HELD_S:
                sender.answered_at += now - due
            if (
                now < due and not sender.gate.lapsed
            ):  # without a lease it asks for one at once: only a whole status does
                sender.send(sender.lease.status())
            else:
                due = now + self._choose_interval_s()
                if self._master not in (None, os.getppid()) and not self._busy:
                    logger.error("the master has ended: this worker ends")
                    gevent.spawn(interrupt_main)  # else Locust waits a minute for it
                    return
                records = self.outbox.take_batch()
                users = self._runner.user_count
                self._sent_at = time.monotonic()
                sender.send(sender.status(users=users, at=self._sent_at, records=records))
                self.outbox.flush()
                sender.give_back(self._runner.user_count)
                if sender.epoch and not sender.closed and now - sender.answered_at > GONE_S:
                    # not guarded: there is nobody left to report to
                    gevent.spawn(self._go_on_alone)
                    return
            gevent.sleep(AT_ONCE_S)

    def _choose_interval_s(self) -> float:
        """The interval until the next status. A master that is behind gets fewer, with more in
        each."""
        behind_s = self._sent_at - self._answered_at if self._busy else 0.0
        return min(max(self._status_s, behind_s), BEHIND_S)

    def fail(self, why: str) -> None:
        """The status cannot be sent any more: the controller ends the run."""
        self.sender.send(
            msgspec.structs.replace(self.sender.status(users=self._runner.user_count), failure=why)
        )

    def leave(self) -> None:
        """A user ends this process, or its users. The other processes go on."""
        self._leaves = True
        self.end()

    def end(self) -> None:
        """End all requests, then send every record and every statistic to the master."""
        sender = self.sender
        if sender.closed or not sender.epoch:
            return
        try:
            self._drain(DELIVER_S)
            self._runner._send_stats()
        except Exception:  # of a greenlet nobody waits for: it would be lost in the hub
            logger.exception("this worker could not finish its open requests")
        finally:
            sender.send(sender.status(at=time.monotonic()))
            ended = sender.ended(self.outbox.made)
            sender.send(
                msgspec.structs.replace(ended, telemetry=self._telemetry.end(), leaves=self._leaves)
            )
            self._busy = self._leaves = False

    def interrupted(self, *, leave_to_master: bool) -> None:
        """Handle an ending signal: all requests end in order, unless that is under way, or the
        master does it."""
        while self._busy and (self.sender.closed or leave_to_master):
            gevent.sleep(0.1)
        interrupt_main()

    def _drain(self, deliver_s: float, *, alone: bool = False) -> None:
        """``alone``: nobody has answered for a while, so a dead master's records are looked for
        first."""
        self.sender.close()
        self._runner.stop()
        handed_over = alone and self._append()
        if not handed_over:
            deliver_records(self.outbox, deliver_s)
            handed_over = self._append() or self._keep()
        self.outbox.close(keep=not handed_over)

    def _append(self) -> bool:
        """Append undelivered records to a dead master's. False: they are not on this machine, or
        the master lives."""
        waiting = self.outbox.undelivered()
        return not waiting or append_lost_records(waiting, self._folder / RECORDS)

    def _keep(self) -> bool:
        """Keep undelivered records on this machine, in the form that the master would have written.
        False: the master has the same machine, and finds the journal."""
        if self._here == self._folder:
            return False
        path = self._here / RECORDS
        count = format_count(self.outbox.waiting, "record")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            add_records(path, self.outbox.undelivered())
        except OSError as error:
            logger.error(
                f"{count} could be neither delivered nor written to {path}: {error.strerror}"
            )
            return False
        logger.error(
            f"{count} could not be delivered, and are in {path}: locust-llm report --records adds "
            f"them to the run"
        )
        return True

    def _go_on_alone(self) -> None:
        """The master is dead or unreachable: this process ends, and leaves its records where they
        will be found."""
        logger.error(f"the master has not answered for {GONE_S:g} s: this worker ends")
        self._drain(LATE_S, alone=True)
        self.sender.send(
            msgspec.structs.replace(self.sender.ended(), telemetry=self._telemetry.end())
        )
        self._busy = False
        if self.outbox.kept is not None:
            logger.error(f"records that were not delivered are in {self.outbox.kept}")
        self._environment.process_exit_code = ExitStatus.FAILED_REQUESTS
        self._runner.quit()


def deliver_records(outbox: RecordOutbox, patience_s: float) -> None:
    """Send the waiting records until the master has them all. A master that is behind has as long
    as it needs, if it acknowledges some of them every ``patience_s``."""
    left = outbox.waiting + 1
    while 0 < outbox.waiting < left:
        left = outbox.waiting
        with gevent.Timeout(patience_s, False):
            while outbox.waiting >= left:
                outbox.flush()
                gevent.sleep(0.02)


def append_lost_records(records: list[Record], path: Path) -> bool:
    """Add to the records of a run whose control is dead what it has not written. False: it is not
    dead, or its folder is not here."""
    until = time.monotonic() + LOCK_S
    while (file := lock_file(path)) is None:
        if not path.exists() or time.monotonic() > until:
            return False
        gevent.sleep(0.1)
    try:
        add_records(path, records)
    finally:
        os.close(file)
    return True


def cut_open_requests(environment: Environment) -> None:
    """Cut the open requests of this process, and record them so."""
    environment.stop_timeout = 0
    if environment.runner is not None:
        environment.runner.user_greenlets.kill(block=False)
