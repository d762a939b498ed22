"""Scenario defaults: the defaults of a run from a scenario's file, and the options that the run
changes."""

import difflib
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, Final

from locust.argument_parser import LocustArgumentParser

import msgspec

from locust_llm.settings.extra_inputs import parse_extra_inputs
from locust_llm.settings.option_declaration import Option, find_out_of_range, parser_default
from locust_llm.settings.run_options import SETTING_OPTIONS, Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.scenario_file import Scenario, read_scenario
from locust_llm.settings.sweep_option import parse_sweep
from locust_llm.slo import rules
from locust_llm.slo.published_rules import PublishedRules, parse_published_rules
from locust_llm.text.numbers import truncate_quoted_text
from locust_llm.workload.length_distributions import parse_length, parse_length_mix
from locust_llm.workload.model_and_tenant_mix import parse_weights

from .option_names_of_other_tools import OPTION_BY_PEER_NAME

SCENARIO_OPTIONS: Final = {
    option.flag.removeprefix("--"): option
    for option in SETTING_OPTIONS
    if option.field not in ("scenario", "metrics_url", "report_dir", "candidate", "published_rules")
}
"""The options that a scenario may set, by key."""
RUN_OPTIONS: Final = (
    "host",
    "users",
    "spawn-rate",
    "run-time",
    "processes",
    "headless",
    "metrics-url",
    "report-dir",
)
VALUE_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "seq_dist": parse_length_mix, "user_context_prompt_length": parse_length,
    "extra_inputs": parse_extra_inputs, "model_mix": parse_weights,
    "sweep": parse_sweep, "slo": rules.parse_rule, "slo_preset": rules.expand_preset,
    "goodput": rules.parse_goodput,
}  # fmt: skip
"""The readers of the fields' texts. Each raises ValueError of one sentence."""
LENGTHS: Final = ("synthetic_input_tokens_mean", "synthetic_input_tokens_stddev",
    "output_tokens_mean",
                  "output_tokens_stddev")  # fmt: skip
"""Options that have no effect beside --seq-dist."""
LARGEST: Final = 1e300
_PUBLISHED: Final = "published"
_GIVEN: Final = "llm_scenario"
"""The place in the options of the scenario's values by field. They are plain values, as Locust
sends them to workers."""


def parse_with_scenario(parser: LocustArgumentParser, parse: Callable[[], Namespace]) -> Namespace:
    """Parse the options. With a scenario they are parsed again, with its values as defaults, so
    that every given option wins. Raises Refused."""
    options = parse()
    if not options.scenario:
        return options
    given = _read_scenario_values(options.scenario)
    defaults = _list_defaults(given)
    before = {dest: parser.get_default(dest) for dest in defaults}
    parser.set_defaults(**defaults)
    try:
        options = parse()
    finally:
        parser.set_defaults(**before)
    setattr(options, _GIVEN, given)
    refuse_lengths_without_effect(options)
    return options


def choose_scenario(options: Namespace, wanted: str | None) -> None:
    """Replace the scenario of these options, None: by none. Only options that are as the earlier
    scenario, or nobody, set them get other values. Raises Refused."""
    given = _read_scenario_values(wanted) if wanted else {}
    before = list_scenario_defaults(options)
    after = _list_defaults(given)
    if getattr(options, "llm_rules", None) in ([], scenario_rules(options)):
        options.llm_rules = None
    for option in SCENARIO_OPTIONS.values():
        usual = parser_default(option)
        if not option.repeated and getattr(options, option.dest) == before.get(option.dest, usual):
            setattr(options, option.dest, after.get(option.dest, usual))
    options.scenario = wanted
    setattr(options, _GIVEN, given)


def list_scenario_defaults(options: Namespace) -> dict[str, Any]:
    """The scenario's values by the names of the parsed options, without its rules. Empty: there is
    no scenario."""
    return _list_defaults(getattr(options, _GIVEN, {}))


def _list_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        option.dest: ",".join(map(str, value)) if option.kind is tuple else value
        for option in SCENARIO_OPTIONS.values()
        # rules: see scenario_rules
        if (value := given.get(option.field)) is not None and not option.repeated
    }


def _read_scenario_values(wanted: str) -> dict[str, Any]:
    try:
        return check_scenario_values(read_scenario(wanted))
    except OSError as error:
        refuse_run(f"--scenario {wanted}: {error.strerror}")
    except ValueError as error:
        refuse_run(f"--scenario: {error}")


def refuse_lengths_without_effect(options: Namespace) -> None:
    """Refuse lengths beside the mix of lengths of the scenario."""
    given = getattr(options, _GIVEN, {})
    if "seq_dist" not in given or options.seq_dist != given["seq_dist"]:
        return
    for option in SETTING_OPTIONS:
        if option.field in LENGTHS and getattr(options, option.dest) != parser_default(option):
            refuse_run(
                f"{option.flag} has no effect because scenario {options.scenario} sets a mix of "
                f"lengths. Change the mix, --seq-dist {shlex.quote(given['seq_dist'])}, or remove "
                "it with --seq-dist ''"
            )


def check_scenario_values(scenario: Scenario) -> dict[str, Any]:
    """The scenario's values by field, with its published rules. Raises Refused with file, line and
    key of the first impossible one."""
    values = {
        (option := _option(scenario, key)).field: _value(scenario, key, option)
        for key in scenario.values
    }
    if scenario.published is not None:
        try:
            values[_PUBLISHED] = msgspec.to_builtins(parse_published_rules(scenario.published))
        except ValueError as error:
            key, colon, why = str(error).partition(": ")
            refuse_run(
                f"{scenario.place(key)}: {why}"
                if colon
                else f"{scenario.place(_PUBLISHED)}: {error}"
            )
    return values


def scenario_rules(options: Namespace) -> list[str]:
    """The scenario's rules. Empty: a preset replaces them."""
    given = getattr(options, _GIVEN, {})
    return (
        [*given.get("slo", ())] if (options.slo_preset or None) == given.get("slo_preset") else []
    )


def scenario_published(options: Namespace) -> PublishedRules | None:
    """The scenario's published rules. None: it has none, or there is no scenario."""
    given = getattr(options, _GIVEN, {}).get(_PUBLISHED)
    return None if given is None else parse_published_rules(given)


def scenario_changed(options: Namespace, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of the scenario's values that this run changes. ``values`` are by field."""
    given = getattr(options, _GIVEN, {})
    return tuple(
        key
        for key, option in SCENARIO_OPTIONS.items()
        if (value := given.get(option.field)) is not None
        and values[option.field] != (tuple(value) if isinstance(value, list) else value)
    )


def name_mistake_origin(mistake: str, options: Namespace) -> str:
    """A sentence about flags that nobody gave, as the scenario sets them."""
    given = getattr(options, _GIVEN, {})
    flags = [option.flag for option in SCENARIO_OPTIONS.values() if option.field in given]
    named = [flag for flag in flags if re.search(rf"{flag}(?![\w-])", mistake)]
    return (
        f"{mistake} ({' and '.join(named)}: of scenario {options.scenario})" if named else mistake
    )


def _option(scenario: Scenario, key: str) -> Option:
    if key in SCENARIO_OPTIONS:
        return SCENARIO_OPTIONS[key]
    place = scenario.place(key)
    if isinstance(scenario.values[key], dict):
        refuse_run(
            f"{place}: the only table of a scenario is [{_PUBLISHED}]: write options as single "
            "lines"
        )
    if key in RUN_OPTIONS:
        refuse_run(f"{place}: belongs to a run, not to a workload: use it on the command line")
    if here := OPTION_BY_PEER_NAME.get(f"--{key}"):
        refuse_run(f"{place}: unknown option: use {here.removeprefix('--')}")
    near = difflib.get_close_matches(key, SCENARIO_OPTIONS, n=1)
    refuse_run(f"{place}: there is no such option{f': did you mean {near[0]}?' if near else ''}")


def _value(scenario: Scenario, key: str, option: Option) -> Any:
    place = scenario.place(key)
    value = scenario.values[key]
    if option.kind is tuple:
        fits, what = (_text, "texts") if option.field == "slo" else (_number, "numbers")
        if not isinstance(value, list) or not all(map(fits, value)):
            refuse_run(f"{place}: takes a list of {what}, got {truncate_quoted_text(str(value))}")
    elif option.kind is bool and not isinstance(value, bool):
        refuse_run(f"{place}: takes true or false, got {truncate_quoted_text(str(value))}")
    elif option.kind in (int, float) and not (_number(value) and option.kind(value) == value):
        refuse_run(
            f"{place}: must be {'a whole number' if option.kind is int else 'a number'}, got "
            f"{truncate_quoted_text(repr(value))}"
        )
    elif option.kind is str and not _text(value):
        refuse_run(f"{place}: takes text, got {truncate_quoted_text(str(value) or 'none')}")
    if option.choices and option.field != "endpoint_type" and value not in option.choices:
        refuse_run(f"{place}: must be one of {', '.join(option.choices)}, got {value!r}")
    for mistake in find_out_of_range(Settings(**{option.field: value}), [option]):
        refuse_run(f"{place}: {mistake.removeprefix(option.flag).strip()}")
    try:
        for text in value if isinstance(value, list) else [value]:
            VALUE_READERS.get(option.field, str)(text)
    except ValueError as error:
        refuse_run(f"{place}: {error}")
    return option.kind(value) if option.kind in (int, float) else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""
