"""Command line parser: our flags on Locust's parser, its namespace as Settings, and a clear refusal
before any load.

A wrong value ends with exit status 5 and one line. That must happen between Locust's parsing and
its forks (``--processes``), where it has no hook: so ``parse_args`` of the parser is wrapped.
"""

import os
import re
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Final

from locust import argument_parser
from locust.argument_parser import LocustArgumentParser
from locust.shape import LoadTestShape

import msgspec

from locust_llm.access.certificate_files import use_certificates
from locust_llm.access.headers_and_api_key import (
    HEADER_VALUE,
    read_given_candidate_headers,
    read_given_headers,
    read_given_tenant_headers,
    read_headers_at_start,
)
from locust_llm.access.source_addresses import use_source_options
from locust_llm.exit_status import fail
from locust_llm.files.user_file import explain_irregular_file, read_small_text
from locust_llm.protocols.protocol_registry import AIPERF_NAMES, PROTOCOLS
from locust_llm.records.machine import usable_cores
from locust_llm.records.run_facts import RECORDS, RUN, read_run
from locust_llm.server.refusals import explain_refused_media
from locust_llm.settings.ab_arms import BASE, hide_header_values, parse_candidate_changes
from locust_llm.settings.endpoint_types import POOLING
from locust_llm.settings.environment_and_config_file import (
    accept_byte_order_mark,
    read_variable_lines,
)
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.option_declaration import (
    GROUPS,
    USERS,
    Option,
    declared_options,
    format_metavar,
    format_option_help,
    parser_default,
)
from locust_llm.settings.request_rate_option import parse_request_rate
from locust_llm.settings.run_options import (
    INPUT_TOKENS,
    LENGTH_SHARE,
    OUTPUT_TOKENS,
    SESSION_HEADERS,
    SETTING_OPTIONS,
    Settings,
)
from locust_llm.settings.run_refusal import RunRefused, refuse_run
from locust_llm.settings.server_address import (
    choose_given_host,
    complete_page_url,
    is_address,
    normalise_base_url,
    split_replica_urls,
)
from locust_llm.settings.settings_validation import (
    HEADER_NAME,
    check_dataset_tenants,
    validate_settings,
)
from locust_llm.settings.sweep_option import CONCURRENCY, INPUT, RATE
from locust_llm.settings.unrecorded_options import UnrecordedOptions
from locust_llm.slo.rules import RuleEntry, choose_inconclusive_policy
from locust_llm.text.numbers import read_number, truncate_quoted_text
from locust_llm.workload import local_tokenizer
from locust_llm.workload.access_log import parse_column_names
from locust_llm.workload.dataset_summary import DatasetSummary, explain_too_fast_trace
from locust_llm.workload.dataset_summary import check_dataset as check_dataset
from locust_llm.workload.generated_images_and_audio import prepare_generated_media
from locust_llm.workload.images_and_audio import AUDIO, IMAGE
from locust_llm.workload.length_distributions import parse_length_mix
from locust_llm.workload.model_and_tenant_mix import (
    hide_header_value,
    parse_tenant_headers,
    parse_weights,
)

from .command_line_help import format_command_line, introduce_program
from .disruption_options import find_shown_disruptions
from .memory_source_options import find_shown_memory_command
from .option_names_of_other_tools import (
    ACCEPTED_PEER_NAMES,
    accept_peer_option_names,
    unknown_options,
)
from .scenario_defaults import (
    name_mistake_origin,
    parse_with_scenario,
    scenario_changed,
    scenario_published,
    scenario_rules,
)

OPTIONS: Final = tuple(
    sorted(
        (*SETTING_OPTIONS, *declared_options(UnrecordedOptions)),
        key=lambda o: list(GROUPS).index(o.group),
    )
)
"""All options of this package, in the order of --help."""

PROCESSES: Final = "LOCUST_PROCESSES"
AUTO: Final = "auto"

ACCESS_OPTIONS: Final = (
    "api_key_file", "api_key_command", "api_key_lifetime", "header", "client_cert", "client_key",
    "ca_cert", "source_ip",
)  # fmt: skip
"""The options for the key, headers, certificates and source addresses."""
_secret_flags: Final[set[str]] = set()
"""The names of the locustfile's own secret options. They are not in the options, which a form or a
message could change."""
_BEFORE_COMMENT: Final = re.compile(r'(?:[^"#]|"[^"]*(?:"|$))*+', re.DOTALL)
"""The part of a line of rules before a comment. A # within quotes begins no comment."""
EXTRA_VALIDATORS: Final[list[Callable[[Settings, Namespace], Iterable[str]]]] = []
"""The locustfile's own validators, called after ours. Each returns why a run is impossible, a
sentence each."""


# -- the options on Locust's parser ----------------------------------------------------------------


def add_options(parser: LocustArgumentParser, before_load: Callable[[Namespace], None]) -> None:
    """Add our flags and our defaults for Locust's flags. ``before_load`` is called once with the
    parsed options before any fork."""
    add_groups(parser, OPTIONS)
    accept_auto_processes(parser)
    accept_peer_option_names(parser)
    accept_byte_order_mark(parser)
    introduce_program(parser, sys.argv[0])
    # a stream that runs at the end has 30 s to finish; Locust's own default would cut it without a
    # record
    parser.set_defaults(stop_timeout=30.0)
    _check_after_parsing(parser, before_load)


def add_groups(parser: LocustArgumentParser, options: Iterable[Option]) -> None:
    """Add the options in their groups, before Locust's options.

    Locust's groups take no include_in_web_ui and the like, so these are set on the action. So is
    the help, as argparse of Python 3.11 adds its own default to a switch's help.
    """
    groups = parser._action_groups
    titles = {group.title for group in GROUPS.values()}
    for name, members in groupby(options, key=lambda option: option.group):
        title, what, example = GROUPS[name]
        group = parser.add_argument_group(title, f"{what}\n$ {example}")
        groups.insert(sum(group.title in titles for group in groups[:-1]), groups.pop())
        for option in members:
            action: Any = group.add_argument(option.flag, **_argument(option))
            action.help = format_option_help(option).replace("%", "%%")
            action.include_in_web_ui = option.in_form
            action.is_secret = action.is_required = action.is_multiple = False


def add_access_options(parser: ArgumentParser) -> None:
    """Add the options that let requests in, with their names, texts and variables, for commands
    that have few options of a run."""
    by_dest = {option.dest: option for option in OPTIONS}
    for option in map(by_dest.__getitem__, ACCESS_OPTIONS):
        how: dict[str, Any] = {"type": option.kind, "default": os.environ.get(option.variable)}
        if option.repeated:  # headers of the environment are read where the others are
            how = {"action": "append", "default": []}
        parser.add_argument(
            option.flag,
            metavar=format_metavar(option),
            help=format_option_help(option).replace("%", "%%"),
            **how,
        )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help=(
            "Do not verify the server's TLS certificate. Anyone on the network path can read "
            "everything, including the API key"
        ),
    )


def read_access_options(options: Namespace) -> Mapping[str, str]:
    """Use what these options name, and return the headers of every request. Raises OSError and
    ValueError."""
    options.host = choose_given_host(options.address, options.host)
    use_certificates(options)
    use_source_options(options)
    return read_headers_at_start(options)


def _argument(option: Option) -> dict[str, Any]:
    if option.kind is bool:
        return {"action": BooleanOptionalAction, "default": option.default}
    if option.repeated:
        return {"action": "append", "default": [], "metavar": format_metavar(option)}
    return {
        "type": make_option_reader(option), "default": parser_default(option),
        "metavar": format_metavar(option),
        "env_var": option.variable, **({"nargs": "?",
            "const": option.alone} if option.alone else {}),
    }  # fmt: skip


def accept_auto_processes(parser: ArgumentParser) -> None:
    """Let Locust's --processes be ``auto``, too.

    On the command line and in files its type does it. In the environment the value is replaced, as
    Locust reads it again and again with its own parsers.
    """
    if os.environ.get(PROCESSES, "").strip().lower() == AUTO:
        os.environ[PROCESSES] = str(_read_process_count(AUTO))
    for action in parser._actions:
        if "--processes" in action.option_strings:
            action.type, action.metavar = _read_process_count, "N|auto"
            action.help = (
                f"{action.help} auto starts one process fewer than there are usable cores, and at "
                "least one."
            )


def _read_process_count(text: str) -> int | None:
    """The number of processes. Raises Refused."""
    if text.strip().lower() == AUTO:
        return max(1, usable_cores() - 1)
    try:
        return int(read_number(int, text)) if text.strip() else None
    except ValueError:
        refuse_run(
            f"--processes must be a whole number or {AUTO}, got {truncate_quoted_text(text)!r}"
        )


def make_option_reader(option: Option) -> Callable[[str], Any]:
    """A function from the option's text to its value. Raises Refused."""
    if option.kind in (int, float):
        return make_number_type(option.kind, option.flag, "%" if option.unit == "percent" else "")
    return _percentiles if option.kind is tuple else str


def make_number_type(kind: type, flag: str, unit: str = "") -> Callable[[str], Any]:
    """A type for argparse. An empty text (from the environment) means not set. ``unit`` may follow
    the number.

    Raises Refused, as argparse would end with status 2.
    """

    def parse(text: str) -> Any:
        if not text.strip():
            return None
        try:
            return read_number(kind, text.strip().removesuffix(unit))
        except ValueError:
            refuse_run(
                f"{flag} must be {'a whole number' if kind is int else 'a number'}, got "
                f"{truncate_quoted_text(text)!r}"
            )

    return parse


def _percentiles(text: str) -> str:
    try:
        [read_number(float, part) for part in text.split(",")]
    except ValueError:
        refuse_run(
            "--percentiles must be numbers separated by commas, such as 50,90,95,99, got "
            f"{truncate_quoted_text(text)!r}"
        )
    return text


def keep_locusts_defaults() -> None:
    """Keep Locust's defaults in this process from now on. A worker that starts or stops users asks
    for them once for each option, and Locust builds a parser each time. With our options its event
    loop stood still for some 200 ms."""
    argument_parser.default_args_dict = cache(argument_parser.default_args_dict)


def fill_in_form(options: Namespace, form: Mapping[str, str]) -> None:
    """Replace the command line's values by a web form's. An empty field means not set, and a
    missing field stays. Rules (``slo``) are one on each line. Raises Refused."""
    for option in OPTIONS:
        if (text := form.get(option.dest)) is None:
            continue
        if not option.in_form:
            refuse_run(f"{option.flag} works on the command line only")
        if option.kind is bool:
            setattr(options, option.dest, _truth(text))
        elif not option.repeated:
            setattr(
                options,
                option.dest,
                make_option_reader(option)(text.strip())
                if text.strip()
                else parser_default(option),
            )
    if "slo" in form:  # which showed those of the environment and of the file too
        options.llm_rules = list(_without_comments(form["slo"].splitlines()))


def list_secret_flags() -> tuple[str, ...]:
    """The names of the locustfile's own secret options (``is_secret``)."""
    return tuple(sorted(_secret_flags))


_checked = False


def _check_after_parsing(
    parser: LocustArgumentParser, before_load: Callable[[Namespace], None]
) -> None:
    parse = parser.parse_args
    parser.error = refuse_run  # type: ignore[method-assign]  # argparse would end with status 2

    def parse_args(args: Any = None, namespace: Any = None) -> Namespace:
        global _checked
        try:
            words = sys.argv[1:] if args is None else args
            if wrong := unknown_options(words, parser._option_string_actions):
                refuse_run(wrong)
            options = parse_with_scenario(parser, lambda: parse(args, namespace))
            for wrong in misplaced_hosts(words, options.user_classes):
                refuse_run(wrong)
            take_host_word(options)
            _secret_flags.update(
                action.dest for action in parser._actions if getattr(action, "is_secret", False)
            )
            if not _checked:  # the web page parses again for each visitor
                _checked = True
                before_load(options)
        except RunRefused as refused:
            sys.exit(fail(str(refused)))
        return options

    parser.parse_args = parse_args


# -- the host, also without --host ------------------------------------------------------------------


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
            "more than one address is given: use one server, or the replicas of one, separated by "
            "commas"
        )
    for name in names:
        if not name.isidentifier() and name not in addresses:
            # there may be a password in it
            name = "ADDRESS" if "@" in name else truncate_quoted_text(name)
            yield f"{name!r} is not a user class: did you mean --host {name}?"


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


# -- what was parsed, as settings ------------------------------------------------------------------


def check_options(options: Namespace, **known: Any) -> Settings:
    """Settings that can be run. ``known`` has fields that are known better than from the options.
    Raises Refused."""
    options.endpoint_type = AIPERF_NAMES.get(options.endpoint_type, options.endpoint_type)
    _check_choices(options)
    _check_headers(options)
    settings = _make_settings(options, known)
    _check_protocol(settings)
    _check_companions(options, settings)
    for mistake in chain(
        validate_settings(settings), *(rule(settings, options) for rule in EXTRA_VALIDATORS)
    ):
        refuse_run(name_mistake_origin(mistake, options))
    if options.arrival_pattern and not _has_arrivals(settings):
        refuse_run(
            f"--arrival-pattern {options.arrival_pattern} needs --request-rate. Without a rate, "
            "each user sends its next request after its last response"
        )
    try:
        look_through_inputs(settings)
    except ValueError as error:
        refuse_run(str(error))
    except OSError as error:
        refuse_run(f"{error.filename}: {error.strerror}")
    return settings


def _check_choices(options: Namespace) -> None:
    """Refuse a value that its option does not allow."""
    for option in OPTIONS:
        # a locustfile may add some
        allowed = (*PROTOCOLS,) if option.field == "endpoint_type" else option.allowed
        if option.choices and (value := getattr(options, option.dest)) not in allowed:
            refuse_run(
                f"{option.flag} must be one of {', '.join(filter(None, allowed))}, got {value!r}"
            )


def _check_headers(options: Namespace) -> None:
    """Refuse invalid headers of the options and of the environment."""
    for header in read_given_headers(options):
        name, colon, value = header.partition(":")
        if not colon:
            # not shown: it may be the secret itself
            refuse_run("--header must be NAME: VALUE, got one without a colon")
        if not HEADER_NAME.fullmatch(name.strip()):
            refuse_run(
                f"--header must be NAME: VALUE, and {name.strip()!r} is not a valid name of a "
                "header"
            )
        if not HEADER_VALUE.fullmatch(value):
            refuse_run(
                f"--header {name.strip()}: its value has characters that a header must not contain"
            )
    try:
        parse_tenant_headers(read_given_tenant_headers(options))
        parse_candidate_changes(read_given_candidate_headers(options))
    except ValueError as error:
        refuse_run(str(error))


def _make_settings(options: Namespace, known: Mapping[str, Any]) -> Settings:
    """Make the settings of these options and the better-known fields, and refuse values that make
    none."""
    try:
        return msgspec.structs.replace(build_settings(options), **known)
    except OSError as error:
        refuse_run(f"--slo-file {error.filename}: {error.strerror}")
    except OverflowError:
        refuse_run("-t or --stop-timeout is too large")
    except ValueError as error:
        refuse_run(f"--host {options.host!r} is not a valid URL: {error}")


def _check_protocol(settings: Settings) -> None:
    """Refuse what the run's protocol lacks."""
    fields = PROTOCOLS[settings.endpoint_type].length_fields
    if settings.max_tokens_field not in (Settings().max_tokens_field, *fields):
        refuse_run(
            f"--max-tokens-field {settings.max_tokens_field}: --endpoint-type "
            f"{settings.endpoint_type} has no such field"
            f"{', but ' * bool(fields)}{' or '.join(fields)}"
        )
    if not PROTOCOLS[settings.endpoint_type].streams and _is_given("--streaming"):
        refuse_run(
            f"--endpoint-type {settings.endpoint_type} does not stream: leave out --streaming"
        )
    for kind in settings.media.kinds:
        if not_taken := explain_refused_media(settings.endpoint_type, kind):
            refuse_run(not_taken)


def _check_companions(options: Namespace, settings: Settings) -> None:
    """Refuse options that need another one, a folder, or a value within bounds, and that are no
    settings of the run."""
    if settings.api_key_lifetime is not None and not options.api_key_command:
        refuse_run("--api-key-lifetime needs --api-key-command")
    if options.web_datasets and not os.path.isdir(options.web_datasets):
        refuse_run(f"--web-datasets {options.web_datasets}: the folder does not exist")
    rate = options.spawn_rate
    if rate is not None and not 0 < rate <= USERS.most:
        refuse_run(f"-r must be above 0 and at most {USERS.most}, got {rate:g}")


def _has_arrivals(settings: Settings) -> bool:
    """Whether arrivals are drawn: at random times, or at even ones. The times of a trace and of
    user-centric rates are not."""
    return bool(
        settings.request_rate
        or settings.request_rate_series
        or settings.sweeps(RATE)
        or (settings.warmup_request_rate and settings.warms_up)
    )


def _check_length_mix(text: str) -> None:
    try:
        parse_length_mix(text)
    except ValueError as error:
        raise ValueError(f"--seq-dist: {error}") from None


def look_through_inputs(settings: Settings) -> DatasetSummary | None:
    """Read once what the settings name, so that a mistake shows before any load. Returns what the
    dataset is, if there is one.

    Raises ValueError of one sentence, and OSError.
    """
    parse_request_rate(settings)
    for entry in settings.rules.entries:
        if not settings.compares or entry.rule is None or entry.rule.base != BASE:
            _look_at_base(entry)
    if settings.seq_dist:
        _check_length_mix(settings.seq_dist)
    if settings.model_mix:
        parse_weights(settings.model_mix)
    collect_extra_inputs(settings)
    try:
        prepare_generated_media(settings.media)  # also so that processes which are forked have them
    except ImportError as error:
        raise ValueError(f"--image-format {settings.image_format}: {error}") from None
    if settings.tokenizer:
        for path in (settings.tokenizer, os.path.join(settings.tokenizer, "tokenizer.json")):
            if why := explain_irregular_file(path):
                raise ValueError(f"--tokenizer {path}: is {why}")
        local_tokenizer.load_tokenizer(settings.tokenizer)
    if not settings.input_file:
        return None
    columns = parse_column_names(settings.dataset_columns) if settings.dataset_columns else None
    dataset = check_dataset(
        settings.input_file,
        kind=settings.custom_dataset_type,
        columns=columns,
        timed=settings.fixed_schedule,
        skip_broken=settings.skip_broken_rows,
    )
    if not settings.generates and dataset.turns > dataset.sessions:
        raise ValueError(
            f"{settings.input_file} has {dataset.turns} turns in {dataset.sessions} sessions, but "
            f"{settings.endpoint_type} has no conversation"
        )
    for kind, count in ((IMAGE, dataset.images), (AUDIO, dataset.sounds)):
        if count and (not_taken := explain_refused_media(settings.endpoint_type, kind)):
            raise ValueError(f"{settings.input_file}: {not_taken}")
    if why := check_dataset_tenants(settings, dataset.tenants):
        raise ValueError(f"{settings.input_file}: {why}")
    if (
        settings.fixed_schedule
        and settings.replay_speedup == 1
        and not _is_given("--replay-speedup")
        and (why := explain_too_fast_trace(dataset))
    ):
        raise ValueError(why)
    return dataset


def _is_given(flag: str) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in sys.argv[1:])


def _look_at_base(entry: RuleEntry) -> None:
    """Check that the base run of a rule exists, if it has one. Raises ValueError."""
    if entry.rule is None or not (base := entry.rule.base):
        return
    text = entry.text
    if not (Path(base) / RECORDS).is_file():
        raise ValueError(f"SLO {text!r}: {base} is not a run folder: it contains no {RECORDS}")
    try:
        read_run(Path(base))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"SLO {text!r}: the {RUN} of {base} cannot be read: {why}") from None


def build_settings(options: Namespace | None) -> Settings:
    """Settings from a parsed command line, a web form (where an empty text is not set), or nothing.
    Raises ValueError."""
    if options is None or not hasattr(options, "prefill_concurrency"):
        return Settings()
    values = {
        option.field: _typed(option, getattr(options, option.dest)) for option in SETTING_OPTIONS
    }
    pattern = "gamma" if values["arrival_smoothness"] is not None else "poisson"  # AIPerf's default
    values["arrival_pattern"] = values["arrival_pattern"] or pattern
    own = PROTOCOLS.get(values["endpoint_type"], PROTOCOLS["chat"])
    values["endpoint"] = "/" + (values["endpoint"] or own.path).lstrip("/")
    values["streaming"] = values["streaming"] and own.streams
    _fill_in_lengths(values)
    values["percentiles"] = tuple(dict.fromkeys(map(float, values["percentiles"].split(","))))
    values["report_dir"] = values["report_dir"] or ""
    values["candidate"] = normalise_base_url(values["candidate"] or "")
    values["session_header"] = SESSION_HEADERS.get(
        values["session_header"], values["session_header"]
    )
    values["slo"] = tuple(read_given_rules(options))
    values["inconclusive"] = values["inconclusive"] or choose_inconclusive_policy(
        os.environ.get("CI", ""), options.slo_file
    )
    given = [*read_variable_lines("LOCUST_LLM_LABEL"), *options.label]
    values["label"] = tuple(dict.fromkeys(filter(None, map(str.strip, given))))
    values["scenario_changed"] = scenario_changed(options, values)
    values["published"] = scenario_published(options)
    pages = [*read_variable_lines("LOCUST_LLM_METRICS_URL"), *options.metrics_url]
    values["metrics_url"] = tuple(dict.fromkeys(map(complete_page_url, filter(str.strip, pages))))
    settings = Settings(
        host=normalise_base_url(options.host or ""),
        hosts=split_replica_urls(options.host or ""),
        header_names=tuple(
            header.partition(":")[0].strip() for header in read_given_headers(options)
        ),
        candidate_set=tuple(map(hide_header_values, read_given_candidate_headers(options))),
        tenant_header=tuple(map(hide_header_value, read_given_tenant_headers(options))),
        users=getattr(options, "llm_users", options.num_users),
        spawn_rate=getattr(options, "llm_spawn_rate", options.spawn_rate),
        processes=_processes(options),
        run_time_s=getattr(options, "llm_run_time", None) or options.run_time or None,
        stop_timeout_s=float(options.stop_timeout or 0),
        locustfile=os.path.basename(str(options.locustfile or "")),
        command=format_command_line(
            options.header,
            [
                options.api_key_command,
                *(getattr(options, name, None) for name in list_secret_flags()),
            ],
            {
                **{text: hide_header_values(text) for text in options.candidate_set},
                **{text: hide_header_value(text) for text in options.tenant_header},
                **find_shown_disruptions(),
                **find_shown_memory_command(),
            },
        ),
        **values,
    )
    if settings.users is None and options.headless:
        settings = msgspec.structs.replace(settings, users=default_user_count(settings))
    return settings


def default_user_count(settings: Settings) -> int | None:
    """The users of a run without a number: Locust's default, or None where the load or a shape
    decides."""
    counted = settings.open_loop or settings.sweeps(CONCURRENCY) or LoadTestShape.__subclasses__()
    return None if counted else 1


def read_given_rules(options: Namespace) -> list[str]:
    """The rules of the web form; otherwise of the flag, the environment, the file, or the scenario.
    Raises OSError."""
    if (filled_in := getattr(options, "llm_rules", None)) is not None:
        return list(filled_in)
    lines = [*options.slo, *read_variable_lines("LOCUST_LLM_SLO")]
    if options.slo_file:
        lines += read_small_text(options.slo_file).splitlines()
    return list(_without_comments(lines or scenario_rules(options)))


def _without_comments(lines: Iterable[str]) -> Iterator[str]:
    rules = (_BEFORE_COMMENT.match(line)[0] for line in lines)  # type: ignore[index]  # it always matches
    return filter(None, map(str.strip, rules))


def _processes(options: Namespace) -> int:
    """How many processes will send."""
    # as Locust reads it, later
    processes = os.cpu_count() if options.processes == -1 else options.processes
    return max(1, processes or 1, options.expect_workers if options.master else 1)


def _fill_in_lengths(values: dict[str, Any]) -> None:
    """Lengths that nobody gave vary a little, so that users do not go on in step. Given lengths are
    exact."""
    own = (
        values["scenario"]
        or values["seq_dist"]
        or values["input_file"]
        or values["prefix_cache_hit_rate"] is not None
    )
    swept = (values["sweep"] or "").startswith(INPUT)
    generates = values["endpoint_type"] not in POOLING
    for name, usual, varies in (
        ("synthetic_input_tokens", INPUT_TOKENS, not (own or swept)),
        ("output_tokens", OUTPUT_TOKENS, generates and not own),
    ):
        mean, stddev = f"{name}_mean", f"{name}_stddev"
        if values[stddev] is None:
            values[stddev] = LENGTH_SHARE * usual if varies and values[mean] is None else 0.0
        if values[mean] is None:
            values[mean] = usual


def _typed(option: Option, value: Any) -> Any:
    if option.kind is bool:
        return _truth(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        return parser_default(option)
    return option.kind(value) if isinstance(value, str) and option.kind in (int, float) else value


def _truth(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)
