"""Flags: the declared options on Locust's parser, in groups before its own, and the reading of their values."""

import shlex
from argparse import BooleanOptionalAction
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Annotated, Any, Final, NoReturn

from locust.argument_parser import LocustArgumentParser

import msgspec

from locust_llm.core.option import GROUPS, Option, options_of
from locust_llm.core.settings import Settings
from locust_llm.load.numbers import cut_short, read_number, shown

LINE: Final = 1000
"""Characters of a refusal: what was given may be a whole file."""


class Refused(Exception):
    """There can be no such run: why, and what to do, in one line."""


def refuse(reason: str) -> NoReturn:
    raise Refused(cut_short(reason.replace("\n", " "), LINE))


class CommandLine(msgspec.Struct):
    """Options that are no fields of the settings: a run's records hold neither keys nor the paths to them."""

    api_key_file: Annotated[
        str | None,
        Option("server", "File with the API key", "key.txt", "FILE", otherwise="$OPENAI_API_KEY", in_form=False),
    ] = None
    header: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Header of every request; the environment variable has one per line, and is in no list of processes",
            "X-Team: search",
            "NAME: VALUE",
            in_form=False,
            repeated=True,
            variable="LOCUST_LLM_HEADERS",
        ),
    ] = ()
    candidate_set: Annotated[
        tuple[str, ...],
        Option(
            "ab",
            "In what the candidate differs: header:NAME=VALUE, model=NAME, prefill-concurrency=N or body.FIELD=VALUE; the "
            "environment variable has one per line",
            "body.temperature=0.5",
            "KEY=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    slo_file: Annotated[
        str | None, Option("verdict", "File with a rule per line; # begins a comment", "slo.txt", "FILE", in_form=False)
    ] = None
    verbose: Annotated[
        bool, Option("output", "Print all tables at the end, and Locust's too, not the verdict alone", in_form=False)
    ] = False
    web_allowed_host: Annotated[
        str | None,
        Option(
            "output",
            "More host names of the web page, also of a proxy before it; commas between",
            "load.example.com,locust:8089",
            "NAMES",
            in_form=False,
        ),
    ] = None


OF_SETTINGS: Final = tuple(option for option in options_of(Settings) if option.group != "locust")
OPTIONS: Final = tuple(sorted((*OF_SETTINGS, *options_of(CommandLine)), key=lambda o: list(GROUPS).index(o.group)))
"""All of ours, in the order of --help."""


def add_groups(parser: LocustArgumentParser, options: Iterable[Option]) -> None:
    """Options in their groups, before those of Locust.

    Its groups take no include_in_web_ui and the like: they are set on the action. So is the help, as argparse of Python
    3.11 adds a default of its own to that of a switch.
    """
    groups = parser._action_groups
    for title, members in groupby(options, key=lambda option: option.group):
        group = parser.add_argument_group(title, GROUPS[title])
        groups.insert(sum(one.title in GROUPS for one in groups[:-1]), groups.pop())
        for option in members:
            action: Any = group.add_argument(option.flag, **_argument(option))
            action.help = help_of(option).replace("%", "%%")
            action.include_in_web_ui = option.in_form
            action.is_secret = action.is_required = action.is_multiple = False


def _argument(option: Option) -> dict[str, Any]:
    if option.kind is bool:
        return {"action": BooleanOptionalAction, "default": option.default}
    if option.repeated:
        return {"action": "append", "default": [], "metavar": value_of(option)}
    return {
        "type": reader(option), "default": parser_default(option), "metavar": value_of(option),
        "env_var": option.variable,
    }  # fmt: skip


def parser_default(option: Option) -> Any:
    """What the parsed options hold where nothing was given: of percentiles a text."""
    return default_of(option) if option.kind is tuple else option.default


def value_of(option: Option) -> str:
    """What the flag takes, in one word."""
    if option.choices:
        return f"{{{','.join(option.choices)}}}"
    return option.unit.upper() or {int: "N", float: "NUMBER"}.get(option.kind, "TEXT")


def default_of(option: Option) -> str:
    """The default as text; empty without one."""
    if option.otherwise or option.default in (None, (), ""):
        return option.otherwise
    if option.kind is bool:
        return "on" if option.default else "off"
    if option.kind is tuple:
        return ",".join(f"{value:g}" for value in option.default)
    return shown(option.default) if option.kind in (int, float) else str(option.default)


def example_of(option: Option) -> str:
    """A value as a shell takes it; the whole flag of a switch."""
    if option.kind is bool:
        return f"--no-{option.flag[2:]}" if option.default else option.flag
    return shlex.quote(option.example)


def help_of(option: Option) -> str:
    """The text of --help and of the web form."""
    return f"{option.help} (default: {default_of(option) or 'none'}; example: {example_of(option)})"


def reader(option: Option) -> Callable[[str], Any]:
    """The option's value from its text. Raises Refused."""
    if option.kind in (int, float):
        return number(option.kind, option.flag)
    return _percentiles if option.kind is tuple else str


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
