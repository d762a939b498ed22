"""The soak: 200 streams for ten minutes, every fault in 2 % of the requests. Prints whether anything grew, and the books.

    python tests/bench/soak.py [--seconds 600] [--users 200]

Slots, sockets, greenlets and memory of the load generator must be flat: their mean over the last third of the time within
5 % of that over the second (the first is warming up). Every request that the server saw has one record and no other, and
every record that was sent was seen, but for those that were reset before they were read.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Final

import msgspec
import requests
from tabulate import tabulate

from locust_llm.__main__ import simulator
from locust_llm.core.jsonl import parse_line
from locust_llm.core.record import CANCELLED, CUT, OK, RETRIED, Record

FAULTS: Final = {
    "status=500": "http_status", "status=429": "rate_limited", "status=503": "unavailable", "error=5": "stream_error",
    "error=0": "stream_error", "error=5,error_form=string": "stream_error", "finish=none,usage=none,done=no": "truncated",
    "cut=0": "closed", "cut=9": "closed", "reset=9": "reset", "malformed=3": "malformed",
    "stall=5,stall_s=6": "gap_timeout", "slow_headers_s=9": "first_token_timeout", "eos=0": OK, "split_utf8=yes": OK,
}  # fmt: skip
"""By what the simulator is asked for: what must become of it."""
RATE: Final = 0.02
FLAT: Final = 0.05
LOCUSTFILE: Final = """
import gc
import json
import os
import random

import gevent
from gevent import Greenlet
from locust import events, task

from locust_llm import LLMUser
from locust_llm.run.worker.sender import sender_of

FAULTS, RATE = json.loads(os.environ["FAULTS"])
dice = random.Random(1)


class Soaked(LLMUser):
    @task
    def ask(self):
        at = dice.random() / RATE
        fault = FAULTS[int(at)] if at < len(FAULTS) else ""
        self.chat(headers={"X-Simulate": fault} if fault else None, name=fault or "none")


@events.init.add_listener
def watch(environment, **kw):
    def look():
        with open(os.environ["SOAK"], "w", buffering=1) as file:
            while True:
                gevent.sleep(2)
                gc.collect()
                gate = sender_of(environment).gate
                greenlets = sum(isinstance(thing, Greenlet) and not thing.dead for thing in gc.get_objects())
                with open("/proc/self/statm") as statm:
                    pages = int(statm.read().split()[1])
                print(json.dumps({
                    "slots": gate.used, "waiting": gate.waiting, "sockets": len(os.listdir("/proc/self/fd")),
                    "greenlets": greenlets, "memory_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
                }), file=file)

    gevent.spawn(look)
"""


def soak(seconds: float, users: int, folder: Path) -> tuple[list[dict[str, float]], list[Record], set[str], str]:
    """(what was looked at every two seconds, the records, the ids that the server saw, what the console said)."""
    (folder / "soak.py").write_text(LOCUSTFILE)
    with simulator("--ttft-ms", "150", "--itl-ms", "50", "--jitter-ms", "20") as url:
        done = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", str(folder / "soak.py"), "--headless", "--host", url, "-u", str(users),
                "-r", str(users / 5), "-t", f"{seconds:g}s", "--prefill-concurrency", str(max(1, users // 4)),
                "--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "40", "--no-probe",
                "--gap-timeout", "3", "--first-token-timeout", "6", "--request-cancellation-rate", str(100 * RATE),
                "--request-cancellation-delay", "0.5", "--max-retries", "1", "--report-dir", str(folder / "r"),
            ],
            env=os.environ | {"SOAK": str(folder / "looks"), "FAULTS": json.dumps([list(FAULTS), RATE])},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seen = {row["id"] for row in requests.get(f"{url}/truth", timeout=60).json()["requests"]}
    looks = [msgspec.json.decode(line) for line in (folder / "looks").read_bytes().splitlines()]
    records = [parse_line(line) for line in (folder / "r" / "profile_export.jsonl").read_bytes().splitlines()]
    return looks, records, seen, done.stdout + done.stderr


def flat(looks: list[dict[str, float]]) -> list[tuple[str, float, float, float, str]]:
    """A row a quantity: its mean over the second third and the last, and whether it grew."""
    third = len(looks) // 3
    middle, last = looks[third : 2 * third], looks[2 * third : 3 * third - 3]  # without the drain
    rows = []
    for name in ("slots", "sockets", "greenlets", "memory_mb"):
        before, after = mean(look[name] for look in middle), mean(look[name] for look in last)
        change = after / before - 1 if before else 0.0
        rows.append((name, before, after, 100 * change, "yes" if abs(change) <= FLAT else "NO"))
    return rows


def wrong(records: list[Record]) -> Counter[str]:
    """Requests of which something else became than their fault asks for."""
    found: Counter[str] = Counter()
    for record in records:
        expected = FAULTS.get(record.name, OK)
        given_up = record.outcome in (CANCELLED, CUT)
        retried = record.outcome == RETRIED and expected in ("rate_limited", "unavailable")
        if record.outcome != expected and not given_up and not retried:
            found[f"{record.name}: {record.outcome} ({record.message[:60]})"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether anything grows or is lost under faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--users", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        looks, records, seen, said = soak(options.seconds, options.users, Path(folder))
    took_s = time.monotonic() - began
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} CPUs, {took_s:.0f} s")
    rows = flat(looks)
    print(tabulate(rows, ("", "second third", "last third", "change %", "flat"), floatfmt=".1f"))
    ids = Counter(record.id for record in records)
    sent = {record.id for record in records if record.sent_at is not None}
    refused = {record.id for record in records if (record.status or 0) >= 400}
    twice = [name for name, count in ids.items() if count > 1]
    unknown = seen - set(ids)
    print(
        f"\n{len(records)} records, {len(seen)} requests seen by the server; recorded twice: {len(twice)}; "
        f"seen and not recorded: {len(unknown)}; sent: {len(sent)}, of which refused with a status: {len(refused)}, "
        f"neither refused nor seen: {len(sent - refused - seen)}; slots in use at the end: {looks[-1]['slots']:.0f}"
    )
    outcomes = Counter(record.outcome for record in records)
    print(tabulate(sorted(outcomes.items(), key=lambda item: -item[1]), ("outcome", "records")))
    mistakes = wrong(records)
    print(f"\nof another outcome than their fault asks for: {mistakes.total()}")
    for what, count in mistakes.most_common(20):
        print(f"  {count:6} {what}")
    if "Traceback" in said:
        print(said[-5000:])
    return int(any(row[-1] == "NO" for row in rows) or bool(twice) or bool(unknown) or "Traceback" in said)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
