"""What-ifs: predicts servers with other flags before they start, then measures them:
``make what-if``.

    what_if.py fit llamacpp FOLDER      the server as it is: probe, sweep, twin, and FOLDER/what_if.json with its predictions
    what_if.py measure llamacpp FOLDER  each server of what_if.json, when that is committed
    what_if.py table FILE...            such files as the tables of benchmarks/performance-model.md

Server and load generator share the machine: it should do nothing else. Prints Markdown, asserts
nothing.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from itertools import groupby, product
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from schedulers import Config, serving
from support.predictions import predict_figures
from tabulate import tabulate

from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.measured_folders import Folder, read_folder_loads
from locust_llm.lab.twin.server_observations import stage_figures
from locust_llm.lab.twin.twin_model import Twin
from locust_llm.lab.twin.twin_prediction import (
    WhatIf,
    lengths_apart,
    settings_apart,
    standard_error_of,
)
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.text.format import format_brief
from locust_llm.workload.length_distributions import parse_length_mix

LOCUST_LLM: Final = str(Path(sys.executable).with_name("locust-llm"))
AS_IT_WAS: Final = "as it was"
OWN, MIX = "own", "mix"
SHOWN: Final = {
    "ttft p50": "TTFT p50, ms", "ttft p95": "TTFT p95", "stall p50": "stall p50",
    "stall p95": "stall p95",
    "itl p50": "ITL p50", "throughput": "tokens/s",
}  # fmt: skip
SWEEP: Final = (
    "--synthetic-input-tokens-mean", "1000", "--synthetic-input-tokens-stddev", "500",
    "--output-tokens-mean", "80", "--output-tokens-stddev", "40",
)  # fmt: skip
DRAWN: Final = 400
"""A prediction draws from this many lengths."""
AIM: Final = 0.25
"""Predictions of stalls and the TTFT of short requests may be off by this share."""


class Other(NamedTuple):
    settings: dict[str, Any]
    flags: tuple[str, ...]


class Subject(NamedTuple):
    """Describes a server, the predicted and measured loads, and the settings that differ from the
    fit."""

    about: str
    config: Config
    most_users: int
    users: tuple[int, ...]
    mix: str
    others: dict[str, Other]


SUBJECTS: Final = {
    "vllm": Subject(
        "vLLM 0.32.0 (CPU, tiny model, default flags only)",
        Config("vLLM", "", "start_vllm.sh", ()), 32, (8,), "100,80:75;4000,80:25",
        {
            "max-num-batched-tokens=512": Other({"max_num_batched_tokens": 512},
                ("--max-num-batched-tokens", "512")),
            "long-prefill-token-threshold=128": Other(
                {"long_prefill_token_threshold": 128}, ("--long-prefill-token-threshold", "128")
            ),
            "no-enable-chunked-prefill, max-num-batched-tokens=16384": Other(
                {"policy": "mixed", "max_num_batched_tokens": 16_384},
                ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384"),
            ),
        },
    ),
    "llamacpp": Subject(
        "llama.cpp (xllamacpp 2026.10.11549, tiny model, 8 slots, batch 2,048, one thread)",
        Config("llama.cpp", "", "start_llamacpp.sh", ("--slots", "8")), 8, (2, 4),
        "100,60:75;4000,60:25",
        {"max-num-batched-tokens=256": Other({"max_num_batched_tokens": 256}, ("--batch", "256"))},
    ),
}  # fmt: skip


# -- what the twin says ----------------------------------------------------------------------------


def fit(subject: Subject, folder: Path) -> None:
    with serving(subject.config, folder / "server.log", 0) as url:
        words = [
            "twin",
            "fit",
            "--host",
            url,
            "--model",
            "tiny",
            "--most-users",
            str(subject.most_users),
        ]
        subprocess.run(
            [LOCUST_LLM, *words, "--out", str(folder / "twin.toml")], check=True, cwd=folder
        )
    write(folder, said(subject, twin_file.read_twin(folder / "twin.toml")))


def said(subject: Subject, twin: Twin) -> dict[str, Any]:
    random = Random(1)
    sizes = parse_length_mix(subject.mix)
    lengths = {OWN: twin.lengths, MIX: [sizes(random) for _ in range(DRAWN)]}
    predictions = []
    settings = {AS_IT_WAS: None, **subject.others}
    for work, name, users in product((OWN, MIX), settings, subject.users):
        said = answered(twin, users, lengths[work], settings[name])
        predictions.append({"workload": work, "set": name, "users": users, "said": said})
    return {
        "about": f"Predictions by a twin of {subject.about} for servers with other flags: low, about, "
        f"high. Written before these "
        "servers started; `measured` and `requests` are added after.",
        "date": date.today().isoformat(),
        "verdict": twin.trust.verdict,
        "workloads": {OWN: f"of the sweep: {' '.join(SWEEP)}", MIX: f"--seq-dist '{subject.mix}'"},
        "predictions": predictions,
    }


def answered(
    twin: Twin, users: int, lengths: Lengths, other: Other | None
) -> dict[str, list[float]]:
    fitted = twin.model.settings
    settings = None if other is None else msgspec.structs.replace(fitted, **other.settings)
    octaves = lengths_apart(lengths, twin.lengths)
    octaves += settings_apart(settings, fitted) if settings is not None else 0.0
    errors = {name: standard_error_of(name, twin.trust.errors, octaves) for name in SHOWN}
    found = predict_figures(
        twin.models(), WhatIf(OfferedLoad(users=users), settings=settings), lengths, errors
    )
    answers = {}
    for name in SHOWN:
        answers[name] = [rounded(value) for value in found[name]]
    return answers


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


# -- what the servers do ---------------------------------------------------------------------------


def measure(subject: Subject, folder: Path, seconds: int) -> None:
    """Measures all loads of each server in turn, and skips finished ones."""
    known = json.loads((folder / "what_if.json").read_text())
    for name, rows in groupby(
        sorted(known["predictions"], key=lambda row: row["set"]), lambda row: row["set"]
    ):
        missing = [row for row in rows if "measured" not in row]
        flags = () if name == AS_IT_WAS else subject.others[name].flags
        if not missing:
            continue
        config = subject.config._replace(flags=subject.config.flags + flags)
        with serving(config, folder / "server.log", 0) as url:
            for row in missing:
                work = SWEEP if row["workload"] == OWN else ("--seq-dist", subject.mix)
                row |= measured(
                    url,
                    row["users"],
                    work,
                    folder / f"run-{len(list(folder.glob('run-*')))}",
                    seconds,
                )
                print(
                    f"{name}, {row['workload']}, {row['users']} users: {row['requests']} requests",
                    flush=True,
                )
                write(folder, known)


def measured(
    url: str, users: int, work: tuple[str, ...], folder: Path, seconds: int
) -> dict[str, Any]:
    words = (
        "run",
        "--headless",
        "--host",
        url,
        "--model",
        "tiny",
        "-u",
        str(users),
        "-r",
        str(users),
        "-t",
        f"{seconds}s",
    )
    with folder.with_suffix(".log").open("wb") as out:
        subprocess.run(
            [LOCUST_LLM, *words, *work, "--report-dir", str(folder)],
            stdout=out,
            stderr=out,
            timeout=600,
        )
    found = read_folder_loads(Folder(folder))
    if not found.stages:
        sys.exit(f"{folder} cannot be used: {'; '.join(found.notes)}")
    return {
        "measured": {
            name: rounded(value)
            for name, value in stage_figures(found.stages[0]).items()
            if name in SHOWN
        },
        "requests": len(found.stages[0].requests),
    }


def write(folder: Path, known: dict[str, Any]) -> None:
    (folder / "what_if.json").write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


# -- both beside each other ------------------------------------------------------------------------


def table(known: dict[str, Any]) -> Iterator[str]:
    rows = []
    for row in known["predictions"]:
        cells = [cell(row, name) for name in SHOWN]
        rows.append([row["workload"], row["set"], row["users"], *cells])
    yield tabulate(
        rows, ["work", "server", "users", *SHOWN.values()], tablefmt="github", disable_numparse=True
    )
    measured = [row for row in known["predictions"] if "measured" in row]
    every = list(product(measured, SHOWN))
    held = sum(
        row["said"][name][0] <= row["measured"][name] <= row["said"][name][2] for row, name in every
    )
    yield f"The intervals hold {held} of {len(every)}."
    for percentile, metrics in (("p50", ("ttft", "stall")), ("p95", ("stall",))):
        names = [f"{metric} {percentile}" for metric in metrics]
        some = [off(row, name) for row, name in every if row["set"] != AS_IT_WAS and name in names]
        near = sum(abs(one) <= AIM for one in some)
        yield f"{' and '.join(names)} with other flags: {near} of {len(some)} within {AIM:.0%}."


def off(row: dict[str, Any], name: str) -> float:
    return float(row["said"][name][1] / row["measured"][name] - 1)


def cell(row: dict[str, Any], name: str) -> str:
    scale = 1.0 if name == "throughput" else 1e3
    about = format_brief(row["said"][name][1] * scale, digits=3)
    if "measured" not in row:
        return about
    return (
        f"{about} / {format_brief(row['measured'][name] * scale, digits=3)} ({off(row, name):+.0%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("fit", "measure"):
        one = kinds.add_parser(kind)
        one.add_argument("server", choices=SUBJECTS)
        one.add_argument("folder", type=Path)
        one.add_argument("--seconds", type=int, default=60, help="of each run")
    kinds.add_parser("table").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.kind == "table":
        for path in options.files:
            print(
                "\n\n".join((f"## {path.name}", *table(json.loads(path.read_text())))), end="\n\n"
            )
        return
    subject = SUBJECTS[options.server]
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.kind == "fit":
        fit(subject, folder)
    else:
        measure(subject, folder, options.seconds)
    print("\n\n".join(table(json.loads((folder / "what_if.json").read_text()))))


if __name__ == "__main__":
    main()
