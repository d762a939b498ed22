"""Golden files: keep the interfaces that users rely on. ``make golden`` rewrites tests/golden."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from inspect import Parameter, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any, Final

import msgspec

from locust_llm.__main__ import main
from locust_llm.commands import COMMANDS, LOCUST_COMMANDS
from locust_llm.demo_command import start_simulator
from support import unpatched_locust  # noqa: F401  before the rest

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "golden"
EXAMPLE: Final = ROOT / "reports" / "example"
EXIT_STATUSES: Final = GOLDEN / "exit_statuses.json"
PYTHON_API: Final = GOLDEN / "python_api.json"
PAGES: Final = GOLDEN / "pages.json"

# -- help ------------------------------------------------------------------------------------------

SUBCOMMANDS: Final = ("twin fit", "twin predict", "twin drift", "scenario show", "verify reproduce")
ALL_OPTIONS: Final = ("run --help-all", "ab --help-all", "probe --help-all")
HELP_COMMANDS: Final = ("", *COMMANDS, *SUBCOMMANDS, *ALL_OPTIONS)
"""The empty one is ``locust-llm --help`` itself."""
OPTIONS_OF_LOCUST: Final = "\nCommon options:\n"
"""From here on, the help of a run depends on the installed version of Locust."""


def help_file(command: str) -> Path:
    return GOLDEN / "help" / f"{command.replace(' --', '-').replace(' ', '-') or 'locust-llm'}.txt"


def make_help(command: str) -> str:
    """Returns the text of ``--help`` on a console so wide that no line breaks, in the words of
    Python 3.13."""
    words = [*command.split(), *(() if command in ALL_OPTIONS else ("--help",))]
    with _clean_environment(COLUMNS="1000"):
        if words[0] in LOCUST_COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", "locust_llm", *words],
                capture_output=True,
                text=True,
                check=True,
            )
            text = done.stdout.partition(OPTIONS_OF_LOCUST)[0]
        else:
            _, text = _call_main(words)
    # before 3.13, argparse repeats the value behind each name of an option
    text = re.sub(r"(?m)^(  -\w) (\S+), (--[\w-]+) \2(?!\S)", r"\1, \3 \2", text)
    return text.rstrip() + "\n"


def normalise_width(text: str) -> str:
    """Makes the text independent of the console's width."""
    return " ".join(text.split())


# -- exit statuses ---------------------------------------------------------------------------------

RUN: Final = (
    "run", "--headless", "--host", "{url}", "-u", "2", "--request-count", "30", "--no-probe",
    "--report-dir", "{folder}/r",
    "--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "5",
)  # fmt: skip
FAILING: Final = ("--header", "X-Simulate: error=0")
PASSING_RULE: Final = ("--slo", "error_rate < 50%")
"""The rule has no latency, as a latency rule is INCONCLUSIVE on a busy machine."""
INCONCLUSIVE_RULE: Final = ("--slo", 'error_rate{model="none"} < 50%')
"""No request has that model."""

ENDINGS: Final[dict[str, tuple[str, ...]]] = {
    "nothing is asked": (),
    "help is asked": ("--help",),
    "the version is asked": ("--version",),
    "an unknown command": ("no-such-command",),
    "a removed command": ("manifest", "kubernetes"),
    "a removed format": ("export", "{copy}", "--format", "inferencex"),
    "a report is made again": ("report", "{copy}"),
    "a report of no folder": ("report", "{folder}/nothing"),
    "a report of an empty folder": ("report", "{folder}"),
    "a report without run.json": ("report", "{bare}"),
    "a figure": ("figure", "{copy}"),
    "a comparison": ("compare", "{copy}", "{copy}"),
    "a comparison with no run": ("compare", "{copy}", "{folder}/nothing"),
    "a Pareto table of no sweep": ("pareto", "{copy}"),
    "a history": ("history", "{copy}"),
    "a history of no folder": ("history", "{folder}/nothing"),
    "an audit": ("audit", "{results}/vllm-bench-0.32.0/rate-6-detailed.json"),
    "an audit of no file": ("audit", "{folder}/nothing"),
    "an import of which requests are missing": (
        "import",
        "{results}/aiperf-0.13.0/rate-6",
        "--report-dir",
        "{folder}/r",
    ),
    "an import of no file": ("import", "{folder}/nothing"),
    "an export": ("export", "{copy}", "--format", "vllm-bench"),
    "an export of no run": ("export", "{folder}/nothing", "--format", "vllm-bench"),
    "a comment": ("comment", "{copy}"),
    "a comment on no run": ("comment", "{folder}/nothing"),
    "an upload of no run": ("upload", "{folder}/nothing", "s3://bucket/prefix"),
    "the list of scenarios": ("scenario",),
    "an unknown scenario": ("scenario", "show", "no-such-scenario"),
    "a plan by no twin": ("plan", "{folder}/nothing", "--arrivals", "1/s"),
    "a prediction by no twin": ("twin", "predict", "{folder}/nothing"),
    "a drift of no twin": ("twin", "drift", "{folder}/nothing"),
    "a quick test of no named server": ("quick",),
    "an A/B run without a candidate": ("ab", "--base", "127.0.0.1:1"),
}
"""Each command needs no server, and has its exit status. Braces contain a path."""

ENDINGS_WITH_SERVER: Final[dict[str, tuple[str, ...]]] = {
    "a check": ("check", "{url}"),
    "a check of no server": ("check", "127.0.0.1:1"),
    "a quick test of no server": ("quick", "127.0.0.1:1"),
    "a check of a model that is not there": ("check", "{url}", "--model", "no-such-model"),
    "a run": RUN,
    "an option that is not there": (*RUN, "--no-such-option"),
    "a value that is none": (*RUN, "--prefill-concurrency", "x"),
    "a run without a server": (*RUN, "--host", "127.0.0.1:1"),
    "a run with a model that is not there": (*RUN, "--model", "no-such-model"),
    "a run whose requests fail": (*RUN, *FAILING),
    "a run whose requests fail, with a status of its own": (
        *RUN,
        *FAILING,
        "--exit-code-on-error",
        "77",
    ),
    "a run without an answer": (
        *RUN,
        "--output-tokens-mean",
        "3000",
        "-t",
        "1s",
        "--stop-timeout",
        "0",
    ),
    "a rule that passes": (*RUN, *PASSING_RULE),
    "a rule that fails": (*RUN, *FAILING, *PASSING_RULE),
    "a rule that fails, to warn only": (*RUN, "--slo", "warn: error_rate > 50%"),
    "a rule that is INCONCLUSIVE": (*RUN, *INCONCLUSIVE_RULE),
    "a rule that is INCONCLUSIVE, to warn only": (
        *RUN,
        *INCONCLUSIVE_RULE,
        "--inconclusive",
        "warn",
    ),
    "a rule that is INCONCLUSIVE, to pass": (*RUN, *INCONCLUSIVE_RULE, "--inconclusive", "pass"),
    "a rule that is none": (*RUN, "--slo", "ttft p99 is good"),
}
"""Each run takes some seconds with the simulator as the server, and has its exit status."""


def find_exit_status(words: Sequence[str], folder: Path, url: str = "") -> int:
    """Returns the exit status of a command in ``folder``, which is empty. Commands of Locust need a
    process of their own."""
    places = {
        "url": url,
        "folder": str(folder / "work"),
        "results": str(ROOT / "tests" / "data" / "results"),
        "copy": str(folder / "copy"),
        "bare": str(folder / "bare"),
    }
    (folder / "work").mkdir()
    shutil.copytree(EXAMPLE, folder / "copy")
    (folder / "bare").mkdir()
    shutil.copy(EXAMPLE / "profile_export.jsonl", folder / "bare")
    command = [_fill_in(word, places) for word in words]
    with _clean_environment():
        if not url:
            return _call_main(command)[0]
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", *command],
            cwd=folder,
            capture_output=True,
            timeout=120,
        )
        return done.returncode


def _fill_in(word: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


@contextmanager
def start_server() -> Iterator[str]:
    with start_simulator("--ttft-ms", "5", "--itl-ms", "2") as url:
        yield url


def make_exit_statuses() -> dict[str, int]:
    statuses = {}
    with start_server() as url:
        for endings, address in ((ENDINGS, ""), (ENDINGS_WITH_SERVER, url)):
            for ending, words in endings.items():
                with TemporaryDirectory() as folder:
                    statuses[ending] = find_exit_status(words, Path(folder), address)
    return statuses


# -- what Python code may import -------------------------------------------------------------------


def make_python_api() -> dict[str, Any]:
    """Lists the names in ``locust_llm``, with their parameters, methods and fields. Annotations are
    omitted, as their text depends on the version of Python."""
    from locust.event import EventHook

    from locust_llm import Answer, LLMUser, ProbeUser, events, read

    return {
        "LLMUser": _describe_class(LLMUser),
        "ProbeUser": _describe_class(ProbeUser),
        "Answer": _describe_class(Answer),
        "read": _describe_parameters(read),
        "events": sorted(
            name for name, hook in vars(events).items() if isinstance(hook, EventHook)
        ),
    }


def _describe_class(kind: type) -> dict[str, Any]:
    """Lists the additions of our class to those of Locust and msgspec."""
    ours = [one for one in kind.__mro__ if one.__module__.startswith("locust_llm")]
    members: dict[str, Any] = {}
    for base in reversed(ours):
        members |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    methods = {name: value for name, value in members.items() if isinstance(value, FunctionType)}
    return {
        "methods": {name: _describe_parameters(method) for name, method in sorted(methods.items())},
        "attributes": sorted(members.keys() - methods.keys()),
    }


def _describe_parameters(function: Callable[..., Any]) -> list[str]:
    plain = []
    for parameter in signature(function).parameters.values():
        kind = (
            ""
            if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
            else f" ({parameter.kind.description})"
        )
        default = "" if parameter.default is Parameter.empty else f" = {parameter.default!r}"
        plain.append(f"{parameter.name}{default}{kind}")
    return plain


# -- pages -----------------------------------------------------------------------------------------


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attributes if name == "id" and value]


def find_ids(page: str) -> list[str]:
    """Lists the ids of elements in order, which scripts and links use."""
    parser = _Ids()
    parser.feed(page)
    parser.close()
    return parser.found


def make_pages() -> dict[str, list[str]]:
    """Returns the ids by page, and the addresses of the web UI."""
    from support.web_pages import Page

    with (
        TemporaryDirectory() as folder,
        _clean_environment(),
        _within(Path(folder)),
        _arguments("locust", "-f", "my/chat.py"),
    ):
        page = Page()
        try:
            rules = [rule for rule in page.ui.app.url_map.iter_rules() if "/llm" in rule.rule]
            methods = {rule.rule: sorted(rule.methods - {"HEAD", "OPTIONS"}) for rule in rules}
            return {
                "addresses": sorted(f"{' '.join(names)} {rule}" for rule, names in methods.items()),
                "/llm": find_ids(page.client.get("/llm").text),
                "/llm/new": find_ids(page.client.get("/llm/new").text),
                "report.html": find_ids((EXAMPLE / "report.html").read_text("utf-8")),
            }
        finally:
            page.runner.quit()


# -- the numbers of the example --------------------------------------------------------------------

NUMBERS: Final = ("run.json", "profile_export_aiperf.json")


def read_numbers(folder: Path) -> dict[str, float]:
    """Returns each number in the results of a run, by its place in the file."""
    numbers: dict[str, float] = {}
    for name in NUMBERS:
        _add_numbers(name, msgspec.json.decode((folder / name).read_bytes()), numbers)
    table = (folder / "profile_export_aiperf.csv").read_text("utf-8")
    numbers |= {
        f"csv {at}": float(text)
        for at, text in enumerate(re.split(r"[,\n]", table))
        if _is_number(text)
    }
    return numbers


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text) is not None


def _add_numbers(place: str, value: Any, numbers: dict[str, float]) -> None:
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            numbers[place] = float(value)
        case dict():
            for name, inner in value.items():
                _add_numbers(f"{place} {name}", inner, numbers)
        case list():
            for at, inner in enumerate(value):
                _add_numbers(f"{place} {at}", inner, numbers)


# -- surroundings ----------------------------------------------------------------------------------


@contextmanager
def _clean_environment(**variables: str) -> Iterator[None]:
    """Returns the environment without the user's settings for a run."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("LOCUST", "OPENAI", "COLUMNS")) or name == "CI":
            del os.environ[name]
    os.environ |= variables
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _arguments(*words: str) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before


def _call_main(words: list[str]) -> tuple[int, str]:
    """Returns the exit status and the standard output of a command in this process."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            status: Any = main(words)
        except SystemExit as ended:
            status = ended.code
    return int(status or 0), out.getvalue()


def _write_json(path: Path, make: Callable[[], Any]) -> None:
    path.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_all() -> None:
    """Rewrites every golden file. ``git diff`` shows the changes."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (GOLDEN / "help").mkdir(parents=True)
    for command in HELP_COMMANDS:
        help_file(command).write_text(make_help(command), encoding="utf-8")
    for path, make in (
        (PYTHON_API, make_python_api),
        (PAGES, make_pages),
        (EXIT_STATUSES, make_exit_statuses),
    ):
        _write_json(path, make)


if __name__ == "__main__":
    write_all()
