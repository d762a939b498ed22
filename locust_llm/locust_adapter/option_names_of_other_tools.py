"""Option names of other tools: the names that other load testers have for our options, those that a
run accepts too, and what an unknown option means."""

import difflib
import re
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

from locust_llm.settings.server_address import is_address

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
                        "max-requests-per-run", "requests", "iterations"),
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
    "--sweep concurrency=1,2,4": ("stage", "stages"),
    "--label": ("tag", "metadata"),
    "--tokenizer": ("processor",),
    "--shared-system-prompt-length": ("random-prefix-len",),
    "--host HOST:PORT": ("port",),
    "--find-max": ("search-recipe", "search-metric", "search-space"),
    "--idle-cap": ("max-idle-gap-cap-seconds", "trace-idle-gap-cap-seconds",
        "inter-turn-delay-cap-seconds"),
    "--trajectory-start": ("trajectory-start-min-ratio", "trajectory-start-max-ratio"),
    "--stage-duration": ("slice-duration",),
    "--warmup-request-count": ("num-warmups", "warmup-requests", "warmup", "num-warmup-requests"),
    "--api-key-file, or OPENAI_API_KEY in the environment": ("api-key", "token", "openai-api-key"),
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
    "--slo 'abort: error_rate < 5%'": ("failed-request-threshold", "max-errors"),
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
    "accuracy-benchmark", "api-port", "apply-chat-template", "auto-plot", "batch",
    "batch-per-host", "burst-phase-starts",
    "cache-bust",
    "concurrency-ramp-duration", "confidence-level", "connection-reuse-strategy",
    "convergence-metric",
    "convergence-threshold", "dashboard", "dataset-filter", "enable-trust-remote-code",
    "export-http-trace",
    "export-level", "export-outputs-json", "extra-verbose", "hf-subset", "image-source", "mlflow",
    "network-latency-automatic", "network-latency-mean", "no-gpu-telemetry", "no-reasoning", "no-sweep-table",
    "num-warmup-sessions", "optuna-sampler", "otel-url", "percentile-metrics", "plot-required", "profile-export-file",
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


OPTION_BY_GUIDELLM_PROFILE: Final = {
    "synchronous": "-u 1",
    "concurrent": "--sweep concurrency=8,16",
    "throughput": "-u 512, as many users as you want requests in flight",
    "async": "--request-rate 10 --arrival-pattern constant",
    "constant": "--request-rate 10 --arrival-pattern constant",
    "poisson": "--request-rate 10",
    "sweep": "--sweep concurrency=1..64, or --sweep request-rate=1,2,4,8",
    "replay": "--input-file FILE --fixed-schedule",
}
"""What a run has for each load that guidellm's --profile, once --rate-type, names. Locust's
--profile takes any text, as it names a group of runs."""


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


def unknown_options(words: Sequence[str], known: Collection[str]) -> str:
    """One sentence with all unknown long options and their likely meaning. Empty: all are known.

    An option that begins exactly one of ``known`` is no unknown one. Values are left out, as one
    may be a key. Another load tester's option is unknown even where one of ours begins so
    (--api-key).
    """
    wrong = dict[str, str]()
    for word, after in pairwise((*words, "")):
        if word == "--":
            break
        name, value = _split_word(word, after)
        if name in known:
            meant = _explain_other_meaning(name, value)
        elif name.startswith("--"):
            meant = _meant(name, known)
            only = _find_only_longer(name, known)
            meant = meant or _explain_other_meaning(only, value)
        else:
            continue
        if meant:
            wrong[name] = meant
    if len(wrong) == 1:
        ((name, meant),) = wrong.items()
        return f"{name} {meant}" if name in known else f"unknown option {name}: {meant}"
    listed = "; ".join(f"{name}: {meant}" for name, meant in wrong.items())
    return f"{len(wrong)} options are unknown: {listed}" if wrong else ""


OPTIONS_WITH_LISTS: Final = ("--concurrency", "--max-concurrency")
"""Names whose values may be lists with AIPerf, which make the run a sweep."""


def _split_word(word: str, after: str) -> tuple[str, str]:
    """The option and its value, of ``--name=value``, ``-Nvalue`` or two words."""
    if not word.startswith("--"):
        return word[:2], word[2:] or after
    name, equals, value = word.partition("=")
    return name, value if equals else after


def _explain_other_meaning(name: str, value: str) -> str:
    """What a value is that an option takes, or would take, with another tool only. A header's is
    not shown, as it may be a key. Empty: it may be meant as it is."""
    if name in OPTIONS_WITH_LISTS and "," in value:
        return "takes one number: for several, use --sweep concurrency=1,2,4"
    if name == "--profile":
        if here := OPTION_BY_GUIDELLM_PROFILE.get(value.lower()):
            return f"{value} is guidellm's: use {here}"
        if not value or value.startswith("-"):
            return (
                "takes a name here: vllm bench starts a profiler with it, which has no equivalent"
            )
    if name == "-H" and HEADER.match(value):
        return "takes the host: a header is --header 'NAME: VALUE' here"
    if name == "-u" and is_address(value):
        return "takes the number of users: the address is --host here"
    return ""


HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:\s")
"""The begin of a header's line. No address has a space after a colon."""


def _meant(name: str, known: Collection[str]) -> str:
    """The meaning of an unknown option. Empty: it begins just one known option."""
    if here := OPTION_BY_PEER_NAME.get(name):
        return f"use {here}"
    if name == "--rate-type":
        return "for the loads of guidellm's --profile, use --request-rate, -u or --sweep"
    if name in UNSUPPORTED_PEER_OPTIONS:
        return "it has no equivalent"
    if _find_only_longer(name, known):
        return ""
    longer = sorted((flag for flag in known if flag.startswith(name)), key=len)
    near = longer or difflib.get_close_matches(
        name, [flag for flag in known if flag.startswith("--")], cutoff=0.75
    )
    return f"did you mean {near[0]}?" if near else "--help-all shows every option"


def _find_only_longer(name: str, known: Collection[str]) -> str:
    """The only known option that begins so. Empty: none does, or several do."""
    longer = [flag for flag in known if flag.startswith(name)]
    return longer[0] if len(longer) == 1 else ""
