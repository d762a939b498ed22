"""docs/reference/cli, a page for each command, made from the options of its parser: `make docs`
writes them, a test says when they are out of date."""

import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

# the simulator could not be imported after Locust's patches
os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from locust_llm.commands import COMMANDS, LOCUST_COMMANDS, USAGE, load_command
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
UNITS: Final = ("seconds", "ms", "tokens", "percent", "bytes", "numbers")
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
    "canary": "../../how-to/canary.md",
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
ENVIRONMENT: Final = """\
Each option that takes a value can also be set by an environment variable or in a configuration file: `--request-rate` is
`LOCUST_LLM_REQUEST_RATE`. `OPENAI_API_KEY` holds the key of the server, `LOCUST_LLM_HEADERS` one header per line, and
`REQUESTS_CA_BUNDLE` or `SSL_CERT_FILE` a certificate authority. Times are in seconds and lengths in tokens, unless an option has
another unit.
"""
LOCUSTS_OPTIONS: Final = """\
## Locust

The options of Locust that most runs need. [All others](https://docs.locust.io/en/stable/configuration.html) work too.

| option | meaning | default |
|---|---|---|
| <a id="host"></a>`-H`, `--host` | server, with or without scheme and `/v1`; [several](../../how-to/routers.md), comma-separated | |
| <a id="users"></a>`-u`, `--users` | concurrent users; with a request rate the maximum number of concurrent sessions | 1 |
| <a id="spawn-rate"></a>`-r`, `--spawn-rate` | users started per second | a closed loop: over [one response time](../../how-to/load-modes.md#start) |
| <a id="run-time"></a>`-t`, `--run-time` | length of the profiling phase, such as `90`, `90s` or `10m` | until Ctrl-C |
| <a id="stop-timeout"></a>`-s`, `--stop-timeout` | grace period for open requests at the end, in seconds | 30 |
| <a id="headless"></a>`--headless` | no web page | |
| <a id="processes"></a>`--processes` | worker processes on this machine; `auto`: [one per core but one](../../how-to/distributed.md) | 1 |
| <a id="locustfile"></a>`-f`, `--locustfile` | locustfile of your own; `locust-llm run` brings its own | |
| <a id="otel"></a>`--otel` | sends spans and metrics to an [OpenTelemetry collector](../../how-to/opentelemetry.md#opentelemetry) | |
"""
HEAD: Final = "| option | value | default | example | meaning |\n|---|---|---|---|---|\n"
SHORT_HEAD: Final = "| option | value | default | meaning |\n|---|---|---|---|\n"
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
        "Compares a baseline with a candidate: two servers, or two settings of one server. It sends load to both in "
        "turn, in short blocks, and compares block with block. `--base` is another name of `--host`.",
        [option for option in OPTIONS if option.group == "ab"],
    )
    made["verify"] = _page_of_own(
        "verify",
        "Checks whether answers stay right under load. It is a run with `--check-answers`, at 4, 16 and 64 users for five "
        "minutes, with shared prefixes and cancelled requests. Each option replaces a choice.",
        [],
    )
    made["probe"] = _page_of_own(
        "probe",
        "Measures what long prompts do to other requests, and names the scheduler of the server.",
        declared_options(ProbeOptions),
    )
    made["demo"] = _title("demo") + (
        "Starts the simulator and tests it for 45 seconds. It needs no GPU and no server. It takes the\n"
        "[options of a run](run.md).\n"
    )
    for command in COMMANDS:
        if command not in LOCUST_COMMANDS:
            made[command] = _page_of_command(command)
    made["index"] = _index(made)
    return {FOLDER / f"{name}.md": text for name, text in made.items()}


def _title(command: str) -> str:
    return f"# locust-llm {command}\n\n{MADE}\n"


def _guide(command: str) -> str:
    return f"Guide: [{GUIDES[command].rpartition('/')[2].partition('.')[0].replace('-', ' ')}]({GUIDES[command]}).\n"


def _index(made: Iterable[str]) -> str:
    rows = [
        f"| [`{command}`]({command}.md) | {_text(_first_sentence(command))} |\n"
        for command in COMMANDS
        if command in made
    ]
    return (
        f"# Commands and options\n\n{MADE}\nA page for each command. `locust-llm COMMAND --help` prints the same options; "
        "`run --help` shows the ones that\nmost runs need, and `run --help-all` shows all.\n\n"
        f"| command | what it does |\n|---|---|\n{''.join(rows)}\nOptions can also be set by [environment variables and configuration files](run.md).\n"
    )


def _first_sentence(command: str) -> str:
    """What ``locust-llm --help`` has for a command."""
    found = re.search(rf"(?m)^  {command}\b(?: [A-Z]\S*)* +(\S.*)$", USAGE)
    assert found is not None, command
    return found[1]


def _page_of_run(options: Iterable[Option]) -> str:
    text = (
        _title("run")
        + f"Sends load to a server and reports the result.\n\n```text\n{USAGES['run']}\n```\n\n"
    )
    return f"{text}{_guide('run')}\n{ENVIRONMENT}\n{LOCUSTS_OPTIONS}{_groups(options)}"


def _page_of_own(command: str, what: str, options: Iterable[Option]) -> str:
    return (
        f"{_title(command)}{what} It also takes the [options of a run](run.md).\n\n"
        f"```text\n{USAGES[command]}\n```\n\n{_guide(command)}{_groups(options)}"
    )


def _groups(options: Iterable[Option]) -> str:
    parts = []
    for name, members in groupby(options, key=lambda option: option.group):
        title, what, example = GROUPS[name]
        parts.append(f"\n## {title}\n\n{what}\n\n```sh\n{example}\n```\n\n{HEAD}")
        parts += map(_row, members)
    return "".join(parts)


def _page_of_command(command: str) -> str:
    text = _title(command).removesuffix("\n")
    for subcommand in SUBCOMMANDS.get(command, ("",)):
        words = [subcommand] if subcommand else []
        *choosers, parser = _find_parsers(command, words)
        if subcommand:
            text += f"\n## {subcommand}\n"
        text += _parser_text(parser, f"{subcommand}-" if subcommand else "")
        for chooser in choosers:
            text += f"\n## Choose runs\n\n{SHORT_HEAD}{_rows(chooser, 'choose-')}"
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
            load_command(command)(words)
        except Found as caught:
            described = [one for one in found if any(action.help for action in one._actions)]
            return [*described, _choose_subparser(caught.parser, words)]
    raise LookupError(command)


def _choose_subparser(parser: ArgumentParser, words: list[str]) -> ArgumentParser:
    for action in parser._actions:
        choices: Any = action.choices
        if words and isinstance(choices, dict) and words[0] in choices:
            return choices[words[0]]  # type: ignore[no-any-return]
    return parser


def _parser_text(parser: ArgumentParser, prefix: str) -> str:
    described = " ".join((parser.description or "").replace("%(prog)s", parser.prog).split())
    text = f"\n{_text(described)}\n" if described else ""
    text += f"\n```text\n{_short_usage(parser)}\n```\n"
    actions = list(_shown_actions(parser))
    shared = [flag for action in actions if (flag := _flag_of_run(action))]
    if rows := _rows(parser, prefix):
        text += f"\n{SHORT_HEAD}{rows}"
    if shared:
        links = ", ".join(f"[`{flag}`](run.md#{flag.lstrip('-')})" for flag in shared)
        text += f"\nAs for [`run`](run.md): {links}.\n"
    return text


def _rows(parser: ArgumentParser, prefix: str) -> str:
    """A row for each argument that ``run`` has not."""
    actions = (action for action in _shown_actions(parser) if not _flag_of_run(action))
    return "".join(_action_row(parser, action, prefix) for action in actions)


def _short_usage(parser: ArgumentParser) -> str:
    """The usage without its options, which the table has."""
    if parser.usage:
        return parser.usage.replace("%(prog)s", parser.prog)
    actions = list(_shown_actions(parser))
    arguments = [action for action in actions if not action.option_strings]
    formatter = HelpFormatter(parser.prog, width=110)
    formatter.add_usage(None, arguments, [])
    usage = formatter.format_help().strip().removeprefix("usage: ")
    return f"{usage} [options]" if len(arguments) < len(actions) else usage


def _shown_actions(parser: ArgumentParser) -> Iterator[Action]:
    for action in parser._actions:
        hidden = action.dest == "help" or action.help == SUPPRESS
        if not hidden and not isinstance(action, _SubParsersAction):
            yield action


def _flag_of_run(action: Action) -> str:
    """The flag, where ``run`` has it too and with the same text."""
    for flag in action.option_strings:
        option = FLAGS_OF_RUN.get(flag)
        if option is not None and (action.help or "").startswith(option.help):
            return flag
    return ""


def _row(option: Option) -> str:
    flag = f"{_anchor(option.flag)}`{option.flag}`"
    flag += f", `--no-{option.flag[2:]}`" if option.kind is bool else ""
    default = format_option_default(option)
    if default:
        default = _text(default) if option.otherwise else f"`{default}`"
    is_text = option.kind is str and not option.choices
    example = f"`{format_option_example(option)}`" if is_text else ""
    return _line(flag, _value(option), default, example, _text(option.help))


def _anchor(flag: str, prefix: str = "") -> str:
    return f'<a id="{prefix}{flag.lstrip("-")}"></a>'


def _value(option: Option) -> str:
    """What it takes: one of these, or its unit and range; upper ends only where somebody could
    reach them."""
    if option.kind is bool:
        return ""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    value = option.unit if option.unit in UNITS else format_metavar(option)
    value = {"N": "integer", "NUMBER": "number", "TEXT": "text"}.get(
        value, value if value in UNITS else f"`{value}`"
    )
    if option.range is None or option.range.least < 0:
        return value
    least, most = option.range
    value += f" {'>' if 0 < least < 1 else '≥'} {0 if least < 1 else format_quoted_number(least)}"
    return value + (f", ≤ {format_quoted_number(most)}" if most <= 1000 else "")


def _action_row(parser: ArgumentParser, action: Action, prefix: str) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{name}`"
    long = [flag for flag in action.option_strings if flag.startswith("--")]
    anchor = _anchor(long[0], prefix) if long else ""
    text = HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    found = re.fullmatch(r"(.*?)(?:\(default: (.*)\))?", text, re.DOTALL)
    assert found is not None
    meaning, default = found.groups("")
    if default.isdecimal() or default in ("on", str(action.default) or "on"):
        default = f"`{default}`"
    return _line(anchor + flags, _action_value(action), _text(default), _text(meaning))


def _action_value(action: Action) -> str:
    if action.choices is not None:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0 or not action.option_strings:
        return ""
    if isinstance(action.metavar, str):
        return f"`{action.metavar}`"
    return "text" if action.type in (str, Path, None) else "number"


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
