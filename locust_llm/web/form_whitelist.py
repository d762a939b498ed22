"""Form whitelist: the fields that a form may have, and no others.

Locust's own view accepts any option of the command line from a form: files that it writes at the
end, the number of its processes, its exit status, and which flags are secret. So every name is
checked here before any value.
"""

import math
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from locust import argument_parser
from locust.env import Environment

import msgspec
from flask import Request
from werkzeug.datastructures import MultiDict

from locust_llm.locust_adapter.command_line_parser import OPTIONS, list_secret_flags
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.text.numbers import truncate_quoted_text

from .locust_form import DATASET_FIELD, FIELDS

FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
LOCUST_FIELDS: Final = ("user_count", "spawn_rate", "host", "run_time")
"""The fields of Locust's form."""
PICKED: Final = ("user_classes", "shape_class")
"""The fields of its class picker."""
LABEL_FIELD: Final = "profile"
"""Locust's own page always sends this field, which must be unchanged."""
NO_SHAPE: Final = "Default"
MAX_TEXT_CHARS: Final = 1 << 15
"""The characters of a value. Rules of that length take 0.2 s to read."""
SHOWN_CHARS: Final = 60
"""The characters of a name in a refusal."""
TAKEN_KINDS: Final = (bool, int, float, str, list, type(None))
"""The types that the value of a locustfile's own flag may have: what a text can become."""
USER_ROUTE: Final = "user_class_name, host, weight, fixed_count and tasks"


class UserEdit(msgspec.Struct, forbid_unknown_fields=True):
    """The class picker's changes of a user class."""

    user_class_name: str
    host: str | msgspec.UnsetType | None = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    fixed_count: int | msgspec.UnsetType = msgspec.UNSET
    tasks: list[str] | msgspec.UnsetType = msgspec.UNSET


class Whitelist:
    """The whitelist of one process. ``picks_classes``: Locust's class picker is on."""

    def __init__(
        self, environment: Environment, options: Namespace, *, picks_classes: bool
    ) -> None:
        self._environment, self._options, self._picks_classes = environment, options, picks_classes
        self._own: dict[str, dict[str, Any]] | None = None

    @property
    def own_flags(self) -> Mapping[str, dict[str, Any]]:
        """The locustfile's own flags that the page shows; none of them is secret."""
        if self._own is None:  # parsing takes some 50 ms, and the flags stay
            self._own = select_locustfile_fields(argument_parser.ui_extra_args_dict())
        return self._own

    def check(self, request: Request, only_shown: Collection[str] = ()) -> MultiDict[str, str]:
        """The fields of a form, which may all be set. ``only_shown``: more fields, of a request that
        sets nothing. Raises Refused."""
        if request.args:
            refuse_run("the form of a run must send its fields in the body, not in the address")
        if request.mimetype not in FORM_TYPES and (request.mimetype or request.get_data()):
            refuse_run(
                f"a run must be started by a form ({FORM_TYPES[0]}), got "
                f"{_quoted(request.mimetype or 'no type')}"
            )
        if request.files:
            refuse_run(
                f"the form of a run takes no files, got {_quoted(next(iter(request.files)))}"
            )
        form = MultiDict(
            (self._name(name), value) for name, value in request.form.items(multi=True)
        )
        for name, values in form.lists():
            if name not in only_shown:
                # a part of a multipart form may have none
                self._check_name(name or "", values)
            self._check_values(name, values)
        unset = [
            name for name in self.own_flags if isinstance(getattr(self._options, name, None), list)
        ]
        for name in (LABEL_FIELD, *(name for name in unset if not form.get(name))):
            form.pop(name, None)
        return form

    def for_locust(self, form: MultiDict[str, str]) -> MultiDict[str, str]:
        """The fields that Locust's own view reads."""
        taken = {"spawn_rate", *PICKED, *self.own_flags}
        return MultiDict((name, value) for name, value in form.items(multi=True) if name in taken)

    def _name(self, name: str) -> str:
        if self._shows(name):
            return name
        return next((own for own in self.own_flags if spell_in_camel_case(own) == name), name)

    def _shows(self, name: str) -> bool:
        """Our command-line-only options are refused where the others are read."""
        picked = name in PICKED and self._picks_classes
        return (
            picked
            or name in FIELDS
            or name in (*LOCUST_FIELDS, DATASET_FIELD)
            or name in self.own_flags
        )

    def _check_name(self, name: str, values: list[str]) -> None:
        if self._shows(name):
            return
        if name == LABEL_FIELD and not any(
            value and value != self._options.profile for value in values
        ):
            return
        flag = name.strip().lower().strip("-").replace("-", "_")
        if flag in list_secret_flags():
            refuse_run(
                f"--{flag.replace('_', '-')} is secret: set it on the command line or in the "
                "environment, not on a page"
            )
        if self._shows(flag):
            refuse_run(f"the form of a run has no field {_quoted(name)}: did you mean {flag}?")
        if flag in vars(self._options):
            refuse_run(f"--{flag.replace('_', '-')} works on the command line only")
        refuse_run(f"the form of a run has no field {_quoted(name)}")

    def _check_values(self, name: str, values: list[str]) -> None:
        own = self.own_flags.get(name)
        several = name == "user_classes" or (
            own is not None and isinstance(getattr(self._options, name, None), list)
        )
        if len(values) > 1 and not several:
            refuse_run(
                f"the form of a run has the field {_quoted(name)} {len(values)} times: send it once"
            )
        if any(len(value) > MAX_TEXT_CHARS for value in values):
            refuse_run(
                f"the field {_quoted(name)} is too long: at most {MAX_TEXT_CHARS:,} characters"
            )
        if name == "user_classes":
            _check_known(name, values, self._environment.available_user_classes or ())
        elif name == "shape_class":
            _check_known(
                name, values, (NO_SHAPE, *(self._environment.available_shape_classes or ()))
            )
        elif own is not None:
            _check_own(name, values, own, getattr(self._options, name, None))

    def check_user(self, body: bytes, keep_key: Callable[[str], None]) -> None:
        """Check a change of a user class from the class picker. ``keep_key`` refuses an address
        that may not get the key. Raises Refused."""
        try:
            edit = msgspec.json.decode(body, type=UserEdit)
        except (msgspec.DecodeError, RecursionError, ValueError) as wrong:
            refuse_run(f"a change of a user class must be a JSON object with {USER_ROUTE}: {wrong}")
        _check_known(
            "user_class_name",
            [edit.user_class_name],
            self._environment.available_user_classes or (),
        )
        if edit.weight is not msgspec.UNSET and not (
            math.isfinite(edit.weight) and edit.weight >= 0
        ):
            refuse_run(f"the weight of a user class must be at least 0, got {edit.weight:g}")
        if edit.fixed_count is not msgspec.UNSET and edit.fixed_count < 0:
            refuse_run(
                f"the fixed count of a user class must be at least 0, got {edit.fixed_count}"
            )
        if edit.tasks is not msgspec.UNSET:
            there = (self._environment.available_user_tasks or {}).get(edit.user_class_name, [])
            _check_known("tasks", edit.tasks, [getattr(task, "__name__", "") for task in there])
        if edit.host is not msgspec.UNSET and edit.host:
            keep_key(edit.host)


COMMAND_LINE: Final = frozenset(option.dest for option in OPTIONS)


def select_locustfile_fields(extra: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The locustfile's own fields of Locust's form (``extra_options`` of its template), without the
    secret ones."""
    return {
        name: field
        for name, field in extra.items()
        if name not in COMMAND_LINE and not field.get("is_secret")
    }


def spell_in_camel_case(name: str) -> str:
    """The name after Locust's own page has turned it into camel case and back: ``top_1`` for
    ``top1``."""
    camel = re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)
    if camel[:1] == camel[:1].upper():
        return camel
    return re.sub("([a-z0-9])([A-Z0-9])", r"\1_\2", camel).lower()


def _check_known(name: str, values: list[str], known: Any) -> None:
    for value in values:
        if value not in known:
            refuse_run(
                f"{name}: there is no {_quoted(value)}; there is "
                f"{', '.join(sorted(known)) or 'none'}"
            )


def _check_own(name: str, values: list[str], field: Mapping[str, Any], now: Any) -> None:
    """Locust answers a value that it cannot convert with HTTP 500, and does not look at the
    choices."""
    flag = f"--{name.replace('_', '-')}"
    if type(now) not in TAKEN_KINDS:
        refuse_run(f"{flag} works on the command line only")
    several = isinstance(now, list)
    if several and len(values) == 1:
        values = values[0].split(",") if values[0] else []
    choices = [str(choice) for choice in field.get("choices") or ()]
    for value in values:
        if choices and value and value not in choices:
            refuse_run(f"{flag} must be one of {', '.join(choices)}, got {_quoted(value)}")
        if several and all(isinstance(user_class, int) for user_class in now):
            try:
                int(value)
            except ValueError:
                refuse_run(
                    f"{flag} must be whole numbers separated by commas, got {_quoted(value)}"
                )


def _quoted(text: str) -> str:
    return repr(truncate_quoted_text(text, SHOWN_CHARS))
