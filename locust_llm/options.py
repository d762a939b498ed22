"""The command line: our flags on Locust's parser, its namespace to Settings, and a clear no before any load.

A wrong value ends with exit status 5 and one line. That has to happen between Locust's parsing and its forks
(``--processes``), where it has no hook: so ``parse_args`` of the parser is wrapped.
"""

import os
import re
import shlex
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable
from typing import Any, Final, NoReturn

from locust.argument_parser import LocustArgumentParser

from .settings import Settings, base_url, mistakes

BAD_SETTINGS: Final = 5
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")


def refuse(reason: str) -> NoReturn:
    """One line, exit status 5."""
    sys.stderr.write(f"locust-llm: error: {reason}\n")
    sys.stderr.flush()
    sys.exit(BAD_SETTINGS)


def _number(kind: type, flag: str) -> Callable[[str], Any]:
    """A type for argparse that ends with status 5, not 2. Empty means not set (web form, environment)."""

    def parse(text: str) -> Any:
        if text == "":
            return None
        try:
            value = kind(text)
        except ValueError:
            refuse(f"{flag} takes {'a whole number' if kind is int else 'a number'}, got {text!r}")
        if value != value or value in (float("inf"), float("-inf")):
            refuse(f"{flag} takes a number, got {text!r}")
        return value

    return parse


def _percentiles(text: str) -> str:
    try:
        [float(part) for part in text.split(",")]
    except ValueError:
        refuse(f"--percentiles takes numbers with commas between, such as 50,90,95,99, got {text!r}")
    return text


# flag, type, default, help; the destination is the field of Settings
FLAGS: Final[tuple[tuple[str, Any, Any, str], ...]] = (
    ("--model", str, None, "Model to ask for; by default the server's first"),
    ("--prefill-concurrency", int, None, "At most this many requests wait for their first token at a time"),
    ("--prefill-concurrency-ramp-duration", float, None, "Seconds in which the prefill limit rises from 1"),
    ("--synthetic-input-tokens-mean", float, 550.0, "Mean length of synthetic prompts, in tokens"),
    ("--synthetic-input-tokens-stddev", float, 0.0, "Its standard deviation"),
    ("--output-tokens-mean", float, 128.0, "Mean of max_tokens"),
    ("--output-tokens-stddev", float, 0.0, "Its standard deviation"),
    ("--request-count", int, None, "Send exactly this many requests, then end"),
    ("--warmup-request-count", int, None, "Send this many requests first, outside the main tables"),
    ("--warmup-prefill-concurrency", int, None, "Prefill limit of the warmup; by default the main one"),
    ("--warmup-prefill-concurrency-ramp-duration", float, None, "Ramp of the warmup; by default the main one"),
    ("--endpoint-type", str, "chat", "Kind of endpoint: chat"),
    ("--endpoint", str, "/v1/chat/completions", "Path of the endpoint"),
    ("--max-tokens-field", str, "max_tokens", "max_tokens, or max_completion_tokens where a server wants that"),
    ("--api-key-file", str, None, "File with the API key; by default the environment variable OPENAI_API_KEY"),
    ("--request-timeout", float, 3600.0, "Seconds after which a request is given up"),
    ("--wait-for-model-timeout", float, 0.0, "Seconds to wait for the server to answer before the run"),
    ("--random-seed", int, None, "Makes prompts and lengths the same in every run"),
    ("--percentiles", _percentiles, "50,90,95,99", "Percentiles of the tables, up to 99.9"),
    ("--report-dir", str, None, "Folder for the reports; by default reports/<time>-<model>"),
)
CHOICES: Final = {
    "--endpoint-type": ("chat",),
    "--max-tokens-field": ("max_tokens", "max_completion_tokens"),
}


def add_options(parser: LocustArgumentParser, before_load: Callable[[Namespace], None]) -> None:
    """Our flags, our defaults for Locust's, and ``before_load``, called once with what was parsed before any fork."""
    for flag, kind, default, text in FLAGS:
        convert = _number(kind, flag) if kind in (int, float) else kind
        parser.add_argument(
            flag, type=convert, default=default, help=text, env_var="LOCUST_LLM_" + flag[2:].upper().replace("-", "_")
        )
    parser.add_argument("--streaming", action=BooleanOptionalAction, default=True, help="Ask for a stream of events")
    parser.add_argument("--probe", action=BooleanOptionalAction, default=True,
                        help="Before the run, ask the server how many tokens a few prompts have")  # fmt: skip
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", include_in_web_ui=False,
                        help="Send this header with every request; may be repeated")  # fmt: skip
    # a stream that runs at the end has 30 s to finish; Locust's own default would cut it without a record
    parser.set_defaults(stop_timeout=30.0)
    _check_after_parsing(parser, before_load)


_checked = False


def _check_after_parsing(parser: LocustArgumentParser, before_load: Callable[[Namespace], None]) -> None:
    parse = parser.parse_args

    def parse_args(args: Any = None, namespace: Any = None) -> Namespace:
        global _checked
        options: Namespace = parse(args, namespace)
        if not _checked:  # the web page parses again for each visitor
            _checked = True
            before_load(options)
        return options

    parser.parse_args = parse_args


def check(options: Namespace) -> Settings:
    """Settings that can be run, or the end."""
    for flag, choices in CHOICES.items():
        if (value := getattr(options, _field(flag))) not in choices:
            refuse(f"{flag} must be one of {', '.join(choices)}, got {value!r}")
    for header in options.header:
        name, colon, value = header.partition(":")
        if not colon:
            refuse("--header takes NAME: VALUE, got one without a colon")  # not shown: it may be the secret itself
        if not _HEADER_NAME.fullmatch(name.strip()):
            refuse(f"--header takes NAME: VALUE, and {name.strip()!r} is no name of a header")
        if not _HEADER_VALUE.fullmatch(value):
            refuse(f"--header {name.strip()}: its value has characters that no header can carry")
    try:
        settings = settings_of(options)
    except ValueError as error:
        refuse(f"--host {options.host!r} is no URL: {error}")
    for mistake in mistakes(settings):
        refuse(mistake)
    return settings


def settings_of(options: Namespace | None) -> Settings:
    """Settings from a parsed command line, a web form (where an empty text is not set), or nothing. Raises ValueError."""
    if options is None or not hasattr(options, "prefill_concurrency"):
        return Settings()
    values = {_field(flag): _typed(kind, getattr(options, _field(flag)), default) for flag, kind, default, _ in FLAGS}
    users = options.num_users
    if users is None and options.headless:
        users = 1  # Locust's default
    processes = os.cpu_count() if options.processes == -1 else options.processes  # as Locust reads it, later
    return Settings(
        host=base_url(options.host or ""),
        endpoint="/" + values["endpoint"].lstrip("/"),
        endpoint_type=values["endpoint_type"],
        model=values["model"],
        streaming=_truth(options.streaming),
        max_tokens_field=values["max_tokens_field"],
        header_names=tuple(header.partition(":")[0].strip() for header in options.header),
        users=users,
        processes=max(1, processes or 1, options.expect_workers if options.master else 1),
        prefill_concurrency=values["prefill_concurrency"],
        prefill_concurrency_ramp_duration=values["prefill_concurrency_ramp_duration"],
        warmup_prefill_concurrency=values["warmup_prefill_concurrency"],
        warmup_prefill_concurrency_ramp_duration=values["warmup_prefill_concurrency_ramp_duration"],
        warmup_request_count=values["warmup_request_count"],
        request_count=values["request_count"],
        run_time_s=options.run_time or None,
        stop_timeout_s=float(options.stop_timeout or 0),
        request_timeout_s=values["request_timeout"],
        wait_for_model_timeout_s=values["wait_for_model_timeout"],
        synthetic_input_tokens_mean=values["synthetic_input_tokens_mean"],
        synthetic_input_tokens_stddev=values["synthetic_input_tokens_stddev"],
        output_tokens_mean=values["output_tokens_mean"],
        output_tokens_stddev=values["output_tokens_stddev"],
        random_seed=values["random_seed"],
        probe=_truth(options.probe),
        percentiles=tuple(float(part) for part in values["percentiles"].split(",")),
        report_dir=values["report_dir"] or "",
        locustfile=os.path.basename(str(options.locustfile or "")),
        command=_command(options.header),
    )


def request_headers(options: Namespace | None) -> dict[str, str]:
    """The headers of every request, the key among them. Never written anywhere.

    Raises OSError for a key file, ValueError for a key that no header can carry.
    """
    if options is None or not hasattr(options, "header"):
        return {}
    headers = {}
    key = os.environ.get("OPENAI_API_KEY", "")
    if options.api_key_file:
        with open(options.api_key_file, encoding="utf-8") as file:
            key = file.read()
    if not _HEADER_VALUE.fullmatch(key.strip()):
        raise ValueError("the API key is not one line of text")
    if key.strip():
        headers["Authorization"] = f"Bearer {key.strip()}"
    for header in options.header:
        name, _, value = header.partition(":")
        headers[name.strip()] = value.strip()
    return headers


def _field(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _typed(kind: Any, value: Any, default: Any) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        return default
    return kind(value) if isinstance(value, str) and kind in (int, float) else value


def _truth(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def _command(headers: list[str]) -> str:
    """The command line, without the values of headers."""
    words = sys.argv[1:]
    for header in headers:  # by what they say, however the flag was written
        words = [word.replace(header, "***") if header else word for word in words]
    return shlex.join([os.path.basename(sys.argv[0]).replace("__main__.py", "locust"), *words])
