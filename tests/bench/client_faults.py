"""Client faults: runs ten minutes of 200 streams, with every fault in 2 % of the requests, beside users with
hostile answers: pings, tokens, newlines without end, and all others of tests/support/hostile.py.
Prints whether anything grew, and what was lost.

    python tests/bench/client_faults.py [--seconds 600] [--users 200] [--hostile-users 4]

The resident memory of the load generator, its reporter's included, must be within 5 % in minute 10
of what it was in minute 2 (tenths of another duration), and slots, sockets and greenlets over the
last third of the time within 5 % of the second. Every request that the simulator saw has one record
and no other, and every record that was sent to it was seen, but for records that were reset before
they were read.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Final

import msgspec
import requests
from support import hostile
from tabulate import tabulate

from locust_llm.demo_command import start_simulator
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record

FAULTS: Final = {
    "status=500": "http_status", "status=429": "rate_limited", "status=503": "unavailable",
    "error=5": "stream_error",
    "error=0": "stream_error", "error=5,error_form=string": "stream_error",
    "finish=none,usage=none,done=no": "truncated",
    "cut=0": "closed", "cut=9": "closed", "reset=9": "reset", "malformed=3": "malformed",
    "stall=5,stall_s=6": "gap_timeout", "slow_headers_s=9": "first_token_timeout", "eos=0": OK,
    "split_utf8=yes": OK,
}  # fmt: skip
"""Each fault of the simulator has its expected outcome."""
EXPECTED: Final = (
    {name: {outcome} for name, outcome in FAULTS.items()}
    # how much is read before a time limit depends on the machine
    | {
        name: {*answer.outcomes.split(), "timeout", "first_token_timeout", "gap_timeout"}
        for name, answer in hostile.CATALOGUE.items()
    }
)
"""Each session of a request has its expected outcome."""
RATE: Final = 0.02
MAX_FLAT: Final = 0.05
MOST_BYTES: Final = 8 << 20
THIRDS: Final = ((1 / 3, 2 / 3), (2 / 3, 1.0))
MINUTES: Final = ((0.1, 0.2), (0.9, 1.0))
LOCUSTFILE: Final = """
import gc
import itertools
import json
import os
import random
import time

import gevent
import psutil
from gevent import Greenlet
from locust import constant, events, task

from locust_llm import LLMUser
from locust_llm.worker.worker_context import get_worker_context

FAULTS, RATE, HOSTILE, HOSTILE_USERS, HOSTILE_URL = json.loads(os.environ["SOAKED"])
dice = random.Random(1)
attacks = itertools.cycle(HOSTILE)  # in turn: each has been there before minute 2


class Soaked(LLMUser):
    @task
    def ask(self):
        at = dice.random() / RATE
        fault = FAULTS[int(at)] if at < len(FAULTS) else ""
        # its fault as its session: Locust keeps 20 copies of the times of each name and row of its tables
        self.chat(headers={"X-Simulate": fault} if fault else None, session=fault)


def elsewhere(request):
    request.url = HOSTILE_URL + request.path_url
    return request


class Flooded(LLMUser):
    fixed_count = HOSTILE_USERS
    wait_time = constant(1)

    def on_start(self):
        self.client.auth = elsewhere  # a run has one address, but what requests calls an auth may rewrite it

    @task
    def ask(self):
        name = next(attacks)
        self.chat(headers={"X-Hostile": name}, session=name)


@events.init.add_listener
def watch(environment, **kw):
    def look():
        me = psutil.Process()
        with open(os.environ["LOOKS"], "w", buffering=1) as file:
            while True:
                gevent.sleep(2)
                gc.collect()
                gate = get_worker_context(environment).gate
                greenlets = sum(isinstance(thing, Greenlet) and not thing.dead for thing in gc.get_objects())
                print(json.dumps({
                    "at_s": time.monotonic(), "running": environment.runner.state in ("spawning", "running"),
                    "slots": gate.used, "waiting": gate.waiting, "sockets": len(os.listdir("/proc/self/fd")),
                    "greenlets": greenlets, "memory (MB)": me.memory_info().rss / 1e6,
                    "its children's (MB)": sum(child.memory_info().rss for child in me.children(True)) / 1e6,
                }), file=file)

    gevent.spawn(look)
"""


@contextmanager
def hostile_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, hostile.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate(timeout=10)


def run_faults(
    seconds: float, users: int, hostile_users: int, folder: Path
) -> tuple[list[dict[str, float]], list[Record], set[str], str]:
    """Returns the observations every two seconds, the records, the ids that the simulator received,
    and the console."""
    (folder / "faults.py").write_text(LOCUSTFILE)
    with (
        start_simulator("--ttft-ms", "150", "--itl-ms", "50", "--jitter-ms", "20") as url,
        hostile_server() as hostile_url,
    ):
        given = json.dumps(
            [list(FAULTS), RATE, list(hostile.CATALOGUE), hostile_users, hostile_url]
        )
        done = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", str(folder / "faults.py"), "--headless",
                "--host", url,
                "-u", str(users + hostile_users), "-r", str(users / 5), "-t", f"{seconds:g}s",
                "--prefill-concurrency", str(max(1, users // 4)),
                "--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "40", "--no-probe",
                "--request-timeout", "15", "--gap-timeout", "3", "--first-token-timeout", "6",
                "--max-response-bytes", str(MOST_BYTES), "--request-cancellation-rate",
                str(100 * RATE),
                "--request-cancellation-delay", "0.5", "--max-retries", "1", "--report-dir",
                str(folder / "r"),
            ],
            env=os.environ | {"LOOKS": str(folder / "looks"), "SOAKED": given},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seen = {row["id"] for row in requests.get(f"{url}/truth", timeout=60).json()["requests"]}
    looks = [msgspec.json.decode(line) for line in (folder / "looks").read_bytes().splitlines()]
    records = [
        parse_record_line(line)
        for line in (folder / "r" / "profile_export.jsonl").read_bytes().splitlines()
    ]
    return looks, records, seen, done.stdout + done.stderr


def flat(looks: list[dict[str, float]]) -> list[tuple[str, str, float, float, float, str]]:
    """Yields a row per quantity: its mean over an earlier and a later span, and whether it stayed.
    ``looks`` excludes the drain."""
    began_s = looks[0]["at_s"]
    took_s = looks[-1]["at_s"] - looks[0]["at_s"]
    spans = dict.fromkeys(("slots", "sockets", "greenlets"), ("thirds 2, 3", THIRDS))
    spans |= dict.fromkeys(("memory (MB)", "its children's (MB)"), ("minutes 2, 10", MINUTES))
    rows = []
    for name, (when, span) in spans.items():
        means = []
        for start, end in span:
            here = (look for look in looks if start <= (look["at_s"] - began_s) / took_s <= end)
            means.append(mean(look[name] for look in here))
        before, after = means
        change = after / before - 1 if before else 0.0
        rows.append(
            (name, when, before, after, 100 * change, "yes" if abs(change) <= MAX_FLAT else "NO")
        )
    return rows


def wrong(records: list[Record]) -> Counter[str]:
    """Returns requests with an outcome other than their fault's."""
    found: Counter[str] = Counter()
    for record in records:
        expected = EXPECTED.get(record.session, {OK})
        given_up = record.outcome in (CANCELLED, CUT)
        retried = record.outcome == RETRIED and bool(expected & {"rate_limited", "unavailable"})
        if record.outcome not in expected and not given_up and not retried:
            found[f"{record.session}: {record.outcome} ({record.error[:60]})"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether anything grows or is lost under faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument(
        "--hostile-users", type=int, default=4, help="beside them, at hostile answers"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        load = os.getloadavg()[0]
        looks, records, seen, shown = run_faults(
            options.seconds, options.users, options.hostile_users, Path(folder)
        )
    took_s = time.monotonic() - began
    print(
        f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"{took_s:.0f} s; "
        f"load average before and after: {load:.1f}, {os.getloadavg()[0]:.1f}"
    )
    running = [look for look in looks if look["running"]]
    rows = flat(running)
    print(tabulate(rows, ("", "mean over", "earlier", "later", "change %", "flat"), floatfmt=".1f"))
    tenths = [running[(tenth + 1) * len(running) // 10 - 1]["memory (MB)"] for tenth in range(10)]
    print("memory at the end of each tenth:", *(f"{mb:.1f}" for mb in tenths), "MB")
    attacks = sum(record.session in hostile.CATALOGUE for record in records)
    ids = Counter(record.id for record in records)
    sent = {
        record.id
        for record in records
        if record.sent_at is not None and record.session not in hostile.CATALOGUE
    }
    refused = {record.id for record in records if (record.status or 0) >= 400}
    twice = [name for name, count in ids.items() if count > 1]
    unknown = seen - set(ids)
    print(
        f"\n{len(records)} records, {attacks} of them of hostile answers; {len(seen)} requests "
        f"seen by the simulator; "
        f"recorded twice: {len(twice)}; seen and not recorded: {len(unknown)}; sent to it: "
        f"{len(sent)}, "
        f"neither refused nor seen: {len(sent - refused - seen)}; slots in use at the end: "
        f"{looks[-1]['slots']:.0f}"
    )
    outcomes = Counter(record.outcome for record in records)
    print(tabulate(sorted(outcomes.items(), key=lambda item: -item[1]), ("outcome", "records")))
    mistakes = wrong(records)
    print(f"\nof another outcome than their fault asks for: {mistakes.total()}")
    for what, count in mistakes.most_common(20):
        print(f"  {count:6} {what}")
    if "Traceback" in shown:
        print(shown[-5000:])
    return int(
        any(row[-1] == "NO" for row in rows) or bool(twice) or bool(unknown) or "Traceback" in shown
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
