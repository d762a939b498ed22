"""Command ``locust-llm twin fit | predict | drift``: each has a section here, with its options."""

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import chain
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Final, NamedTuple, NoReturn, TextIO

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.duration_option import parse_duration_s
from locust_llm.lab.probe.scheduler_diagnosis import CANNOT_TELL, Diagnosis
from locust_llm.lab.twin import twin_drift, twin_file
from locust_llm.lab.twin import twin_fit as fitting
from locust_llm.lab.twin.child_runs import (
    RunStopped,
    add_server_options,
    make_environment,
    make_session_folder,
    run_locust_llm,
    server_words,
    split_host_and_folders,
)
from locust_llm.lab.twin.measured_folders import (
    Folder,
    MeasuredServer,
    read_folder_loads,
    read_measured_server,
)
from locust_llm.lab.twin.scheduler_fit import list_candidate_settings
from locust_llm.lab.twin.twin_drift import (
    describe_other_server,
    format_drift_lines,
    measure_reference,
)
from locust_llm.lab.twin.twin_fit import format_fit_report
from locust_llm.lab.twin.twin_model import NOT_TO_BE_USED, SHAPE, Origin, Twin
from locust_llm.lab.twin.virtual_replay import Lengths, OfferedLoad
from locust_llm.lab.twin.whatif import whatif_grid, whatif_text
from locust_llm.lab.twin.whatif.whatif_rows import (
    MET,
    PREDICTED,
    WhatIfPredictor,
    best_what_if,
    find_rival,
    parse_predicted_rule,
)
from locust_llm.report.console_summary import find_console_width
from locust_llm.report.document_blocks import Block
from locust_llm.report.render.text_report import render_plain_blocks
from locust_llm.slo.rules import Rule, expand_preset
from locust_llm.text.format import describe_error, print_json, print_safely
from locust_llm.workload.length_distributions import Length, normal_length, parse_length_mix


class TwinRefused(ValueError):
    """There can be no twin, or no check of one. The message explains why."""


class _TwinParser(argparse.ArgumentParser):
    """Raises errors as TwinRefused, so that each command ends in one place."""

    def error(self, message: str) -> NoReturn:
        raise TwinRefused(f"{message}: {self.prog} --help shows every option")


# -- progress --------------------------------------------------------------------------------------
# A line on a terminal of how far long work is, gone when it is done.

CLEAR = "\r\x1b[K"


@contextmanager
def show_counted_progress(
    what: str, out: TextIO | None = None
) -> Iterator[Callable[[int, int], None]]:
    """Returns a function that shows how many of a number are done. It writes nothing if ``out``,
    standard error, is not a terminal."""
    out = sys.stderr if out is None else out
    lives = out.isatty() and os.environ.get("TERM") != "dumb"

    def show_progress(done: int, most: int) -> None:
        if lives:
            said = f"{done:,} of {most:,} {what}"
            out.write(CLEAR + said[: shutil.get_terminal_size().columns - 1])
            out.flush()

    try:
        yield show_progress
    finally:
        if lives:
            out.write(CLEAR)
            out.flush()


# Command: ``locust-llm twin fit``: a probe and a sweep, or those of folders that are there, made
# into a twin.

LENGTHS: Final = {
    "synthetic-input-tokens-mean": 1000.0,
    "synthetic-input-tokens-stddev": 500.0,
    "output-tokens-mean": 80.0,
    "output-tokens-stddev": 40.0,
}
"""The sweep's requests have these options. Equal lengths would not distinguish the costs."""
LENGTH_HELP: Final = {
    "synthetic-input-tokens-mean": "mean input length in the sweep",
    "synthetic-input-tokens-stddev": "standard deviation of the input length",
    "output-tokens-mean": "mean output length in the sweep",
    "output-tokens-stddev": "standard deviation of the output length",
}
MOST_USERS: Final = 128
SWEEP_S: Final = 360.0
STAGE_S: Final = (10.0, 60.0)
"""A stage takes at least and at most these times. The remaining stages share ``--time``."""
REQUESTS_A_USER: Final = 4
TO_PROBE: Final = {
    "longest": "longest prompt of the probe",
    "rounds": "repetitions in the probe",
    "decoders": "requests that decode in the probe",
}
"""(option that the probe has too: its help)."""


class SchedulerUnnamed(Exception):
    """The probe does not name a scheduler that the simulator has."""


def run_fit(words: list[str]) -> int:
    """Returns 0 for a twin, 4 if it is unusable or the probe cannot name the scheduler, 5 if
    refused."""
    folders = list[Path]()
    as_json = False
    try:
        options = _fit_parser().parse_args(words)
        as_json = options.json
        folders = split_host_and_folders(options, options.folders)
        if options.host:
            _measure(options, folders)
        elif not folders:
            raise TwinRefused(
                "twin fit needs --host URL, or the folders of a probe and a sweep: twin fit "
                "reports/a reports/b"
            )
        return _fitted(options, folders)
    except SchedulerUnnamed as error:
        if as_json:
            print_json(fitting.FitResult(why_no_twin=str(error)))
        else:
            print_safely(f"{error}\n")
        return ExitStatus.INCONCLUSIVE
    except RunStopped as error:
        _go_on(folders)
        return error.status
    except (OSError, ValueError) as error:
        return fail(describe_error(error))


def _fitted(options: argparse.Namespace, folders: Sequence[Path]) -> int:
    seen = read_measured_server(folders)
    if unnamed := _unnamed(seen.said, folders):
        raise SchedulerUnnamed(unnamed)
    try:
        with show_counted_progress("schedulers tried") as show_progress:
            twin = fitting.fit_twin(
                seen.said, seen.episodes, seen.stages, _origin(seen), on_progress=show_progress
            )
        twin = msgspec.structs.replace(twin, reference=measure_reference(twin.model, seen.stages))
    except SystemExit:
        _go_on(folders)
        raise
    out = _out(options, folders)
    twin_file.write_twin(twin, out)
    if options.json:
        print_json(fitting.summarise_fit(twin, out))
    else:
        print_safely(format_fit_report(twin, seen.said))
        print_safely(f"\nWritten: {out}\n")
    return ExitStatus.INCONCLUSIVE if twin.trust.verdict == NOT_TO_BE_USED else ExitStatus.OK


def _origin(seen: MeasuredServer) -> Origin:
    return msgspec.structs.replace(seen.origin, fitted_on=date.today().isoformat())


def _out(options: argparse.Namespace, folders: Sequence[Path]) -> Path:
    """Returns a file, or one in a folder. Without --out it is beside runs that were made here, else
    in the folder of the sweep."""
    if options.out:
        out: Path = options.out
        return out / twin_file.NAME if out.is_dir() else out
    sweep = next(path for path in reversed(folders) if not Folder(path).is_probe)
    return (sweep.parent if options.host else sweep) / twin_file.NAME


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _go_on(folders: Sequence[Path]) -> None:
    """Explains the state after a stopped run, and how to continue."""
    if len(folders) > 1:
        _tell(
            "Stopped. The measurements are kept. To continue: locust-llm twin fit "
            f"{shlex.join(map(str, folders))}"
        )
    elif folders:
        _tell(
            f"Stopped. The unfinished probe is in {folders[0]}, but it cannot identify the "
            "scheduler: start a new one"
        )


# -- what is missing is measured -------------------------------------------------------------------


def _measure(options: argparse.Namespace, folders: list[Path]) -> None:
    """Runs the probe and the sweep that ``folders`` lacks, and adds them to it. Raises ValueError,
    SchedulerUnnamed and RunStopped."""
    kinds = [Folder(path).is_probe for path in folders]
    session = make_session_folder(
        options.report_dir or Path("reports") / time.strftime("twin-%Y%m%d-%H%M%S")
    )
    env = make_environment(options, os.environ)
    words = server_words(options)
    if True not in kinds:
        folder = session / "probe"
        more = [
            f"--{name}={getattr(options, name)}"
            for name in TO_PROBE
            if getattr(options, name) is not None
        ]
        _tell(f"Running the probe, which takes some minutes: {folder}")
        folders.insert(0, folder)
        _child(["probe", *words, *more, f"--report-dir={folder}"], env, folder, folders)
        said = Folder(folder).diagnosis()
        if unnamed := _unnamed(said, [folder]):
            raise SchedulerUnnamed(unnamed)
        budget = (
            f", {said.budget[0]:,.0f} to {said.budget[2]:,.0f} tokens per step"
            if said.budget
            else ""
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
        raise TwinRefused(
            f"the {folder.name} has no requests (exit status {status}): see its log {log}"
        )


def _sweep(options: argparse.Namespace) -> list[str]:
    """Returns the words of a sweep that doubles its users until the throughput is flat, in at most
    ``options.time``."""
    least, most = STAGE_S
    return [
        "--headless", f"--sweep=concurrency=1..{options.most_users}",
        f"--run-time={options.time:.0f}s",
        f"--stage-duration={min(least, options.time / 16):g}..{most:g}",
        f"--stage-requests-per-user={REQUESTS_A_USER}",
        *(f"--{name}={getattr(options, name.replace('-', '_')):g}" for name in LENGTHS),
    ]  # fmt: skip


def _unnamed(said: Diagnosis, folders: Sequence[Path]) -> str:
    """Explains why the probe gives no twin, and what to do. Empty: it gives one."""
    where = next((path for path in folders if Folder(path).is_probe), folders[0])
    if said.name == CANNOT_TELL:
        why = "; ".join(said.missing)
        return (
            f"The probe cannot identify the scheduler of the server, so there is no twin: {why}.\n"
            f"Remove the cause, then run a new probe: locust-llm twin fit --host URL. The old one "
            f"stays in {where}."
        )
    if not list_candidate_settings(said, 1):
        return (
            f"No twin was fitted: the probe calls the scheduler of this server {said.name!r}, and "
            f"the simulator has no such scheduler. The probe stays in {where}."
        )
    return ""


# -- options ---------------------------------------------------------------------------------------


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
    parser = _TwinParser(
        prog="locust-llm twin fit", allow_abbrev=False,
        usage="locust-llm twin fit (--host URL | DIR DIR...) [options]",
        description=(
            "Fit a performance model (a digital twin) to a server: scheduler, step time, and "
            "errors. With --host, it runs a probe and a sweep (five to ten minutes). Run folders "
            "replace one or both."
        ),
        epilog="example: locust-llm twin fit --host localhost:8000",
    )  # fmt: skip
    add_fit_arguments(parser)
    add_server_options(parser)
    return parser


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its own options. Options of the server are added separately."""
    add = parser.add_argument
    add(
        "folders",
        nargs="*",
        metavar="DIR",
        help="run folder of a probe, a sweep, or a run at one load",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="file of the twin (default: twin.toml in the folder of the runs)",
    )
    _add_run_arguments(parser, SWEEP_S, "maximum duration of the sweep (default: 6m)", "twin")
    add(
        "--most-users",
        type=_whole,
        default=MOST_USERS,
        metavar="N",
        help="highest number of users in the sweep (default: %(default)s)",
    )
    for name, value in LENGTHS.items():
        add(
            f"--{name}",
            type=_tokens,
            default=value,
            metavar="TOKENS",
            help=f"{LENGTH_HELP[name]} (default: %(default)g)",
        )
    for name, text in TO_PROBE.items():
        add(f"--{name}", type=_whole, metavar="N", help=text)
    add("--json", action="store_true", help="print the fitted twin as JSON")


def _add_run_arguments(
    parser: argparse.ArgumentParser, seconds: float, of_what: str, name: str
) -> None:
    """Adds options for the duration and the folder of the measurement."""
    parser.add_argument(
        "--time", type=parse_duration_s, default=seconds, metavar="TIME", help=of_what
    )
    parser.add_argument(
        "--report-dir", type=Path, metavar="DIR",
        help=f"folder for the runs (default: reports/{name}-<time>)",
    )  # fmt: skip


# Command: ``locust-llm twin drift``: a minute on the server, or a folder of one, held against its
# twin.

MINUTE_S: Final = 60.0
LEAST_STAGE_S: Final = 5.0


def run_drift(words: list[str]) -> int:
    """Returns 0 for the same server, 3 if it has drifted or has another name, 4 if no load is
    usable, 5 if refused."""
    try:
        options = _drift_parser().parse_args(words)
        twin = twin_file.read_twin(options.twin)
        users = twin_drift.choose_reference_loads(twin)
        given = split_host_and_folders(options, [options.folder] if options.folder else [])
        folder = Folder(given[0] if given else _measure_loads(options, twin, users))
        found = read_folder_loads(folder)
    except RunStopped as error:
        return error.status
    except (OSError, ValueError) as error:
        return fail(describe_error(error))
    names = describe_other_server(twin.origin, folder)
    known = {one.users for one in twin.reference}
    stages = [stage for stage in found.stages if stage.users in known]
    notes = [f"Note: {note}." for note in found.notes]
    if not stages and options.json:
        print_json(twin_drift.DriftResult(other_server=tuple(names), notes=tuple(found.notes)))
    elif not stages:
        undecided = f"INCONCLUSIVE: no load of {folder.path} can be compared with the twin."
        print_safely("\n".join([*names, undecided, *notes]) + "\n")
    if not stages:
        return ExitStatus.RULE_FAILED if names else ExitStatus.INCONCLUSIVE
    unchanged = twin_drift.simulate_unchanged_server(twin, stages, twin_drift.REPLAYS)
    result = twin_drift.check_drift(unchanged, stages)
    if options.json:
        print_json(twin_drift.summarise_drift(result, names, found.notes))
    else:
        lines = [*format_drift_lines(result, unchanged, stages, names), *notes]
        print_safely("\n".join(lines) + "\n")
    return ExitStatus.RULE_FAILED if result.drifted or names else ExitStatus.OK


def _measure_loads(options: argparse.Namespace, twin: Twin, users: Sequence[int]) -> Path:
    """Runs a short sweep over these loads, and returns its folder. Raises ValueError, RunStopped
    and OSError."""
    options.host = options.host or twin.origin.host
    if not options.host:
        raise TwinRefused(
            "twin drift needs --host URL: the twin file does not contain the server's address"
        )
    folder = make_session_folder(
        options.report_dir or Path("reports") / time.strftime("drift-%Y%m%d-%H%M%S")
    )
    prompts = [one for one, _ in twin.lengths]
    outputs = [one for _, one in twin.lengths]
    share_s = options.time / len(users)
    words = [
        "run", *server_words(options), "--headless",
        f"--sweep=concurrency={','.join(map(str, users))}",
        f"--run-time={options.time:.0f}s",
        f"--stage-duration={min(LEAST_STAGE_S, share_s / 2):g}..{share_s:g}",
        f"--synthetic-input-tokens-mean={fmean(prompts):.0f}",
        f"--synthetic-input-tokens-stddev={pstdev(prompts):.0f}",
        f"--output-tokens-mean={fmean(outputs):.0f}",
        f"--output-tokens-stddev={pstdev(outputs):.0f}",
        f"--report-dir={folder}",
    ]  # fmt: skip
    log = folder.with_name(f"{folder.name}.log")
    status = run_locust_llm(words, make_environment(options, os.environ), log, _tell)
    if not (folder / "profile_export.jsonl").exists():
        raise TwinRefused(f"the run has no requests (exit status {status}): see its log {log}")
    return folder


def _drift_parser() -> argparse.ArgumentParser:
    parser = _TwinParser(
        prog="locust-llm twin drift", allow_abbrev=False,
        usage="locust-llm twin drift TWIN [DIR] [options]",
        description=(
            "Check whether a server still behaves as its twin predicts. It repeats three loads "
            "of the twin's sweep in one minute. Exit status 3: the server has drifted; 4: "
            "INCONCLUSIVE."
        ),
        epilog="example: locust-llm twin drift twin.toml --host localhost:8000",
    )  # fmt: skip
    add_drift_arguments(parser)
    add_server_options(parser)
    return parser


def add_drift_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its own options. Options of the server are added separately."""
    add = parser.add_argument
    add("twin", type=Path, metavar="TWIN", help="twin.toml, or a folder that contains it")
    add(
        "folder",
        nargs="?",
        metavar="DIR",
        help="existing run at these loads (default: a new run)",
    )
    _add_run_arguments(parser, MINUTE_S, "duration of the run (default: 1m)", "drift")
    add("--json", action="store_true", help="print the result as JSON")


# -- workload --------------------------------------------------------------------------------------
# What a prediction sends, from the options that ``run`` has for it, or else the lengths of the
# twin.

DRAWN: Final = 4000
"""A prediction draws from this many requests, so their mean length is known to 1%."""
SEED: Final = 30_000
OPTIONS: Final = {
    "--synthetic-input-tokens-mean": "mean input length in tokens (default: as in the twin)",
    "--synthetic-input-tokens-stddev": "its standard deviation (default: 0)",
    "--output-tokens-mean": "mean output length in tokens (default: as in the twin)",
    "--output-tokens-stddev": "its standard deviation (default: 0)",
}
MOST: Final = 10**7


class PredictedWorkload(NamedTuple):
    lengths: Lengths
    words: tuple[str, ...]
    """These options of ``run`` send the workload, or the nearest one."""

    def __str__(self) -> str:
        prompts = [tokens for tokens, _ in self.lengths]
        answers = [tokens for _, tokens in self.lengths]
        return f"{_said(prompts)} input tokens, {_said(answers)} output tokens"


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    for option, what in OPTIONS.items():
        parser.add_argument(option, type=float, metavar="N", help=what)
    parser.add_argument(
        "--seq-dist",
        metavar="MIX",
        help="mix of lengths, as in run: 64|10,32|8:70;1024,512:30",
    )


def choose_workload(options: argparse.Namespace, twin: Twin) -> PredictedWorkload:
    """Chooses the workload. Raises ValueError."""
    given = [options.synthetic_input_tokens_mean, options.output_tokens_mean]
    for number, option in (
        (given[0], "--synthetic-input-tokens-mean"),
        (given[1], "--output-tokens-mean"),
    ):
        if number is not None and not 1 <= number <= MOST:
            raise ValueError(f"{option} must be from 1 to {MOST:,}, got {number:g}")
    spread = (options.synthetic_input_tokens_stddev, options.output_tokens_stddev)
    for stddev, mean, kind in zip(spread, given, ("synthetic-input", "output"), strict=True):
        if stddev is not None and mean is None:
            raise ValueError(f"--{kind}-tokens-stddev needs --{kind}-tokens-mean")
        if stddev is not None and not 0 <= stddev <= MOST:
            raise ValueError(f"--{kind}-tokens-stddev must be from 0 to {MOST:,}, got {stddev:g}")
    random = Random(SEED)
    if options.seq_dist:
        if any(one is not None for one in given):
            raise ValueError(
                "--seq-dist replaces --synthetic-input-tokens-mean and --output-tokens-mean: "
                "leave them out"
            )
        sizes = parse_length_mix(options.seq_dist)
        return PredictedWorkload(
            [sizes(random) for _ in range(DRAWN)], ("--seq-dist", f"'{options.seq_dist}'")
        )
    if given == [None, None]:
        return PredictedWorkload(twin.lengths, tuple(_nearest(twin.lengths)))
    if None in given and not twin.lengths:
        raise ValueError(
            "this twin has no lengths: add --synthetic-input-tokens-mean and --output-tokens-mean"
        )
    drawn: list[Length | None] = [
        None if mean is None else normal_length(mean, stddev or 0.0)
        for mean, stddev in zip(given, spread, strict=True)
    ]
    lengths = [
        _length(drawn, random.choice(twin.lengths) if twin.lengths else (1, 1), random)
        for _ in range(DRAWN)
    ]
    return PredictedWorkload(lengths, tuple(_nearest(lengths)))


def _length(
    drawn: list[Length | None], of_twin: tuple[int, int], random: Random
) -> tuple[int, int]:
    found = [
        own if draw is None else draw(random) for draw, own in zip(drawn, of_twin, strict=True)
    ]
    return found[0], found[1]


def _nearest(lengths: Lengths) -> Iterator[str]:
    for option, column in (("--synthetic-input-tokens", 0), ("--output-tokens", 1)):
        tokens = [one[column] for one in lengths]
        if tokens:
            yield f"{option}-mean {fmean(tokens):.0f}"
            if (stddev := pstdev(tokens)) >= 0.5:
                yield f"{option}-stddev {stddev:.0f}"


def _said(tokens: list[int]) -> str:
    least = min(tokens)
    most = max(tokens)
    return f"{most:,}" if least == most else f"{least:,} to {most:,} (mean {fmean(tokens):,.0f})"


# Command: ``locust-llm twin predict TWIN``.

DESCRIPTION: Final = """\
Predict every load with every combination of settings, each with its 95% interval."""
EPILOG: Final = """\
Values are as --sweep has them: 1..128 is 1, 2, 4, ... 128, 8..64+8 goes in steps of 8, and lists have commas; none is no
limit. Predictions outside of the fitted range are marked as extrapolated; those far outside are refused.

  locust-llm twin predict twin.toml --load concurrency=1..128 --set max-num-batched-tokens=512,1024,2048 \\
    --set prefill-concurrency=none,1..8 --slo 'ttft p95 < 1s' --slo 'itl p99 < 50ms'
"""


def run_predict(words: list[str]) -> int:
    """Returns 0 if a what-if is surely within the rules or there are none, 3 if none is, 4 if it is
    inconclusive, 5 if refused."""
    parser = make_twin_parser("twin predict", DESCRIPTION, EPILOG)
    add_predict_arguments(parser)
    options = parser.parse_args(words)
    try:
        report = _predict(options)
        if options.html:
            from locust_llm.lab.twin.whatif.whatif_chart import render_whatif_page

            replace_file(options.html, render_whatif_page(report).encode())
    except (OSError, ValueError) as error:
        return fail(str(error))
    if options.json:
        print_json(whatif_text.what_ifs_as_json(report))
    else:
        print_document(whatif_text.whatif_document(report))
    return _status(report)


def print_document(blocks: Iterable[Block]) -> None:
    print_safely(render_plain_blocks(blocks, find_console_width()))


def make_twin_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Makes the parser of a command that uses a twin. Its texts are printed unchanged."""
    return argparse.ArgumentParser(
        prog=f"locust-llm {name}", description=description, epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def add_twin_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "twin", type=Path, metavar="TWIN", help="twin.toml, or a folder that contains it"
    )


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    add_twin_argument(parser)
    parser.add_argument(
        "--load", action="append", metavar="AXIS=VALUES",
        help=(
            "loads: concurrency=1..128 or request-rate=0.5..8; repeatable (default: the "
            "measured concurrency)"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUES",
        help=(
            "values of a setting to predict (repeatable). Keys: "
            f"{', '.join(whatif_grid.KEYS)}. All but prefill-concurrency are settings of the server"
        ),
    )  # fmt: skip
    add_rules(parser)
    add_workload_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write an HTML page",
    )


def add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slo", action="append", default=[], metavar="RULE",
        help=f"SLO to judge, such as 'ttft p95 < 1s' (repeatable). Metrics: {PREDICTED}",
    )  # fmt: skip
    parser.add_argument("--slo-preset", metavar="NAME", help="named set of SLOs: chat")


def parse_rules(options: argparse.Namespace) -> tuple[Rule, ...]:
    """Parses the rules. Raises ValueError."""
    named = expand_preset(options.slo_preset) if options.slo_preset else ()
    return tuple(parse_predicted_rule(rule) for rule in (*options.slo, *named))


def _predict(options: argparse.Namespace) -> whatif_text.WhatIfReport:
    """Predicts and prints. Raises ValueError."""
    rules = parse_rules(options)
    choices = [whatif_grid.parse_setting_choice(one) for one in options.set]
    at = list(
        dict.fromkeys(chain.from_iterable(map(whatif_grid.parse_load_values, options.load or ())))
    )
    twin = twin_file.read_twin(options.twin)
    sent = choose_workload(options, twin)
    if why := whatif_grid.refuse_extrapolation(twin, sent.lengths):
        raise ValueError(why)
    at = at or _measured_loads(twin.ranges.users)
    if not at:
        raise ValueError("this twin was fitted at request rates: add --load request-rate=VALUES")
    fitted = twin.model.settings
    cases, left_out = whatif_grid.drop_impossible(
        whatif_grid.make_grid(at, choices, fitted), fitted, sent.lengths
    )
    far = [why for load in at if (why := whatif_grid.too_much(load, twin.ranges))]
    cases = [case for case in cases if not whatif_grid.too_much(case.what_if.load, twin.ranges)]
    if not cases:
        raise ValueError(f"nothing is left to predict: {[*left_out, *far][0]}")
    predictor = WhatIfPredictor(twin, sent.lengths, rules)
    with show_counted_progress("what-ifs") as on_progress:
        rows = predictor.rows(cases, on_progress)
    rivals = None if predictor.shape or not rules else find_rival(rows, rules, twin)
    name = str(options.twin)
    return whatif_text.WhatIfReport(
        twin, name, str(sent), rules, rows, left_out, far, rivals, sent.words, predictor.shape
    )


def _measured_loads(users: tuple[int, int]) -> list[OfferedLoad]:
    return (
        whatif_grid.parse_load_values(f"concurrency={max(1, users[0])}..{users[1]}")
        if users[1]
        else []
    )


def _status(report: whatif_text.WhatIfReport) -> int:
    if report.twin.trust.verdict == SHAPE and report.rules:
        return ExitStatus.INCONCLUSIVE
    if not report.rules:
        return ExitStatus.OK
    first = best_what_if(report.rows)
    if first is None:
        return ExitStatus.RULE_FAILED
    return ExitStatus.OK if first.status == MET else ExitStatus.INCONCLUSIVE


# -- twin ------------------------------------------------------------------------------------------

COMMANDS: Final[dict[str, tuple[Callable[[list[str]], int], str]]] = {
    "fit": (
        run_fit,
        "fit a twin to a server, by a probe and a sweep that it runs or that exist",
    ),
    "predict": (
        run_predict,
        "predict latency and throughput at other loads and settings, each with an interval",
    ),
    "drift": (
        run_drift,
        "run for one minute, and report whether the server has changed since the fit, and how",
    ),
}
"""Each command has its function and description."""


def run_twin(words: list[str]) -> int:
    """Runs the command of the first word. An unknown command gives status 5."""
    rows = [f"  {name:9}{what}\n" for name, (_, what) in COMMANDS.items()]
    usage = "usage: locust-llm twin COMMAND ...\n\n" + "".join(rows)
    if words and words[0] in ("-h", "--help", "help"):
        print_safely(usage)
        return ExitStatus.OK
    if not words:
        print(usage, end="", file=sys.stderr)
        return ExitStatus.REFUSED
    if words[0] not in COMMANDS:
        return fail(f"unknown command twin {words[0]!r}\n\n{usage.rstrip()}")
    run, _ = COMMANDS[words[0]]
    return run(words[1:])
