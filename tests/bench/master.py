"""Master: measures its cost: ``python tests/bench/master.py``. Prints, asserts nothing.

A real master, with the prefill gate on, and simulated workers: one process sends the messages of
all of them: how they stand with their finished requests, from real outboxes, and Locust's heartbeats
and statistics, each as often as a worker does. So it takes no more than two cores, and reports what a
master with more workers than this machine has cores costs. A line for each number of ``--workers``.
With ``--web`` the master also has the live page. At the end all records must be in the master's file.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from locust.rpc.protocol import Message
from locust.stats import RequestStats

import psutil
import zmq
from load import CHAT
from msgspec.structs import replace

from locust_llm.demo_command import start_simulator
from locust_llm.gate.shares import GateStatus, Share
from locust_llm.locust_adapter.locust_tables import ROWS
from locust_llm.records.control_message import ControlMessage as LlmMessage
from locust_llm.records.record import Record
from locust_llm.wire.handshake import make_hello
from locust_llm.wire.worker_messages import (
    STATUS_S,
    TO_CONTROL,
    TO_SENDER,
    Ack,
    Begin,
    Ended,
    EndRun,
    Hello,
    Records,
    Renewal,
    RequestsWanted,
    Status,
    unpack_to_worker,
)
from locust_llm.wire.worker_messages import pack_message as pack_message
from locust_llm.worker.records_to_master import RecordOutbox
from locust_llm.worker.worker_process import BEHIND_S

HEARTBEAT_S = 1.0
STATS_S = 3.0
"""Locust's intervals."""


def count_requests(requests: int, model: str = "/v1/chat/completions") -> dict[str, Any]:
    """Locust's report on so many requests, with its rows for TTFT, ITL and the gate."""
    stats = RequestStats()
    for number in range(requests):
        stats.log_request("POST", model, 1200 + 13 * number, 30_000)
        for row, ms in zip(ROWS, (200 + number, 20, 100 + number), strict=True):
            stats.get(model, row).log(ms, 0)
    return {
        "stats": stats.serialize_stats(),
        "stats_total": stats.total.get_stripped_report(),
        "errors": {},
        "user_classes_count": {"ChatUser": 60},
        "user_count": 60,
    }


def a_record(worker: str, chunks: int) -> Record:
    return Record(
        id=f"{worker}-12-345", worker=worker, user=12, user_class="ChatUser",
        name="/v1/chat/completions", model="m",
        session=f"{worker}-12-345", clock_offset_s=time.time() - time.monotonic(),
        due_at=time.monotonic(),
        asked_at=time.monotonic(), admitted_at=time.monotonic(), sent_at=time.monotonic(),
        freed_at=time.monotonic(),
        headers_at=time.monotonic(), closed_at=time.monotonic() + 2,
        chunk_us=tuple(200_000 + 20_000 * n for n in range(chunks)), first_output=0, status=200,
        finish_reason="length",
        input_tokens=550, output_tokens=chunks, tokens_from="usage", asked_input_tokens=550,
        asked_output_tokens=chunks,
        read_lag_us=55, rtt_us=40, reads=chunks + 2, limit=8, request_bytes=3000,
        response_bytes=30000,
    )  # fmt: skip


class Worker:
    """Sends the messages of a worker."""

    def __init__(self, port: int, number: int, per_s: float, chunks: int, hello: Hello) -> None:
        self.name = f"bench_{number:032x}"
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, self.name.encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.hello = hello
        self.per_s = per_s
        self.record = a_record(self.name, chunks)
        self.outbox = RecordOutbox(self.send_batch)
        self.status_s = STATUS_S
        self.sent_at = self.answered_at = 0.0
        self.epoch, self.share, self.sent, self.heard = 0, -1, 0, 0
        self.began_at: float | None = None
        self.heartbeat_at = self.status_at = time.monotonic() + STATUS_S * random.random()
        self.stats_at = self.status_at + STATS_S * random.random()
        self.over = False
        self.resent = self.last = 0
        """The batches that were sent again, and the newest one that left without a status."""
        self.say("client_ready", "2.47.0")

    def say(self, kind: str, data: Any = None) -> None:
        self.socket.send(Message(kind, data, self.name).serialize())

    def send(self, message: LlmMessage) -> None:
        self.say(TO_CONTROL, pack_message(self.epoch, message))

    def send_batch(self, batch: Records) -> None:
        self.resent += batch.number <= self.last
        self.last = max(self.last, batch.number)
        self.send(batch)

    def hear(self) -> None:
        while self.socket.poll(0):
            message = Message.unserialize(self.socket.recv())
            data = message.data or {}
            if message.type == "ack":
                self.send(self.hello)
            elif message.type == "spawn":
                counts = data["user_classes_count"]
                self.say("spawning")
                self.say(
                    "spawning_complete",
                    {"user_classes_count": counts, "user_count": sum(counts.values())},
                )
                self.began_at = self.began_at or time.monotonic()
            elif message.type == TO_SENDER:
                epoch, message, number = unpack_to_worker(data)
                self.heard = max(self.heard, number)
                self.obey(epoch, message)
            elif message.type == "quit":
                self.over = True

    def obey(self, epoch: int, message: LlmMessage) -> None:
        match message:
            case Begin():
                self.epoch = epoch
                self.send(RequestsWanted())
            case Share():
                self.share = message.number
            case Renewal():
                self.share = message.share.number
                self.status_s, self.answered_at = message.next_s, message.at
                self.outbox.acknowledged(message.recorded)
                self.outbox.answered(message.at)
            case Ack():
                self.outbox.acknowledged(message.number)
            case EndRun():
                self.send(Ended())

    def tick(self, now: float, stats: dict[str, Any]) -> None:
        """Sends what is due."""
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + HEARTBEAT_S
            state = "running" if self.began_at else "ready"
            self.say("heartbeat", {"state": state, "current_cpu_usage": 1})
        if not self.epoch or self.began_at is None or now < self.status_at:
            return
        behind_s = self.sent_at - self.answered_at if self.sent_at else 0.0
        self.status_at = now + min(max(self.status_s, behind_s), BEHIND_S)
        self.sent_at = now
        if now >= self.stats_at:
            self.stats_at = now + STATS_S
            self.say("stats", stats)
        for number in range(self.sent, int((now - self.began_at) * self.per_s)):
            self.outbox.add(replace(self.record, id=f"{self.name}-{number}"))
        self.sent = self.outbox.made
        records = self.outbox.take_batch()
        if records is not None:
            self.last = records.number
        self.send(Status(
            gate=GateStatus(used=1, waiting=3, number=self.share, waited_s=0.1), decoding=50,
            users=60,
            admitted=self.sent, ttfts_s=[0.2] * int(self.per_s * self.status_s),
            reads=self.sent * 50, at=now, heard=self.heard, records=records,
        ))  # fmt: skip
        self.outbox.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rate", type=float, default=5000, help="requests a second over all workers"
    )
    parser.add_argument("--workers", default="2,4,8,16,64", help="of each run")
    parser.add_argument("--chunks", type=int, default=50, help="of each request")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--port", type=int, default=15557)
    parser.add_argument("--web", action="store_true", help="with Locust's web page")
    options = parser.parse_args()
    sys.path.insert(0, str(CHAT.parent))
    from chat import ChatUser

    hello = make_hello([ChatUser])
    for count in map(int, options.workers.split(",")):
        one_master(hello, count, options)


def one_master(hello: Hello, count: int, options: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        start_simulator() as url,
    ):  # it is asked for its models, and nothing else
        command = [
            sys.executable, "-m", "locust", "-f", str(CHAT), "--host", url,
            *(("--autostart", "--web-port", str(options.port + 1)) if options.web else ("--headless",)),
            "--no-probe", "-u", str(max(480, count)),
            "--prefill-concurrency", "8", "--report-dir", f"{name}/r", "--master",
            "--master-bind-port",
            str(options.port), "--expect-workers", str(count),
        ]  # fmt: skip
        with open(f"{name}/log", "wb") as log:
            master = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            measure(master, hello, count, options, Path(name))
        finally:
            master.kill()
            print(
                Path(f"{name}/log").read_text()[-1500:] if master.wait() not in (0, -9) else "",
                end="",
            )


def measure(
    master: "subprocess.Popen[bytes]",
    hello: Hello,
    count: int,
    options: argparse.Namespace,
    folder: Path,
) -> None:
    seen = psutil.Process(master.pid)
    per_s = options.rate / count
    workers = [
        Worker(options.port, number, per_s, options.chunks, hello) for number in range(count)
    ]
    stats = count_requests(round(per_s * STATS_S))
    begun = None
    own_before = spent = 0.0
    sent = 0
    while begun is None or time.monotonic() < begun + options.seconds:
        for worker in workers:
            worker.hear()
        now = time.monotonic()
        for worker in workers:
            worker.tick(now, stats)
        if begun is None and all(worker.sent > per_s for worker in workers):
            own_before = time.process_time()
            times = seen.cpu_times()
            begun = now
            spent = times.user + times.system
            sent = sum(worker.sent for worker in workers)
        if master.poll() is not None:
            sys.exit("the master has ended")
        time.sleep(0.002)
    times = seen.cpu_times()
    now = time.monotonic()
    own_s = time.process_time() - own_before
    took = now - begun
    records = sum(worker.sent for worker in workers) - sent
    while (
        waiting := sum(worker.outbox.waiting for worker in workers)
    ) and time.monotonic() < now + 5:
        for worker in workers:
            worker.hear()
            worker.outbox.flush()
        time.sleep(0.002)
    made = sum(worker.outbox.made for worker in workers)
    (file,) = folder.glob("r/**/profile_export.jsonl")
    written = sum(map(bool, file.open("rb")))
    losses = sum("lost" in line for line in (folder / "log").read_text().splitlines())
    print(
        f"{records / took:,.0f} requests/s of {options.chunks} chunks over {count} workers, gate "
        f"on: the master "
        f"uses {(times.user + times.system - spent) / took:.1%} of a core, "
        f"{seen.memory_info().rss / 2**20:.0f} MB; "
        f"the last records were acknowledged {time.monotonic() - now:.2f} s later, {waiting} were not; "
        f"{sum(worker.resent for worker in workers)} batches were sent again; of {made:,} records "
        f"{written:,} are in the file; {losses} lines of the log tell of losses; "
        f"the workers together use {own_s / took:.0%} of a core",
        flush=True,
    )
    for worker in workers:
        worker.socket.close()


if __name__ == "__main__":
    main()
