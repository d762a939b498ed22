"""Command line: its help, the names that other load testers have for our options, what an unknown
option means, a host without --host, and how the command is written down."""

import difflib
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from locust.argument_parser import LocustArgumentParser

from locust_llm.records.machine import format_versions, usable_cores
from locust_llm.settings.address import is_address, normalise_base_url
from locust_llm.settings.refusal import refuse_run
from locust_llm.text.hide_secrets import hide_url_secrets
from locust_llm.text.numbers import read_number, truncate_quoted_text

PROCESSES: Final = "LOCUST_PROCESSES"
AUTO: Final = "auto"


def accept_auto_processes(parser: ArgumentParser) -> None:
    """Let Locust's --processes be ``auto``, too.

    On the command line and in files its type does it. In the environment the value is replaced, as
    Locust reads it again and again with its own parsers.
    """
    if os.environ.get(PROCESSES, "").strip().lower() == AUTO:
        os.environ[PROCESSES] = str(_processes(AUTO))
    for action in parser._actions:
        if "--processes" in action.option_strings:
            action.type, action.metavar = _processes, "N|auto"
            action.help = (
                f"{action.help} auto: one for each core that this process may use but "
                f"one, and at least one."
            )


def _processes(text: str) -> int | None:
    """The number of processes. Raises Refused."""
    if text.strip().lower() == AUTO:
        return max(1, usable_cores() - 1)
    try:
        return int(read_number(int, text)) if text.strip() else None
    except ValueError:
        refuse_run(
            f"--processes takes a whole number or {AUTO}, got {truncate_quoted_text(text)!r}"
        )


# -- help ------------------------------------------------------------------------------------------

COMMAND_PREFIX: Final = "locust-llm "
USAGES: Final = {
    "run": "locust-llm run --host URL [-u USERS] [-t TIME] [options] [UserClass ...]",
    "ab": "locust-llm ab --base URL (--candidate URL | --candidate-set KEY=VALUE | --aa) [-u "
    "USERS] [-t TIME] [options]",
    "probe": "locust-llm probe --host URL [options]",
}
HELP_INTRODUCTION: Final = """\
Usage: {usage}

Most runs need these options of Locust:
  --host URL            the server, such as localhost:8000 or https://llm.example.com
  -u N                  concurrent users
  -t TIME               length of the run, such as 60s or 10m
  --headless            no web page: begin at once, and end with a report and an exit status
  -f FILE               a locustfile of your own

Behind the options of this package, which come in groups, are all of Locust's.
"""
OMITTED_INTRODUCTION_LINES: Final = {
    "ab": ("  --headless",),
    "probe": ("  -u ", "  -t ", "  --headless"),
}
"""The lines of the introduction that a command does not need begin so."""
HELP_EPILOG: Final = """\
Each option that takes a value can also be set in the environment (LOCUST_LLM_REQUEST_RATE=4 is --request-rate 4) or in a
configuration file. This text has the options of both, also with -f FILE; 'locust -f FILE --help' has Locust's alone, as
it ends before it reads the file."""
PEER_NAMES_BY_OPTION: Final = {
    "-u": ("concurrency", "max-concurrency", "num-concurrent-requests", "num-concurrency",
        "num-users", "vus",
           "connections", "parallel", "clients"),
    "-t": ("duration", "benchmark-duration", "max-seconds", "max-time-per-run", "run-duration",
        "test-duration"),
    "-s": ("benchmark-grace-period", "grace-period"),
    "--host": ("url", "base-url", "target", "server-url", "api-base", "base"),
    "--processes": ("workers", "num-workers", "threads"),
    "--request-count": ("num-prompts", "num-requests", "max-requests", "max-num-completed-requests",
                        "max-requests-per-run", "requests"),
    "--request-rate": ("rate", "qps", "rps"),
    "--arrival-smoothness": ("burstiness", "vllm-burstiness"),
    "--request-rate-ramp-duration": ("ramp-up", "rampup", "ramp"),
    "--input-file": ("dataset", "dataset-path", "data", "prompts", "input"),
    "--custom-dataset-type": ("dataset-name", "dataset-type"),
    "--synthetic-input-tokens-mean": ("random-input-len", "input-len", "input-length", "isl",
        "prompt-tokens",
                                      "mean-input-tokens", "input-tokens"),
    "--output-tokens-mean": ("random-output-len", "output-len", "output-length", "osl",
        "max-tokens", "output-tokens",
                             "mean-output-tokens", "max-new-tokens"),
    "--extra-inputs ignore_eos:true": ("ignore-eos",),
    "--extra-inputs temperature:0.5": ("temperature",),
    "--extra-inputs": ("extra-body", "extra-request-body", "additional-sampling-params"),
    "--random-seed": ("seed",),
    "--synthetic-input-tokens-stddev": ("isl-stddev",),
    "--output-tokens-stddev": ("osl-stddev",),
    "--num-sessions": ("conversation-num", "num-conversations"),
    "--arrival-pattern": ("request-rate-mode",),
    "--replay-speedup": ("synthesis-speedup-ratio",),
    "--endpoint": ("custom-endpoint",),
    "--max-tokens-field": ("use-legacy-max-tokens",),
    "--loglevel": ("log-level",),
    "--metrics-url": ("gpu-telemetry",),
    "--find-max": ("search-recipe", "search-metric", "search-space"),
    "--idle-cap": ("max-idle-gap-cap-seconds", "trace-idle-gap-cap-seconds",
        "inter-turn-delay-cap-seconds"),
    "--trajectory-start": ("trajectory-start-min-ratio", "trajectory-start-max-ratio"),
    "--stage-duration": ("slice-duration",),
    "--warmup-request-count": ("num-warmups", "warmup-requests", "warmup", "num-warmup-requests"),
    "--api-key-file, or OPENAI_API_KEY in the environment,": ("api-key", "token", "openai-api-key"),
    "--report-dir": ("result-dir", "results-dir", "output-dir", "output-path", "artifact-dir",
        "output-artifact-dir",
                     "output", "out"),
    "--endpoint-type": ("backend", "api-type", "request-type"),
    "--model": ("model-name", "served-model-name", "api-model-name", "model-names", "engine"),
    "--model-mix": ("lora-modules", "model-selection-strategy"),
    "--percentiles": ("metric-percentiles",),
    "--slo": ("threshold", "thresholds", "max-error-rate", "ttft-sla-ms", "tpot-sla-ms",
        "itl-sla-ms", "e2e-sla-ms",
              "error-rate-sla", "search-sla"),
    "--slo 'abort: error_rate < 5%'": ("failed-request-threshold",),
    "--repeats": ("num-profile-runs", "num-runs"),
    "--request-timeout": ("timeout", "request-timeout-seconds"),
    "--header": ("headers",),
    "--no-streaming": ("disable-stream",),
}  # fmt: skip
"""Other load testers' names for each option (AIPerf, vllm bench, guidellm, genai-bench, llmperf,
k6)."""
OPTION_BY_PEER_NAME: Final = dict[str, str]()
for _here, _names in PEER_NAMES_BY_OPTION.items():
    OPTION_BY_PEER_NAME.update({f"--{name}": _here for name in _names})
ACCEPTED_PEER_NAMES: Final = {
    "--users": ("concurrency", "max-concurrency", "num-users"),
    "--run-time": ("benchmark-duration", "max-seconds"),
    "--stop-timeout": ("benchmark-grace-period",),
    "--host": ("url", "base-url", "target"),
    "--request-count": ("num-requests", "num-prompts", "max-requests"),
    "--synthetic-input-tokens-mean": ("isl", "random-input-len"),
    "--synthetic-input-tokens-stddev": ("isl-stddev",),
    "--output-tokens-mean": ("osl", "random-output-len"),
    "--output-tokens-stddev": ("osl-stddev",),
    "--num-sessions": ("conversation-num", "num-conversations"),
    "--request-timeout": ("request-timeout-seconds",),
    "--arrival-pattern": ("request-rate-mode",),
    "--arrival-smoothness": ("vllm-burstiness", "burstiness"),
    "--warmup-request-count": ("num-warmup-requests", "num-warmups"),
    "--random-seed": ("seed",),
    "--model": ("model-names",),
    "--repeats": ("num-profile-runs",),
    "--replay-speedup": ("synthesis-speedup-ratio",),
    "--endpoint": ("custom-endpoint",),
    "--percentiles": ("metric-percentiles",),
    "--report-dir": ("artifact-dir", "output-artifact-dir", "result-dir"),
}  # fmt: skip
"""Names that a run accepts too, as they mean the same with AIPerf, vllm bench or guidellm."""
_TOOL_OPTIONS: Final = (
    "accuracy-benchmark", "api-port", "apply-chat-template", "auto-plot", "burst-phase-starts",
    "cache-bust",
    "concurrency-ramp-duration", "confidence-level", "connection-reuse-strategy",
    "convergence-metric",
    "convergence-threshold", "dashboard", "dataset-filter", "enable-trust-remote-code",
    "export-http-trace",
    "export-level", "export-outputs-json", "extra-verbose", "hf-subset", "image-source", "mlflow",
    "network-latency-automatic", "network-latency-mean", "no-gpu-telemetry", "no-sweep-table",
    "num-warmup-sessions", "optuna-sampler", "otel-url", "plot-required", "profile-export-file",
    "profile-export-prefix", "profile-run-cooldown-seconds", "prompt-corpus", "public-dataset",
    "ramp-up-strategy",
    "record-processor-service-count", "record-processors", "reset-kv-cache", "save-detailed",
    "save-result",
    "search-direction", "server-profiler", "show-trace-timing", "stats-interval", "system-prompt",
    "system-prompt-file", "tokenizer-mode", "tokenizer-revision", "tokenizer-trust-remote-code",
    "trust-remote-code", "ui", "ui-type", "url-strategy", "use-server-token-count", "wandb",
    "warmup-arrival-pattern", "warmup-grace-period", "workers-max", "workers-min", "zmq-host",
    "zmq-ipc-path",
)  # fmt: skip
UNSUPPORTED_PEER_OPTIONS: Final = frozenset(f"--{name}" for name in _TOOL_OPTIONS)
"""Options of these tools without an equivalent. Most concern their own processes, consoles and
files."""


def accept_peer_option_names(parser: ArgumentParser) -> None:
    """Let the parser accept the names that mean the same with other load testers. Its help has ours
    alone."""
    actions = parser._option_string_actions
    for here, names in ACCEPTED_PEER_NAMES.items():
        for name in names:
            if here in actions:
                actions.setdefault(f"--{name}", actions[here])
    if "--model" in actions:
        actions.setdefault("-m", actions["--model"])  # of AIPerf


def introduce_program(parser: LocustArgumentParser, program: str) -> None:
    """Set the begin and the end of --help and --version of Locust's parser, where ``program`` is a
    command of this package."""
    command = program.removeprefix(COMMAND_PREFIX)
    if command not in USAGES:
        return
    parser.prog = program
    lines = HELP_INTRODUCTION.format(usage=USAGES[command]).splitlines(keepends=True)
    parser.description = "".join(
        line for line in lines if not line.startswith(OMITTED_INTRODUCTION_LINES.get(command, ()))
    )
    parser.epilog = HELP_EPILOG
    for action in parser._actions:
        if "--version" in action.option_strings:
            shows: Any = action
            shows.version = format_versions()


def unknown_options(words: Sequence[str], known: Collection[str]) -> str:
    """One sentence with all unknown long options and their likely meaning. Empty: all are known.

    An option that begins exactly one of ``known`` is no unknown one. Values are left out, as one
    may be a key. Another load tester's option is unknown even where one of ours begins so
    (--api-key).
    """
    wrong = dict[str, str]()
    for word, after in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if not name.startswith("--"):
            continue
        if name in known:
            if name in OPTIONS_WITH_LISTS and "," in (value if equals else after):
                wrong[name] = "takes one number: several are --sweep concurrency=1,2,4 here"
        elif meant := _meant(name, known):
            wrong[name] = meant
    if len(wrong) == 1:
        ((name, meant),) = wrong.items()
        return f"{name} {meant}" if name in known else f"there is no {name}: {meant}"
    listed = "; ".join(f"{name}: {meant}" for name, meant in wrong.items())
    return f"{len(wrong)} options are not as they are here: {listed}" if wrong else ""


OPTIONS_WITH_LISTS: Final = ("--concurrency", "--max-concurrency")
"""Names whose values may be lists with AIPerf, which make the run a sweep."""


def _meant(name: str, known: Collection[str]) -> str:
    """The meaning of an unknown option. Empty: it begins just one known option."""
    if here := OPTION_BY_PEER_NAME.get(name):
        return f"it is {here} here"
    if name in UNSUPPORTED_PEER_OPTIONS:
        return "it has no equivalent here"
    longer = sorted((flag for flag in known if flag.startswith(name)), key=len)
    if len(longer) == 1:
        return ""
    near = longer or difflib.get_close_matches(
        name, [flag for flag in known if flag.startswith("--")], cutoff=0.75
    )
    return f"did you mean {near[0]}?" if near else "--help has all options"


def find_host_words(words: Sequence[str]) -> Iterator[str]:
    """The value of each --host on a command line."""
    for word, after in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        if name in ("--host", "-H", *(f"--{other}" for other in ACCEPTED_PEER_NAMES["--host"])):
            yield value if equals else after


def misplaced_hosts(words: Sequence[str], names: Iterable[str]) -> Iterator[str]:
    """Sentences on misplaced hosts. argparse takes the last of several addresses. A word among the
    user classes may be neither a name nor an address.

    ``names`` are the words without an option.
    """
    names = list(names)
    addresses = [name for name in names if is_address(name)]
    if len(set(map(_written, (*find_host_words(words), *addresses)))) > 1:
        yield (
            "more than one address is given: name one server, or the replicas of one with commas "
            "between"
        )
    for name in names:
        if not name.isidentifier() and name not in addresses:
            # there may be a password in it
            name = "ADDRESS" if "@" in name else truncate_quoted_text(name)
            yield f"{name!r} is no user class: did you mean --host {name}?"


def _written(host: str) -> str:
    """Write a URL in one form. Any other text stays as it is."""
    try:
        return normalise_base_url(host) if "," not in host else host
    except ValueError:
        return host


def take_host_word(options: Namespace) -> None:
    """Take an address without --host, among the names of user classes, as the host. It replaces the
    host of the environment or of a file."""
    addresses = [name for name in options.user_classes if is_address(name)]
    if not addresses:
        return
    options.host = addresses[0]
    options.user_classes = [name for name in options.user_classes if name not in addresses]


# -- the command, to be written down ---------------------------------------------------------------

INSERTED_WORDS: Final = {
    "locust-llm ab": ("run.py", "--headless"),
    "locust-llm probe": ("probe.py", "--headless"),
}
"""The words that a command puts before the given ones. For any other command it is the locustfile
of a run."""


def format_command_line(
    headers: list[str], secrets: Iterable[Any], shown_as: Mapping[str, str] | None = None
) -> str:
    """The command line without the values of headers and of the locustfile's secret flags, and
    without the path of this package. ``shown_as`` replaces other words with values of headers."""
    words = sys.argv[1:]
    name = os.path.basename(sys.argv[0]).replace("__main__.py", "locust")
    file, *more = INSERTED_WORDS.get(name, ("run.py",))
    put = ["-f", str(Path(__file__).parents[1] / "locustfiles" / file), *more]
    if words[: len(put)] == put:
        name = name if name in INSERTED_WORDS else "locust-llm run"
        words = words[len(put) :]
    for header in headers:  # by their text, however the flag was written
        words = [word.replace(header, "***") if header else word for word in words]
    for text, instead in (shown_as or {}).items():
        words = [word.replace(text, instead) for word in words]
    for secret in filter(None, map(str, secrets)):  # whole: a short one is in many words
        words = [
            word.removesuffix(secret) + "***"
            if word == secret or word.endswith("=" + secret)
            else word
            for word in words
        ]
    return " ".join([name, *(shlex.quote(hide_url_secrets(word)) for word in words)])
