"""Option declaration: the one declaration of a setting. Flag, environment variable, range check,
form field and docs derive from it.

A field of a struct declares it: ``Annotated[float | None, Option("load", "Help", "2.5",
range=POSITIVE)] = None``. Name, type and default are the field's own.
"""

import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from locust_llm.text.numbers import SECONDS, format_quoted_number
from locust_llm.text.numbers import TOKENS as MAX_TOKENS

from .environment_and_config_file import name_variable

GroupName = Literal[
    "server",
    "load",
    "gate",
    "prompts",
    "rules",
    "answers",
    "sweep",
    "report",
    "tenants",
    "ab",
    "probe",
    "locust",
]


class OptionGroup(NamedTuple):
    """Options that belong together, in --help, in docs/reference/cli and in the web form."""

    title: str
    what: str
    example: str
    """A command with some of them."""


RUN: Final = "locust-llm run --headless --host localhost:8000"
GROUPS: Final[dict[str, OptionGroup]] = {
    "server": OptionGroup(
        "Server",
        "Endpoint, model, keys and timeouts. The address (--host) is an option of Locust.",
        "locust-llm run --headless --host https://llm.example.com -u 10 -t 60 --model llama "
        "--api-key-file key.txt",
    ),
    "load": OptionGroup(
        "Load",
        "Amount and timing of the load. The number of users (-u) and the length of the run (-t) "
        "are options of Locust.",
        f"{RUN} --request-rate 4 --arrival-pattern constant -t 2m",
    ),
    "gate": OptionGroup(
        "Prefill concurrency",
        "Limit on the requests that wait for their first token at the same time.",
        f"{RUN} -u 30 -t 2m --prefill-concurrency 5 --prefill-concurrency-ramp-duration 30",
    ),
    "prompts": OptionGroup(
        "Prompts",
        "Content of the requests: synthetic prompts, sessions and datasets.",
        f"{RUN} -u 10 -t 60 --synthetic-input-tokens-mean 8000 --output-tokens-mean 200",
    ),
    "rules": OptionGroup(
        "SLO rules",
        "Service level objectives (SLOs). They decide the exit status.",
        f"{RUN} -u 10 -t 2m --slo 'ttft p95 < 500ms' --slo 'error_rate < 1%'",
    ),
    "answers": OptionGroup(
        "Check answers",
        "Whether answers are right under load: no user gets the text of another one.",
        f"{RUN} -u 20 -t 5m --check-answers",
    ),
    "sweep": OptionGroup(
        "Sweep",
        "Several load levels (stages) in one run, the search for the highest load that meets the "
        "SLOs, and repeats.",
        f"{RUN} --sweep concurrency=1..64 --find-max --slo 'ttft p95 < 2s'",
    ),
    "report": OptionGroup(
        "Report",
        "Tables, reports and pages, and the check of their timing accuracy.",
        f"{RUN} -u 10 -t 60 --percentiles 50,95,99 --report-dir out --gpus 8",
    ),
    "tenants": OptionGroup(
        "Tenants",
        "Several tenants on one server: their shares, headers and fairness.",
        f"{RUN} --request-rate 4 -t 2m --tenant-mix gold=20,free=80",
    ),
    "ab": OptionGroup(
        "A/B",
        "Options of locust-llm ab, which compares a base and a candidate in alternating blocks. "
        "--base is another name of --host.",
        "locust-llm ab --base localhost:8000 --candidate localhost:8001 -u 10 -t 10m --slo 'ttft "
        "p95 within 5% of base'",
    ),
    "probe": OptionGroup(
        "Probe",
        "Options of locust-llm probe, which measures how prefills slow down other requests.",
        "locust-llm probe --host localhost:8000 --longest 8000 --rounds 3",
    ),
}
"""The groups in the order of --help and docs/reference/cli. "locust" has only ranges, as
Locust has these flags."""


class OptionRange(NamedTuple):
    """Both ends belong to the range.

    The upper ends are far above any need, and low enough for a run: its numbers fit into messages
    between processes (64 bits), its times into timers.
    """

    least: float
    most: float


COUNT: Final = OptionRange(1, 10**9)
USERS: Final = OptionRange(1, 10**6)
TOKENS: Final = OptionRange(1, MAX_TOKENS)
POSITIVE: Final = OptionRange(1e-6, 10**6)
DURATION: Final = OptionRange(0.001, SECONDS)
DELAY: Final = OptionRange(0, SECONDS)
DELAY_MS: Final = OptionRange(0, SECONDS * 1000)
TRACE_MS: Final = OptionRange(0, 10**15)  # Unix time in ms: 2 * 10**12


class Option(msgspec.Struct, frozen=True):
    """The declaration of a field. ``declared_options`` adds what the field itself has (from
    ``field`` on)."""

    group: GroupName
    help: str = ""
    example: str = ""
    unit: str = ""
    """The unit of the value, as help and docs show it: seconds, ms, tokens. For a text it is the
    kind of text: FILE, PATH."""
    range: OptionRange | None = None
    choices: tuple[str, ...] = ()
    otherwise: str = ""
    """The default in words, where it is no constant. The flag's default is then None."""
    in_form: bool = True
    """The web form has it. A file of this machine or a key is not in the form, as anybody who sees
    the page could use it."""
    repeated: bool = False
    """The flag may be given several times."""
    variable: str = ""
    """The environment variable, where it is not LOCUST_LLM_ and the flag's name."""
    flag: str = ""
    """The flag, where it is not the field's name."""
    alone: str = ""
    """The value of a flag without one. Empty: the flag takes one."""

    field: str = ""
    kind: type = str
    default: Any = None

    @property
    def dest(self) -> str:
        """Its name among the parsed options and in the web form."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def allowed(self) -> tuple[str | None, ...]:
        """Its choices. None is among them where it may be left out."""
        return (None, *self.choices) if self.default is None else self.choices


@cache
def declared_options(struct: type[msgspec.Struct]) -> tuple[Option, ...]:
    """The options that the fields of a struct declare, in their order."""
    hints = get_type_hints(struct, include_extras=True)
    declared = list[Option]()
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
        options = (note for note in notes if isinstance(note, Option))
        declared += [_complete(option, field, get_args(hint)[0]) for option in options]
    return tuple(declared)


def _complete(option: Option, field: msgspec.structs.FieldInfo, hint: Any) -> Option:
    types = (
        [choice for choice in get_args(hint) if choice is not type(None)]
        if isinstance(hint, UnionType)
        else [hint]
    )
    flag = option.flag or "--" + field.name.removesuffix("_s").replace("_", "-")
    return msgspec.structs.replace(
        option,
        flag=flag,
        variable=option.variable or name_variable(flag),
        field=field.name,
        kind=get_origin(types[0]) or types[0],
        default=None if option.otherwise else field.default,
    )


def find_out_of_range(values: object, options: Iterable[Option]) -> Iterator[str]:
    """A line for each number among the values (by field) that lies outside its range."""
    for option in options:
        value = getattr(values, option.field)
        if (
            option.range is None
            or value is None
            or option.range.least <= value <= option.range.most
        ):
            continue
        flag, (least, most) = option.flag, option.range
        if value > most:
            yield (
                f"{flag} must be at most {format_quoted_number(most)}, got "
                f"{format_quoted_number(value)}"
            )
        elif 0 < least < 1 and not value > 0:
            yield (
                f"{flag} must be above 0{' seconds' if 'ramp-duration' in flag else ''}, got "
                f"{format_quoted_number(value)}"
            )
        else:
            yield (
                f"{flag} must be at least {format_quoted_number(least)}, got "
                f"{format_quoted_number(value)}"
            )


def parser_default(option: Option) -> Any:
    """The parsed value where nothing was given. For percentiles it is a text."""
    return format_option_default(option) if option.kind is tuple else option.default


def format_metavar(option: Option) -> str:
    """The value of the flag, in one word."""
    if option.choices:
        return f"{{{','.join(option.choices)}}}"
    return option.unit.upper() or {int: "N", float: "NUMBER"}.get(option.kind, "TEXT")


def format_option_default(option: Option) -> str:
    """The default as text. Empty: there is none."""
    if option.otherwise or option.default in (None, (), ""):
        return option.otherwise
    if option.kind is bool:
        return "on" if option.default else "off"
    if option.kind is tuple:
        return ",".join(f"{value:g}" for value in option.default)
    return (
        format_quoted_number(option.default) if option.kind in (int, float) else str(option.default)
    )


def format_option_example(option: Option) -> str:
    """The value as a shell takes it, or the whole flag of a switch."""
    if option.kind is bool:
        return f"--no-{option.flag[2:]}" if option.default else option.flag
    return shlex.quote(option.example)


def format_option_help(option: Option) -> str:
    """The text of --help and of the web form."""
    return (
        f"{option.help} (default: {format_option_default(option) or 'none'}; example: "
        f"{format_option_example(option)})"
    )
