"""docs/reference/cli, a page for each command, made from the options of its parser: `make docs`
writes them, a test says when they are out of date."""

import os
import re
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    BooleanOptionalAction,
    HelpFormatter,
    _SubParsersAction,
)
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

# the simulator could not be imported after Locust's patches
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from locust_llm.commands import COMMANDS, LOCUST_COMMANDS, load_command
from locust_llm.lab.probe.probe_user import ProbeOptions
from locust_llm.locust_adapter.command_line_help import USAGES
from locust_llm.locust_adapter.command_line_parser import OPTIONS
from locust_llm.settings.option_declaration import (
    GROUPS,
    Option,
    declared_options,
    format_metavar,
    format_option_default,
    format_option_example,
)
from locust_llm.text.numbers import format_quoted_number

# else a process that was begun here would not be patched either
del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

FOLDER: Final = Path(__file__).parent / "reference" / "cli"
ESCAPED: Final = "\\|"
MADE: Final = "<!-- made by docs/generate_options.py from the declared options: do not edit -->\n"
SUBCOMMANDS: Final = {"twin": ("fit", "predict", "drift"), "scenario": ("", "show")}
GUIDES: Final = {
    "run": "../../get-started/quickstart.md",
    "ab": "../../how-to/ab.md",
    "verify": "../../how-to/check-answers.md",
    "probe": "../../how-to/interference.md",
    "demo": "../../get-started/install.md",
    "simulate": "../../how-to/simulator.md",
    "check": "../../get-started/quickstart.md",
    "quick": "../../get-started/quickstart.md",
    "canary": "../../how-to/canary.md",
    "disconnect": "../../how-to/disconnect.md",
    "gateway": "../../how-to/gateway.md",
    "soak": "../../how-to/soak.md",
    "selftest": "../../accuracy.md",
    "report": "../reports.md",
    "figure": "../reports.md",
    "compare": "../reports.md#compare-runs",
    "pareto": "../scenarios.md#throughput-per-gpu-against-throughput-per-user",
    "history": "../../how-to/history.md",
    "audit": "../../how-to/audit.md",
    "twin": "../../how-to/twin.md",
    "plan": "../../how-to/twin.md#plan",
    "import": "../../how-to/formats.md",
    "export": "../../how-to/formats.md#export",
    "comment": "../../how-to/ci.md",
    "scenario": "../scenarios.md",
    "upload": "../../how-to/kubernetes.md#results-in-a-store",
}
"""The page that explains each command."""
SAME_OPTIONS: Final = {
    ("history", ""): ("compare", "", "choose-"),
    ("pareto", ""): ("compare", "", ""),
    ("plan", ""): ("twin", "predict", "predict-"),
    ("twin", "drift-"): ("twin", "fit", "fit-"),
}
"""Commands, with the beginning of their anchors, that share options with another command: that
command, its subcommand and the beginning of its anchors."""
ENVIRONMENT: Final = """\
Options with a value can also be set by environment variables or in a configuration file: `--request-rate` is
`LOCUST_LLM_REQUEST_RATE`, and `--header` is `LOCUST_LLM_HEADERS`. There a *repeatable* option has one value per line.
`N` is an integer from 1 and `NUMBER` is above 0, unless a range is shown.
"""
LOCUSTS_OPTIONS: Final = """\
## Locust

[All other options](https://docs.locust.io/en/stable/configuration.html) of Locust work too.

| option | meaning | default |
|---|---|---|
| <a id="host"></a>`-H`, `--host=URL` | server, with or without `https://` and `/v1`; [several](../../how-to/routers.md), comma-separated | |
| <a id="users"></a>`-u`, `--users=N` | concurrent users; with a request rate, the most sessions at once | 1 |
| <a id="spawn-rate"></a>`-r`, `--spawn-rate=NUMBER` | users started per second | closed loop: over [one response time](../../how-to/load-modes.md#start-and-ramp-up) |
| <a id="run-time"></a>`-t`, `--run-time=TIME` | length of the profiling phase: `90s`, `10m` | until Ctrl-C |
| <a id="stop-timeout"></a>`-s`, `--stop-timeout=SECONDS` | grace period for open requests | 30 |
| <a id="headless"></a>`--headless` | no web page | |
| <a id="processes"></a>`--processes=N` | worker processes on this machine; `auto`: [one per core but one](../../how-to/distributed.md) | 1 |
| <a id="locustfile"></a>`-f`, `--locustfile=FILE` | your own locustfile | a built-in one |
| <a id="otel"></a>`--otel` | sends spans and metrics to an [OpenTelemetry collector](../../how-to/opentelemetry.md#opentelemetry) | |
"""
HEAD: Final = "| option | value | default | meaning |\n|---|---|---|---|\n"
SHORT_HEAD: Final = "| option | default | meaning |\n|---|---|---|\n"
"""For commands whose values need no example: the value stands with its option."""
FOLLOWS: Final = {"quick": "check"}
"""Commands whose other options are all those of another command."""
JOBS: Final = {
    "Test a server": ("quick", "run", "ab", "verify", "probe", "canary", "disconnect", "soak"),
    "Test a gateway": ("gateway",),
    "Prepare a run": ("check", "selftest", "scenario", "demo", "simulate"),
    "Read results": ("report", "figure", "compare", "pareto", "history", "audit"),
    "Predict": ("twin", "plan"),
    "Pass results on": ("import", "export", "comment", "upload"),
}
"""Commands by purpose."""
ON_THE_INDEX: Final = re.compile(
    r"run folder|twin\.toml, or a folder that contains it|print [a-z ]+ as JSON( at the end, and .* to standard error)?"
)
"""Meanings of arguments that the index explains for all commands."""
OF_OWN: Final = ("ab", "probe")
"""Groups of the commands with that name, which take the options of a run too."""
FLAGS_OF_RUN: Final = {option.flag: option for option in OPTIONS if option.group not in OF_OWN}


class Found(Exception):
    """The parser of a command, caught as it begins to parse."""

    def __init__(self, parser: ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def pages() -> dict[Path, str]:
    """The text of each page."""
    of_run = [option for option in OPTIONS if option.group not in OF_OWN]
    made = {"run": _page_of_run(of_run)}
    made["ab"] = _page_of_own(
        "ab",
        "Compares two servers, or two settings of one server, in short blocks of load that alternate. `--base` is another "
        "name of `--host`.",
        [option for option in OPTIONS if option.group == "ab"],
    )
    made["verify"] = _page_of_own(
        "verify",
        "Checks whether answers stay right under load: a run with `--check-answers`, by default at 4, 16 and 64 users for "
        "five minutes.",
        [],
    )
    made["probe"] = _page_of_own(
        "probe",
        "Measures what long prompts do to other requests, and names the scheduler of the server.",
        declared_options(ProbeOptions),
    )
    made["demo"] = _title("demo") + (
        "Starts the simulator and tests it for 45 seconds. It takes the [options of a run](run.md).\n"
    )
    for command in COMMANDS:
        if command not in LOCUST_COMMANDS:
            made[command] = _page_of_command(command)
    made["index"] = _index(made)
    return {FOLDER / f"{name}.md": text for name, text in made.items()}


def _title(command: str) -> str:
    return f"# locust-llm {command}\n\n{MADE}\n"


def _guide(command: str) -> str:
    return f"[Guide]({GUIDES[command]})\n"


def _index(made: Iterable[str]) -> str:
    listed = [command for commands in JOBS.values() for command in commands]
    assert sorted(listed) == sorted(made), "each command has a job"
    rows = [
        f"| {job} | {', '.join(f'[`{command}`]({command}.md)' for command in commands)} |\n"
        for job, commands in JOBS.items()
    ]
    return (
        f"# Commands and options\n\n{MADE}\nA page for each command. [Which command?](../../get-started/which-command.md) "
        "helps to choose.\n`locust-llm COMMAND --help` prints the same, `run --help-all` more.\n\n"
        f"| job | commands |\n|---|---|\n{''.join(rows)}\n"
        "`HOST` is short for `--host`. `DIR` is a run folder, and `TWIN` a twin.toml or its folder. `--json` prints the result as JSON, and messages to standard error.\n"
    )


def _page_of_run(options: Iterable[Option]) -> str:
    text = (
        _title("run")
        + f"Sends load to a server and reports the result.\n\n```text\n{USAGES['run']}\n```\n\n"
    )
    return f"{text}{_guide('run')}\n{ENVIRONMENT}\n{LOCUSTS_OPTIONS}{_groups(options)}"


def _page_of_own(command: str, what: str, options: Iterable[Option]) -> str:
    rows = "".join(_rows_of(list(options)))
    table = f"\n{HEAD}{rows}" if rows else ""
    return (
        f"{_title(command)}{what} [Options of a run](run.md) work too.\n\n"
        f"```text\n{USAGES[command]}\n```\n{table}\n{_guide(command)}"
    )


def _groups(options: Iterable[Option]) -> str:
    parts = []
    for name, members in groupby(options, key=lambda option: option.group):
        title, _, example = GROUPS[name]
        parts.append(f"\n## {title}\n\n```sh\n{example}\n```\n\n{HEAD}")
        parts += _rows_of(list(members))
    return "".join(parts)


def _page_of_command(command: str) -> str:
    text = _title(command).removesuffix("\n")
    for subcommand in SUBCOMMANDS.get(command, ("",)):
        words = [subcommand] if subcommand else []
        *choosers, parser = _find_parsers(command, words)
        if subcommand:
            text += f"\n## {subcommand}\n"
        text += _parser_text(parser, f"{subcommand}-" if subcommand else "", command)
        for chooser in choosers:
            text += f"\n## Choose runs\n\n{SHORT_HEAD}{_rows(chooser, 'choose-', set())}"
    return f"{text}\n{_guide(command)}"


def _find_parsers(command: str, words: list[str]) -> list[ArgumentParser]:
    """The parsers that a command makes, or that of its subcommand. The last one is its own; before
    it may come one that chooses runs."""
    found: list[ArgumentParser] = []
    parse_known_args = ArgumentParser.parse_known_args

    def catch(parser: ArgumentParser, *_: Any, **__: Any) -> None:
        raise Found(parser)

    def note(parser: ArgumentParser, *given: Any, **named: Any) -> Any:
        found.append(parser)
        return parse_known_args(parser, *given, **named)

    with (
        patch.object(ArgumentParser, "parse_args", catch),
        patch.object(ArgumentParser, "parse_known_args", note),
    ):
        try:
            with redirect_stderr(StringIO()):
                load_command(command)(words)
        except Found as caught:
            return [*_select_described(found), _choose_subparser(caught.parser, words)]
    if found:  # it passes on what it does not know
        return _select_described(found)
    raise LookupError(command)


def _select_described(parsers: Iterable[ArgumentParser]) -> list[ArgumentParser]:
    return [one for one in parsers if any(action.help for action in one._actions)]


def _choose_subparser(parser: ArgumentParser, words: list[str]) -> ArgumentParser:
    for action in parser._actions:
        choices: Any = action.choices
        if words and isinstance(choices, dict) and words[0] in choices:
            return choices[words[0]]  # type: ignore[no-any-return]
    return parser


def _parser_text(parser: ArgumentParser, prefix: str, command: str) -> str:
    described = " ".join((parser.description or "").replace("%(prog)s", parser.prog).split())
    text = f"\n{_text(described)}\n" if described else ""
    text += f"\n```text\n{_short_usage(parser)}\n```\n"
    actions = [action for action in _shown_actions(parser) if not _is_on_the_index(action)]
    of_run = [flag for action in actions if (flag := _flag_of_run(action))]
    other, subcommand, anchors = SAME_OPTIONS.get((command, prefix), ("", "", ""))
    rest = [action for action in actions if not {*of_run}.intersection(action.option_strings)]
    of_other = _find_shared_flags(rest, other, subcommand) if other else []
    if command in FOLLOWS:
        known = {*of_run, *_find_shared_flags(rest, FOLLOWS[command], "")}
        link = f"[`{FOLLOWS[command]}`]({FOLLOWS[command]}.md)"
        return f"{text}\n{SHORT_HEAD}{_rows(parser, prefix, known)}\nOtherwise as {link}.\n"
    if rows := _rows(parser, prefix, {*of_run, *of_other}):
        text += f"\n{SHORT_HEAD}{rows}"
    if of_run:
        text += f"\nAs for [`run`](run.md): {_link_flags_of_run(of_run)}.\n"
    if of_other:
        name = f"{other} {subcommand}".strip()
        text += f"\nAs for [`{name}`]({other}.md): {_link_flags(of_other, other, anchors)}.\n"
    return text


def _find_shared_flags(actions: Iterable[Action], command: str, subcommand: str) -> list[str]:
    """The flags that a command has too, with the same text."""
    parsers = _find_parsers(command, [subcommand] if subcommand else [])
    texts = {
        flag: action.help
        for parser in parsers
        for action in _shown_actions(parser)
        for flag in action.option_strings
    }
    flags = [
        (action.option_strings[-1], action.help) for action in actions if action.option_strings
    ]
    return [flag for flag, text in flags if flag in texts and texts[flag] == text]


def _link_flags_of_run(flags: Sequence[str]) -> str:
    """A link to each option, or to its group where all options of the group are among them."""
    rest = list(flags)
    links = list[str]()
    for name, members in groupby(FLAGS_OF_RUN.values(), key=lambda option: option.group):
        of_group = {option.flag for option in members}
        if of_group <= {*rest}:
            title = GROUPS[name].title
            links.append(f"the options of [{title}](run.md#{title.lower().replace(' ', '-')})")
            rest = [flag for flag in rest if flag not in of_group]
    return ", ".join([*links, *filter(None, [_link_flags(rest, "run", "")])])


def _link_flags(flags: Iterable[str], command: str, anchors: str) -> str:
    return ", ".join(f"[`{flag}`]({command}.md#{anchors}{flag.lstrip('-')})" for flag in flags)


def _rows(parser: ArgumentParser, prefix: str, elsewhere: set[str]) -> str:
    """A row for each argument that is explained nowhere else. A mean and its standard deviation
    share one."""
    actions = [
        action
        for action in _shown_actions(parser)
        if not _is_on_the_index(action) and not elsewhere.intersection(action.option_strings)
    ]
    by_flag = {flag: action for action in actions for flag in action.option_strings}
    rows = list[str]()
    for action in actions:
        flag = action.option_strings[-1] if action.option_strings else ""
        if flag.endswith("-stddev"):
            continue
        cells = _action_cells(parser, action, prefix)
        spread = by_flag.get(f"{flag.removesuffix('-mean')}-stddev") if flag else None
        if spread is not None:
            added, default, _ = _action_cells(parser, spread, prefix)
            cells = (f"{cells[0]}, {added}", f"{cells[1]}; {default}", cells[2])
        rows.append(_line(*cells))
    return "".join(rows)


def _is_on_the_index(action: Action) -> bool:
    if not action.option_strings and action.metavar == "HOST":
        return True
    return ON_THE_INDEX.fullmatch(action.help or "") is not None


def _short_usage(parser: ArgumentParser) -> str:
    """The usage without its options, which the table has."""
    if parser.usage:
        return parser.usage.replace("%(prog)s", parser.prog)
    actions = list(_shown_actions(parser))
    json = [
        action
        for action in actions
        if "--json" in action.option_strings and _is_on_the_index(action)
    ]
    actions = [action for action in actions if action not in json]
    arguments = [action for action in actions if not action.option_strings]
    formatter = HelpFormatter(parser.prog, width=110)
    formatter.add_usage(None, arguments, [])
    usage = formatter.format_help().strip().removeprefix("usage: ")
    usage += " [--json]" if json else ""
    return f"{usage} [options]" if len(arguments) < len(actions) else usage


def _shown_actions(parser: ArgumentParser) -> Iterator[Action]:
    for action in parser._actions:
        hidden = action.dest == "help" or action.help == SUPPRESS
        if not hidden and not isinstance(action, _SubParsersAction):
            yield action


def _flag_of_run(action: Action) -> str:
    """The flag, where ``run`` has it too, with the same text and default."""
    text = action.help or ""
    meaning, default = _split_help(text)
    for flag in action.option_strings:
        if flag == "--host" and meaning.startswith("the server"):
            return flag
        option = FLAGS_OF_RUN.get(flag)
        if option is None:
            continue
        is_declared_by_it = text.startswith(option.help)
        is_same = meaning.lower() == option.help.lower()
        default = default.replace("%(default)s", str(action.default))
        if is_declared_by_it or (is_same and default in ("", format_option_default(option))):
            return flag
    return ""


def _split_help(text: str) -> tuple[str, str]:
    """The meaning of an option, and its default."""
    found = re.fullmatch(r"(.*?)\s*(?:\(default: (.*)\))?", text, re.DOTALL)
    assert found is not None
    return found[1], found[2] or ""


def _rows_of(options: Sequence[Option]) -> Iterator[str]:
    """A row for each option. A mean and its standard deviation share one."""
    by_flag = {option.flag: option for option in options}
    for option in options:
        if option.flag.endswith("-stddev"):
            continue
        spread = by_flag.get(f"{option.flag.removesuffix('-mean')}-stddev")
        yield _row(option) if spread is None else _row_of_mean(option, spread)


def _row(option: Option) -> str:
    return _line(_flag(option), _value(option), _default(option), _text(option.help))


def _row_of_mean(mean: Option, spread: Option) -> str:
    flags = f"{_flag(mean)}, {_flag(spread)}"
    defaults = f"{_default(mean)}; {_default(spread)}"
    meaning = mean.help.removeprefix("Mean ")
    meaning = meaning[0].upper() + meaning[1:]
    return _line(flags, _value(mean), defaults, _text(meaning))


def _flag(option: Option) -> str:
    """With the unit of a number. A switch that is on has both forms."""
    is_on = option.kind is bool and option.default
    unit = "" if option.kind is bool or _has_value_cell(option) else f"={format_metavar(option)}"
    return f"{_anchor(option.flag)}`--{'[no-]' if is_on else ''}{option.flag[2:]}{unit}`"


def _has_value_cell(option: Option) -> bool:
    return bool(option.choices or (option.kind in (str, tuple) and option.example))


def _default(option: Option) -> str:
    """Empty for a switch that is off."""
    if option.kind is bool:
        return "`on`" if option.default else ""
    default = format_option_default(option)
    return _text(default) if option.otherwise or not default else f"`{default}`"


def _anchor(flag: str, prefix: str = "") -> str:
    return f'<a id="{prefix}{flag.lstrip("-")}"></a>'


def _value(option: Option) -> str:
    """One of these, an example of a text, or a range. Lower ends that the page has as a rule are
    left out, and upper ends that nobody reaches."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if _has_value_cell(option):
        return f"`{format_option_example(option)}`"
    if option.kind is bool or option.range is None or option.range.least < 0:
        return ""
    least, most = option.range
    if most <= 1000:
        return f"{0 if least < 1 else format_quoted_number(least)} to {format_quoted_number(most)}"
    return f"≥ {format_quoted_number(least)}" if least == 0 or least > 1 else ""


def _action_cells(parser: ArgumentParser, action: Action, prefix: str) -> tuple[str, str, str]:
    named = list(action.option_strings)
    if isinstance(action, BooleanOptionalAction):
        named = [f"--[no-]{named[0][2:]}"]
    if named:
        named[-1] += _value_name(action)
    else:
        named = [action.metavar if isinstance(action.metavar, str) else action.dest.upper()]
    flags = ", ".join(f"`{flag}`" for flag in named)
    long = [flag for flag in action.option_strings if flag.startswith("--")]
    anchor = _anchor(long[0], prefix) if long else ""
    text = HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    meaning, default = _split_help(text)
    if action.choices is not None:
        meaning += f": {', '.join(f'`{choice}`' for choice in action.choices)}"
    if default.isdecimal() or default in ("on", str(action.default) or "on"):
        default = f"`{default}`"
    return anchor + flags, _text(default), _text(meaning)


def _value_name(action: Action) -> str:
    """What stands behind the flag. Nothing for a switch."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return f"={action.metavar}"
    if action.choices is not None:
        return "=CHOICE"
    return "=TEXT" if action.type in (str, Path, None) else "=N"


def _line(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', ESCAPED) for cell in cells)} |\n"


def _text(words: str) -> str:
    return words.replace("<", "&lt;")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in {*FOLDER.glob("*.md")} - {*made}:
        old.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
