"""Command ``locust-llm verify reproduce DIR`` replays the requests around a wrong answer, finds the few
that it needs, and writes a script that shows it."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.access.headers_and_api_key import HEADER_VALUE, NO_LINE
from locust_llm.answers.fault_names import FAULT_SENTENCES, FOREIGN_MARKER
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.duration_option import parse_duration_s
from locust_llm.records.run_facts import Run, read_run
from locust_llm.settings.environment_and_config_file import read_variable_lines
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.text.console import write_console
from locust_llm.text.format import clean_line, format_count, print_json

from .recorded_fault import (
    RecordedFault,
    find_host,
    make_header_template,
    read_recorded_fault,
    strip_secrets,
)
from .reduce_requests import GIVE_UP_TRIES, Odds, RequestReducer, SearchEnded, Step
from .replay_program import (
    KEY_VARIABLE,
    PAUSE_S,
    FindFault,
    ReplayedRequest,
    Server,
    Try,
    find_leak,
    make_headers,
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
SEARCH_SHARE: Final = 0.9
"""The share of the time for the search. The rest counts the odds of what it found."""


class ReplaySession:
    """The tries of one search against one server."""

    def __init__(
        self,
        server: Server,
        own: ReplayedRequest,
        others: Sequence[ReplayedRequest],
        find_fault: FindFault,
    ) -> None:
        """``own``: the request whose answer had the fault in the run. It is the last place."""
        self._server, self._find_fault = server, find_fault
        self._own, self._requests = own, (*others, own)
        self.is_own = True
        """Only the answer to the run's own request counts, and each try sends it. False: each
        answer counts."""
        self.found_elsewhere = False
        self.latest = float("inf")
        """No try lasts longer than to this time of the monotonic clock."""
        self.error = ""
        """Why the server does not answer any more. Empty: it does."""
        self.is_fresh: bool | None = None
        """Whether each try begins its prompts with a new word. None: every second one does, and
        ``settle`` decides."""
        self._hits = [0, 0]
        self.tries = 0
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
        requests = [self._requests[place] for place in places]
        watched = None
        if self.is_own:
            requests.append(self._own)
            watched = self._own
        one = Try(
            self._server, requests, self._find_fault, word, latest=self.latest, watched=watched
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
        host = normalise_base_url(options.host or find_host(folder, run, recorded.fault.id))
        reproduction = _reproduce(options, run, recorded, host)
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


def _make_say(*, as_json: bool) -> Any:
    return lambda text: write_console(text, sys.stderr if as_json else None)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm verify reproduce",
        description=(
            "Replay the requests around a wrong answer of a run, leave out requests as long as the "
            f"fault still appears, and write a script that shows it ({SCRIPT}) with a trace "
            f"({TRACE})."
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
        help="time limit, such as 90s or 20m (default: 10m)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="folder of the two files (default: DIR)"
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE",
        help="header of each request; may be repeated, and is written nowhere",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the trace as JSON")
    return parser


def _parse_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"takes a number from 1 on, got {text}")
    return int(text)


def _reproduce(
    options: argparse.Namespace, run: Run, recorded: RecordedFault, host: str
) -> Reproduction | None:
    """None: the server answered nothing. Raises ValueError of one sentence."""
    say = _make_say(as_json=options.json)
    settings = run.settings
    template = make_header_template(settings.endpoint_type)
    if not HEADER_VALUE.fullmatch(os.environ.get(KEY_VARIABLE, "").strip()):
        raise ValueError(NO_LINE)
    headers = make_headers(template, [*read_variable_lines("LOCUST_LLM_HEADERS"), *options.header])
    server = Server(host, settings.endpoint, headers, insecure=settings.insecure)
    traced = [one for one in recorded.requests if one.id != recorded.fault.id]
    traced += [one for one in recorded.requests if one.id == recorded.fault.id]
    *others, own = [ReplayedRequest(msgspec.to_builtins(request)) for request in traced]
    is_leak = recorded.name == FOREIGN_MARKER
    finder = find_leak if is_leak else make_fault_finder(recorded.name)
    session = ReplaySession(server, own, others, finder)
    for line in describe_start(run, recorded, strip_secrets(host), options.time):
        say(f"{line}\n")
    begin = time.monotonic()
    session.latest = begin + SEARCH_SHARE * options.time
    search = search_requests(session, len(others), lambda line: say(f"{line}\n"))
    first, reducer = search.first, search.reducer
    if not first.tries and session.error:
        fail(f"{strip_secrets(host)} does not answer: {clean_line(session.error)}")
        return None
    session.latest = begin + options.time
    session.is_own = False
    odds = Odds(0, 0)
    chosen: list[TracedRequest] = []
    if first.hits:
        reducer.requests = search.places
        odds = odds if session.error else reducer.confirm()
        chosen = [traced[place] for place in reducer.requests]
        chosen.sort(key=lambda request: request.at_s)
    first_at_s = chosen[0].at_s if chosen else 0.0
    result = TIME_OVER
    if search.is_smallest:
        result = SMALLEST
    elif session.error:
        result = SERVER_GONE
    return Reproduction(
        title=clean_line(f"{FAULT_SENTENCES[recorded.name]} ({run.server or 'unknown server'})"),
        run=run.name,
        fault=recorded.name,
        request=recorded.fault.id,
        result=result if first.hits else NOT_REPRODUCED,
        host=strip_secrets(host),
        path=settings.endpoint,
        headers=template,
        model=run.model,
        server=run.server,
        server_flags=run.server_flags,
        random_seed=settings.random_seed,
        words_seed=run.words_seed,
        version=version("locust-llm"),
        replayed=len(traced),
        left_out=recorded.left_out,
        fresh=bool(session.is_fresh),
        first_odds=describe_odds(first),
        odds=describe_odds(odds),
        tries=session.tries,
        steps=reducer.steps,
        seconds=round(time.monotonic() - begin, 3),
        requests=tuple(
            [
                msgspec.structs.replace(request, at_s=round(request.at_s - first_at_s, 6))
                for request in chosen
            ]
        ),
    )


class Search(NamedTuple):
    """What the search for a smaller set found."""

    first: Odds
    """Of all requests."""
    places: tuple[int, ...]
    """The smallest set with the fault, the run's own request with it."""
    is_smallest: bool
    reducer: RequestReducer


def search_requests(session: ReplaySession, others: int, say: Callable[[object], object]) -> Search:
    """``others``: how many requests there are beside the run's own one, which has the last place.
    Its answer counts alone if it has the fault at all."""
    reducer = RequestReducer(
        others, session.try_once, lambda step: say(step._replace(requests=step.requests + 1)),
        least=0,
    )  # fmt: skip
    first = reducer.try_all(OWN_TRIES)
    pinned: tuple[int, ...] = (others,)
    if not first.hits:
        if session.found_elsewhere:
            say(f"{first.tries} tries showed the fault in other answers only: each answer counts.")
        missed = 0 if session.found_elsewhere else first.tries
        session.is_own = False
        pinned = ()
        reducer = RequestReducer(others + 1, session.try_once, say)
        first = reducer.try_all()
        first = Odds(first.hits, first.tries + missed)
    session.settle()
    is_smallest = False
    if first.hits:
        say(Step(others + 1, first.tries, first.hits))
        is_smallest = reducer.leave_out()
    return Search(first, (*reducer.requests, *pinned), is_smallest, reducer)


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
        lines.append(f"WARNING: {count} cannot be replayed, as their bodies would hold a secret.")
    if len(run.workers) > 1:
        lines.append(
            f"WARNING: the run had {len(run.workers)} processes. Only the requests of the process "
            "with the fault are known."
        )
    return lines


def describe_reproduction(reproduction: Reproduction, out: Path) -> list[str]:
    """The last lines of the command."""
    took = (
        f"{format_count(reproduction.tries, 'try', 'tries')} in {reproduction.seconds / 60:.1f} min"
    )
    count = format_count(reproduction.replayed, "request")
    odds = reproduction.odds
    if reproduction.result == NOT_REPRODUCED:
        high = reproduction.first_odds.high
        lines = [
            f"Not reproduced: the fault did not appear in {took} of {count}. Its odds in a try are "
            f"at most {high:.1%} (95 % confidence)."
        ]
        if reproduction.tries < GIVE_UP_TRIES:
            lines.append("More tries need more time (-t).")
        return lines
    size = len(reproduction.requests)
    lines = [f"Reproduced: {size} of {count} {'suffices' if size == 1 else 'suffice'} ({took})."]
    if odds.tries:
        lines.append(
            f"The fault appeared in {odds.hits} of {odds.tries} tries of them (95 % interval of "
            f"the odds: {odds.low:.0%} to {odds.high:.0%})."
        )
    if reproduction.result == TIME_OVER:
        lines.append("The time was over: fewer requests may suffice (-t).")
    elif reproduction.result == SERVER_GONE:
        lines.append("The server did not answer any more: fewer requests may suffice.")
    lines.append(f"{out / SCRIPT} shows it: python3 {SCRIPT}. {out / TRACE} has the requests.")
    return lines
