"""Command: ``locust-llm twin fit``: a probe and a sweep, or those of folders that are there, made
into a twin."""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.lab.probe.diagnosis import CANNOT_TELL, Diagnosis
from locust_llm.lab.twin import file
from locust_llm.lab.twin import fit as fitting
from locust_llm.lab.twin.child_runs import (
    Stopped,
    add_server_options,
    environment,
    run_locust_llm,
    server_words,
    split_host_and_folders,
    started_in,
)
from locust_llm.lab.twin.drift import reference
from locust_llm.lab.twin.fit import format_fit_report
from locust_llm.lab.twin.folders import Folder, MeasuredServer, read_measured_server
from locust_llm.lab.twin.model import NOT_TO_BE_USED, Origin
from locust_llm.lab.twin.model_fit import candidates
from locust_llm.text.format import describe_error, print_safely

from .progress import show_counted_progress

LENGTHS: Final = {
    "synthetic-input-tokens-mean": 1000.0,
    "synthetic-input-tokens-stddev": 500.0,
    "output-tokens-mean": 80.0,
    "output-tokens-stddev": 40.0,
}
"""Options of the sweep's requests, which differ: equal ones do not tell one cost from another."""
MOST_USERS: Final = 128
SWEEP_S: Final = 360.0
STAGE_S: Final = (10.0, 60.0)
"""Of a stage, at least and at most; ``--time`` is shared out among the stages that are left."""
REQUESTS_A_USER: Final = 4
TO_PROBE: Final = ("longest", "rounds", "decoders")
UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class FitRefused(ValueError):
    """There can be no twin, and why."""


class Unnamed(Exception):
    """The probe does not name a scheduler that the simulator has."""


def run_fit(words: list[str]) -> int:
    """0: a twin; 4: none that can be used, or the probe cannot tell; 5: refused."""
    folders = list[Path]()
    try:
        options = _fit_parser().parse_args(words)
        folders = split_host_and_folders(options, options.folders)
        if options.host:
            _measure(options, folders)
        elif not folders:
            raise FitRefused(
                "twin fit takes --host URL, or folders of a probe and of a sweep: twin fit "
                "reports/a reports/b"
            )
        return _fitted(options, folders)
    except Unnamed as error:
        print_safely(f"{error}\n")
        return ExitStatus.INCONCLUSIVE
    except Stopped as error:
        _go_on(folders)
        return error.status
    except (OSError, ValueError) as error:
        return fail(describe_error(error))


def _fitted(options: argparse.Namespace, folders: Sequence[Path]) -> int:
    seen = read_measured_server(folders)
    if unnamed := _unnamed(seen.said, folders):
        raise Unnamed(unnamed)
    try:
        with show_counted_progress("schedulers tried") as told:
            twin = fitting.fit_twin(
                seen.said, seen.episodes, seen.stages, _origin(seen), on_progress=told
            )
        twin = msgspec.structs.replace(twin, reference=reference(twin.model, seen.stages))
    except SystemExit:
        _go_on(folders)
        raise
    out = _out(options, folders)
    file.write_twin(twin, out)
    print_safely(format_fit_report(twin, seen.said))
    print_safely(f"\nWritten: {out}\n")
    return ExitStatus.INCONCLUSIVE if twin.trust.verdict == NOT_TO_BE_USED else ExitStatus.OK


def _origin(seen: MeasuredServer) -> Origin:
    return msgspec.structs.replace(seen.origin, fitted_on=date.today().isoformat())


def _out(options: argparse.Namespace, folders: Sequence[Path]) -> Path:
    """A file, or one in a folder. Without --out beside the two runs that were made here, else in
    the folder of the sweep."""
    if options.out:
        out: Path = options.out
        return out / file.NAME if out.is_dir() else out
    sweep = next(path for path in reversed(folders) if not Folder(path).is_probe)
    return (sweep.parent if options.host else sweep) / file.NAME


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _go_on(folders: Sequence[Path]) -> None:
    """Where a run was stopped: what is there, and how to go on."""
    if len(folders) > 1:
        _tell(
            f"Stopped. What was measured stays; this goes on: locust-llm twin fit "
            f"{shlex.join(map(str, folders))}"
        )
    elif folders:
        _tell(
            f"Stopped. The probe stays in {folders[0]}, but a part of one names no scheduler: "
            f"begin with a new one"
        )


# -- what is missing is measured -------------------------------------------------------------------


def _measure(options: argparse.Namespace, folders: list[Path]) -> None:
    """The probe and the sweep, as far as ``folders`` has none; they are added to it. Raises
    ValueError, Unnamed, Stopped."""
    kinds = [Folder(path).is_probe for path in folders]
    session = started_in(
        options.report_dir or Path("reports") / time.strftime("twin-%Y%m%d-%H%M%S")
    )
    env = environment(options, os.environ)
    words = server_words(options)
    if True not in kinds:
        folder = session / "probe"
        more = [
            f"--{name}={getattr(options, name)}"
            for name in TO_PROBE
            if getattr(options, name) is not None
        ]
        _tell(f"The probe, some minutes: {folder}")
        folders.insert(0, folder)
        _child(["probe", *words, *more, f"--report-dir={folder}"], env, folder, folders)
        said = Folder(folder).diagnosis()
        if unnamed := _unnamed(said, [folder]):
            raise Unnamed(unnamed)
        budget = (
            f", {said.budget[0]:,.0f} to {said.budget[2]:,.0f} tokens a step" if said.budget else ""
        )
        _tell(f"probe: {said.name}{budget}")
    if False not in kinds:
        folder = session / "sweep"
        _tell(f"The sweep, at most {options.time / 60:.1f} minutes: {folder}")
        folders.append(folder)
        _child(["run", *words, *_sweep(options), f"--report-dir={folder}"], env, folder, folders)


def _child(words: Sequence[str], env: dict[str, str], folder: Path, folders: list[Path]) -> None:
    log = folder.with_name(f"{folder.name}.log")
    try:
        status = run_locust_llm(words, env, log, _tell)
    finally:
        if not (folder / "profile_export.jsonl").exists():
            folders.remove(folder)
    if folder not in folders:
        raise FitRefused(
            f"the {folder.name} has no requests, exit status {status}: {log} has its log"
        )


def _sweep(options: argparse.Namespace) -> list[str]:
    """Words of a sweep that doubles its users until the throughput stays flat, in ``options.time``
    at most."""
    least, most = STAGE_S
    return [
        "--headless", f"--sweep=concurrency=1..{options.most_users}",
        f"--run-time={options.time:.0f}s",
        f"--stage-duration={min(least, options.time / 16):g}..{most:g}",
        f"--stage-requests-per-user={REQUESTS_A_USER}",
        *(f"--{name}={getattr(options, name.replace('-', '_')):g}" for name in LENGTHS),
    ]  # fmt: skip


def _unnamed(said: Diagnosis, folders: Sequence[Path]) -> str:
    """Why no twin follows from the probe, and what to do; empty: one may."""
    where = next((path for path in folders if Folder(path).is_probe), folders[0])
    if said.name == CANNOT_TELL:
        why = "; ".join(said.missing)
        return (
            f"The probe cannot tell which scheduler the server has, so there is no twin: {why}.\n"
            f"Make a new probe when that is gone: locust-llm twin fit --host URL. The old one "
            f"stays in {where}."
        )
    if not candidates(said, 1):
        return (
            f"There is no twin of this server: the probe calls its scheduler {said.name!r}, and "
            f"the simulator has none "
            f"of that kind that could be fitted. The probe stays in {where}."
        )
    return ""


# -- options ---------------------------------------------------------------------------------------


class _FitParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FitRefused(f"{message}: locust-llm twin fit --help has all options")


def parse_duration_s(text: str) -> float:
    """``90``, ``90s``, ``6m``: a minute to a day."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    value = float(found[1]) * UNITS[found[2] or ""] if found else 0.0
    if not 10 <= value <= 86_400:
        raise argparse.ArgumentTypeError(
            f"takes a time such as 90s or 6m, from 10s to 24h, got {text}"
        )
    return value


def _whole(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"takes a whole number from 2 to 10,000, got {text}")
    return int(text)


def _tokens(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e7:
        raise argparse.ArgumentTypeError(f"takes a number of tokens, got {text}")
    return value


def _fit_parser() -> argparse.ArgumentParser:
    parser = _FitParser(
        prog="locust-llm twin fit", allow_abbrev=False,
        usage="locust-llm twin fit (--host URL | DIR DIR...) [options]",
        description="Fit a model to a server: its scheduler, what a step of it costs, and how far "
            "the model is off. With "
        "--host a probe and a sweep are made, five to ten minutes together; else those of the "
            "folders are taken. With both, "
        "what is missing is made.",
        epilog="example: locust-llm twin fit --host localhost:8000",
    )  # fmt: skip
    add_fit_arguments(parser)
    add_server_options(parser)
    return parser


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own; those that reach the server come beside them."""
    add = parser.add_argument
    add(
        "folders",
        nargs="*",
        metavar="DIR",
        help="of a probe, and of a sweep or runs of one load each",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the twin goes (default: twin.toml beside the runs)",
    )
    add(
        "--report-dir",
        type=Path,
        metavar="DIR",
        help="where the runs go (default: reports/twin-<time>)",
    )
    add(
        "--time",
        type=parse_duration_s,
        default=SWEEP_S,
        metavar="TIME",
        help="of the sweep, at most (default: 6m)",
    )
    add(
        "--most-users",
        type=_whole,
        default=MOST_USERS,
        metavar="N",
        help="of the sweep (default: %(default)s)",
    )
    for name, value in LENGTHS.items():
        add(
            f"--{name}",
            type=_tokens,
            default=value,
            metavar="TOKENS",
            help="of the sweep (default: %(default)g)",
        )
    for name in TO_PROBE:
        add(f"--{name}", type=_whole, metavar="N", help="as of locust-llm probe")
