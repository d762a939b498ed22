"""Simulator: measures its speed: ``make bench-simulator``. Prints figures, asserts nothing.

Streaming: users that each ask again when their answer ends, from a process on another core, of a
simulator on one core; how many tokens a second went out, and how late steps began. Virtual time: a
million requests of 100 tokens, with KV blocks, prefix cache and a row a request.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import time
import urllib.request
from collections.abc import Iterator
from random import Random

import psutil
from tabulate import tabulate

from locust_llm.demo_command import start_simulator
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

TOKENS = (100, 400)  # of an answer, evenly: equal ones would all end at the same moment
RANDOM = Random(1)


class User(asyncio.Protocol):
    """Sends a request, reads to the end, and repeats."""

    transport: asyncio.Transport

    def __init__(self, prompt_words: int) -> None:
        self.message = {"role": "user", "content": "word " * prompt_words}

    def ask(self) -> None:
        body = {"messages": [self.message], "stream": True, "max_tokens": RANDOM.randrange(*TOKENS)}
        data = json.dumps(body).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(
            data
        )
        self.transport.write(head + data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.ask()

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n0\r\n\r\n"):
            self.ask()


async def stream(url: str, users: int, prompt_words: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    (host, _, port) = url.removeprefix("http://").partition(":")
    for _ in range(users):
        await loop.create_connection(lambda: User(prompt_words), host, int(port))
        await asyncio.sleep(0.002)
    await asyncio.sleep(2)
    await asyncio.to_thread(reset, url)  # the rush of the first requests does not count
    await asyncio.sleep(seconds)


def reset(url: str) -> None:
    urllib.request.urlopen(f"{url}/truth/reset", data=b"").close()


def state(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/truth") as answer:
        return dict(json.load(answer)["engine"])


def tokens(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return next(
        float(line.split()[1])
        for line in text.splitlines()
        if line.startswith("vllm:generation_tokens_total")
    )


def streaming(users: int, prompt_words: int, seconds: float, time_scale: float) -> list[str]:
    os.sched_setaffinity(0, {0})  # inherited
    with start_simulator("--time-scale", str(time_scale)) as url:
        os.sched_setaffinity(0, set(range(1, os.cpu_count() or 2)))
        process = next(
            c
            for c in psutil.Process().children()
            if "locust_llm.simulator" in " ".join(c.cmdline())
        )
        began = time.monotonic()
        cpu = sum(process.cpu_times()[:2])
        count = tokens(url)
        asyncio.run(stream(url, users, prompt_words, seconds))
        took = time.monotonic() - began
        used = sum(process.cpu_times()[:2]) - cpu
        sent = tokens(url) - count
        told = state(url)
    return [
        f"{users}", f"{prompt_words + 10:,}", f"{sent / took:,.0f}", f"{used / sent * 1e6:.1f}",
        f"{used / took:.0%}",
        f"{told['late_p99_s'] * 1e3:.2f}", f"{told['max_late_s'] * 1e3:.1f}",
        f"{told['lost_s']:.2f}",
    ]  # fmt: skip


def requests(count: int) -> Iterator[VirtualRequest]:
    """Yields requests of 150 to 250 tokens. The first 128 are equal in all, and each has its own
    blocks after them."""
    random = Random(1)
    shared = tuple(range(8))
    for number in range(count):
        prompt = 150 + random.randrange(100)
        own = range(1000 * number + 1000, 1000 * number + 992 + prompt // 16)
        yield VirtualRequest(prompt, 100, (*shared, *own))


def virtual(count: int, users: int) -> str:
    config = SchedulerConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        kv_tokens=LLAMA_8B_H100.kv_tokens,
        enable_prefix_caching=True,
    )
    clock = VirtualClock()
    run = Virtual(
        clock,
        BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), LLAMA_8B_H100, clock),
    )
    cpu = time.process_time()
    run.closed_loop(users, requests(count), stagger_s=0.001)
    rows = run.run()
    used = time.process_time() - cpu
    told = run.engine.state()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"virtual time: {len(rows):,} requests of 100 tokens by {users} users, {clock.now:,.0f} "
        f"simulated seconds in "
        f"{used:.1f} s of CPU ({used / count / 100 * 1e6:.2f} us a token, {told['steps']:,.0f} "
        f"steps, "
        f"{told['cache_hits']:,.0f} of {told['cache_queries']:,.0f} prompt tokens cached, "
        f"{memory:.0f} MB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="200,256", help="of each streaming row")
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument(
        "--time-scale", type=float, default=0.6, help="an H100 would not be fast enough"
    )
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--requests", type=int, default=1_000_000, help="in virtual time; 0: none")
    parser.add_argument("--virtual-users", type=int, default=128)
    options = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}; "
          f"load average before: {os.getloadavg()[0]:.2f}")  # fmt: skip
    rows = [
        streaming(int(users), options.prompt_words, options.seconds, options.time_scale)
        for users in options.users.split(",")
    ]
    headers = [
        "users",
        "tokens in",
        "tokens/s",
        "CPU us/token",
        "of a core",
        "late p99, ms",
        "late max, ms",
        "lost, s",
    ]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=["right"] * len(headers)))
    if options.requests:
        print(virtual(options.requests, options.virtual_users))


if __name__ == "__main__":
    main()
