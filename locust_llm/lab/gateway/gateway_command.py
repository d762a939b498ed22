"""Command ``locust-llm gateway``: what a proxy, router or gateway adds, changes and hides. Parses its
options, starts the timed upstream, and runs the parts one after the other."""

import locust_llm.locust_adapter.command_line_parser  # first: Locust patches before the network is imported

# isort: split
import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import gevent
from msgspec.structs import replace

import locust_llm
from locust_llm.client.request_exchange import UserConnection
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import BY_RULES, ExitStatus, fail, worst_exit_status
from locust_llm.files.json_file import replace_file
from locust_llm.lab.duration_option import make_duration_reader
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.locust_adapter.option_names_of_other_tools import unknown_options
from locust_llm.records.outcomes import OK
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.text.console import write_console
from locust_llm.text.format import print_json
from locust_llm.text.hide_secrets import remove_login_and_query
from locust_llm.text.sanitise import sanitise_text

from .added_levels import GatewayWay, LevelRunner
from .added_series import measure_series
from .cancel_trials import run_cancel_trials
from .change_trials import TRIALS, ChangesFound, run_change_trials
from .fault_trials import run_fault_trials
from .gateway_client import DIRECT, Exchange, exchange_script, make_address
from .gateway_page import render_gateway_page
from .gateway_result import (
    CANCELS,
    CHANGES,
    FAULTS,
    PARTS,
    RESULT_NAME,
    ROUTING,
    TIMES,
    GatewayResult,
    encode_gateway_result,
    read_gateway_result,
)
from .gateway_rules import GatewayRule, judge_gateway_rules, parse_gateway_rule
from .gateway_text import format_gateway_table
from .header_trials import run_death_trial, run_header_trial, run_spread_trials
from .process_cost import ProcessUse, find_container_pid, read_process_use
from .upstream_log import UpstreamLog, UpstreamRequest
from .upstream_process import UpstreamReplicas
from .upstream_script import UpstreamScript

LEVELS: Final = (1, 4, 16, 64, 100, 200)
RATES: Final = (25, 50, 100, 200)
FEW_TRIALS: Final = 5
SHORT_S: Final = 120.0
"""A shorter run has fewer trials of changes."""
PREFLIGHT_S: Final = 10.0
READY_S: Final = 5.0
RETRY_S: Final = 0.25
NOT_READY: Final = (502, 503, 504)
"""With these statuses a gateway reports that it has no upstream."""
GONE: Final = "the gateway gives no good answer any more after the failures of the upstream"
"""The note of a gateway whose added time cannot be measured."""
LOG_S: Final = 2.0
LINE_CHARS: Final = 300
PAGE_NAME: Final = "gateway.html"
MOST_REPLICAS: Final = 16
parse_gateway_time: Final = make_duration_reader("1us", "24h")
CONFIGURE: Final = (
    "point its backend to {url} (deploy/gateway has configurations of nginx, HAProxy, Caddy and "
    "LiteLLM)"
)


class GatewayOption(NamedTuple):
    """One ``--gateway``."""

    name: str
    url: str
    pid: int | None = None


class GatewayPlan(NamedTuple):
    """What the options ask for."""

    gateways: tuple[GatewayOption, ...]
    upstream_host: str
    upstream_port: int
    replicas: int
    limit_ms: float
    time_s: float
    levels: tuple[int, ...]
    rates: tuple[float, ...]
    parts: tuple[str, ...]
    rules: tuple[GatewayRule, ...]
    model: str
    folder: Path
    headers: Mapping[str, str]
    verify: bool | str


class PreflightFailed(Exception):
    """The gateway cannot be measured. Its text is a sentence for the user."""


def run_gateway(words: list[str]) -> int:
    if words[:1] == ["report"]:
        return show_gateway_results(words[1:])
    parser = _make_parser()
    if refusal := unknown_options(words, parser._option_string_actions):
        return fail(refusal)
    options = parser.parse_args(words)
    say = partial(write_console, out=sys.stderr if options.json else None)
    try:
        plan = _read_plan(options)
        plan.folder.mkdir(parents=True, exist_ok=True)
        replicas = UpstreamReplicas(
            plan.folder, plan.replicas, plan.upstream_port, plan.upstream_host
        )
    except (OSError, ValueError) as error:
        return fail(sanitise_text(str(error), most=LINE_CHARS))
    page = plan.folder / PAGE_NAME
    with replicas:
        try:
            benches = [GatewayBench(plan, option, replicas, say) for option in plan.gateways]
            for bench in benches:
                bench.check_way()
        except (PreflightFailed, OSError) as error:
            return fail(sanitise_text(str(error), most=LINE_CHARS))
        try:
            results = _measure_all(plan, benches, say)
            replace_file(page, render_gateway_page(results).encode())
        except OSError as error:
            # the port of a replica that must start again is taken, or the disk is full
            return fail(sanitise_text(str(error), most=LINE_CHARS), ExitStatus.INCOMPLETE)
    for result in results:
        say("\n" + format_gateway_table(result))
    say(f"\nresult: {page}\n")
    if options.json:
        print_json(results)
    rules = chain.from_iterable(result.rules for result in results)
    statuses = [BY_RULES[rule.verdict] for rule in rules]
    statuses += [ExitStatus.INCOMPLETE for result in results if GONE in result.notes]
    return worst_exit_status([ExitStatus.OK, *statuses])


def show_gateway_results(words: list[str]) -> int:
    """``gateway report A B``: a page of the results of earlier runs, side by side."""
    parser = argparse.ArgumentParser(
        prog="locust-llm gateway report",
        description="Make one page of several results, side by side.",
    )
    parser.add_argument("result", nargs="+", type=Path, help="gateway.json, or its folder")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(PAGE_NAME), help="page (default: %(default)s)"
    )
    options = parser.parse_args(words)
    try:
        results = [read_gateway_result(path) for path in options.result]
        replace_file(options.output, render_gateway_page(results).encode())
    except (OSError, ValueError) as error:
        return fail(sanitise_text(str(error), most=LINE_CHARS))
    for result in results:
        write_console("\n" + format_gateway_table(result))
    write_console(f"\nresult: {options.output}\n")
    return ExitStatus.OK


class GatewayBench:
    """The run of one gateway."""

    def __init__(
        self,
        plan: GatewayPlan,
        option: GatewayOption,
        replicas: UpstreamReplicas,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._option = option
        self._replicas = replicas
        self._say = say
        self._clock = clock
        self.direct = make_address(
            DIRECT, replicas.urls[0], plan.headers, model=plan.model, verify=plan.verify
        )
        self._through = make_address(
            option.name, option.url, plan.headers, model=plan.model, verify=plan.verify
        )
        self._run = f"{option.name}-{os.getpid()}"
        self._log = UpstreamLog(replicas.folder)
        self._server = ""

    @property
    def name(self) -> str:
        return self._option.name

    @property
    def way(self) -> GatewayWay:
        return GatewayWay(self._through, self._read_use)

    # -- before the run

    def check_way(self) -> None:
        """Send one request through the gateway. Raises PreflightFailed unless our upstream answers
        it, on this machine's clock."""
        exchange = self._ask_until_ready("preflight")
        script = exchange.script
        answer = exchange.parse()
        name = f"the gateway {self._option.name} at {remove_login_and_query(self._option.url)}"
        if answer.status is None:
            raise PreflightFailed(
                f"{name} gave no answer ({exchange.outcome}: {exchange.message}); start it, or give "
                f"its address with --gateway"
            )
        reached = self._wait_for_row(script.id)
        if reached is None:
            raise PreflightFailed(
                f"{name} answered HTTP {answer.status}, but its request did not reach the "
                f"upstream: {CONFIGURE.format(url=self._replicas.urls[0])}"
            )
        if exchange.outcome != OK:
            raise PreflightFailed(
                f"{name} reached the upstream, and yet the client got {exchange.outcome}: "
                f"{exchange.message}"
            )
        self._check_clock(exchange, name)
        server = answer.header("server")
        self._server = "" if server == "gwbench" else server

    def _ask_until_ready(self, what: str) -> Exchange:
        """Ask again for some seconds while the gateway finds no upstream: one with health checks
        needs a moment."""
        until = self._clock() + READY_S
        attempt = 0
        while True:
            attempt += 1
            script = UpstreamScript(
                id=f"{self._run}-{what}-{attempt}", ttft_ms=1, gap_ms=1, tokens=2
            )
            line = UserConnection()
            exchange = exchange_script(
                line, self._through, script, stream=False, timeout_s=PREFLIGHT_S
            )
            line.close()
            if exchange.parse().status not in NOT_READY or self._clock() > until:
                return exchange
            gevent.sleep(RETRY_S)

    def _check_clock(self, exchange: Exchange, name: str) -> None:
        """Raises PreflightFailed where the upstream that answered has another clock."""
        times = exchange.times()
        received_ns = times.received_ns
        if received_ns is None:
            raise PreflightFailed(
                f"{name} changes the text of answers, so their times cannot be read: switch off "
                f"what rewrites text"
            )
        if not exchange.sent_ns <= received_ns <= exchange.ended_ns:
            raise PreflightFailed(
                f"{name} got its answer from an upstream with another clock, so times per token "
                f"cannot be measured: {CONFIGURE.format(url=self._replicas.urls[0])}"
            )

    def _wait_for_row(self, identity: str) -> UpstreamRequest | None:
        until = self._clock() + LOG_S
        while True:
            for row in self._log.read():
                if row.id == identity:
                    return row
            if self._clock() > until:
                return None
            gevent.sleep(0.1)

    # -- the run

    def measure_behaviour(self) -> GatewayResult:
        """All but the added times."""
        plan = self._plan
        result = GatewayResult(
            name=self._option.name,
            url=remove_login_and_query(self._option.url),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            version=locust_llm.__version__,
            machine=describe_machine(),
            server=self._server,
            limit_ms=plan.limit_ms,
            parts=tuple(part for part in plan.parts if part != TIMES),
        )
        if CHANGES in plan.parts:
            found = self._find_changes()
            result = replace(
                result,
                changes=found.changes,
                direct_changes=found.direct_changes,
                lost_chunks=found.lost_chunks,
            )
        result = self._add_behaviour(result)
        if self._ask_until_ready("again").outcome != OK:
            result = replace(result, notes=(*result.notes, GONE))
        return result

    def _tell(self, what: str) -> None:
        self._say(f"{self._option.name}: {what}\n")

    def _find_changes(self) -> ChangesFound:
        self._tell("changes of streams")
        trials = FEW_TRIALS if self._plan.time_s < SHORT_S else TRIALS
        return run_change_trials(self.direct, self._through, f"{self._run}-changes", trials)

    def _add_behaviour(self, result: GatewayResult) -> GatewayResult:
        """Failures, cancellations, headers and routing."""
        parts = self._plan.parts
        direct = self.direct
        through = self._through
        if FAULTS in parts:
            self._tell("failures of the upstream")
            faults = run_fault_trials(direct, through, self._log.read, f"{self._run}-faults")
            result = replace(result, faults=faults)
        if CANCELS in parts:
            self._tell("cancellations")
            cancels = run_cancel_trials(through, self._log.read, f"{self._run}-cancels")
            result = replace(result, cancels=cancels)
        if ROUTING in parts:
            self._tell("headers and routing")
            headers = run_header_trial(direct, through, self._log.read, f"{self._run}-headers")
            result = replace(result, headers=headers)
            count = len(self._replicas)
            if count > 1:
                spread = run_spread_trials(through, count, f"{self._run}-spread")
                death = run_death_trial(
                    through, self._replicas, self._log.read, f"{self._run}-death"
                )
                result = replace(result, spread=spread, death=death)
        return result

    def _read_use(self) -> ProcessUse | None:
        return None if self._option.pid is None else read_process_use(self._option.pid)


def _measure_all(
    plan: GatewayPlan,
    benches: Sequence[GatewayBench],
    say: Callable[[str], object],
) -> list[GatewayResult]:
    """The behaviour of each gateway, then the added times of all, in turn. Results are written as
    they come, as the next part may end the run."""
    began_at = time.monotonic()
    results = dict[str, GatewayResult]()
    for bench in benches:
        results[bench.name] = bench.measure_behaviour()
        _write_result(plan, results[bench.name])
    if TIMES in plan.parts:
        left_s = plan.time_s - (time.monotonic() - began_at)
        results = _add_times(plan, benches, results, left_s, say)
    busy = describe_busy_machine(os.getloadavg()[0], os.cpu_count() or 1)
    finished = list[GatewayResult]()
    for result in results.values():
        result = replace(result, notes=(*result.notes, *filter(None, [busy])))
        result = replace(result, rules=judge_gateway_rules(plan.rules, result))
        finished.append(result)
        _write_result(plan, result)
    return finished


def _add_times(
    plan: GatewayPlan,
    benches: Sequence[GatewayBench],
    results: Mapping[str, GatewayResult],
    left_s: float,
    say: Callable[[str], object],
) -> dict[str, GatewayResult]:
    """The results with the added times of the gateways that still answer."""
    added = dict(results)
    measured = [bench for bench in benches if GONE not in results[bench.name].notes]
    if not measured:
        return added
    run = f"times-{os.getpid()}"
    ways = [bench.way for bench in measured]
    runner = LevelRunner(measured[0].direct, ways, run, plan.limit_ms, Random(run))
    names = [bench.name for bench in measured]
    try:
        series = measure_series(
            runner, names, plan.levels, plan.rates, left_s, lambda what: say(f"{what}\n")
        )
    finally:
        runner.close()
    for name, one in series.items():
        result = results[name]
        added[name] = replace(
            result,
            parts=(*result.parts, TIMES),
            levels=tuple(one.levels),
            without_load=one.without_load,
            notes=(*result.notes, *one.notes),
            lost_chunks=(result.lost_chunks or 0) + one.lost_chunks,
        )
    return added


def _write_result(plan: GatewayPlan, result: GatewayResult) -> None:
    folder = plan.folder
    if len(plan.gateways) > 1:
        folder = folder / _name_folder(result.name)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / RESULT_NAME, encode_gateway_result(result))


def describe_busy_machine(load: float, cpus: int) -> str:
    """Empty: the machine had time."""
    if load <= cpus:
        return ""
    return f"the machine was busy (load average {load:.1f} on {cpus} CPUs): high percentiles may come from the machine"


def describe_machine() -> str:
    return f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()} {platform.release()}"


def _name_folder(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name) or "gateway"


# -- options ---------------------------------------------------------------------------------------


def parse_numbers(text: str) -> tuple[float, ...]:
    """Parses ``1,16,64``; empty: none."""
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes numbers such as 1,16,64, got {text}") from None
    if any(not 0 < number <= 10_000 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 10,000, got {text}")
    return numbers


def parse_levels(text: str) -> tuple[int, ...]:
    """Parses ``1,16,64``, whole numbers only; empty: none."""
    numbers = parse_numbers(text)
    if any(number != int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"takes whole numbers, got {text}")
    return tuple(map(int, numbers))


def parse_replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_REPLICAS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_REPLICAS}, got {text}")
    return int(text)


def parse_parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise argparse.ArgumentTypeError(f"takes some of {','.join(PARTS)}, got {text}")
    return parts


def parse_upstream(text: str) -> tuple[str, int]:
    """(address, port) of ``9000`` or ``0.0.0.0:9000``. Raises ValueError with a sentence."""
    if "//" in text:
        raise ValueError(
            f"--upstream {text}: it takes the port at which this command starts the upstream, as "
            f"times per token need one clock; run it on the machine of the upstream"
        )
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"--upstream takes a port, such as 9000 or 0.0.0.0:9000, got {text}")
    return host.strip("[]") or "127.0.0.1", int(port)


def name_gateways(texts: Sequence[str]) -> list[tuple[str, str]]:
    """(name, URL) of each ``[NAME=]URL``. Raises ValueError with a sentence."""
    named = list[tuple[str, str]]()
    for text in texts:
        match = re.fullmatch(r"(?:([\w .-]+)=)?(.+)", text.strip())
        if match is None:
            raise ValueError(f"--gateway takes [NAME=]URL, got {text!r}")
        url = normalise_base_url(match[2])
        named.append((match[1] or remove_login_and_query(url).partition("://")[2], url))
    names = [name for name, _ in named]
    if len(set(names)) < len(names) or DIRECT in names:
        raise ValueError(f"each --gateway needs a name of its own, and none is called {DIRECT}")
    return named


def _read_plan(options: argparse.Namespace) -> GatewayPlan:
    """Raises OSError and ValueError."""
    named = name_gateways(options.gateway)
    options.address = None
    options.host = named[0][1]
    headers = read_access_options(options)
    pids: list[int | None] = [
        one if isinstance(one, int) else find_container_pid(one) for one in options.processes
    ]
    if len(pids) > len(named):
        raise ValueError("give at most one --pid or --container for each --gateway, in their order")
    pids += [None] * (len(named) - len(pids))
    gateways = [GatewayOption(name, url, pid) for (name, url), pid in zip(named, pids, strict=True)]
    missing = [pid for pid in pids if pid is not None and read_process_use(pid) is None]
    if missing:
        raise ValueError(
            f"process {missing[0]}: there is no such process, or this user may not read it"
        )
    host, port = parse_upstream(options.upstream)
    folder = options.output or Path("reports") / f"gateway-{time.strftime('%Y%m%d-%H%M%S')}"
    return GatewayPlan(
        gateways=tuple(gateways),
        upstream_host=host,
        upstream_port=port,
        replicas=options.replicas,
        limit_ms=options.limit * 1e3,
        time_s=options.time,
        levels=options.levels,
        rates=options.rates,
        parts=options.parts,
        rules=tuple(map(parse_gateway_rule, options.slo)),
        model=options.model,
        folder=folder,
        headers=headers,
        verify=False if options.insecure else find_trusted_certificates(),
    )


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm gateway",
        description=(
            "Measure what a proxy, router or gateway adds to answers, changes in them and hides. "
            "The command starts a timed upstream, to which the gateway must forward."
        ),
        epilog=(
            "example: locust-llm gateway --gateway nginx=localhost:8080 --upstream 9000 "
            "--slo 'added_ttft p99 < 5ms'"
        ),
    )
    add = parser.add_argument
    add(
        "--gateway",
        action="append",
        required=True,
        metavar="[NAME=]URL",
        help="address of the gateway; repeat it to compare several",
    )
    add(
        "--upstream",
        default="9000",
        metavar="[ADDR:]PORT",
        help="port at which the timed upstream listens (default: 9000 at 127.0.0.1)",
    )
    add(
        "--replicas",
        type=parse_replicas,
        default=1,
        metavar="N",
        help="upstreams, at ports in a row; two or more also test the routing (default: 1)",
    )
    add(
        "--pid",
        type=int,
        action="append",
        dest="processes",
        default=[],
        metavar="PID",
        help="process of the gateway, whose CPU and memory are measured",
    )
    add(
        "--container",
        action="append",
        dest="processes",
        default=[],
        metavar="NAME",
        help="container of the gateway, instead of --pid",
    )
    add(
        "--limit",
        type=parse_gateway_time,
        default=0.005,
        metavar="TIME",
        help="raise the load until p99 of the added time passes this (default: 5ms)",
    )
    add(
        "--levels",
        type=parse_levels,
        default=LEVELS,
        metavar="N,N,...",
        help=f"numbers of streams at once (default: {','.join(map(str, LEVELS))})",
    )
    add(
        "--rates",
        type=parse_numbers,
        default=RATES,
        metavar="N,N,...",
        help=f"short requests per second, '' for none (default: {','.join(map(str, RATES))})",
    )
    add(
        "--parts",
        type=parse_parts,
        default=PARTS,
        metavar="PART,...",
        help=f"parts of the test (default: {','.join(PARTS)})",
    )
    add(
        "--slo",
        action="append",
        default=[],
        metavar="RULE",
        help="rule such as 'added_ttft p99 < 5ms' or 'hidden_failures == 0'; repeatable",
    )
    add(
        "-t",
        "--time",
        type=parse_gateway_time,
        default=300.0,
        metavar="TIME",
        help="approximate time of the test (default: 5m)",
    )
    add("--model", default="gwbench", help="model to request (default: %(default)s)")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for the result (default: reports/gateway-<time>)",
    )
    add(
        "--json",
        action="store_true",
        help="print the results as JSON at the end, and all else to standard error",
    )
    add_access_options(parser)
    return parser
