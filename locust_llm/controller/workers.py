"""Workers: the processes that send: who takes part, what each has of the work of the run, and what
is lost with one."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from locust.rpc.protocol import Message
from locust.runners import LocalRunner

import msgspec
import zmq

from locust_llm.records.journal import JOURNALS, read_journal_counts, read_journal_frames
from locust_llm.records.record import Record, unpack_record
from locust_llm.records.run import ProcessHealth
from locust_llm.text.format import format_count, format_duration
from locust_llm.wire.messages import GONE_S, LOCAL, Records

QUIET_S: Final = 1.0
"""A process that has been silent for longer gets no arrivals, and its connection is checked."""


class WorkerState:
    """What is known of one process."""

    def __init__(self, place: int, now: float) -> None:
        self.place = place
        """The place by which its prompts are its own."""
        self.seen_at = now
        self.users = 0
        self.reads = 0
        self.health: ProcessHealth | None = None
        self.out: Counter[str] = Counter()
        """By phase: requests that were given to it, and are not back as records or otherwise."""
        self.admitted = 0
        """Requests that its gate has admitted, by its last status."""
        self.recorded = 0
        """The admitted requests of which the record is here."""
        self.phase = ""
        """The phase of its sessions, by its last status."""
        self.sessions: tuple[int, int] | None = None
        """The sessions of this phase, by its journal: (begun, ended)."""
        self.through = False
        """It has ended what it had."""


class WorkerLoss(NamedTuple):
    """What went with a process."""

    unsent: dict[str, int]
    """By phase: requests that it was given and had not sent."""
    sent: int
    """Sent, without a record."""
    done: dict[str, int]
    """All requests that were out, by phase."""
    sessions: tuple[int, int] | None
    """Of the phase of its last status: (begun, ended). None: not known."""
    phase: str
    health: ProcessHealth | None
    reads: int


class WorkerRegistry:
    """``names``: of all that ever had orders, in the order in which they came."""

    def __init__(
        self, runner: Any, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.names: list[str] = []
        self.inbox = RecordInbox()
        self._runner, self._folder, self._clock = runner, folder, clock
        self._members: dict[str, WorkerState] = {}
        self._clock_errors_s: dict[str, float] = {}
        self._lost: Counter[str] = Counter()
        """By process that was lost: requests that it had sent and that have no record."""
        self.late = 0
        """Records of such processes that came after all."""

    # -- who is there ------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """There is one process, which is the control's own."""
        return self._runner is None or isinstance(self._runner, LocalRunner)

    def clients(self) -> list[str]:
        """Lists those that Locust counts as there, with orders or without."""
        if self.alone:
            return [LOCAL]
        clients = self._runner.clients
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def active(self) -> list[str]:
        """Lists the processes that have orders and are not lost."""
        return list(self._members)

    def live(self) -> list[str]:
        """Those of them that sent something just now; all where none has: then it is the control
        that is late."""
        now = self._clock()
        return [
            name for name, member in self._members.items() if now - member.seen_at < QUIET_S
        ] or self.active()

    def users(self) -> dict[str, int]:
        """How many the live ones have."""
        clients = {} if self.alone else self._runner.clients
        return {name: self._members[name].users or _users(clients, name) for name in self.live()}

    def user_count(self) -> int:
        """Adds up the users of all processes, by their last status."""
        return sum(member.users for member in self._members.values())

    def add(self, name: str) -> WorkerState:
        """It has its orders, or gets them again."""
        if name not in self._members:
            if name not in self.names:
                self.names.append(name)
            self._members[name] = WorkerState(self.names.index(name), self._clock())
        return self._members[name]

    def seen(self, name: str) -> WorkerState | None:
        """A process has sent something; None where it takes no part, or is lost."""
        worker = self._members.get(name)
        if worker is not None:
            worker.seen_at = self._clock()
        return worker

    # -- what it has -------------------------------------------------------------------------------

    def give(self, name: str, phase: str, count: int) -> None:
        """So many requests of a phase are its to send."""
        if name in self._members:
            self._members[name].out[phase] += count

    def back(self, name: str, phase: str, count: int) -> bool:
        """So many of them came back; False: what this process had is accounted for already."""
        if name in self._members:
            self._members[name].out[phase] -= count
        return name in self._members or name not in self.names

    def take(self, name: str, batch: Records) -> list[Record]:
        """The records of a batch that were not here yet."""
        return self._count(name, self.inbox.take(name, list_record_frames(batch)))

    def _count(self, name: str, records: list[Record]) -> list[Record]:
        if name in self._members:
            self._members[name].recorded += sum(
                record.admitted_at is not None for record in records
            )
        return records

    def note_clock(self, name: str, error_s: float) -> None:
        """So far the times of its records may be off on this machine's clock, at most; 0: it has
        the same one."""
        if error_s:
            self._clock_errors_s[name] = error_s

    def remarks(self) -> Iterator[str]:
        """At the end: what came after all, and how well the timelines agree, where they are of
        several clocks."""
        if self.late:
            yield (
                f"{format_count(self.late, 'record')} of workers that had been given up came "
                f"after all"
            )
        if errors_s := self._clock_errors_s:
            yield (
                f"the times of {format_count(len(errors_s), 'worker')} with a clock of another "
                f"machine are on the master's to "
                f"within {format_duration(max(errors_s.values()))}; no duration is made of the "
                f"clocks of two machines"
            )

    # -- who is lost -------------------------------------------------------------------------------

    def lost(self) -> list[str]:
        """Those that are dead for certain, or have been silent for too long."""
        if self.alone:
            return []
        now = self._clock()
        clients = self._runner.clients
        return [
            name for name, worker in self._members.items()
            if not worker.through and (
                name not in clients
                or now - worker.seen_at > GONE_S
                or (now - worker.seen_at > QUIET_S and not is_worker_connected(self._runner, name))
            )
        ]  # fmt: skip

    def excuse(self, held_s: float) -> None:
        """For so long the control has heard nobody, as it was stopped itself, perhaps with its
        whole machine."""
        for worker in self._members.values():
            worker.seen_at += held_s

    def recover(self, name: str) -> Iterator[list[Record]]:
        """The records that it had made and not delivered, as far as its disk can be read here: one
        at a time, or none instead of one that was delivered, so that who asks can pause in
        between."""
        path = self._folder / JOURNALS / name
        counts = read_journal_counts(path)
        if counts is None:
            return
        worker = self._members[name]
        worker.admitted, worker.sessions = counts.admitted, (counts.begun, counts.ended)
        for frame in read_journal_frames(path):
            try:
                taken = self.inbox.take(name, [frame])
            except ValueError:  # a machine that stopped may have written half of it
                return
            yield self._count(name, taken)

    def remove_journal(self, name: str) -> None:
        """What was recovered of it is on the disk elsewhere."""
        path = self._folder / JOURNALS / name
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()  # when it was the last

    def found(self, record: Record) -> bool:
        """A record of a process that was lost; whether its request was counted as lost. Others it
        sent after its last status."""
        self.late += 1
        counted = record.admitted_at is not None and self._lost[record.worker] > 0
        self._lost[record.worker] -= counted
        return counted

    def drop(self, name: str) -> WorkerLoss:
        """It is lost, and what could be recovered was."""
        worker = self._members.pop(name)
        sent = left = max(0, worker.admitted - worker.recorded)
        unsent = {}
        for phase, count in reversed(worker.out.items()):
            unsent[phase] = max(0, count - left)
            left = max(0, left - count)
        self._lost[name] = sent
        health = worker.health
        clock_error_s = self._clock_errors_s.get(name, 0.0)
        health = health and msgspec.structs.replace(health, clock_error_s=clock_error_s)
        return WorkerLoss(
            unsent, sent, dict(worker.out), worker.sessions, worker.phase, health, worker.reads
        )


def _users(clients: Any, name: str) -> int:
    """Returns the users as Locust counts them, which is sooner."""
    return int(clients[name].user_count) if name in clients else 0


def is_worker_connected(runner: Any, name: str) -> bool:
    """Whether the worker still has its connection to the master. The kernel closes it when a
    process dies, and not when it is stopped.

    ZeroMQ raises for a message to nobody, if it is asked to (ROUTER_MANDATORY); Locust does not
    ask. What is sent is Locust's own answer to a heartbeat.
    """
    server = getattr(runner, "server", None)
    if server is None:
        return True
    server.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        server.socket.send_multipart(
            [name.encode(), Message("heartbeat", None, name).serialize()], zmq.NOBLOCK
        )
    except zmq.ZMQError as error:
        return bool(error.errno != zmq.EHOSTUNREACH)
    finally:
        server.socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
    return True


class RecordInbox:
    """The other end of worker/outbox.py: each record of each worker once."""

    def __init__(self) -> None:
        self._below: dict[str, int] = {}
        """For each worker, every serial below this one is here."""
        self._apart: dict[str, set[int]] = {}
        """The serials that came before their turn."""

    def take(self, worker: str, frames: Iterable[tuple[int, bytes]]) -> list[Record]:
        """(serial, packed record) of a batch or of a journal: the records that were not here.
        Raises ValueError for what is no record; then none was taken."""
        below = self._below.get(worker, 1)
        apart = self._apart.setdefault(worker, set())
        came = {
            serial: unpack_record(packed)
            for serial, packed in frames
            if serial >= below and serial not in apart
        }
        apart.update(came)
        while below in apart:
            apart.remove(below)
            below += 1
        self._below[worker] = below
        return list(came.values())

    def taken(self, worker: str) -> int:
        """How many of its records are here."""
        return self._below.get(worker, 1) - 1 + len(self._apart.get(worker, ()))


def list_record_frames(batch: Records) -> Iterable[tuple[int, bytes]]:
    """Lists the packed records of a batch with their serials."""
    return enumerate(batch.packed, batch.number)
