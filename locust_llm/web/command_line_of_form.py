"""Command line of form: the command line that does what a form of a run asks for."""

import shlex
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from locust_llm.locust_adapter.command_line_parser import read_given_rules
from locust_llm.locust_adapter.scenario_defaults import list_scenario_defaults, scenario_rules
from locust_llm.settings.option_declaration import Option, parser_default

from .dataset_choices import FILE, Datasets
from .locust_form import FIELDS, read_requested_load

COMMAND: Final = ("locust-llm", "run", "--headless")
RULES_FIELD: Final = "slo"


def format_form_command(options: Namespace, datasets: Datasets) -> str:
    """The command line of a run with these options of a form, without what is at its default. The
    key and the headers are not in it, nor the path of a file that the page does not show."""
    words = [*COMMAND, *_list_load_words(options)]
    if path := options.input_file:
        choice = datasets.choice_of(path)
        name = choice.removeprefix(FILE) if choice.startswith(FILE) else path.rpartition("/")[2]
        words += ["--input-file", name]
    if options.scenario:
        words += ["--scenario", options.scenario.rpartition("/")[2]]
    of_scenario = list_scenario_defaults(options)
    for option in FIELDS.values():
        if option.in_form and not option.repeated:
            default = of_scenario.get(option.dest, parser_default(option))
            words += _list_option_words(option, getattr(options, option.dest), default)
    rules = read_given_rules(options)
    if rules != list(scenario_rules(options)):
        for rule in rules:
            words += ["--slo", rule]
    return shlex.join(words)


def _list_load_words(options: Namespace) -> Iterator[str]:
    users, rate, run_time = read_requested_load(options)
    given = {"--host": options.host, "-u": users, "-r": rate, "-t": run_time}
    for flag, value in given.items():
        if value:
            yield from (flag, _write(value))


def _list_option_words(option: Option, value: Any, default: Any) -> Iterator[str]:
    if value == default or (value in (None, "") and default in (None, "")):
        return
    if option.kind is bool:
        yield option.flag if value else f"--no-{option.flag.removeprefix('--')}"
    elif value is None:
        yield f"{option.flag}="
    else:
        # with a sign of equality, as a value may begin with a dash
        text = _write(value)
        yield from ([f"{option.flag}={text}"] if text.startswith("-") else [option.flag, text])


def _write(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
