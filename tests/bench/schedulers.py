"""Schedulers: probes real servers with known schedulers: ``make schedulers``. Prints Markdown,
asserts nothing.

Six configurations of vLLM and llama.cpp, and both as they are without a flag, are started one after
the other, and each is probed ``--times`` times. Server and probe share the machine: it should do
nothing else, and both get ``--nice`` (root only) so that what it must do waits.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import requests
from support.runs import free_port
from tabulate import tabulate

REAL: Final = Path(__file__).parent.parent / "real"
WAIT_S: Final = 1200.0
"""An installation or a start takes at most this time."""


class Config(NamedTuple):
    label: str
    truth: str
    script: str
    flags: tuple[str, ...]


def vllm(label: str, truth: str, *flags: str) -> Config:
    return Config(
        f"vLLM {label}".strip(), truth, "start_vllm.sh", ("--no-enable-prefix-caching", *flags)
    )


def llamacpp(batch: int) -> Config:
    flags = ("--no-cache-prompt", "--slots", "16", "--batch", str(batch))
    return Config(f"llama.cpp, batch {batch}", f"batch of {batch:,}", "start_llamacpp.sh", flags)


CONFIGS: Final = {
    "v2048": vllm("defaults", "budget of 2,048"),
    "v512": vllm("budget 512", "budget of 512", "--max-num-batched-tokens", "512"),
    "v512t128": vllm(
        "budget 512, threshold 128", "4 prompts of 128",
        "--max-num-batched-tokens", "512", "--long-prefill-token-threshold", "128",
    ),
    "voff": vllm(
        "chunked prefill off", "whole prompts", "--max-num-batched-tokens", "16384",
        "--no-enable-chunked-prefill",
    ),
    "l2048": llamacpp(2048),
    "l256": llamacpp(256),
    "vllm": Config("vLLM with no flag: its prefix cache too", "budget of 2,048", "start_vllm.sh",
        ()),
    "llamacpp": Config("llama.cpp with no flag: a cache, 4 slots", "batch of 2,048",
        "start_llamacpp.sh", ()),
}  # fmt: skip


@contextmanager
def serving(config: Config, log: Path, nice: int) -> Iterator[str]:
    port = free_port()
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["nice", "-n", str(nice), str(REAL / config.script), str(port), *config.flags],
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + WAIT_S
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{config.label} did not start: {log} has its words")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).ok
    except requests.RequestException:
        return False


def probed(url: str, folder: Path, nice: int) -> list[str]:
    """Returns the client verdict, the diagnosis, and the seconds it took."""
    began = time.monotonic()
    with folder.with_suffix(".log").open("wb") as out:
        subprocess.run(
            ["nice", "-n", str(nice), str(Path(sys.executable).with_name("locust-llm")), "probe",
                "--host", url,
             "--model", "tiny", "--report-dir", str(folder)],
            stdout=out, stderr=out, timeout=1200, env=os.environ | {"NO_COLOR": "1"},
        )  # fmt: skip
    took = time.monotonic() - began
    run = json.loads((folder / "run.json").read_bytes())
    found = run["examination"]["diagnosis"]
    budget = found.get("budget")
    slots = found.get("slots")
    low, about, high = budget or (0.0, 0.0, 0.0)
    said = found["name"] + (f", {low:,.0f} to {high:,.0f} (about {about:,.0f})" if budget else "")
    return [
        run["client"]["level"],
        said + (f", {slots} at a time" if slots else ""),
        f"{took:.0f} s",
    ]


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--only", nargs="*", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only:
        config = CONFIGS[name]
        with serving(config, options.folder / f"{name}-server.log", options.nice) as url:
            for time_ in range(1, options.times + 1):
                row = [
                    config.label,
                    config.truth,
                    *probed(url, options.folder / f"{name}-{time_}", options.nice),
                ]
                say(" | ".join(row))
                rows.append(row)
    say(
        tabulate(
            rows,
            ["server", "what it is", "client", "diagnosis of the probe", "took"],
            tablefmt="github",
        )
    )


if __name__ == "__main__":
    main()
