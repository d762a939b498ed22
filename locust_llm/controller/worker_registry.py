"""Worker registry: the processes that send: who takes part, what work of the run each has, and what
is lost with one."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from locust.rpc.protocol import Message
from locust.runners import HEARTBEAT_LIVENESS, LocalRunner

import msgspec
import zmq

from locust_llm.records.journal import JOURNALS, read_journal_counts, read_journal_frames
from locust_llm.records.profile_export_jsonl import EncodedRecord
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.text.format import format_count, format_duration
from locust_llm.wire.worker_messages import GONE_S, LOCAL, STATUS_S, Records

from .record_inbox import RecordInbox, list_record_frames
from .run_progress import ProcessState

QUIET_S: Final = 1.0
"""A process that has been silent for longer gets no arrivals, and its connection is checked."""


STATUSES_PER_S: Final = 500
MAX_STATUS_S: Final = 0.5
"""All processes together send so many statuses in a second, but each at least one in so long, as
within ``QUIET_S`` there must be two. A status costs the master as much as several records."""


class WorkerState:
    def __init__(self, place: int, now: float) -> None:
        self.place = place
        """The place among the workers, from which its own prompts follow."""
        self.seen_at = now
        self.users = 0
        self.reads = 0
        self.health: ProcessHealth | None = None
        self.out: Counter[str] = Counter()
        """The requests by phase that were given to it and did not come back."""
        self.admitted = 0
        """The requests that its gate has admitted, by its last status."""
        self.recorded = 0
        """The admitted requests whose record is here."""
        self.phase = ""
        """The phase of its sessions, by its last status."""
        self.sessions: tuple[int, int] | None = None
        """(begun, ended) sessions of this phase, by its journal."""
        self.through = False
        """The process has ended all that it had."""


class WorkerLoss(NamedTuple):
    """What was lost with a process."""

    unsent: dict[str, int]
    """The requests by phase that it was given and had not sent."""
    sent: int
    """The requests that it sent, without a record."""
    done: dict[str, int]
    """All requests by phase that were out."""
    sessions: tuple[int, int] | None
    """(begun, ended) sessions in the phase of its last status. None: not known."""
    phase: str
    health: ProcessHealth | None
    reads: int
    silent_s: float = 0.0
    """For how long it had sent nothing."""


class WorkerRegistry:
    """``names`` has all processes that ever had orders, in the order in which they came."""

    def __init__(
        self, runner: Any, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.names: list[str] = []
        self.inbox = RecordInbox()
        self._runner, self._folder, self._clock = runner, folder, clock
        self._members: dict[str, WorkerState] = {}
        self._users = 0
        self._all_heard_at = clock()
        """When all messages that had come were read, as far as this is known."""
        self._clock_errors_s: dict[str, float] = {}
        self._lost: Counter[str] = Counter()
        """For each lost process, its sent requests without a record."""
        self.late = 0
        """Records of lost processes that came after all."""

    # -- who is there ------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """There is one process, the controller's own."""
        return self._runner is None or isinstance(self._runner, LocalRunner)

    def clients(self) -> list[str]:
        """The processes that Locust counts as present, with orders or without."""
        if self.alone:
            return [LOCAL]
        clients = self._runner.clients
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def active(self) -> list[str]:
        return list(self._members)

    @property
    def status_s(self) -> float:
        """The interval of a process's statuses."""
        return min(max(STATUS_S, len(self._members) / STATUSES_PER_S), MAX_STATUS_S)

    def live(self) -> list[str]:
        """The active processes that sent something just now. It is all of them where none has: then
        the controller is late."""
        now = self._clock()
        return [
            name for name, member in self._members.items() if now - member.seen_at < QUIET_S
        ] or self.active()

    def users(self) -> dict[str, int]:
        """The number of users of each live process."""
        clients = {} if self.alone else self._runner.clients
        return {name: self._members[name].users or _users(clients, name) for name in self.live()}

    def user_count(self) -> int:
        """The users of all processes, by their last status."""
        return self._users

    def update_users(self, member: WorkerState, users: int) -> None:
        """Note the users of a process. The sum is kept, as each of 1,000 processes reports four
        times a second."""
        self._users += users - member.users
        member.users = users

    def takes_part(self, name: str) -> bool:
        """Whether the process is active."""
        return name in self._members

    def processes(self) -> list[ProcessState]:
        """The active processes that have not ended all that they had."""
        now = self._clock()
        states = []
        for member in self._members.values():
            if member.through:
                continue
            cpu_share = None if member.health is None else member.health.cpu_share
            states.append(
                ProcessState(member.place + 1, member.users, cpu_share, now - member.seen_at)
            )
        return states

    def add(self, name: str) -> WorkerState:
        """Add a process that has its orders, or gets them again."""
        if name not in self._members:
            if name not in self.names:
                self.names.append(name)
            self._members[name] = WorkerState(self.names.index(name), self._clock())
        return self._members[name]

    def silent_s(self, name: str) -> float:
        """For how long a process has sent nothing. 0: it takes no part."""
        worker = self._members.get(name)
        return 0.0 if worker is None else max(0.0, self._clock() - worker.seen_at)

    def seen(self, name: str) -> WorkerState | None:
        """A process has sent something. None: it takes no part, or is lost."""
        worker = self._members.get(name)
        if worker is not None:
            worker.seen_at = self._clock()
        return worker

    # -- what it has -------------------------------------------------------------------------------

    def give(self, name: str, phase: str, count: int) -> None:
        """Give so many requests of a phase to a process."""
        if name in self._members:
            self._members[name].out[phase] += count

    def back(self, name: str, phase: str, count: int) -> bool:
        """So many of them came back. False: what this process had is accounted for already."""
        if name in self._members:
            self._members[name].out[phase] -= count
        return name in self._members or name not in self.names

    def take(self, name: str, batch: Records) -> list[EncodedRecord]:
        """The new records of a batch."""
        return self._count(name, self.inbox.take(name, list_record_frames(batch)))

    def _count(self, name: str, records: list[EncodedRecord]) -> list[EncodedRecord]:
        if name in self._members:
            self._members[name].recorded += sum(
                record.admitted_at is not None for record, _ in records
            )
        return records

    def note_clock(self, name: str, error_s: float) -> None:
        """Note the largest error so far of its records' times on this machine's clock; 0: it has
        the same clock."""
        if error_s:
            self._clock_errors_s[name] = error_s

    def remarks(self) -> Iterator[str]:
        """The remarks at the end: what came after all, and how well the timelines agree, where
        there are several clocks."""
        if self.late:
            yield (f"{format_count(self.late, 'record')} of lost workers arrived after all")
        if errors_s := self._clock_errors_s:
            yield (
                f"the times of {format_count(len(errors_s), 'worker')} on other machines are "
                "aligned with the master's clock to within "
                f"{format_duration(max(errors_s.values()))}. No duration combines the clocks of "
                "two machines"
            )

    # -- who is lost -------------------------------------------------------------------------------

    def lost(self) -> list[str]:
        """The processes that are certainly dead, or have been silent for too long. Nobody is silent
        whose messages may wait here."""
        if self.alone:
            return []
        if not are_messages_waiting(self._runner):
            self._all_heard_at = self._clock()
        until = self._all_heard_at
        clients = self._runner.clients
        return [
            name for name, worker in self._members.items()
            if not worker.through and (
                name not in clients
                or until - worker.seen_at > GONE_S
                or (
                    until - worker.seen_at > QUIET_S
                    and not is_worker_connected(self._runner, name)
                )
            )
        ]  # fmt: skip

    def excuse(self, held_s: float) -> None:
        """The controller was stopped, perhaps with its whole machine, and heard nobody for so
        long."""
        for worker in self._members.values():
            worker.seen_at += held_s

    def recover(self, name: str) -> Iterator[list[EncodedRecord]]:
        """The undelivered records of a process, as far as its disk can be read here. They come one
        at a time, with nothing in place of a delivered one, so that the caller can pause."""
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
        """Remove a journal whose recovered records are on the disk elsewhere."""
        path = self._folder / JOURNALS / name
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()  # when it was the last

    def found(self, record: Record) -> bool:
        """Take a record of a lost process. Returns whether its request was counted as lost; other
        requests it sent after its last status."""
        self.late += 1
        counted = record.admitted_at is not None and self._lost[record.worker] > 0
        self._lost[record.worker] -= counted
        return counted

    def forget_lost_requests(self, name: str) -> None:
        """The requests of a lost process do not count as lost."""
        self._lost[name] = 0

    def keep_present(self) -> None:
        """Locust takes a worker for missing after four silent seconds, and stops the run with the
        last. While all workers are silent, they stay present: ``lost`` decides who is lost."""
        now = self._clock()
        if self.alone or any(now - worker.seen_at < QUIET_S for worker in self._members.values()):
            return
        for name in self._members:
            client = self._runner.clients.get(name)
            if client is not None and client.heartbeat >= 0:
                client.heartbeat = HEARTBEAT_LIVENESS

    def mark_missing(self, name: str) -> None:
        """Locust takes a lost process for missing with its next look, within a second. It would
        wait for three heartbeats, and until then for its users where the run ends."""
        client = None if self.alone else self._runner.clients.get(name)
        if client is not None:
            client.heartbeat = min(client.heartbeat, -1)

    def drop(self, name: str) -> WorkerLoss:
        """Drop a lost process, whose records are recovered where possible."""
        worker = self._members.pop(name)
        self._users -= worker.users
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
            unsent,
            sent,
            dict(worker.out),
            worker.sessions,
            worker.phase,
            health,
            worker.reads,
            max(0.0, self._clock() - worker.seen_at),
        )


def _users(clients: Any, name: str) -> int:
    """The users as Locust counts them, which is sooner."""
    return int(clients[name].user_count) if name in clients else 0


def are_messages_waiting(runner: Any) -> bool:
    """Whether messages of workers have come that this master has not read yet.

    ZeroMQ signals new messages once, to whoever looks first. ``get`` wakes the greenlet that waits
    for them; after ``getsockopt`` it would sleep for another 11.6 s.
    """
    server = getattr(runner, "server", None)
    return server is not None and bool(server.socket.get(zmq.EVENTS) & zmq.POLLIN)


def is_worker_connected(runner: Any, name: str) -> bool:
    """Whether the worker still has its connection to the master.

    The kernel closes it when a process dies, and not when it is stopped. ZeroMQ raises for a
    message to nobody, if it is asked to (ROUTER_MANDATORY); Locust does not ask. The message that
    is sent is Locust's own answer to a heartbeat.
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
