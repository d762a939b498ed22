"""Help: how --help begins, the versions, and what an unknown command or option was meant to be."""

import difflib
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

DOOR: Final = "locust-llm "
USAGES: Final = {
    "run": "locust-llm run --host URL [-u USERS] [-t TIME] [options] [UserClass ...]",
    "ab": "locust-llm ab --base URL (--candidate URL | --candidate-set KEY=VALUE | --aa) [-u USERS] [-t TIME] [options]",
    "probe": "locust-llm probe --host URL [options]",
}
INTRODUCTION: Final = """\
Usage: {usage}

Most runs need these options of Locust:
  --host URL            the server, such as localhost:8000 or https://llm.example.com
  -u N                  concurrent users
  -t TIME               length of the run, such as 60s or 10m
  --headless            no web page: begin at once, and end with a report and an exit status
  -f FILE               a locustfile of your own

Behind the options of this package, which come in groups, are all of Locust's.
"""
END: Final = """\
Each option that takes a value can also be set in the environment (LOCUST_LLM_REQUEST_RATE=4 is --request-rate 4) or in a
configuration file. This text has the options of both, also with -f FILE; 'locust -f FILE --help' has Locust's alone, as
it ends before it reads the file."""
MEANT: Final = {
    "-u": ("concurrency", "max-concurrency", "num-concurrent-requests", "num-concurrency", "num-users", "vus",
           "connections", "parallel", "clients"),
    "-t": ("duration", "benchmark-duration", "max-seconds", "max-time-per-run", "run-duration", "test-duration"),
    "-s": ("benchmark-grace-period", "grace-period"),
    "--host": ("url", "base-url", "target", "server-url", "api-base", "base"),
    "--processes": ("workers", "num-workers", "threads"),
    "--request-count": ("num-prompts", "num-requests", "max-requests", "max-num-completed-requests",
                        "max-requests-per-run", "requests"),
    "--request-rate": ("rate", "qps", "rps"),
    "--arrival-smoothness": ("burstiness",),
    "--request-rate-ramp-duration": ("ramp-up", "rampup", "ramp"),
    "--input-file": ("dataset", "dataset-path", "data", "prompts", "input"),
    "--custom-dataset-type": ("dataset-name", "dataset-type"),
    "--synthetic-input-tokens-mean": ("random-input-len", "input-len", "input-length", "isl", "prompt-tokens",
                                      "mean-input-tokens", "input-tokens"),
    "--output-tokens-mean": ("random-output-len", "output-len", "output-length", "osl", "max-tokens", "output-tokens",
                             "mean-output-tokens", "max-new-tokens"),
    "--extra-inputs ignore_eos:true": ("ignore-eos",),
    "--extra-inputs temperature:0.5": ("temperature",),
    "--extra-inputs": ("extra-body", "extra-request-body", "additional-sampling-params"),
    "--random-seed": ("seed",),
    "--warmup-request-count": ("num-warmups", "warmup-requests", "warmup"),
    "--api-key-file, or OPENAI_API_KEY in the environment,": ("api-key", "token", "openai-api-key"),
    "--report-dir": ("result-dir", "results-dir", "output-dir", "output-path", "artifact-dir", "output", "out"),
    "--endpoint-type": ("backend", "api-type", "request-type"),
    "--model": ("model-name", "served-model-name", "api-model-name", "model-names", "engine"),
    "--percentiles": ("metric-percentiles",),
    "--slo": ("threshold", "thresholds", "max-error-rate"),
    "--repeats": ("num-profile-runs", "num-runs"),
    "--request-timeout": ("timeout", "request-timeout-seconds"),
    "--header": ("headers",),
    "--no-streaming": ("disable-stream",),
}  # fmt: skip
"""By what it is here: the names that other load testers have for it (AIPerf, vllm bench, guidellm, genai-bench, llmperf,
k6)."""
OF_PEERS: Final = {f"--{name}": here for here, names in MEANT.items() for name in names}
COMMANDS_MEANT: Final = {
    "run": ("bench", "benchmark", "load", "loadtest", "load-test", "test", "start", "profile", "sweep"),
    "simulate": ("serve", "server", "mock", "simulator"),
    "check": ("doctor", "ping", "preflight", "health"),
    "figure": ("plot", "draw", "timeline"),
    "compare": ("diff",),
    "report": ("html", "summary", "analyze"),
}
OF_OTHER_COMMANDS: Final = {name: here for here, names in COMMANDS_MEANT.items() for name in names}


def versions() -> str:
    import platform  # late: no other command needs it, nor the time of the next one
    from importlib.metadata import version

    return f"{DOOR}{version('locust-llm')} (Locust {version('locust')}, Python {platform.python_version()})"


def introduce(parser: ArgumentParser, program: str) -> None:
    """How --help and --version of Locust's parser begin and end, where ``program`` is a command of ours."""
    command = program.removeprefix(DOOR)
    if command not in USAGES:
        return
    parser.prog = program
    parser.description = INTRODUCTION.format(usage=USAGES[command])
    parser.epilog = END
    for action in parser._actions:
        if "--version" in action.option_strings:
            shows: Any = action
            shows.version = versions()


def unknown_options(words: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Of each long option that is none of ``known``, nor the beginning of one: a sentence with what was meant. Values are
    left out: one may be a key.

    What is an option of another load tester is none here even where a longer one of ours begins so (--api-key).
    """
    for word in words:
        name = word.partition("=")[0]
        if word == "--":
            return
        if not name.startswith("--") or name in known:
            continue
        if here := OF_PEERS.get(name):
            yield f"there is no {name}: it is {here} here"
        elif not any(flag.startswith(name) for flag in known):
            yield f"there is no option {name}{_close(name, known)}"


def unknown_command(word: str, known: Iterable[str]) -> str:
    if word.startswith("-"):
        option = word.partition("=")[0]
        return f"the command is missing before {option}: did you mean 'locust-llm run {option} ...'?"
    if here := OF_OTHER_COMMANDS.get(word):
        return f"unknown command {word!r}: it is {here} here"
    return f"unknown command {word!r}{_close(word, known)}"


def _close(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {near[0]}?" if near else ""
