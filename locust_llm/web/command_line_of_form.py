"""Command line of form: the command line that does what a form of a run asks for."""

import shlex
from argparse import Action, BooleanOptionalAction, Namespace
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final

from locust import argument_parser

from werkzeug.datastructures import MultiDict

from locust_llm.locust_adapter.command_line_parser import read_given_rules
from locust_llm.locust_adapter.scenario_defaults import list_scenario_defaults, scenario_rules
from locust_llm.locust_adapter.start_locust import LOCUSTFILES
from locust_llm.settings.option_declaration import Option, parser_default
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.settings.scenario_file import SCENARIO_FILE

from .dataset_choices import FILE, UPLOAD, Datasets
from .locust_form import FIELDS, has_arms, read_requested_load

RUN_COMMAND: Final = ("locust-llm", "run")
AB_COMMAND: Final = ("locust-llm", "ab")
HEADLESS: Final = "--headless"
RULES_FIELD: Final = "slo"
CANDIDATE_FIELD: Final = "candidate"
CHANGES_FIELD: Final = "candidate_set"
ARM_FIELDS: Final = (CANDIDATE_FIELD, CHANGES_FIELD)
"""The fields of a comparison of two arms, which the page shows as a command and cannot start."""
HEADER_CHANGE: Final = "header:"
GRACE_S: Final = 30.0
"""The grace period that nobody gave."""
IN_OTHER_WORDS: Final = (
    "scenario", "input_file", *ARM_FIELDS, "slo_file", "verbose", "report_dir", "web_datasets",
    "web_allowed_host",
)  # fmt: skip
"""Options that the command has, or whose values it has, or that change no run."""


def add_arms(options: Namespace, form: MultiDict[str, str]) -> Namespace:
    """The options with the two arms of the form, whose fields are taken out of it. Raises
    Refused."""
    address = form.pop(CANDIDATE_FIELD, "").strip()
    lines = list(filter(None, map(str.strip, form.pop(CHANGES_FIELD, "").splitlines())))
    if any(line.startswith(HEADER_CHANGE) for line in lines):
        refuse_run(
            "--candidate-set header:... may be a secret, which no page takes: add it to the command, "
            "or to LOCUST_LLM_CANDIDATE_SET"
        )
    changed = Namespace(**vars(options))
    if address:
        changed.candidate = address
    if lines:
        changed.candidate_set = lines
    return changed


def find_actions(names: Collection[str]) -> list[Action]:
    """The actions of Locust's parser for these options, which are a locustfile's own."""
    if not names:
        return []
    return [action for action in argument_parser.get_parser()._actions if action.dest in names]


class FormCommand:
    """The command line of a run with these options of a form. ``own_actions`` are of the
    locustfile's own options that are not secret."""

    def __init__(
        self, options: Namespace, datasets: Datasets, own_actions: Sequence[Action] = ()
    ) -> None:
        self._options, self._datasets, self._own_actions = options, datasets, own_actions

    def format(self) -> str:
        """The line, without what is at its default. The key and the headers are not in it, nor the
        path of a file that the page does not show."""
        options = self._options
        words = [*AB_COMMAND] if has_arms(options) else [*RUN_COMMAND, HEADLESS]
        if names := self._locustfiles:
            words += ["-f", names]
        words += [*options.user_classes, *_list_load_words(options)]
        words += self._list_arm_words()
        if options.input_file:
            words += ["--input-file", self._name_dataset()]
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
        for action in self._own_actions:
            words += self._list_own_words(action) or []
        for flag, tags in (("--tags", options.tags), ("--exclude-tags", options.exclude_tags)):
            words += [flag, *tags] if tags else []
        return shlex.join(words)

    def list_notes(self) -> Iterator[str]:
        """Sentences on what the line needs, or lacks, to start the same run."""
        options = self._options
        if names := self._locustfiles:
            yield f"Run the command in the folder of {names}."
        if options.master and not options.processes:
            yield "Add --master and --expect-workers, and start the workers as you did for this page."
        if options.input_file and self._datasets.choice_of(options.input_file).startswith(UPLOAD):
            yield f"{self._name_dataset()} is your upload: run the command in the folder of that file."
        elif options.input_file:
            yield f"Run the command in the folder from which {self._name_dataset()} can be found."
        if (options.scenario or "").endswith(SCENARIO_FILE):
            yield f"Run the command in the folder of {options.scenario.rpartition('/')[2]}."
        left_out = [*self._list_withheld_flags(), *self._list_unwritten_flags()]
        if left_out:
            yield f"Set for this program, but not in the command: {', '.join(left_out)}."

    @property
    def _locustfiles(self) -> str:
        """The names of the user's own locustfiles, with commas between. Empty: it is ours."""
        given = [Path(path.strip()) for path in (self._options.locustfile or "").split(",")]
        if given[0].parent == LOCUSTFILES:
            return ""
        return ",".join(path.name for path in given)

    def _name_dataset(self) -> str:
        path = str(self._options.input_file)
        choice = self._datasets.choice_of(path)
        return choice.removeprefix(FILE) if choice.startswith(FILE) else path.rpartition("/")[2]

    def _list_arm_words(self) -> Iterator[str]:
        if self._options.candidate:
            yield from ("--candidate", self._options.candidate)
        for change in self._options.candidate_set:
            if not change.startswith(HEADER_CHANGE):
                yield from ("--candidate-set", change)

    def _list_withheld_flags(self) -> Iterator[str]:
        """The given options that no page shows."""
        if any(change.startswith(HEADER_CHANGE) for change in self._options.candidate_set):
            yield "--candidate-set header:NAME=VALUE"
        for option in FIELDS.values():
            is_shown = option.in_form and not option.repeated
            if is_shown or option.dest in (*IN_OTHER_WORDS, RULES_FIELD):
                continue
            if getattr(self._options, option.dest) not in (parser_default(option), [], None):
                yield option.flag

    def _list_own_words(self, action: Action) -> list[str] | None:
        """None: how this value is written is not known."""
        value = getattr(self._options, action.dest, action.default)
        names = action.option_strings
        if value == action.default or not names:
            return []
        if isinstance(action, BooleanOptionalAction):
            wanted = [name for name in names if name.startswith("--no-") != bool(value)]
            return wanted[:1] or None
        if action.nargs == 0:
            return [names[-1]] if value == action.const else None
        return None if isinstance(value, list | NoneType) else [f"{names[-1]}={_write(value)}"]

    def _list_unwritten_flags(self) -> Iterator[str]:
        for action in self._own_actions:
            if self._list_own_words(action) is None:
                yield action.option_strings[-1]


def _list_load_words(options: Namespace) -> Iterator[str]:
    users, rate, run_time = read_requested_load(options)
    grace_s = options.stop_timeout
    given = {
        "--base" if has_arms(options) else "--host": options.host, "-u": users, "-r": rate,
        "-t": run_time, "-s": None if grace_s == GRACE_S else grace_s,
        "--processes": options.processes,
    }  # fmt: skip
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
