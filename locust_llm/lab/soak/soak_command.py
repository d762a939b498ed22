"""Command ``locust-llm soak``: sends load for hours as a child run, takes readings beside it, and
judges what grows."""

import locust_llm.locust_adapter.command_line_parser

# isort: split
import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from locust.util.timespan import parse_timespan

import gevent
import msgspec

import locust_llm
from locust_llm.access.operator_command import OperatorCommand
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import ExitStatus, fail, worst_exit_status
from locust_llm.files.json_file import decode_json_file, replace_file
from locust_llm.lab.twin.child_runs import RunStopped, make_session_folder, run_locust_llm
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.settings.option_declaration import declared_options
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.settings.unrecorded_options import UnrecordedOptions
from locust_llm.text.console import write_console
from locust_llm.text.format import format_count, print_json
from locust_llm.text.hide_secrets import hide_url_secrets, remove_login_and_query
from locust_llm.text.sanitise import sanitise_text
from locust_llm.trends.steady_growth import GrowthVerdict

from .record_tail import RecordTail
from .server_looks import METRICS_SOURCE, ServerLooks
from .server_memory import parse_size, read_machine_memory
from .soak_judgement import find_worst_verdict, judge_soak
from .soak_page import render_soak_page
from .soak_readings import MOST_POINTS, SoakReading, is_restart, read_readings
from .soak_result import PAGE_NAME, RESULT_NAME, SoakResult, encode_soak_result
from .soak_sampler import HOUR_S, SoakSampler
from .soak_text import describe_progress, format_soak

PLAN_NAME: Final = "plan.json"
PARTS: Final = "parts"
MEMORY_FLAG: Final = "--memory-command"
LEAST_S: Final = 60
INTERVAL_S: Final = (1.0, 60.0)
PROGRESS_S: Final = (30.0, 900.0)
PROGRESS_LINES: Final = 24
LINE_CHARS: Final = 300
REFUSED_WORDS: Final = ("--sweep", "--find-max", "--repeats", "--headless", "--run-time", "-t")
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
    """The options that are not stored, as their values may be secrets or commands."""


class SoakSession(NamedTuple):
    """What one part of a soak needs."""

    plan: SoakPlan
    folder: Path
    words: tuple[str, ...]
    """The options of the run, also those that are not stored."""
    host: str
    looks: ServerLooks
    readings: list[SoakReading]
    """Of the earlier parts."""
    memory_limit_bytes: float | None
    say: Callable[[str], object]

    @property
    def every_s(self) -> float:
        least, most = INTERVAL_S
        return min(max(self.plan.run_time_s / MOST_POINTS, least), most)

    @property
    def part(self) -> int:
        return self.readings[-1].part + 1 if self.readings else 1

    @property
    def remaining_s(self) -> int:
        done_s = self.readings[-1].hours * HOUR_S if self.readings else 0.0
        return max(round(self.plan.run_time_s - done_s), 0)


def run_soak(words: list[str]) -> int:
    options, rest = make_soak_parser().parse_known_args(words)
    say = partial(write_console, out=sys.stderr if options.json else None)
    try:
        session = open_session(options, rest, say)
    except (OSError, ValueError) as error:
        return fail(sanitise_text(str(error), most=LINE_CHARS))
    try:
        status = run_part(session)
    finally:
        session.looks.close()
    result, own_status = finish_soak(session, status)
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
    if options.pid is not None and options.memory_command is not None:
        raise ValueError(f"--pid and {MEMORY_FLAG} exclude each other: use one of them")
    readings = list[SoakReading]()
    if options.continue_dir is not None:
        folder = options.continue_dir
        plan, run_words = _continue_plan(folder, options, rest)
        readings = _read_old_readings(folder)
    else:
        plan, run_words = _make_plan(options, rest)
        folder = options.report_dir or Path("reports") / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    access = _parse_access(run_words)
    headers = read_access_options(access)
    host = normalise_base_url(access.host)
    command = None
    if options.memory_command is not None:
        command = OperatorCommand(
            MEMORY_FLAG, options.memory_command, _list_header_secrets(headers)
        )
    looks = ServerLooks(
        host,
        headers,
        verify=False if access.insecure else find_trusted_certificates(),
        pid=options.pid,
        command=command,
    )
    looks.look()
    if looks.failure:
        looks.close()
        raise ValueError(looks.failure)
    if options.continue_dir is None:
        folder = make_session_folder(folder)
        replace_file(folder / PLAN_NAME, msgspec.json.encode(plan))
    limit = options.memory_limit
    if limit is None and options.pid is not None:
        limit = read_machine_memory()
    return SoakSession(
        plan, folder, tuple(run_words), remove_login_and_query(host), looks, readings, limit, say
    )


def _make_plan(options: argparse.Namespace, rest: Sequence[str]) -> tuple[SoakPlan, list[str]]:
    if options.run_time is None:
        raise ValueError("a soak needs its length: -t 4h")
    if any(hide_url_secrets(word) != word for word in rest):
        raise ValueError("an address with a login or key cannot be stored: give it as --header")
    stored, withheld = split_withheld(rest)
    if options.memory_command is not None:
        withheld = [*withheld, MEMORY_FLAG]
    if options.pid is not None:
        withheld = [*withheld, "--pid"]
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
    given |= {MEMORY_FLAG} if options.memory_command is not None else set()
    given |= {"--pid"} if options.pid is not None else set()
    missing = [flag for flag in plan.withheld if flag not in given]
    if missing:
        raise ValueError(f"give {' and '.join(missing)} again: a soak's folder does not hold it")
    if options.run_time is not None:
        plan = msgspec.structs.replace(plan, run_time_s=options.run_time)
    return plan, [*plan.words, *rest]


def split_withheld(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words that may be stored, flags of those that may hold a secret)."""
    secret = {
        option.flag: option.kind is not bool for option in declared_options(UnrecordedOptions)
    }
    stored = list[str]()
    withheld = list[str]()
    skip = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag in secret:
            withheld.append(flag)
            skip = secret[flag] and not equals
        elif skip:
            skip = False
        else:
            stored.append(word)
    return stored, list(dict.fromkeys(withheld))


def _read_old_readings(folder: Path) -> list[SoakReading]:
    try:
        return read_readings(folder)
    except FileNotFoundError:
        return []  # it was interrupted before its first reading


def _parse_access(words: Sequence[str]) -> argparse.Namespace:
    """What lets requests in, from the options of the run. Raises ValueError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-H", "--host", default=os.environ.get("LOCUST_LLM_HOST"))
    parser.add_argument("--endpoint-type", default="chat")
    add_access_options(parser)
    options, _ = parser.parse_known_args(words)
    options.address = None
    if not options.host:
        raise ValueError("give the server: --host localhost:8000")
    return options


def _list_header_secrets(headers: Mapping[str, str]) -> set[str]:
    values = list(headers.values())
    keys = (word for value in values if (word := value.split()[-1:]))
    return {*values, *chain.from_iterable(keys)}


def run_part(session: SoakSession) -> int:
    """Runs the load for the rest of the time, and takes readings. Returns the status of the run, or
    of the signal that ended it."""
    if session.remaining_s < 1:
        return ExitStatus.OK
    parts = session.folder / PARTS
    parts.mkdir(exist_ok=True)
    name = str(session.part)
    run_folder = make_session_folder(parts / name)
    words = [
        "run", *session.words, "--headless", f"--run-time={session.remaining_s}s",
        f"--report-dir={run_folder}",
    ]  # fmt: skip
    sampler = SoakSampler(
        session.folder,
        session.every_s,
        session.looks.look,
        RecordTail(run_folder).read_new,
        time.monotonic,
        before=session.readings[-1] if session.readings else None,
        unix_offset_s=time.time() - time.monotonic(),
    )
    session.say(f"soak of {session.host}: {session.folder}\n")
    job = gevent.spawn(_take_readings, session, sampler)
    try:
        return run_locust_llm(
            words,
            {**os.environ, "PYTHONUNBUFFERED": "1"},
            parts / f"{run_folder.name}.log",
            partial(_tell, session.say),
        )
    except RunStopped as stopped:
        session.say(f"\ncontinue it: locust-llm soak --continue {session.folder}\n")
        return stopped.status
    finally:
        job.kill()
        session.readings.extend(sampler.readings)


def _tell(say: Callable[[str], object], text: str) -> None:
    say(f"{sanitise_text(text, most=LINE_CHARS)}\n")


def _take_readings(session: SoakSession, sampler: SoakSampler) -> None:
    random = Random()
    planned = session.plan.run_time_s / HOUR_S
    least, most = PROGRESS_S
    pause_h = min(max(session.plan.run_time_s / PROGRESS_LINES, least), most) / HOUR_S
    told = session.readings[-1].hours if session.readings else 0.0
    while True:
        reading = sampler.step()
        if reading is not None and reading.ended and reading.hours >= told + pause_h:
            told = reading.hours
            found = list(judge_soak([*session.readings, *sampler.readings]))
            session.say(f"{describe_progress(found, reading.hours, planned)}\n")
        gevent.sleep(sampler.wait_s(random))


def finish_soak(session: SoakSession, run_status: int) -> tuple[SoakResult | None, int]:
    """Judges all readings, writes the result and its page. Returns the result and the exit
    status."""
    if not session.readings:
        if run_status in (ExitStatus.OK, ExitStatus.FAILED_REQUESTS):
            return None, fail("no reading was taken: no request ended", ExitStatus.INCOMPLETE)
        return None, run_status
    result = make_result(session)
    folder = session.folder
    reports = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.glob(f"{PARTS}/*/report.html"))
    ]
    try:
        replace_file(folder / RESULT_NAME, encode_soak_result(result))
        page = render_soak_page(result, session.readings, reports)
        replace_file(folder / PAGE_NAME, page.encode())
    except OSError as error:
        return result, fail(str(error), ExitStatus.INCOMPLETE)
    session.say(f"\n{format_soak(result)}\nresult: {folder / PAGE_NAME}\n")
    if run_status > max(ExitStatus):  # a signal ended it
        return result, run_status
    return result, worst_exit_status([run_status, BY_VERDICT[result.verdict]])


def make_result(session: SoakSession) -> SoakResult:
    readings = session.readings
    quantities = tuple(judge_soak(readings, session.memory_limit_bytes))
    return SoakResult(
        folder=str(session.folder),
        host=session.host,
        started=session.plan.started,
        version=locust_llm.__version__,
        verdict=find_worst_verdict(quantities),
        hours=readings[-1].hours,
        planned_hours=session.plan.run_time_s / HOUR_S,
        requests=readings[-1].requests,
        tokens=readings[-1].tokens,
        failed=sum(one.failed for one in readings),
        parts=readings[-1].part,
        restarts=sum(is_restart(*pair) for pair in pairwise(readings)),
        memory_source=session.looks.source,
        memory_limit_bytes=session.memory_limit_bytes,
        quantities=quantities,
        notes=tuple(_list_notes(session)),
    )


def _list_notes(session: SoakSession) -> list[str]:
    notes = []
    looks = session.looks
    restarts = sum(is_restart(*pair) for pair in pairwise(session.readings))
    if not any(one.memory_bytes is not None for one in session.readings):
        notes.append(
            f"WARNING: memory was not read: the server's metrics have none. Give --pid or {MEMORY_FLAG}."
        )
    elif looks.source == METRICS_SOURCE:
        notes.append(
            "Memory is of the process that serves the metrics page. Engines in other processes need "
            "--pid."
        )
    if looks.failed_looks:
        notes.append(
            f"WARNING: memory could not be read {format_count(looks.failed_looks, 'time')}: {looks.failure}."
        )
    if restarts:
        notes.append(
            f"WARNING: the server started anew {format_count(restarts, 'time')}. Memory, open files and "
            f"KV cache are judged from the last start on."
        )
    return notes


def _read_run_time(text: str) -> int:
    try:
        seconds = int(parse_timespan(text))
    except ValueError:
        seconds = 0
    if seconds < LEAST_S:
        raise argparse.ArgumentTypeError(f"takes a time such as 20m or 4h, from 1m on, got {text}")
    return seconds


def _read_size(text: str) -> float:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


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
        "--pid",
        type=int,
        metavar="PID",
        help="process of the server on this machine: read its memory and open files, and its children's",
    )
    add(
        MEMORY_FLAG,
        metavar="COMMAND",
        help=(
            "program that prints the server's memory, such as 123456789 or 1.5GiB; it runs without "
            "a shell and without API keys, for at most 10 seconds"
        ),
    )
    add(
        "--memory-limit",
        type=_read_size,
        metavar="SIZE",
        help="memory of the server, such as 16GiB, for the time until it is full (default with --pid: this machine's)",
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
