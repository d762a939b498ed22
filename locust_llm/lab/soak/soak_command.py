"""Command ``locust-llm soak``: runs the load of ``run --soak`` for hours as a child, goes on after an
interruption, and judges the readings of all parts together."""

import locust_llm.locust_adapter.command_line_parser

# isort: split
import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from locust.util.timespan import parse_timespan

import gevent
import msgspec
from tabulate import tabulate

import locust_llm
from locust_llm.exit_status import ExitStatus, fail, worst_exit_status
from locust_llm.files.json_file import decode_json_file, replace_file
from locust_llm.lab.twin.child_runs import (
    RunStopped,
    make_session_folder,
    run_locust_llm,
    split_withheld,
)
from locust_llm.records.run_facts import SIMULATED, read_run
from locust_llm.report.sections.soak_section import format_soak_line, list_soak_sentences
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.text.console import write_console
from locust_llm.text.format import print_json
from locust_llm.text.hide_secrets import hide_url_secrets, remove_login_and_query
from locust_llm.text.sanitise import sanitise_text
from locust_llm.trends.soak_judgement import judge_soak, make_soak_findings
from locust_llm.trends.soak_readings import (
    SoakReading,
    choose_reading_interval_s,
    join_parts,
    read_readings,
)
from locust_llm.trends.soak_text import HEADERS, describe_progress, list_rows
from locust_llm.trends.steady_growth import GrowthVerdict

from .soak_page import render_soak_page
from .soak_result import PAGE_NAME, RESULT_NAME, SoakResult, encode_soak_result

PLAN_NAME: Final = "plan.json"
PARTS: Final = "parts"
INTERVAL_FLAG: Final = "--soak-interval"
LEAST_S: Final = 60
HOUR_S: Final = 3600.0
PROGRESS_S: Final = (30.0, 900.0)
PROGRESS_LINES: Final = 24
LINE_CHARS: Final = 300
REFUSED_WORDS: Final = (
    "--sweep",
    "--find-max",
    "--repeats",
    "--headless",
    "--soak",
    "--run-time",
    "-t",
)
BY_VERDICT: Final = {
    GrowthVerdict.GROWS.value: ExitStatus.RULE_FAILED,
    GrowthVerdict.STABLE.value: ExitStatus.OK,
    GrowthVerdict.OPEN.value: ExitStatus.INCONCLUSIVE,
}


class SoakPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak does: plan.json in its folder, for ``--continue``. It holds no key and no
    command."""

    words: list[str]
    """The options of the run."""
    run_time_s: int
    started: str
    withheld: list[str] = []
    """The options that are not stored, as their values may be secrets or commands, or the number of
    a process that is another one later."""


class SoakSession(NamedTuple):
    """What one part of a soak needs."""

    plan: SoakPlan
    folder: Path
    words: tuple[str, ...]
    """The options of the run, also those that are not stored."""
    host: str
    say: Callable[[str], object]

    def read_parts(self) -> list[SoakReading]:
        """The readings of all parts so far. Raises OSError."""
        return join_parts(map(read_readings, self.list_runs()))

    def list_runs(self) -> list[Path]:
        """The folders of the parts, in their order."""
        numbered = [path for path in self.folder.glob(f"{PARTS}/*") if path.name.isdigit()]
        return sorted(numbered, key=lambda path: int(path.name))


def run_soak(words: list[str]) -> int:
    options, rest = make_soak_parser().parse_known_args(words)
    say = partial(write_console, out=sys.stderr if options.json else None)
    try:
        session = open_session(options, rest, say)
        status = run_part(session)
        result, own_status = finish_soak(session, status)
    except (OSError, ValueError) as error:
        return fail(sanitise_text(str(error), most=LINE_CHARS))
    if options.json and result is not None:
        print_json(result)
    return own_status


def open_session(
    options: argparse.Namespace, rest: Sequence[str], say: Callable[[str], object]
) -> SoakSession:
    """Raises OSError and ValueError with a sentence."""
    refused = sorted({word.partition("=")[0] for word in rest}.intersection(REFUSED_WORDS))
    if refused:
        raise ValueError(
            f"a soak has one load and sets {', '.join(refused)} by itself: leave it out"
        )
    if options.continue_dir is not None:
        folder = options.continue_dir
        plan, run_words = _continue_plan(folder, options, rest)
        return SoakSession(plan, folder, tuple(run_words), _find_host(run_words), say)
    plan, run_words = _make_plan(options, rest)
    host = _find_host(run_words)
    folder = options.report_dir or Path("reports") / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = make_session_folder(folder)
    replace_file(folder / PLAN_NAME, msgspec.json.encode(plan))
    return SoakSession(plan, folder, tuple(run_words), host, say)


def _make_plan(options: argparse.Namespace, rest: Sequence[str]) -> tuple[SoakPlan, list[str]]:
    if options.run_time is None:
        raise ValueError("a soak needs its length: -t 4h")
    if any(hide_url_secrets(word) != word for word in rest):
        raise ValueError("an address with a login or key cannot be stored: give it as --header")
    stored, withheld = split_withheld(rest)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    plan = SoakPlan(words=stored, run_time_s=options.run_time, started=started, withheld=withheld)
    return plan, list(rest)


def _continue_plan(
    folder: Path, options: argparse.Namespace, rest: Sequence[str]
) -> tuple[SoakPlan, list[str]]:
    try:
        plan = decode_json_file(folder / PLAN_NAME, SoakPlan)
    except (OSError, ValueError):
        raise ValueError(f"{folder} has no soak that could be continued") from None
    given = {word.partition("=")[0] for word in rest}
    missing = [flag for flag in plan.withheld if flag not in given]
    if missing:
        raise ValueError(f"give {' and '.join(missing)} again: a soak's folder does not hold it")
    if options.run_time is not None:
        plan = msgspec.structs.replace(plan, run_time_s=options.run_time)
    return plan, [*plan.words, *rest]


def _find_host(words: Sequence[str]) -> str:
    """The server's address without a login, from the options of the run. Raises ValueError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--host", default=os.environ.get("LOCUST_LLM_HOST"))
    options, _ = parser.parse_known_args(words)
    if not options.host:
        raise ValueError("give the server: --host localhost:8000")
    return remove_login_and_query(normalise_base_url(options.host))


def run_part(session: SoakSession) -> int:
    """Runs the load for the rest of the time. Returns the status of the run, or of the signal that
    ended it. Raises OSError."""
    before = session.read_parts()
    done_s = before[-1].hours * HOUR_S if before else 0.0
    remaining_s = max(round(session.plan.run_time_s - done_s), 0)
    if remaining_s < 1:
        return ExitStatus.OK
    number = max((int(path.name) for path in session.list_runs()), default=0) + 1
    run_folder = session.folder / PARTS / str(number)
    run_folder.mkdir(parents=True)
    words = [
        "run", "--soak", *session.words, "--headless", f"--run-time={remaining_s}s",
        f"--report-dir={run_folder}",
    ]  # fmt: skip
    if not any(word.partition("=")[0] == INTERVAL_FLAG for word in session.words):
        words.append(f"{INTERVAL_FLAG}={choose_reading_interval_s(session.plan.run_time_s):g}")
    session.say(f"soak of {session.host}: {session.folder}\n")
    job = gevent.spawn(_tell_progress, session)
    try:
        return run_locust_llm(
            words,
            {**os.environ, "PYTHONUNBUFFERED": "1"},
            run_folder.with_suffix(".log"),
            partial(_tell, session.say),
        )
    except RunStopped as stopped:
        session.say(f"\ncontinue it: locust-llm soak --continue {session.folder}\n")
        return stopped.status
    finally:
        job.kill()


def _tell(say: Callable[[str], object], text: str) -> None:
    say(f"{sanitise_text(text, most=LINE_CHARS)}\n")


def _tell_progress(session: SoakSession) -> None:
    least, most = PROGRESS_S
    pause_s = min(max(session.plan.run_time_s / PROGRESS_LINES, least), most)
    planned = session.plan.run_time_s / HOUR_S
    while True:
        gevent.sleep(pause_s)
        readings = session.read_parts()
        if readings:
            found = list(judge_soak(readings))
            session.say(f"{describe_progress(found, readings[-1].hours, planned)}\n")


def finish_soak(session: SoakSession, run_status: int) -> tuple[SoakResult | None, int]:
    """Judges all readings, writes the result and its page. Returns the result and the exit status.
    Raises OSError."""
    readings = session.read_parts()
    findings = make_soak_findings(readings)
    if findings is None:
        if run_status in (ExitStatus.OK, ExitStatus.FAILED_REQUESTS):
            return None, fail("no reading was taken: no request ended", ExitStatus.INCOMPLETE)
        return None, run_status
    result = SoakResult(
        folder=str(session.folder),
        host=session.host,
        started=session.plan.started,
        version=locust_llm.__version__,
        planned_hours=session.plan.run_time_s / HOUR_S,
        parts=readings[-1].part,
        **msgspec.structs.asdict(findings),
    )
    if any(map(_is_simulated, session.list_runs())):
        result = msgspec.structs.replace(result, notes=(SIMULATED, *result.notes))
    folder = session.folder
    reports = [run / "report.html" for run in session.list_runs()]
    shown = [path.relative_to(folder).as_posix() for path in reports if path.exists()]
    try:
        replace_file(folder / RESULT_NAME, encode_soak_result(result))
        page = render_soak_page(result, readings, shown)
        replace_file(folder / PAGE_NAME, page.encode())
    except OSError as error:
        return result, fail(str(error), ExitStatus.INCOMPLETE)
    text = "\n".join(list_soak_lines(result))
    session.say(f"\n{text}\n\nresult: {folder / PAGE_NAME}\n")
    if run_status > max(ExitStatus):  # a signal ended it
        return result, run_status
    return result, worst_exit_status([run_status, BY_VERDICT[result.verdict]])


def _is_simulated(run_folder: Path) -> bool:
    try:
        return read_run(run_folder).simulated
    except (OSError, ValueError):
        return False  # it ended before it wrote its facts


def list_soak_lines(result: SoakResult) -> Iterator[str]:
    """The whole result for the console. That the server is a simulator follows the verdict."""
    yield format_soak_line(result)
    yield from (note for note in result.notes if note == SIMULATED)
    yield ""
    yield from tabulate(list_rows(result), HEADERS, disable_numparse=True).splitlines()
    yield ""
    yield from list_soak_sentences(result)
    yield from (note for note in result.notes if note != SIMULATED)


def _read_run_time(text: str) -> int:
    try:
        seconds = int(parse_timespan(text))
    except ValueError:
        seconds = 0
    if seconds < LEAST_S:
        raise argparse.ArgumentTypeError(f"takes a time such as 20m or 4h, from 1m on, got {text}")
    return seconds


def make_soak_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm soak",
        allow_abbrev=False,
        usage="locust-llm soak --host URL -t TIME [options] [options of locust-llm run]",
        description=(
            "Send load for hours and find what grows: memory, open files, latencies, the queue, "
            "errors. Exit status 3: something grows; 4: nobody can tell yet."
        ),
        epilog="example: locust-llm soak --host localhost:8000 -u 4 -t 4h --pid 4711",
    )
    add = parser.add_argument
    add(
        "-t",
        "--run-time",
        type=_read_run_time,
        metavar="TIME",
        help="length of the soak, such as 4h; interruptions do not count",
    )
    add(
        "--continue",
        dest="continue_dir",
        type=Path,
        metavar="DIR",
        help="go on with an interrupted soak, for the rest of its time",
    )
    add(
        "--report-dir",
        type=Path,
        metavar="DIR",
        help="folder for the result (default: reports/soak-<time>)",
    )
    add(
        "--json",
        action="store_true",
        help="print the result as JSON at the end, and all else to standard error",
    )
    return parser
