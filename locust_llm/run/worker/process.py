"""A worker: greets the master, tells it how it stands, delivers its records, and ends in order, also without it."""

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from locust.env import Environment

import gevent
import msgspec

from locust_llm.core.jsonl import line
from locust_llm.core.record import Record
from locust_llm.core.storage import RECORDS
from locust_llm.exit_status import ExitStatus
from locust_llm.run.protocol import GONE_S, Order, greeting
from locust_llm.run.secrets import secret_names
from locust_llm.run.signals import interrupt, listen

from .messages import to_sender
from .outbox import FOLDER, Journal, Outbox, lock
from .sender import Sender

logger = logging.getLogger("locust_llm")

NEWS_S: Final = 0.25
"""How often a process tells how it stands."""
AT_ONCE_S: Final = 0.005
"""What the control should hear at once is said no more often."""
DELIVER_S: Final = 10.0
"""How long at the end the master may take to acknowledge records."""
LOCK_S: Final = 3.0
"""How long other workers of a dead master may take to write their records."""


def work(environment: Environment, runner: Any, sender: Sender, *, forked: bool = False) -> None:
    """Make this process a worker. ``forked``: by its master, so that the terminal's Ctrl-C comes to both."""
    worker = _Worker(environment, runner, sender)
    listen(
        lambda number: worker.interrupted(leave_to_master=forked and number != signal.SIGTERM), lambda: cut(environment)
    )
    sender.worker, sender.keep = runner.client_id, worker.outbox.add
    sender.share()
    to_sender(runner, sender, worker.begin)
    runner.register_message("llm_ack", worker.acknowledged)
    runner.register_message("llm_end", lambda **kw: worker.end(), concurrent=True)
    runner.register_message("llm_hurry", lambda **kw: cut(environment))
    runner.register_message("llm_refused", worker.refused)
    environment.events.quitting.add_listener(lambda **kw: worker.end())
    gevent.spawn(worker.talk)
    if (
        runner.last_heartbeat_timestamp is None
    ):  # a master that sent it away before this would never send one: see there
        runner.last_heartbeat_timestamp = time.time()
    hello = greeting(environment.user_classes, secret_names(environment.parsed_options))
    runner.send_message("llm_hello", {"greeting": msgspec.to_builtins(hello)})


class _Worker:
    def __init__(self, environment: Environment, runner: Any, sender: Sender) -> None:
        self._environment, self._runner, self._sender = environment, runner, sender
        self.outbox = Outbox(lambda batch: sender.tell("llm_records", **batch))
        self._folder = Path()
        self._busy = False
        """A run is on, or its records are not all handed over."""

    def begin(self, order: Order) -> None:
        """A run begins: its records are kept in its folder, where that is on this machine, else in one of the same name."""
        self._busy = True
        self._folder = Path(order.folder)
        here = self._folder if self._folder.is_dir() else Path("reports") / self._folder.name
        self.outbox.close(keep=self.outbox.waiting > 0)
        try:
            self.outbox.begin(Journal(here / FOLDER / self._runner.client_id))
        except OSError as error:
            self.outbox.begin(None)
            logger.warning(f"records are not kept on disk, should this worker be lost: {error}")
        self._sender.count = self.outbox.count

    def acknowledged(self, msg: Any, **kw: Any) -> None:
        if msg.data["epoch"] == self._sender.epoch:
            self.outbox.acknowledged(msg.data["number"])

    def refused(self, msg: Any, **kw: Any) -> None:
        logger.error(f"the master refuses this worker: {msg.data['why']}")
        self._environment.process_exit_code = ExitStatus.REFUSED
        gevent.spawn(self._runner.quit)

    def talk(self) -> None:
        """The greenlet that tells the master how this process stands: four times a second, and when others wait for it."""
        sender, due = self._sender, time.monotonic()
        while True:
            sender.stir.wait(max(0.0, due - time.monotonic()))
            sender.stir.clear()
            now = time.monotonic()
            if now < due:
                sender.tell("llm_stand", **sender.lease.stand())
            else:
                due = now + NEWS_S
                self.outbox.flush()
                sender.tell("llm_news", **sender.news(), users=self._runner.user_count, at=time.monotonic())
                sender.give_back(self._runner.user_count)
                if sender.epoch and not sender.closed and now - sender.answered_at > GONE_S:
                    gevent.spawn(self._go_on_alone)
                    return
            gevent.sleep(AT_ONCE_S)

    def end(self) -> None:
        """What runs ends, then every record and every statistic goes to the master."""
        sender = self._sender
        if sender.closed or not sender.epoch:
            return
        try:
            self._drain(DELIVER_S)
            self._runner._send_stats()
        except Exception:  # a concurrent handler's exception would be lost in the hub
            logger.exception("the drain of this worker failed")
        finally:
            sender.tell("llm_news", **sender.news(), users=0, at=time.monotonic())
            sender.tell("llm_ended", **sender.last_words(), undelivered=self.outbox.waiting)
            self._busy = False

    def interrupted(self, *, leave_to_master: bool) -> None:
        """A signal that ends: what runs ends in order, unless that is under way, or the master sees to it."""
        while self._busy and (self._sender.closed or leave_to_master):
            gevent.sleep(0.1)
        interrupt()

    def _drain(self, deliver_s: float) -> None:
        self._sender.close()
        self._runner.stop()
        with gevent.Timeout(deliver_s, False):
            while self.outbox.waiting:
                self.outbox.flush()
                gevent.sleep(0.02)
        waiting = self.outbox.undelivered()
        self.outbox.close(keep=bool(waiting) and not append(waiting, self._folder / RECORDS))

    def _go_on_alone(self) -> None:
        """The master is dead, or out of reach: this process ends, and its records go where they will be found."""
        logger.error(f"the master has not answered for {GONE_S:g} s: this worker ends")
        self._drain(0.0)
        self._busy = False
        if self.outbox.kept is not None:
            logger.error(f"records that were not delivered are in {self.outbox.kept}")
        self._environment.process_exit_code = ExitStatus.FAILED_REQUESTS
        self._runner.quit()


def append(records: list[Record], path: Path) -> bool:
    """To the records of a run whose control is dead; False where it is not, or its folder is not here."""
    until = time.monotonic() + LOCK_S
    while (file := lock(path)) is None:
        if not path.exists() or time.monotonic() > until:
            return False
        gevent.sleep(0.1)
    with os.fdopen(file, "r+b") as lines:
        whole = lines.seek(0, os.SEEK_END) == 0 or (lines.seek(-1, os.SEEK_END) >= 0 and lines.read() == b"\n")
        lines.write(b"" if whole else b"\n")
        lines.writelines(line(record) + b"\n" for record in records)
    return True


def cut(environment: Environment) -> None:
    """What this process still has open is cut, and recorded so."""
    environment.stop_timeout = 0
    if environment.runner is not None:
        environment.runner.user_greenlets.kill(block=False)
