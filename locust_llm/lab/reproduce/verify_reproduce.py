"""Command ``locust-llm verify reproduce DIR`` replays the requests around a wrong answer, finds the few
that it needs, and writes a script that shows it."""

import locust_llm.locust_adapter.command_line_parser  # noqa: F401  first: Locust patches before the network is imported

# isort: split
import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from locust_llm.answers.fault_names import FAULT_SENTENCES, FOREIGN_MARKER
from locust_llm.client.requests_bridge import make_target
from locust_llm.client.tls_settings import find_trusted_certificates
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.duration_option import parse_duration_s
from locust_llm.locust_adapter.command_line_parser import add_access_options, read_access_options
from locust_llm.records.run_facts import Run, read_run
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.text.console import write_console
from locust_llm.text.format import clean_line, format_count, print_json
from locust_llm.text.hide_secrets import remove_login_and_query

from .recorded_fault import (
    RecordedFault,
    find_host,
    make_header_template,
    read_recorded_fault,
)
from .reduce_requests import GIVE_UP_TRIES, Odds, RequestReducer, SearchEnded, TriedSet
from .replay_program import (
    PAUSE_S,
    FindFault,
    HttpProxy,
    ReplayedRequest,
    Server,
    Try,
    find_leak,
)
from .replayed_integrity import make_fault_finder
from .reproduction import (
    NOT_REPRODUCED,
    SERVER_GONE,
    SMALLEST,
    TIME_OVER,
    Reproduction,
    TracedRequest,
    describe_odds,
)
from .reproduction_script import write_script

SCRIPT: Final = "reproduce.py"
TRACE: Final = "reproduce.json"
OWN_TRIES: Final = 10
"""So many tries without the fault in the answer that had it in the run, and each answer counts."""
CONFIRM_TRIES: Final = 20
"""Tries of the smallest set, for its odds."""
SEARCH_SHARE: Final = 0.9
"""The share of the time for the search. The rest counts the odds of what it found."""


class ReplaySession:
    """The tries of one search against one server."""

    def __init__(
        self, server: Server, requests: Sequence[ReplayedRequest], find_fault: FindFault
    ) -> None:
        """The last one of ``requests`` is the one whose answer had the fault in the run."""
        self._server, self._requests, self._find_fault = server, requests, find_fault
        self.is_own = True
        """Only the answer to the last request counts. False: each answer does."""
        self.found_elsewhere = False
        """An answer that does not count had the fault."""
        self.latest = float("inf")
        """No try lasts longer than to this time of the monotonic clock."""
        self.error = ""
        """Why the server does not answer any more. Empty: it does."""
        self.is_fresh: bool | None = None
        """Whether each try begins its prompts with a new word. None: every second one does, and
        ``settle`` decides."""
        self.tries = 0
        self._hits = [0, 0]
        self._number = 0

    def try_once(self, places: Sequence[int]) -> bool:
        """Returns whether the fault appeared. Raises SearchEnded."""
        if time.monotonic() + PAUSE_S >= self.latest:
            raise SearchEnded
        if self._number:
            time.sleep(PAUSE_S)
        self._number += 1
        is_fresh = self._number % 2 == 0 if self.is_fresh is None else self.is_fresh
        word = f"({os.urandom(4).hex()})" if is_fresh else ""
        one = Try(
            self._server,
            [self._requests[place] for place in places],
            self._find_fault,
            word,
            latest=self.latest,
            watched=self._requests[-1] if self.is_own else None,
            waits_for_all=self.is_fresh is None,
        )
        found = one.run()
        self.found_elsewhere = self.found_elsewhere or one.found_elsewhere
        if found:
            self._hits[is_fresh] += 1
        elif one.was_cut and time.monotonic() >= self.latest:
            raise SearchEnded
        elif not one.answered:
            self.error = one.error or "no request was answered"
            raise SearchEnded
        self.tries += 1
        return found

    def settle(self) -> None:
        """Keep the kind of tries in which the fault appeared more often."""
        self.is_fresh = self._hits[True] > self._hits[False]


def run_verify_reproduce(words: list[str]) -> int:
    """Returns 0 for a reproduction, 4 without one, and 5 if nothing could be replayed."""
    options = _make_parser().parse_args(words)
    folder: Path = options.folder
    try:
        run = read_run(folder)
        recorded = read_recorded_fault(folder, options.fault, run.settings.session_header or "")
        out: Path = options.out or folder
        if not out.is_dir():
            raise ValueError(f"{out} is no folder")
        options.address = None
        options.host = options.host or find_host(folder, run, recorded.fault.id)
        options.endpoint_type = run.settings.endpoint_type
        headers = read_access_options(options)
        reproduction = _reproduce(options, run, recorded, headers)
        if reproduction is None:
            return ExitStatus.REFUSED
        if reproduction.requests:
            _write_files(out, reproduction)
    except FileNotFoundError as error:
        return fail(f"{folder}: there is no {Path(error.filename or '').name}: no fault was found")
    except (OSError, ValueError) as error:
        return fail(clean_line(str(getattr(error, "strerror", None) or error)))
    say = _make_say(as_json=options.json)
    for line in describe_reproduction(reproduction, out):
        say(f"{line}\n")
    if options.json:
        print_json(reproduction)
    return ExitStatus.OK if reproduction.requests else ExitStatus.INCONCLUSIVE


def _make_say(*, as_json: bool) -> Callable[[str], object]:
    return lambda text: write_console(text, sys.stderr if as_json else None)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm verify reproduce",
        description=(
            "Replay the requests around a wrong answer, leave out what the fault does not need, and "
            f"write a script that shows it ({SCRIPT}) with a trace ({TRACE})."
        ),
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="folder of a run with --check-answers"
    )
    parser.add_argument(
        "--fault", type=_parse_number, default=1, metavar="N",
        help="line of answer_faults.jsonl (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("-H", "--host", help="server (default: the server of the run)")
    parser.add_argument(
        "-t", "--time", type=parse_duration_s, default=600.0, metavar="TIME",
        help="time limit (default: 10m)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="folder of the two files (default: DIR)"
    )
    parser.add_argument("--json", action="store_true", help="print the trace as JSON")
    add_access_options(parser)
    return parser


def _parse_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"takes a number from 1 on, got {text}")
    return int(text)


def _reproduce(
    options: argparse.Namespace, run: Run, recorded: RecordedFault, headers: Mapping[str, str]
) -> Reproduction | None:
    """None: the server answered nothing. Raises ValueError of one sentence."""
    say = _make_say(as_json=options.json)
    host = normalise_base_url(options.host)
    shown_host = remove_login_and_query(host)
    # the run's own request has the last place
    traced = [one for one in recorded.requests if one.id != recorded.fault.id]
    traced += [one for one in recorded.requests if one.id == recorded.fault.id]
    session = ReplaySession(
        connect_server(host, run, headers, insecure=options.insecure or run.settings.insecure),
        [ReplayedRequest(msgspec.to_builtins(request)) for request in traced],
        find_leak if recorded.name == FOREIGN_MARKER else make_fault_finder(recorded.name),
    )
    for line in describe_start(run, recorded, shown_host, options.time):
        say(f"{line}\n")
    begin = time.monotonic()
    session.latest = begin + SEARCH_SHARE * options.time
    search = search_requests(session, len(traced), lambda line: say(f"{line}\n"))
    if session.error:
        why = f"{shown_host} does not answer: {clean_line(session.error)}"
        if not search.first.tries:
            fail(why)
            return None
        say(f"WARNING: {why}\n")
    session.latest = begin + options.time
    odds = Odds(0, 0) if session.error else confirm_odds(session, search)
    return Reproduction(
        title=clean_line(f"{FAULT_SENTENCES[recorded.name]} ({run.server or 'unknown server'})"),
        run=run.name,
        fault=recorded.name,
        request=recorded.fault.id,
        result=search.result,
        host=shown_host,
        path=run.settings.endpoint,
        headers=make_header_template(run.settings.endpoint_type),
        model=run.model,
        server=run.server,
        server_flags=run.server_flags,
        random_seed=run.settings.random_seed,
        words_seed=run.words_seed,
        version=version("locust-llm"),
        replayed=len(traced),
        left_out=recorded.left_out,
        fresh=bool(session.is_fresh),
        first_odds=describe_odds(search.first),
        odds=describe_odds(odds),
        tries=session.tries,
        steps=search.steps,
        seconds=round(time.monotonic() - begin, 3),
        requests=shift_to_first([traced[place] for place in search.places]),
    )


def connect_server(host: str, run: Run, headers: Mapping[str, str], *, insecure: bool) -> Server:
    """The server with the certificates, the source address and the proxy that a run would use.
    Raises OSError, and ValueError for a proxy that cannot be used."""
    target = make_target(host, False if insecure else find_trusted_certificates(), None)
    source = "" if target.sources is None else target.sources.addresses[0]
    proxy = target.proxy
    if proxy is not None and proxy.mistake:
        raise ValueError(f"the proxy {proxy.mistake}")
    hop = None if proxy is None else HttpProxy(proxy.host, proxy.port, proxy.login)
    return Server(host, run.settings.endpoint, headers, target.tls, source, hop)


def shift_to_first(requests: Sequence[TracedRequest]) -> tuple[TracedRequest, ...]:
    """The requests in the order of their times, which begin with the first of them."""
    ordered = sorted(requests, key=lambda request: request.at_s)
    return tuple(
        [
            msgspec.structs.replace(request, at_s=round(request.at_s - ordered[0].at_s, 6))
            for request in ordered
        ]
    )


class Search(NamedTuple):
    """What the search for a smaller set found."""

    result: str
    first: Odds
    """Of all requests."""
    places: tuple[int, ...] = ()
    """The smallest set with the fault. Empty: it did not appear."""
    steps: int = 0


def search_requests(session: ReplaySession, count: int, say: Callable[[object], object]) -> Search:
    """``count``: of all requests. The answer that had the fault in the run counts alone, if it has
    the fault in one of the first tries."""
    own: tuple[int, ...] = (count - 1,)
    reducer = RequestReducer(
        count - 1,
        lambda places: session.try_once((*places, count - 1)),
        lambda step: say(step._replace(requests=step.requests + 1)),
        least=0,
    )
    first = reducer.try_all(OWN_TRIES)
    if not first.hits and not session.error:
        if session.found_elsewhere:
            say(f"{first.tries} tries showed the fault in other answers only: each answer counts.")
        missed = 0 if session.found_elsewhere else first.tries
        own = ()
        session.is_own = False
        reducer = RequestReducer(count, session.try_once, say)
        later = reducer.try_all()
        first = Odds(later.hits, later.tries + missed)
    if not first.hits:
        return Search(NOT_REPRODUCED, first)
    say(TriedSet(count, first.tries, first.hits))
    session.settle()
    result = TIME_OVER
    if reducer.leave_out():
        result = SMALLEST
    elif session.error:
        result = SERVER_GONE
    return Search(result, first, (*reducer.requests, *own), reducer.steps)


def confirm_odds(session: ReplaySession, search: Search) -> Odds:
    """The odds of the smallest set, where each answer counts, as in the script. The search ends
    with a hit, so its own tries would show too high ones."""
    session.is_own = False
    hits = tries = 0
    with suppress(SearchEnded):
        while search.places and tries < CONFIRM_TRIES:
            hits += session.try_once(search.places)
            tries += 1
    return Odds(hits, tries)


def _write_files(out: Path, reproduction: Reproduction) -> None:
    data = msgspec.json.encode(reproduction)
    replace_file(out / TRACE, msgspec.json.format(data, indent=1) + b"\n")
    replace_file(out / SCRIPT, write_script(msgspec.to_builtins(reproduction)).encode())


# -- sentences -------------------------------------------------------------------------------------


def describe_start(run: Run, recorded: RecordedFault, host: str, seconds: float) -> list[str]:
    span_s = recorded.requests[-1].at_s
    lines = [
        f"{recorded.name}: {FAULT_SENTENCES[recorded.name]} (request {recorded.fault.id})",
        f"{format_count(len(recorded.requests), 'request')} over {span_s:.1f} s are replayed to "
        f"{host}, for at most {seconds / 60:g} min.",
    ]
    if recorded.left_out:
        count = format_count(recorded.left_out, "request")
        lines.append(f"WARNING: {count} cannot be replayed: bodies with secrets are not kept.")
    if len(run.workers) > 1:
        lines.append(
            f"WARNING: the run had {len(run.workers)} processes. Only the requests of the process "
            "with the fault are known."
        )
    return lines


def describe_reproduction(reproduction: Reproduction, out: Path) -> list[str]:
    """The last lines of the command."""
    minutes = f"{reproduction.seconds / 60:.1f} min"
    count = format_count(reproduction.replayed, "request")
    first, odds = reproduction.first_odds, reproduction.odds
    if reproduction.result == NOT_REPRODUCED:
        lines = [
            f"Not reproduced: the fault did not appear in {format_count(first.tries, 'try', 'tries')} "
            f"of {count} in {minutes}. Its odds in a try are at most {first.high:.1%} (95% "
            "confidence)."
        ]
        if first.tries < GIVE_UP_TRIES:
            lines.append("More tries need more time (-t).")
        return lines
    size = len(reproduction.requests)
    verb = "suffices" if size == 1 else "suffice"
    tries = format_count(reproduction.tries, "try", "tries")
    lines = [f"Reproduced: {size} of {count} {verb} ({tries} in {minutes})."]
    if odds.tries:
        lines.append(
            f"The fault appeared in {odds.hits} of {odds.tries} tries of them (95% interval of "
            f"the odds: {odds.low:.0%} to {odds.high:.0%})."
        )
    if reproduction.result == TIME_OVER:
        lines.append("The time was over: fewer requests may suffice (-t).")
    elif reproduction.result == SERVER_GONE:
        lines.append("The server did not answer any more: fewer requests may suffice.")
    lines.append(f"{out / SCRIPT} shows it: python3 {SCRIPT}. {out / TRACE} has the requests.")
    return lines
