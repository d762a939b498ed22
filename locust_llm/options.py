"""The command line: our flags on Locust's parser, its namespace to Settings, and a clear no before any load.

A wrong value ends with exit status 5 and one line. That has to happen between Locust's parsing and its forks
(``--processes``), where it has no hook: so ``parse_args`` of the parser is wrapped.
"""

import errno
import os
import re
import shlex
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

from locust.argument_parser import LocustArgumentParser

import msgspec

from . import slo, tokens
from .arrivals import PATTERNS
from .body import extra_inputs
from .bounds import MAX_RESPONSE_BYTES
from .dataset import Summary
from .dataset import check as check_dataset
from .endpoints import ENDPOINTS
from .exit_status import ExitStatus
from .folder import RECORDS, RUN, read_run
from .given import irregular, small_text
from .logs import columns_of
from .ranges import USERS, cut_short, read_number
from .settings import Settings, base_url, mistakes
from .sizes import mix
from .stages import CONCURRENCY
from .timetable import ORDERS, rate_of

BAD_SETTINGS: Final = ExitStatus.REFUSED
SECRETS: Final = "llm_secrets"
"""Where the options have the names of the locustfile's own secret ones."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
_BEFORE_COMMENT: Final = re.compile(r'(?:[^"#]|"[^"]*(?:"|$))*+', re.DOTALL)
"""Of a line of rules: a # within quotes begins no comment."""


FURTHER: Final[list[Callable[[Settings, Namespace], Iterable[str]]]] = []
"""Rules of a locustfile's own for a possible run, asked after ours: why one cannot be, a sentence each."""


LINE: Final = 1000
"""Characters of a refusal: what was given may be a whole file."""


class Refused(Exception):
    """There can be no such run: one line that says why, and what to do."""


def refuse(reason: str) -> NoReturn:
    raise Refused(cut_short(reason.replace("\n", " "), LINE))


def number(kind: type, flag: str) -> Callable[[str], Any]:
    """A type for argparse; empty means not set (environment). Raises Refused, as argparse would end with status 2."""

    def parse(text: str) -> Any:
        if not text.strip():
            return None
        try:
            return read_number(kind, text)
        except ValueError:
            refuse(f"{flag} takes {'a whole number' if kind is int else 'a number'}, got {cut_short(text)!r}")

    return parse


def _percentiles(text: str) -> str:
    try:
        [read_number(float, part) for part in text.split(",")]
    except ValueError:
        refuse(f"--percentiles takes numbers with commas between, such as 50,90,95,99, got {cut_short(text)!r}")
    return text


# flag, type, default, help; the destination is the field of Settings
FLAGS: Final[tuple[tuple[str, Any, Any, str], ...]] = (
    ("--model", str, None, "Model to ask for; by default the server's first"),
    # load
    ("--request-rate", float, None, "Requests a second by a schedule (open loop), whatever the server does"),
    ("--arrival-pattern", str, None, "constant, poisson or gamma; by default poisson"),
    ("--arrival-smoothness", float, None, "Shape of the gamma pattern: 1 is poisson, below bursts, above evens out"),
    ("--request-rate-ramp-duration", float, None, "Seconds in which the request rate rises from 0"),
    ("--request-rate-series", str, None, "JSON file of [seconds, rate] points, joined by straight lines"),
    (
        "--user-centric-rate",
        float,
        None,
        "Requests a second over all users (-u): each sends every users / rate seconds",
    ),
    ("--max-users", int, 1000, "Without -u, a rate adds users as arrivals find none free, up to this many"),
    ("--request-count", int, None, "Send exactly this many requests, then end"),
    ("--num-sessions", int, None, "Begin exactly this many sessions, then end"),
    # stages
    (
        "--sweep",
        str,
        None,
        "Stages: concurrency=1..64 (by doubling), request-rate=1,2,4, prefill-concurrency=..., input-tokens=...",
    ),
    ("--stage-duration", str, "10..120", "Seconds that a stage of a sweep is measured at least and at most"),
    (
        "--stage-requests",
        int,
        None,
        "Requests measured at least in a stage; by default as many as the rules need, or 100",
    ),
    ("--repeats", int, 1, "Run the same load so many times, and tell the spread"),
    ("--gpus", int, None, "GPUs of the server: tells tokens a second of each"),
    ("--gpu-hour", float, None, "What an hour of one GPU costs: tells the cost of a million tokens at the SLO"),
    # the prefill gate
    ("--prefill-concurrency", int, None, "At most this many requests wait for their first token at a time"),
    ("--prefill-concurrency-ramp-duration", float, None, "Seconds in which the prefill limit rises from 1"),
    # warmup
    ("--warmup-request-count", int, None, "Send this many requests first, outside the main tables"),
    ("--warmup-duration", float, None, "Warm up for so many seconds first, outside the main tables"),
    ("--warmup-concurrency", int, None, "Users of the warmup; by default the main ones (-u)"),
    ("--warmup-request-rate", float, None, "Request rate of the warmup; by default the main one"),
    ("--warmup-prefill-concurrency", int, None, "Prefill limit of the warmup; by default the main one"),
    ("--warmup-prefill-concurrency-ramp-duration", float, None, "Ramp of the warmup; by default the main one"),
    # what is sent
    ("--synthetic-input-tokens-mean", float, 550.0, "Mean length of synthetic prompts, in tokens"),
    ("--synthetic-input-tokens-stddev", float, 0.0, "Its standard deviation"),
    ("--output-tokens-mean", float, 128.0, "Mean of max_tokens"),
    ("--output-tokens-stddev", float, 0.0, "Its standard deviation"),
    (
        "--seq-dist",
        str,
        None,
        "Mix of lengths instead: ISL,OSL:PERCENT pairs, as 200|20,128:80;uniform:4000..16000,512:20",
    ),
    (
        "--extra-inputs",
        str,
        None,
        "More fields of the request's body: ignore_eos:true temperature:0.5, or a JSON object",
    ),
    ("--shared-system-prompt-length", int, None, "Tokens of a system prompt that every request begins with"),
    ("--num-prefix-prompts", int, None, "Size of a pool of prefixes, one of which each prompt begins with"),
    ("--prefix-prompt-length", int, None, "Tokens of each of these prefixes"),
    ("--tokenizer", str, None, "Folder or file of a tokenizer (tokenizer.json), for prompts of exact lengths"),
    (
        "--input-file",
        str,
        None,
        "Dataset: ShareGPT, OpenAI-style JSONL, multi-turn JSONL, a Mooncake or Azure trace, a log",
    ),
    ("--custom-dataset-type", str, None, "Format of the dataset, where it is not recognised"),
    ("--dataset-columns", str, None, "Columns of an access log: timestamp=ts,input_tokens=prompt_tokens,..."),
    ("--dataset-sampling-strategy", str, "sequential", "sequential, shuffle or random"),
    ("--fixed-schedule-start-offset", float, None, "Replay a trace from this time of its own on, in ms"),
    ("--fixed-schedule-end-offset", float, None, "Replay a trace to this time of its own, in ms"),
    ("--replay-speedup", float, 1.0, "Replay a trace so many times faster"),
    (
        "--session-turns-mean",
        float,
        1.0,
        "Mean number of turns of a session; above 1 the history grows by real replies",
    ),
    ("--session-turns-stddev", float, 0.0, "Its standard deviation"),
    ("--session-turn-delay-mean", float, 0.0, "Mean think time between turns, in ms"),
    ("--session-turn-delay-stddev", float, 0.0, "Its standard deviation"),
    ("--session-header", str, None, "Send the id of the session in this header, for servers that route by it"),
    ("--random-seed", int, None, "Makes prompts, lengths and arrivals the same in every run"),
    # endpoint
    ("--endpoint-type", str, "chat", "Kind of endpoint: chat, or completions (plain, without roles)"),
    ("--endpoint", str, None, "Path of the endpoint; by default that of its kind, such as /v1/chat/completions"),
    ("--max-tokens-field", str, "max_tokens", "max_tokens, or max_completion_tokens where a server wants that"),
    ("--api-key-file", str, None, "File with the API key; by default the environment variable OPENAI_API_KEY"),
    ("--request-timeout", float, 3600.0, "Seconds after which a request is given up"),
    ("--first-token-timeout", float, 1800.0, "Seconds without a first token after which a request is given up"),
    ("--gap-timeout", float, 600.0, "Seconds without anything more after which a stream is given up"),
    ("--max-response-bytes", int, MAX_RESPONSE_BYTES, "Bytes after which an answer is given up"),
    ("--max-retries", int, 0, "Ask again, so often, where the server says 429 or 503 (after its Retry-After)"),
    ("--request-cancellation-rate", float, None, "Percent of the requests to cancel on purpose"),
    ("--request-cancellation-delay", float, 0.0, "Seconds after its send when such a request is cancelled"),
    ("--wait-for-model-timeout", float, 0.0, "Seconds to wait for the server to answer before the run"),
    ("--slo-file", str, None, "File with a rule a line, # begins a comment"),
    ("--slo-preset", str, None, "Preset rules: chat, or those of MLPerf, such as mlperf-llama3.1-8b"),
    ("--goodput", str, None, "AIPerf's form: time_to_first_token:300 inter_token_latency:20"),
    ("--percentiles", _percentiles, "50,90,95,99", "Percentiles of the tables, up to 99.9"),
    ("--report-dir", str, None, "Folder for the reports; by default reports/<time>-<model>"),
    (
        "--web-allowed-host",
        str,
        None,
        "Further names of the web page, of a proxy before it too, with commas between: load.example.com,locust:8089",
    ),
)
CHOICES: Final = {
    "--endpoint-type": tuple(ENDPOINTS),
    "--max-tokens-field": ("max_tokens", "max_completion_tokens"),
    "--arrival-pattern": (None, *PATTERNS),
    "--dataset-sampling-strategy": tuple(ORDERS),
}
SWITCHES: Final = (
    ("--streaming", True, "Ask for a stream of events"),
    ("--probe", True, "Before the run, ask the server how many tokens a few prompts have"),
    ("--fixed-schedule", False, "Replay a trace: each session of the dataset is sent at its own time"),
    ("--fixed-schedule-auto-offset", True, "The first time of the trace is the start of the run"),
    ("--find-max", False, "After a sweep, look between its last stage within the SLO and the first beyond it"),
    ("--server-metrics", True, "Read the server's own figures (/metrics) each second, where it has any"),
    (
        "--insecure",
        False,
        "Do not verify the server's TLS certificate: whoever stands between can read all, the key too",
    ),
    ("--skip-broken-rows", False, "Leave broken rows of the dataset out, and count them"),
)


LOCAL: Final = (
    "--api-key-file", "--slo-file", "--input-file", "--request-rate-series", "--tokenizer", "--report-dir", "--header",
    "--web-allowed-host",
)  # fmt: skip
"""Never of a web form: whoever sees the page could read and write files of this machine, or give the key away."""


def add_options(parser: LocustArgumentParser, before_load: Callable[[Namespace], None]) -> None:
    """Our flags, our defaults for Locust's, and ``before_load``, called once with what was parsed before any fork."""
    for flag, kind, default, text in FLAGS:
        variable = "LOCUST_LLM_" + flag[2:].upper().replace("-", "_")
        parser.add_argument(
            flag, type=_reader(flag, kind), default=default, help=text, env_var=variable,
            include_in_web_ui=flag not in LOCAL,
        )  # fmt: skip
    for flag, value, text in SWITCHES:
        parser.add_argument(flag, action=BooleanOptionalAction, default=value, help=text)
    parser.add_argument("--slo", action="append", default=[], metavar="RULE",
                        help="What must hold, as 'ttft p95 < 500ms' or 'error_rate < 1%%'; may be repeated; the "
                             "environment variable LOCUST_LLM_SLO holds a rule a line")  # fmt: skip
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", include_in_web_ui=False,
                        help="Send this header with every request; may be repeated; the environment variable "
                             "LOCUST_LLM_HEADERS holds one a line, and shows in no list of processes")  # fmt: skip
    # a stream that runs at the end has 30 s to finish; Locust's own default would cut it without a record
    parser.set_defaults(stop_timeout=30.0)
    _check_after_parsing(parser, before_load)


def _reader(flag: str, kind: Any) -> Callable[[str], Any]:
    return number(kind, flag) if kind in (int, float) else kind


def fill_in(options: Namespace, form: Mapping[str, str]) -> None:
    """What a web form says takes the place of what the command line said. Empty means not set, what is not in the form
    stays; rules (``slo``) are a line each. Raises Refused."""
    for flag in LOCAL:
        if _field(flag) in form:
            refuse(f"{flag} can be given on the command line only")
    for flag, kind, default, _ in FLAGS:
        if (text := form.get(_field(flag))) is not None:
            setattr(options, _field(flag), _reader(flag, kind)(text.strip()) if text.strip() else default)
    for flag, _, _ in SWITCHES:
        if (text := form.get(_field(flag))) is not None:
            setattr(options, _field(flag), _truth(text))
    if "slo" in form:  # which showed those of the environment and of the file too
        options.llm_rules = list(_without_comments(form["slo"].splitlines()))


_checked = False


def _check_after_parsing(parser: LocustArgumentParser, before_load: Callable[[Namespace], None]) -> None:
    parse = parser.parse_args

    def parse_args(args: Any = None, namespace: Any = None) -> Namespace:
        global _checked
        try:
            options: Namespace = parse(args, namespace)
            secret = (action.dest for action in parser._actions if getattr(action, "is_secret", False))
            setattr(options, SECRETS, sorted(secret))
            if not _checked:  # the web page parses again for each visitor
                _checked = True
                before_load(options)
        except Refused as refused:
            sys.stderr.write(f"locust-llm: error: {refused}\n")
            sys.stderr.flush()
            sys.exit(BAD_SETTINGS)
        return options

    parser.parse_args = parse_args


def check(options: Namespace, **known: Any) -> Settings:
    """Settings that can be run; ``known``: fields of which the options say less. Raises Refused."""
    for flag, choices in CHOICES.items():
        if (value := getattr(options, _field(flag))) not in choices:
            refuse(f"{flag} must be one of {', '.join(filter(None, choices))}, got {value!r}")
    for header in headers_given(options):
        name, colon, value = header.partition(":")
        if not colon:
            refuse("--header takes NAME: VALUE, got one without a colon")  # not shown: it may be the secret itself
        if not _HEADER_NAME.fullmatch(name.strip()):
            refuse(f"--header takes NAME: VALUE, and {name.strip()!r} is no name of a header")
        if not _HEADER_VALUE.fullmatch(value):
            refuse(f"--header {name.strip()}: its value has characters that no header can carry")
    try:
        settings = msgspec.structs.replace(settings_of(options), **known)
    except OSError as error:
        refuse(f"--slo-file {error.filename}: {error.strerror}")
    except OverflowError:
        refuse("-t or --stop-timeout is beyond all numbers")
    except ValueError as error:
        refuse(f"--host {options.host!r} is no URL: {error}")
    rate = options.spawn_rate
    if rate is not None and not 0 < rate <= USERS:
        refuse(f"-r must be above 0 and at most {USERS}, got {rate:g}")
    for mistake in chain(mistakes(settings), *(rule(settings, options) for rule in FURTHER)):
        refuse(mistake)
    try:
        look_through(settings)
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")
    return settings


def look_through(s: Settings) -> Summary | None:
    """Read once what the settings name, so that a mistake shows before any load; what the dataset is, if there is one.

    Raises ValueError of one sentence, and OSError.
    """
    rate_of(s)
    for text in s.slo:
        _look_at_base(text)
    if s.seq_dist:
        mix(s.seq_dist)
    if s.extra_inputs:
        extra_inputs(s.extra_inputs)
    if s.tokenizer:
        for path in (s.tokenizer, os.path.join(s.tokenizer, "tokenizer.json")):
            if why := irregular(path):
                raise ValueError(f"--tokenizer {path}: is {why}")
        tokens.load(s.tokenizer)
    if not s.input_file:
        return None
    columns = columns_of(s.dataset_columns) if s.dataset_columns else None
    return check_dataset(
        s.input_file,
        kind=s.custom_dataset_type,
        columns=columns,
        timed=s.fixed_schedule,
        skip_broken=s.skip_broken_rows,
    )


def _look_at_base(text: str) -> None:
    """The run that a rule is held against, if it is, can be. Raises ValueError."""
    if not (base := slo.parse(text).base):
        return
    if not (Path(base) / RECORDS).is_file():
        raise ValueError(f"SLO {text!r}: {base} holds no run: there is no {RECORDS} in it")
    try:
        read_run(Path(base))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"SLO {text!r}: the {RUN} of {base} cannot be read: {why}") from None


def settings_of(options: Namespace | None) -> Settings:
    """Settings from a parsed command line, a web form (where an empty text is not set), or nothing. Raises ValueError."""
    if options is None or not hasattr(options, "prefill_concurrency"):
        return Settings()
    values = {_field(flag): _typed(kind, getattr(options, _field(flag)), default) for flag, kind, default, _ in FLAGS}
    values |= {_field(flag): _truth(getattr(options, _field(flag))) for flag, _, _ in SWITCHES}
    pattern = "gamma" if values["arrival_smoothness"] is not None else "poisson"  # AIPerf's default
    values["arrival_pattern"] = values["arrival_pattern"] or pattern
    own = ENDPOINTS.get(values["endpoint_type"], ENDPOINTS["chat"])
    values["endpoint"] = "/" + (values["endpoint"] or own.path).lstrip("/")
    values["percentiles"] = tuple(dict.fromkeys(map(float, values["percentiles"].split(","))))
    values["report_dir"] = values["report_dir"] or ""
    for name in ("request_timeout", "first_token_timeout", "gap_timeout", "wait_for_model_timeout"):
        values[f"{name}_s"] = values.pop(name)
    del values["api_key_file"]
    del values["slo_file"]
    del values["web_allowed_host"]
    values["slo"] = tuple(rules_of(options))
    settings = Settings(
        host=base_url(options.host or ""),
        header_names=tuple(header.partition(":")[0].strip() for header in headers_given(options)),
        users=getattr(options, "llm_users", options.num_users),
        processes=_processes(options),
        run_time_s=getattr(options, "llm_run_time", None) or options.run_time or None,
        stop_timeout_s=float(options.stop_timeout or 0),
        locustfile=os.path.basename(str(options.locustfile or "")),
        command=_command(options.header, [getattr(options, name) for name in getattr(options, SECRETS, ())]),
        **values,
    )
    if settings.users is None and options.headless and not settings.open_loop and not settings.sweeps(CONCURRENCY):
        settings = msgspec.structs.replace(settings, users=1)  # Locust's default
    return settings


def rules_of(options: Namespace) -> list[str]:
    """Of the web form; without one of the flag, of the environment, of the file. Raises OSError."""
    if (filled_in := getattr(options, "llm_rules", None)) is not None:
        return list(filled_in)
    lines = [*options.slo, *os.environ.get("LOCUST_LLM_SLO", "").splitlines()]
    if options.slo_file:
        try:
            lines += small_text(options.slo_file).splitlines()
        except UnicodeDecodeError:
            raise OSError(errno.EILSEQ, "is no UTF-8 text", options.slo_file) from None
    return list(_without_comments(lines))


def _without_comments(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if rule := _BEFORE_COMMENT.match(line)[0].strip():  # type: ignore[index]  # it always matches
            yield rule


def _processes(options: Namespace) -> int:
    """How many will send."""
    processes = os.cpu_count() if options.processes == -1 else options.processes  # as Locust reads it, later
    return max(1, processes or 1, options.expect_workers if options.master else 1)


def request_headers(options: Namespace | None) -> dict[str, str]:
    """The headers of every request, the key among them. Never written anywhere.

    Raises OSError for a key file, ValueError for a key that no header can carry.
    """
    if options is None or not hasattr(options, "header"):
        return {}
    headers = {}
    key = os.environ.get("OPENAI_API_KEY", "")
    if options.api_key_file:
        key = small_text(options.api_key_file)
    if not _HEADER_VALUE.fullmatch(key.strip()):
        raise ValueError("the API key is not one line of text")
    if key.strip():
        headers["Authorization"] = f"Bearer {key.strip()}"
    for header in headers_given(options):
        name, _, value = header.partition(":")
        headers[name.strip()] = value.strip()
    return headers


def headers_given(options: Namespace) -> list[str]:
    """Of the environment, which no list of processes shows, and of the flag."""
    return [*filter(None, map(str.strip, os.environ.get("LOCUST_LLM_HEADERS", "").splitlines())), *options.header]


def _field(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _typed(kind: Any, value: Any, default: Any) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        return default
    return kind(value) if isinstance(value, str) and kind in (int, float) else value


def _truth(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def _command(headers: list[str], secrets: Iterable[Any]) -> str:
    """The command line, without the values of headers and of the locustfile's secret flags, and without the place where this
    package is installed."""
    words = sys.argv[1:]
    name = os.path.basename(sys.argv[0]).replace("__main__.py", "locust")
    for command, file, *more in (("run", "locustfile.py"), ("probe", "probefile.py", "--headless")):
        put = ["-f", str(Path(__file__).with_name(file)), *more]  # by the door
        if words[: len(put)] == put:
            name, words = f"locust-llm {command}", words[len(put) :]
    for header in headers:  # by what they say, however the flag was written
        words = [word.replace(header, "***") if header else word for word in words]
    for secret in filter(None, map(str, secrets)):  # whole: a short one is in many words
        words = [
            word.removesuffix(secret) + "***" if word == secret or word.endswith(f"={secret}") else word
            for word in words
        ]
    return " ".join([name, *map(shlex.quote, words)])
