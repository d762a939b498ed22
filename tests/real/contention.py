"""A long prompt beside answers under way, on a real vLLM and on the simulator with the same flags.

    contention.py [--vllm START]    START: a script that serves vLLM in the foreground on the port it is given, with the
                                    flags after it; the model's context must hold 10,000 tokens

Four requests decode; one with a prompt of about 10,000 tokens arrives, and 50 ms later four short
ones. Prints for each set of flags what each of them saw. Runs by itself, nothing else on the
machine.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median

from tabulate import tabulate

FLAGS = (
    ("--max-num-batched-tokens", "2048"),
    ("--max-num-batched-tokens", "512"),
    ("--max-num-batched-tokens", "512", "--long-prefill-token-threshold", "128"),
    ("--max-num-batched-tokens", "16384", "--no-enable-chunked-prefill"),
)
COMMON = ("--no-enable-prefix-caching", "--max-num-seqs", "128")
# of the simulated H100: its long prefill then takes about as long as the tiny model's on a CPU
TIME_SCALE = 4


@dataclass
class Stream:
    sent_at: float = 0.0
    at: list[float] = field(default_factory=list)
    """Of each chunk with content."""

    @property
    def ttft_ms(self) -> float:
        return (self.at[0] - self.sent_at) * 1e3


async def ask(port: int, model: str, words: int, max_tokens: int, stream: Stream) -> None:
    text = " ".join(
        random.choices(
            ("alpha", "beta", "gamma", "delta", "time", "river", "stone", "cloud"), k=words
        )
    )
    body = {
        "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
        "application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    stream.sent_at = time.monotonic()
    writer.write(head.encode() + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError((status + await reader.read(1000)).decode(errors="replace"))
    async for line in reader:
        if re.search(rb'"content":"[^"]', line):
            stream.at.append(time.monotonic())
    writer.close()


async def contend(port: int, model: str) -> tuple[float, float, float, float, float]:
    """TTFT of the long one, median TTFT of the short ones, the decoders' gaps: mean before, mean
    and largest during. In ms."""
    decoders, long, short = [Stream() for _ in range(4)], Stream(), [Stream() for _ in range(4)]
    tasks = [asyncio.create_task(ask(port, model, 20, 1500, stream)) for stream in decoders]
    while min(len(stream.at) for stream in decoders) < 60:
        for task in tasks:
            if task.done():
                task.result()  # raises what went wrong
        await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(ask(port, model, 9000, 8, long)))
    await asyncio.sleep(0.05)
    tasks += [asyncio.create_task(ask(port, model, 10, 8, stream)) for stream in short]
    await asyncio.gather(*tasks[4:])
    for task in tasks[:4]:
        task.cancel()
    await asyncio.gather(*tasks[:4], return_exceptions=True)
    gaps = [
        (later, (later - earlier) * 1e3)
        for stream in decoders
        for earlier, later in pairwise(stream.at)
    ]
    before = [gap for at, gap in gaps if at < long.sent_at]
    during = [gap for at, gap in gaps if long.sent_at + 0.005 < at <= long.at[0] + 0.05]
    return long.ttft_ms, median(s.ttft_ms for s in short), fmean(before), fmean(during), max(during)


@contextmanager
def served(command: Sequence[str], port: int) -> Iterator[None]:
    """Until the block ends; ready when /health answers."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 300
        while True:
            assert process.poll() is None, f"{command[0]} ended while it started"
            assert time.monotonic() < until, f"{command[0]} was not ready within 300 s"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def measure(
    command: Sequence[str], sets: Sequence[int], model: str, port: int, runs: int
) -> list[list[str]]:
    """A row a set of flags: of each figure the best and the worst run."""
    rows = []
    for flags in (FLAGS[number] for number in sets):
        with served([*command, *COMMON, *flags], port):
            asyncio.run(contend(port, model))  # the first one warms it up
            found = [asyncio.run(contend(port, model)) for _ in range(runs)]
        rows.append(
            [
                " ".join(flags),
                *(f"{min(values):.1f} to {max(values):.1f}" for values in zip(*found, strict=True)),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", metavar="START", help="without it: the simulator alone")
    parser.add_argument("--simulator", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--sets", type=int, nargs="+", default=range(len(FLAGS)), help="which sets of flags"
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--port", type=int, default=8131)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended too
    headers = [
        "flags",
        "long TTFT",
        "4 short behind it, TTFT",
        "gaps before",
        "gaps during",
        "largest gap",
    ]
    simulator = [
        sys.executable, "-m", "locust_llm.simulator", "--port", str(options.port),
        "--served-model-name", options.model,
        "--max-model-len", "16384", "--time-scale", str(TIME_SCALE),
    ]  # fmt: skip
    servers = {"the simulator (H100, time-scale 4)": simulator} if options.simulator else {}
    if options.vllm:
        servers["vLLM"] = [options.vllm, str(options.port)]
    for name, command in servers.items():
        rows = measure(command, options.sets, options.model, options.port, options.runs)
        print(
            f"\n{name}, ms\n{tabulate(rows, headers=headers, disable_numparse=True)}\n", flush=True
        )


if __name__ == "__main__":
    main()
