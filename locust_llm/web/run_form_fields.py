"""Run form fields: the form of a run as data for its page, in groups; what depends on another field
is hidden until that is set. Which fields a goal needs is in run_goals.py."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from locust_llm.locust_adapter.command_line_parser import read_given_rules
from locust_llm.settings.option_declaration import Option, format_option_default
from locust_llm.slo.metric_definitions import (
    GIVEN,
    MEASURES,
    OF_ANSWERS,
    OF_WHOLE_RUN,
    RuleMeasure,
)
from locust_llm.text.format import capitalise_sentence
from locust_llm.text.numbers import format_quoted_number

from .dataset_choices import MAX_UPLOAD_BYTES, Datasets
from .form_whitelist import select_locustfile_fields
from .locust_form import (
    CHOICES,
    DATASET_FIELD,
    FIELDS,
    NO_CHOICE,
    SCENARIO_FIELD,
    find_chosen_scenario,
    list_scenario_choices,
    read_requested_load,
)

GROUPS: Final = {
    "load": "Load", "sweep": "Load", "prompts": "Prompts", "gate": "Prefill limit", "rules": "SLO",
    "answers": "SLO", "server": "Server", "tenants": "Tenants",
}  # fmt: skip
"""The form's groups, by the groups of the options."""
OTHERS: Final = "Report"
"""The group of all other options."""
LOCUSTFILE: Final = "Locustfile"
"""The group of the locustfile's own flags."""
SECTIONS: Final = {
    "Prompts": "Workload", "Load": "Load", "Prefill limit": "Load", "SLO": "SLO", "Server": "Server",
    "Tenants": "Load", LOCUSTFILE: LOCUSTFILE,
}  # fmt: skip
"""The sections for the fields that a goal needs, by groups."""
RULES_FIELD: Final = "slo"
"""The one repeated flag that a form can fill in, with a rule on each line."""
SWEEP_FIELD: Final = "sweep"
INPUT_FIELD: Final = "input_file"
"""The option whose field is that for the dataset."""
RULES_HELP: Final = "What must hold, or the run fails"
USERS_BY_DEFAULT: Final = "1, or as many as needed"
AXES_HELP: Final = (
    "From 1 by doubling: 1..64. In steps of 8: 8..64+8. These values: 1,2,4. No limit is always "
    "among the prefill limits"
)
WITH_WARMUP: Final = ("warmup_request_count", "warmup_duration")
DEPENDS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("arrival_pattern", "arrival_smoothness"), ("request_rate", "sweep")),
    "request_rate_ramp_duration": ("request_rate",),
    **dict.fromkeys(
        (
            "find_max",
            "objective",
            "stage_duration",
            "stage_requests",
            "stage_requests_per_user",
            "stage_warmup_per_user",
        ),
        ("sweep",),
    ),
    **dict.fromkeys(
        ("warmup_concurrency", "warmup_request_rate", "warmup_prefill_concurrency"), WITH_WARMUP
    ),
    "warmup_prefill_concurrency_ramp_duration": ("warmup_prefill_concurrency",),
    "request_cancellation_delay": ("request_cancellation_rate",),
    "check_cancellations": ("request_cancellation_rate",),
    "keep_text": ("check_answers",),
    "mark_replayed": (DATASET_FIELD,),
    **dict.fromkeys(
        (
            "fixed_schedule",
            "custom_dataset_type",
            "dataset_columns",
            "dataset_sampling_strategy",
            "skip_broken_rows",
        ),
        (DATASET_FIELD,),
    ),
    **dict.fromkeys(
        (
            "fixed_schedule_auto_offset",
            "fixed_schedule_start_offset",
            "fixed_schedule_end_offset",
            "replay_speedup",
        ),
        ("fixed_schedule",),
    ),
    **dict.fromkeys(
        ("synthetic_input_tokens_mean", "synthetic_input_tokens_stddev"),
        (f"!{DATASET_FIELD}", "!seq_dist"),
    ),
    **dict.fromkeys(("output_tokens_mean", "output_tokens_stddev"), ("!seq_dist",)),
    "seq_dist": (f"!{DATASET_FIELD}",),
    **dict.fromkeys(
        ("image_width_stddev", "image_height_stddev", "image_batch_size", "image_format"),
        ("image_width_mean", "image_height_mean"),
    ),
    **dict.fromkeys(
        ("audio_length_stddev", "audio_sample_rates", "audio_batch_size", "audio_format"),
        ("audio_length_mean",),
    ),
    "prefix_prompt_length": ("num_prefix_prompts",),
    **dict.fromkeys(
        ("session_turns_stddev", "session_turn_delay_mean", "session_turn_delay_stddev"),
        ("session_turns_mean",),
    ),
    "prefill_concurrency_ramp_duration": ("prefill_concurrency",),
    "gpu_hour": ("gpus",),
}
"""For each field, the fields of which one must be set so that it matters, and those (with ``!``)
of which none may be. A field that the command line set is never hidden, as the page sends nothing
of a hidden one."""
LABELS: Final = {
    "synthetic_input_tokens_mean": "Prompt length, tokens",
    "output_tokens_mean": "Response length, tokens",
    "prefill_concurrency": "Prefill limit",
    "prefill_concurrency_ramp_duration": "Ramp of the prefill limit, seconds",
    "request_rate": "Requests per second",
    "objective": "Best by",
    "slo_preset": "Preset SLOs",
    "stage_duration": "Duration of a stage, seconds (least..most)",
    "replay_speedup": "Faster by this factor",
    "fixed_schedule_start_offset": "From this time of the trace, ms",
    "fixed_schedule_end_offset": "Up to this time of the trace, ms",
    RULES_FIELD: "SLOs, one per line",
}
"""The labels of fields whose names say too little."""
WORDS: Final = {
    "num": "number of", "max": "maximum", "slo": "SLO", "gpu": "GPU", "gpus": "GPUs",
    "stddev": "standard deviation",
    "seq": "length", "dist": "mix",
}  # fmt: skip
"""The words of fields' names, as labels have them."""


class FormField(msgspec.Struct, frozen=True):
    """A field of the page."""

    name: str
    label: str
    kind: str
    """text, whole, number, rules, sweep, switch, list or dataset."""
    value: str = ""
    """Empty: not set."""
    default: str = ""
    help: str = ""
    flag: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """(value, text) of a list."""
    needs: str = ""
    """Names as in DEPENDS, with blanks between."""

    @property
    def is_set(self) -> bool:
        """Its value differs from its default."""
        return self.value not in ("", self.default)

    @property
    def counts(self) -> bool:
        """Fields that depend on it matter: it is set, or its switch is on."""
        return self.value == "true" if self.kind == "switch" else self.is_set


class FormGroup(msgspec.Struct, frozen=True):
    """A group of the page."""

    title: str
    fields: tuple[FormField, ...]

    @property
    def section(self) -> str:
        """The section for those of its fields that a goal needs."""
        return SECTIONS.get(self.title, SECTIONS["Server"])


class RuleMetric(msgspec.Struct, frozen=True):
    """A metric of rules, as a row of the page offers it."""

    word: str
    name: str
    units: tuple[str, ...]
    has_statistic: bool
    less_is_better: bool


def build_form_groups(
    options: Namespace, extra: Mapping[str, dict[str, Any]], datasets: Datasets, host: str
) -> list[FormGroup]:
    """The form, with the values of the last run, else of the command line.

    ``extra`` has the fields of Locust's form, with the locustfile's own. ``host`` is Locust's.
    Raises OSError where the file of rules cannot be read.
    """
    groups: dict[str, list[FormField]] = {title: [] for title in (*GROUPS.values(), OTHERS)}
    groups["Load"] += _of_users(options)
    groups["Prompts"] += [_scenario(options), _dataset(options, datasets)]
    groups["Server"].append(
        FormField(
            "host",
            "Address",
            "text",
            host,
            "needed",
            flag="-H",
            help="Of the server, such as localhost:8000",
        )
    )
    for option in FIELDS.values():
        if option.in_form and (not option.repeated or option.dest == RULES_FIELD):
            groups[GROUPS.get(option.group, OTHERS)].append(_field(option, options))
    shown = find_visible_fields(list(chain.from_iterable(groups.values())))
    for fields in groups.values():
        fields[:] = [
            replace(field, needs="") if field.is_set and field.name not in shown else field
            for field in fields
        ]
    if own := select_locustfile_fields(extra):
        groups[LOCUSTFILE] = [_make_locustfile_field(name, field) for name, field in own.items()]
    return [FormGroup(title, tuple(fields)) for title, fields in groups.items()]


def list_rule_metrics() -> list[RuleMetric]:
    """The metrics that a row can hold. Those with conditions, and those of answers, are written as
    text. No form has disruptions or cancellations."""
    as_text = (*GIVEN, *OF_ANSWERS, *OF_WHOLE_RUN)
    return [_describe_metric(measure) for measure in MEASURES if measure.word not in as_text]


def _describe_metric(measure: RuleMeasure) -> RuleMetric:
    return RuleMetric(
        measure.word,
        _name_metric(measure),
        tuple(unit for unit in measure.units if unit),
        measure.metric is not None,
        measure.less_is_better,
    )


def _name_metric(measure: RuleMeasure) -> str:
    if measure.metric is not None:
        return measure.metric.short or measure.metric.label
    return capitalise_sentence(measure.spoken_name)


def list_command_line_flags() -> list[tuple[str, str]]:
    """(flag, help) of each option that no page can set."""
    shown = (SCENARIO_FIELD, INPUT_FIELD)  # by fields of another name
    return [
        (option.flag, option.help)
        for option in FIELDS.values()
        if option.dest not in shown
        and (not option.in_form or (option.repeated and option.dest != RULES_FIELD))
    ]


VALUES: Final[Mapping[type, type | tuple[type, ...]]] = {
    int: int,
    float: (int, float),
    bool: bool,
}
"""What run.json has of an option of this kind; of all others a text."""
NOT_REPEATED: Final = ("random_seed", INPUT_FIELD)
"""What a run like another does not take from it: its words, which a cache may know, and a file that
may not be offered here."""


def take_settings(options: Namespace, settings: Mapping[str, Any]) -> Namespace:
    """The options with the settings of a past run. What it does not have, or what is of another
    kind, stays as it is."""
    filled = Namespace(**vars(options))
    for option in FIELDS.values():
        name = option.dest
        if not option.in_form or name in NOT_REPEATED or name not in settings:
            continue
        value = settings[name]
        if name == RULES_FIELD:
            filled.slo = [rule for rule in value or () if isinstance(rule, str)]
        elif value is None or isinstance(value, VALUES.get(option.kind, str)):
            setattr(filled, name, value)
        elif isinstance(value, list) and all(isinstance(one, int | float) for one in value):
            setattr(filled, name, ",".join(map(format_quoted_number, value)))
    users = settings.get("users")
    seconds = settings.get("run_time_s")
    filled.llm_users = users if isinstance(users, int) else None
    filled.llm_run_time = seconds if isinstance(seconds, int | float) else None
    if filled.llm_run_time is None:
        filled.run_time = None
    return filled


def find_visible_fields(fields: Sequence[FormField]) -> set[str]:
    """The names of the fields that the page does not hide, as static/new_run.js decides it. A
    hidden field counts as not given."""
    shown = {field.name for field in fields}
    before = set[str]()
    while shown != before:
        before = shown
        on = {field.name for field in fields if field.name in shown and field.counts}
        shown = {field.name for field in fields if _matters(field, on)}
    return shown


def _matters(field: FormField, on: set[str]) -> bool:
    needs = field.needs.split()
    wanted = {name for name in needs if not name.startswith("!")}
    unwanted = {name.removeprefix("!") for name in needs if name.startswith("!")}
    return not unwanted & on and (not wanted or bool(wanted & on))


# -- fields ----------------------------------------------------------------------------------------


def _of_users(options: Namespace) -> Iterator[FormField]:
    users, rate, run_time = read_requested_load(options)
    yield FormField(
        "user_count", "Users", "whole", str(users or ""), USERS_BY_DEFAULT, flag="-u",
        help="Concurrent sessions. Empty: 1, and with a request rate or a trace as many as needed. "
            "A sweep of concurrency sets them itself",
    )  # fmt: skip
    yield FormField(
        "run_time", "Run time (s, or with a unit)", "text", str(run_time or ""), "until Stop",
        flag="-t",
        help="Seconds, or 10m or 1h20m, without the warmup",
    )  # fmt: skip
    yield FormField(
        "spawn_rate", "Users started per second", "number", _number(rate) if rate else "",
        "over one response time", flag="-r",
        help="Empty: users of a closed loop start evenly over one response time, which a request "
            "before the load measures. The number of users: all start at once",
    )  # fmt: skip


def _scenario(options: Namespace) -> FormField:
    choices = list_scenario_choices(options)
    chosen = find_chosen_scenario(options)
    about = "Fills in the fields that it sets, with its SLOs. What was typed stays"
    _, _, description = dict(choices).get(chosen, "").partition(": ")
    return FormField(
        SCENARIO_FIELD, "Scenario", "list", chosen, flag="--scenario",
        help=f"{description}. {about}" if description else about, choices=tuple(choices),
    )  # fmt: skip


def _dataset(options: Namespace, datasets: Datasets) -> FormField:
    where = (
        "Files of this machine are offered with --web-host 127.0.0.1, --web-login or "
        "--web-datasets FOLDER"
    )
    if datasets.folder is not None:
        where = f"The list has files below {datasets.folder.name or 'the working directory'}"
    return FormField(
        DATASET_FIELD, "Dataset", "dataset", datasets.choice_of(options.input_file),
        flag="--input-file",
        help=f"ShareGPT, OpenAI-style JSONL, a trace or an access log. {where}. An upload has at "
            f"most "
        f"{MAX_UPLOAD_BYTES >> 20} MB and is removed when this program ends",
        choices=(("", "none: synthetic prompts"), *datasets.choices()),
    )  # fmt: skip


def _field(option: Option, options: Namespace) -> FormField:
    name = option.dest
    default = format_option_default(option)
    about = option.help
    value = getattr(options, name)
    kind = {int: "whole", float: "number", bool: "switch"}.get(option.kind, "text")
    text = ""
    if value not in (None, ()):
        text = _number(value) if kind in ("whole", "number") else str(value)
    choices: tuple[tuple[str, str], ...] = ()
    if kind == "switch":
        text = str(bool(value)).lower()
        default = str(bool(option.default)).lower()
    elif name in CHOICES:
        kind = "list"
        choices = (
            ("", default or NO_CHOICE),
            *((choice, choice) for choice in CHOICES[name] if choice not in (None, default)),
        )
    elif name == RULES_FIELD:
        kind = "rules"
        text = "\n".join(read_given_rules(options))
        about = RULES_HELP
    elif name == SWEEP_FIELD:
        kind = "sweep"
        about = AXES_HELP
    example = (
        f", e.g. {option.example}"
        if option.example and kind in ("text", "whole", "number", "rules")
        else ""
    )
    return FormField(
        name, _label(option), kind, "" if text == default and kind != "switch" else text, default,
        f"{about}{example}", option.flag, choices, " ".join(DEPENDS.get(name, ())),
    )  # fmt: skip


def _number(value: float) -> str:
    """The number as a person writes it, with all its digits."""
    text = format_quoted_number(value)
    return text if float(text) == value else str(value)


def _label(option: Option) -> str:
    if label := LABELS.get(option.dest):
        return label
    words = " ".join(WORDS.get(word, word) for word in option.dest.split("_"))
    unit = f", {option.unit}" if option.unit.islower() and option.unit not in words else ""
    return words[0].upper() + words[1:] + unit


def _make_locustfile_field(name: str, field: Mapping[str, Any]) -> FormField:
    """The field of a flag of the locustfile."""
    value = field["default_value"]
    choices = field.get("choices") or ()
    kind = "list" if choices else "text"
    text = str(value)
    if isinstance(value, bool):
        kind = "switch"
        text = text.lower()
    elif isinstance(value, list):
        text = ",".join(map(str, value))
    return FormField(
        name, capitalise_sentence(name.replace("_", " ")), kind, "" if value is None else text,
        help=field.get("help_text") or "", flag=f"--{name.replace('_', '-')}",
        choices=tuple((str(choice), str(choice)) for choice in choices),
    )  # fmt: skip
