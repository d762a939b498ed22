"""The door: the ``locust-llm`` command."""

import _signal  # type: ignore[import-not-found]  # of which signal is made: this is there at once
import os
import sys

if __name__ == "__main__" or os.path.basename(sys.argv[0]) == "locust-llm":
    # until main() is there, Ctrl-C ends the process without a traceback of the import that it interrupts
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

# isort: split
import argparse
import difflib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from locust_llm.core.ci_log import guard_streams
from locust_llm.core.text import say
from locust_llm.run.console import discard_if_unread, settle_at_exit

from .exit_status import ExitStatus, of_signal

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEMO: Final = (
    "--headless", "-u", "30", "-t", "45s", "--prefill-concurrency", "5", "--prefill-concurrency-ramp-duration", "30",
    "--synthetic-input-tokens-mean", "16000", "--output-tokens-mean", "60",
)  # fmt: skip

DEMO_HELP: Final = f"""\
usage: locust-llm demo [options of run]

Start the simulator on a free port, load-test it, and print the main figures and where the report is. Needs no GPU and no
server. The load, which options of run change (run --help has them):

  {" ".join(DEMO)}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: see docs/exit-status.md."""
    try:
        return _main(argv)
    except BrokenPipeError:  # a reader such as head has what it wanted
        discard_if_unread()
        return of_signal(signal.SIGPIPE)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(words[0]) if words else None
    settle_at_exit()
    guard_streams(os.environ)
    if words and words[0] in ("--version", "-V", "version"):
        from locust_llm.core.machine import versions

        say(f"{versions()}\n")
        return ExitStatus.OK
    if words and words[0] in REMOVED:
        return _refused(REMOVED[words[0]])
    if command is None:
        asked = not words or words[0] in ("-h", "--help", "help")
        if asked:
            say(f"{USAGE}\n")
        else:
            wrong = _unknown(words[0])
            print(f"locust-llm: error: {wrong}" + ("" if ":" in wrong else f"\n\n{USAGE}"), file=sys.stderr)
        return ExitStatus.OK if words and asked else ExitStatus.REFUSED
    from locust_llm.core.machine import memory_refusal

    if why := memory_refusal():
        print(f"locust-llm: error: {why}", file=sys.stderr)
        return ExitStatus.REFUSED
    for number in SIGNALS if argv is None else ():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _exit)
    try:
        return command(words[1:])
    except SystemExit as ended:
        if ended.code == USAGE_ERROR and command not in OF_LOCUST:
            raise SystemExit(ExitStatus.REFUSED) from None
        raise


USAGE_ERROR: Final = 2
"""Of argparse. Of a run it would be that the load generator broke, so our parser of a run has no such status."""


def _unknown(word: str) -> str:
    """No command, and what was meant."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        return f"the command is missing before {option}: did you mean 'locust-llm run {option} ...'?"
    here = next((here for here, names in OF_OTHERS.items() if word in names), "")
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    meant = f": it is {here} here" if here else f": did you mean {near[0]}?" if near else ""
    return f"unknown command {word!r}{meant}"


LOCUSTFILES: Final = Path(__file__).parent / "locustfiles"


def _refused(why: str) -> int:
    print(f"locust-llm: error: {why}", file=sys.stderr)
    return ExitStatus.REFUSED


def run(words: list[str]) -> int:
    """Locust with our locustfile, unless one is given."""
    return _locust("run", words, "run.py")


def probe(words: list[str]) -> int:
    """The interference of prefills with decodes, and the scheduler of the server."""
    return _locust("probe", words, "probe.py", "--headless")


def ab(words: list[str]) -> int:
    """A run of two arms, base and candidate, in pairs of blocks."""
    given = {word.partition("=")[0] for word in words}
    arms = given & {"--candidate", "--candidate-set", "--aa", "-h", "--help"}
    if not arms and not any(os.environ.get(f"LOCUST_LLM_CANDIDATE{more}") for more in ("", "_SET")):
        return _refused("ab takes --candidate URL, --candidate-set KEY=VALUE, or --aa")
    return _locust("ab", ["--headless", *with_host(words)], "run.py")


def with_host(words: list[str]) -> list[str]:
    """``--base`` by its other name."""
    return ["--host" + word.removeprefix("--base") if word.partition("=")[0] == "--base" else word for word in words]


def _locust(command: str, words: list[str], file: str, *more: str) -> int:
    """Locust with a locustfile of ours and ``more``, unless one is given."""
    ours = not any(word in ("-f", "--locustfile") or word.startswith(("--locustfile=", "-f")) for word in words)
    if ours:
        words = ["-f", str(LOCUSTFILES / file), *more, *words]
    sys.argv = [f"locust-llm {command}", *words]
    for number in SIGNALS:
        if signal.getsignal(number) is _exit:  # an exception may be swallowed while modules are imported
            signal.signal(number, lambda number, frame: os._exit(128 + number))
    from locust.main import main as locust_main  # late: it patches the process

    from . import plugin  # noqa: F401  before the locustfile, so that --help knows our options too

    if ours and file == "probe.py":
        from . import probe_user  # noqa: F401  for the same reason

    locust_main()
    return ExitStatus.OK


def simulate(words: list[str]) -> int:
    """The simulator, in this process."""
    from locust_llm.simulator.cli import serve
    from locust_llm.simulator.flags import add_arguments

    parser = argparse.ArgumentParser(
        prog="locust-llm simulate", description="An OpenAI-compatible server without a GPU."
    )
    add_arguments(parser)
    return serve(parser.parse_args(words))


def report(words: list[str]) -> int:
    """Make the reports of a run again from its records."""
    return _of_reports("report", words)


def figure(words: list[str]) -> int:
    """Draw a timeline of a run."""
    return _of_reports("figure", words)


def compare(words: list[str]) -> int:
    """Compare runs with the first of them; results of other tools, without records, as a table of what they say."""
    from locust_llm.results import beside
    from locust_llm.results.history import choice

    try:
        words = choice.put_in_front(words)
    except (OSError, ValueError) as error:
        return _refused(str(error))
    if beside.of_files(words):
        return beside.compare(words)
    from locust_llm.report import commands
    from locust_llm.results import runs

    return commands.compare(words, runs.page)


def pareto(words: list[str]) -> int:
    """Throughput per GPU against throughput per user, of sweeps and runs."""
    return _of_reports("pareto", words)


def comment(words: list[str]) -> int:
    """What a run came to, as the text of a comment on a pull request."""
    from locust_llm.report.ci import comment as module

    return module.command(words)


def _of_reports(name: str, words: list[str]) -> int:
    from locust_llm.report import commands  # numpy and pandas take a second

    command: Callable[[list[str]], int] = getattr(commands, name)
    return command(words)


def audit(words: list[str]) -> int:
    """Which figures of results cannot be true together."""
    from locust_llm.results.audit import command

    return command.run(words)


def history(words: list[str]) -> int:
    """The runs below a folder, and what changed in their figures."""
    from locust_llm.results.history import command

    return command.run(words)


def twin(words: list[str]) -> int:
    """A twin of a server: fitted, asked what if, held against the server again."""
    from locust_llm.twin.commands import command

    return command.twin(words)


def plan(words: list[str]) -> int:
    """How many replicas hold an SLO, by a twin."""
    from locust_llm.twin.commands import plan as module

    return module.plan(words)


def import_(words: list[str]) -> int:
    """A run folder of another load tester's result."""
    from locust_llm.results.records import command

    return command.run(words)


def export(words: list[str]) -> int:
    """A run in the format of another tool."""
    from locust_llm.results.exports import command

    return command.run(words)


def scenario(words: list[str]) -> int:
    """The packaged workloads: a list, or the file of one."""
    from locust_llm.load import scenario as module

    parser = argparse.ArgumentParser(
        prog="locust-llm scenario", description="Workloads for --scenario: without arguments a list of them."
    )
    show = parser.add_subparsers().add_parser("show", help="print the file of one: scenario show NAME > mine.toml")
    show.add_argument("name", metavar="NAME")
    name = getattr(parser.parse_args(words), "name", None)
    try:
        say(module.listed() if name is None else module.text_of(name))
    except ValueError as error:
        return _refused(str(error))
    return ExitStatus.OK


def demo(words: list[str]) -> int:
    """A load test of the simulator, in a minute, without a GPU."""
    if {"-h", "--help"} & {*words}:
        say(DEMO_HELP)
        return ExitStatus.OK
    locustfile = own if (own := Path("locustfiles/chat.py")).is_file() else LOCUSTFILES / "run.py"
    with simulator() as url:
        command = ["locust", "-f", str(locustfile), "--host", url, *DEMO, *words]
        say(f"$ {' '.join(command)}\n")
        return _forwarding_signals([sys.executable, "-m", *command])


def _forwarding_signals(command: Sequence[str]) -> int:
    """The exit status of a child process that gets the signals of this one. Of a Ctrl-C it gets two at once, which count as
    one."""
    process = subprocess.Popen(command)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: process.send_signal(number))
    return process.wait()


def _exit(number: int, frame: object) -> None:
    raise SystemExit(of_signal(number))  # with every ``finally`` on the way


def check(words: list[str]) -> int:
    """Check a server before a run; 0 if a run can start, 1 with a problem."""
    import locust_llm.run.options  # noqa: F401  first: Locust patches before the network is imported
    from . import check as module  # isort: skip

    return module.command(words)


def canary(words: list[str]) -> int:
    """How much prefill load others cause on a shared server."""
    from locust_llm.run.canary import command as module

    return module.command(words)


def upload(words: list[str]) -> int:
    """The folder of a run to a store."""
    from locust_llm.run import upload as module

    return module.command(words)


def selftest(words: list[str]) -> int:
    """The load generator against a server that knows when it sent what; 0 where the client verdict is OK."""
    from . import selftest as module

    return module.command(words)


@contextmanager
def simulator(*words: str) -> Iterator[str]:
    """The simulator in a process of its own, on a free port; its URL. Ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locust_llm.simulator", "--port", "0", *words],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"the simulator did not start: {line.strip() or f'exit status {process.wait()}'}")
        yield found.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {
    "run": run,
    "ab": ab,
    "probe": probe,
    "demo": demo,
    "simulate": simulate,
    "check": check,
    "canary": canary,
    "selftest": selftest,
    "report": report,
    "figure": figure,
    "compare": compare,
    "pareto": pareto,
    "history": history,
    "audit": audit,
    "twin": twin,
    "plan": plan,
    "import": import_,
    "export": export,
    "comment": comment,
    "scenario": scenario,
    "upload": upload,
}
OF_LOCUST: Final = (run, ab, probe, demo)
REMOVED: Final = {
    "manifest": "manifest was removed: change deploy/kubernetes by the patch in docs/kubernetes.md",
}
"""Commands of earlier versions, and what takes their place."""
OF_OTHERS: Final = {
    "run": ("bench", "benchmark", "load", "loadtest", "load-test", "test", "start", "profile"),
    "run --sweep": ("sweep",),
    "simulate": ("serve", "server", "mock", "simulator"),
    "check": ("doctor", "ping", "preflight", "health"),
    "figure": ("plot", "draw", "timeline"),
    "compare": ("diff",),
    "history": ("trend", "trends", "list", "runs", "log"),
    "audit": ("verify", "validate", "lint"),
    "scenario": ("scenarios", "preset", "presets", "workload", "workloads"),
    "report": ("html", "summary", "analyze"),
}
"""What other programs call a command."""
USAGE: Final = """\
usage: locust-llm COMMAND ...

  run ARGS        Locust with synthetic chat prompts, with every option of Locust and of this package: run --help
  ab ARGS         compare two servers, or two settings of one, in pairs of short blocks: ab --base URL --candidate URL,
                  and any option of run: ab --help
  probe ARGS      measure what long prompts do to other requests, and name the scheduler of the server, in some
                  minutes: probe --host URL, and any option of run: probe --help
  demo            start the simulator and load-test it for 45 seconds; needs no GPU and no server
  simulate        an OpenAI-compatible server without a GPU, with simulated times: simulate --help
  check HOST      check a server before a run, in ten seconds: check --help
  canary HOST     watch a shared server by one slow stream: how much prefill load do others cause? canary --help
  selftest        check this machine: the load generator against a server whose send times are known: selftest --help
  report DIR      make the reports of a run again from its records
  figure DIR      draw a timeline of a run as SVG or PNG: figure --help
  compare A B     compare runs: differences with their intervals, and different conditions
  pareto DIR...   tokens/s per GPU against tokens/s per user, of sweeps and runs, as a table and a figure: pareto --help
  history [DIR]   the runs below a folder with their conditions and key figures, and where these changed: history --help
  audit FILE...   say which figures of a result cannot be true together, whichever tool wrote it: audit --help
  twin COMMAND    a twin of a server: fit it, ask it what if, see whether the server still is the same: twin --help
  plan TWIN       the fewest replicas that hold an SLO with one lost, and what they cost, by a twin: plan --help
  import FILE     make a run folder of another load tester's result, where it has its requests: import --help
  export DIR      write a run in the format of another tool: vllm-bench, benchmark-report, parquet: export --help
  comment DIR     what a run came to as Markdown, for a comment on a pull request: comment --help
  scenario        list the workloads that run --scenario takes by name; scenario show NAME prints one, to change
  upload DIR URL  copy the folder of a run to a store, such as s3://bucket/prefix, as run --upload does
  --version       of this package, of Locust and of Python"""

if __name__ == "__main__":
    sys.exit(main())
