"""Locust form: the fields of Locust's pages for a run, and their checks, the same as for the
command line.

Locust itself answers a wrong number with HTTP 500 and does not check texts, so it never gets them.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from locust.runners import MasterRunner
from locust.util.timespan import parse_timespan

from werkzeug.datastructures import MultiDict

from locust_llm.locust_adapter.command_line_parser import (
    OPTIONS,
    build_settings,
    check_options,
    default_user_count,
    fill_in_form,
    make_number_type,
    read_given_rules,
)
from locust_llm.locust_adapter.scenario_defaults import (
    choose_scenario,
    refuse_lengths_without_effect,
)
from locust_llm.settings.ab_arms import BASE
from locust_llm.settings.option_declaration import format_option_help
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.scenario_file import SCENARIO_FILE, list_scenario_names, read_scenario
from locust_llm.settings.sweep_option import CONCURRENCY
from locust_llm.slo.rules import PRESETS, parse_rule
from locust_llm.text.numbers import truncate_quoted_text

MAIN_FIELDS: Final = (
    "model", "request_rate", "sweep", "prefill_concurrency", "prefill_concurrency_ramp_duration",
    "synthetic_input_tokens_mean", "output_tokens_mean", "slo", "slo_preset", "request_count",
    "warmup_request_count",
    "warmup_duration", "random_seed",
)  # fmt: skip
"""The first fields of the form, in this order. The others are in the command line's order."""
LIMIT_FIELD: Final = "prefill_concurrency"
"""The one field that can change during a run, besides the users."""
RATE_FIELD: Final = "request_rate"
NO_CHOICE: Final = "none"
"""The entry of a list for no choice."""
RULE_END: Final = ";"
"""It separates two rules, as Locust's form has no field of several lines."""
RULES_HELP: Final = "SLO rules, separated by semicolons: ttft p95 < 500ms; error_rate < 1%"
SPAWN_RATE: Final = 100
"""The users a second that Locust's own page shows where nobody gave any, as it requires a
number."""
FIELDS: Final = {option.dest: option for option in OPTIONS}
"""Our options by their fields."""
CHOICES: Final = {
    **{name: option.allowed for name, option in FIELDS.items() if option.choices},
    "slo_preset": (None, *PRESETS),
}
"""The values of fields with a list."""
DATASET_FIELD: Final = "dataset"
"""The field for one of the datasets (dataset_choices.py). The path of a file is no field."""
SCENARIO_FIELD: Final = "scenario"
"""The field for a workload by its name. A file's path is no value of it."""
GIVEN_SCENARIO: Final = "given"
"""The value of that field for the command line's own file."""
OWN_FIELDS: Final = frozenset((*FIELDS, "run_time", "user_count", DATASET_FIELD))
"""Fields that Locust does not get."""


class RequestedLoad(NamedTuple):
    """Users, users started a second and seconds of the run; None where they were not given. For a
    run that began by itself, the launch keeps them from Locust (plugin.before_load)."""

    users: int | None
    spawn_rate: float | None
    run_time: int | str | None


def read_requested_load(options: Namespace) -> RequestedLoad:
    """The load as the command line, or the last form, gave it."""
    return RequestedLoad(
        getattr(options, "llm_users", options.num_users),
        getattr(options, "llm_spawn_rate", options.spawn_rate),
        getattr(options, "llm_run_time", None) or options.run_time,
    )


def order_form_fields(
    extra: Mapping[str, dict[str, Any]], options: Namespace
) -> dict[str, dict[str, Any]]:
    """The fields of Locust's form (``extra_options`` of its template), in our order, with the
    values of the last run. Secret flags are left out, as Locust would write their values into its
    page."""
    known = [name for name in OWN_FIELDS if name in extra]
    order = sorted(
        known,
        key=lambda name: (
            MAIN_FIELDS.index(name)
            if name in MAIN_FIELDS
            else len(MAIN_FIELDS) + list(extra).index(name)
        ),
    )
    ordered = {}
    own = (name for name in extra if name not in OWN_FIELDS and not extra[name].get("is_secret"))
    for name in [*order, *own]:
        field = dict(
            extra[name], default_value=getattr(options, name, extra[name]["default_value"])
        )
        if name in FIELDS:
            field["help_text"] = format_option_help(FIELDS[name])
        if name == "slo":
            field |= {
                "default_value": f"{RULE_END} ".join(read_given_rules(options)),
                "help_text": RULES_HELP,
            }
        elif name in CHOICES:
            field |= {"choices": [value or NO_CHOICE for value in CHOICES[name]]}
        elif name in FIELDS and FIELDS[name].kind is int:
            field |= {"type": "number"}
        ordered[name] = field
    return ordered


def fill_options(options: Namespace, form: Mapping[str, str]) -> Namespace:
    """The options with the values of the form. Raises Refused."""
    known = read_given_rules(options)
    options = Namespace(**vars(options))
    given = {
        name: "" if text == NO_CHOICE and name in CHOICES else text for name, text in form.items()
    }
    if (scenario := given.pop(SCENARIO_FIELD, None)) is not None:
        choose_scenario_by_name(options, scenario)
    if "slo" in given:
        given["slo"] = given["slo"].replace(RULE_END, "\n")
    fill_in_form(options, given)
    refuse_lengths_without_effect(options)
    for rule in read_given_rules(options):
        if rule not in known and _names_a_folder(rule, has_arms=has_arms(options)):
            refuse_run(
                f"SLO {rule!r}: an SLO that compares with another run works on the command line "
                "only"
            )
    for name, text in form.items():  # of a locustfile's own flags
        kind = type(getattr(options, name, None))
        if name not in (*OWN_FIELDS, "spawn_rate") and kind in (int, float):
            flag = f"--{name.replace('_', '-')}"
            if (value := make_number_type(kind, flag)(text.strip())) is None:
                refuse_run(
                    f"{flag} must be {'a whole number' if kind is int else 'a number'}, got nothing"
                )
            setattr(options, name, value)
    if "host" in form:
        options.host = form["host"].strip()
    if "spawn_rate" in form:
        given_rate = form["spawn_rate"].strip()
        options.spawn_rate = options.llm_spawn_rate = (
            make_number_type(float, "-r")(given_rate) if given_rate else None
        )
    if "run_time" in form:
        options.run_time = options.llm_run_time = _seconds(form["run_time"].strip())
    if "user_count" in form:
        options.llm_users = _count(form["user_count"].strip())
    return options


def list_scenario_choices(options: Namespace) -> list[tuple[str, str]]:
    """(value, text) of each scenario that the form offers."""
    choices = [("", "none")]
    if file := _find_own_scenario(options):
        choices.append((GIVEN_SCENARIO, f"{Path(file).name}, from the command line"))
    for name in list_scenario_names():
        choices.append((name, f"{name}: {read_scenario(name).about['description']}"))
    return choices


def find_chosen_scenario(options: Namespace) -> str:
    """The value of the form's field for the scenario of these options."""
    chosen = options.scenario or ""
    return GIVEN_SCENARIO if chosen.endswith(SCENARIO_FILE) else chosen


def choose_scenario_by_name(options: Namespace, name: str) -> None:
    """Choose the scenario of a value from outside. Raises Refused."""
    if name == find_chosen_scenario(options):
        return
    file = _find_own_scenario(options)
    if name == GIVEN_SCENARIO and file:
        choose_scenario(options, file)
    elif not name or name in list_scenario_names():
        options.llm_scenario_file = file
        choose_scenario(options, name or None)
    else:
        refuse_run(f"--scenario: there is no scenario {truncate_quoted_text(name)!r} in the list")


def _find_own_scenario(options: Namespace) -> str | None:
    """The file of the command line, also after a run with another scenario."""
    if find_chosen_scenario(options) == GIVEN_SCENARIO:
        return str(options.scenario)
    return getattr(options, "llm_scenario_file", None)


def read_form_settings(
    options: Namespace, runner: Any, *, from_locusts_page: bool = False
) -> Settings:
    """The settings of a run with these options and the connected processes, which the page can
    start. Raises Refused."""
    settings = check_form_options(options, runner, from_locusts_page=from_locusts_page)
    if settings.compares:
        if settings.isolate:
            refuse_run("--isolate works on the command line only: use locust-llm run --headless")
        refuse_run("an A/B test starts on the command line only: use locust-llm ab")
    if settings.hosts:
        refuse_run(
            "a run with several addresses starts on the command line only: use locust-llm run "
            "--headless --host A,B"
        )
    return settings


def check_form_options(
    options: Namespace, runner: Any, *, from_locusts_page: bool = False
) -> Settings:
    """The settings of a run with these options and the connected processes. Raises Refused.

    A sweep of concurrency sets its users. Locust's own page cannot leave their number out: in an
    open loop its 1 counts as none.
    """
    users = read_requested_load(options).users
    try:
        loose = build_settings(options)
    except (ValueError, OSError):
        loose = Settings()  # the check reports it
    unasked = from_locusts_page and loose.open_loop and users == 1
    if loose.sweeps(CONCURRENCY) or (unasked and not loose.user_centric_rate):
        users = None
    elif users is None:
        users = default_user_count(loose)
    options.llm_users = users
    return check_options(
        options,
        processes=max(1, len(runner.clients.ready)) if isinstance(runner, MasterRunner) else 1,
    )


def drop_empty_fields(form: Mapping[str, str]) -> dict[str, str]:
    """The fields of a form of changes that have a value. An empty field is no change."""
    return {
        name: text
        for name, text in form.items()
        if text.strip() and not (text == NO_CHOICE and name in CHOICES)
    }


def _known_value(options: Namespace, name: str) -> Any:
    """The option's value, or the settings' value where nobody gave one, as a form may show it and
    send it back."""
    value = getattr(options, name)
    return getattr(Settings(), FIELDS[name].field, None) if value is None else value


def drop_unasked_spawn_rate(form: MultiDict[str, str], options: Namespace) -> MultiDict[str, str]:
    """Drop the rate that Locust's own page showed and nobody gave. The page cannot leave the field
    out."""
    shown = form.get("spawn_rate", "").strip() == str(SPAWN_RATE)
    if not shown or read_requested_load(options).spawn_rate is not None:
        return form
    return MultiDict((name, text) for name, text in form.items(multi=True) if name != "spawn_rate")


def list_changed_flags(before: Namespace, after: Namespace) -> list[str]:
    """The flags that differ."""
    changed = [name for name in FIELDS if _known_value(before, name) != _known_value(after, name)]
    if read_given_rules(before) != read_given_rules(after):
        changed.append("slo")
    return changed


def make_locust_form(form: MultiDict[str, str], settings: Settings) -> MultiDict[str, str]:
    """The fields for Locust, for a run with these settings. ``form`` has the permitted fields of
    the received one."""
    rest = MultiDict(
        (name, value) for name, value in form.items(multi=True) if name not in OWN_FIELDS
    )
    rest["user_count"] = str(settings.first_users or 1)
    if not rest.get("spawn_rate", "").strip():
        rest["spawn_rate"] = rest["user_count"]  # as on the command line
    rest["host"] = settings.host
    return rest


def has_arms(options: Namespace) -> bool:
    """Whether these options compare two arms."""
    return bool(options.candidate or options.candidate_set or options.aa)


def _names_a_folder(rule: str, *, has_arms: bool) -> bool:
    """Any visitor of the page could test which folders exist on this machine. Of two arms, the base
    is one of them and no folder."""
    try:
        base = parse_rule(rule).base
        return bool(base) and not (has_arms and base == BASE)
    except ValueError:
        return False  # the check reports it


def _count(text: str) -> Any:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        refuse_run(f"-u must be a whole number, got {text!r}")
    return make_number_type(int, "-u")(text)


def _seconds(text: str) -> int | None:
    try:
        return (int(parse_timespan(text)) if text else 0) or None
    except (ValueError, OverflowError):
        refuse_run(f"-t must be a time such as 20, 20s, 3m, 2h or 1h20m, got {text!r}")
