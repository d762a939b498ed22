"""Refused request fields: the fields that a server refuses, and their replacements."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.settings.run_options import Settings

STREAM_OPTIONS: Final = "stream_options"
_NAMES_OPTIONS: Final = re.compile(
    r"stream.?options|include_usage|continuous_usage_stats", re.IGNORECASE
)
_REFUSES: Final = re.compile(
    r"un(supported|recogni[sz]ed|known|expected)|(not|n't) "
    r"(supported|recogni[sz]ed|known|permitted|allowed|accepted|valid)|"
    r"\bextra\b|extra_forbidden|forbidden|invalid|additional propert|instead",
    re.IGNORECASE,
)
REFUSED: Final = (400, 422)
"""The status of a server that does not accept a field. Others send it for what they cannot do at
all."""


class RequestForm(msgspec.Struct, frozen=True):
    """How requests to a server differ from the settings."""

    without: tuple[str, ...] = ()
    """Fields that are left out."""
    max_tokens_field: str = ""
    """The field that limits the answer. Empty: the settings' own."""

    def fields(self, settings: Settings) -> dict[str, Any]:
        """The arguments for ``encode_request_pieces``."""
        return {
            "max_tokens_field": self.max_tokens_field or settings.max_tokens_field,
            "without": self.without,
        }

    def notes(self, settings: Settings, message: str) -> Iterator[str]:
        """What the user must know. ``message`` is the server's."""
        for change in _changes(settings):
            why = f" ({message.rstrip('.')})" if _is_named(change, settings, message) else ""
            if change.without and self.without:
                yield (
                    f"the server refuses stream_options{why}: requests leave it out, and if a "
                    "response has no usage, each chunk counts as one token"
                )
            if change.max_tokens_field and self.max_tokens_field:
                yield (
                    f"the server refuses {find_length_field(settings)}{why}: requests use "
                    f"{self.max_tokens_field} instead, as with --max-tokens-field "
                    f"{self.max_tokens_field}"
                )


def added_form_changes(known: RequestForm, form: RequestForm) -> RequestForm:
    """The changes in ``form`` beyond ``known``."""
    return RequestForm(
        () if known.without else form.without,
        "" if known.max_tokens_field else form.max_tokens_field,
    )


def find_length_field(settings: Settings) -> str:
    """The settings' field that limits the answer. Empty: there is none."""
    own = PROTOCOLS[settings.endpoint_type].length_fields
    return settings.max_tokens_field if settings.max_tokens_field in own else next(iter(own), "")


def list_other_forms(settings: Settings, message: str) -> Iterator[RequestForm]:
    """The forms to try where the settings' request is refused. What the message names comes
    first."""
    changes = sorted(
        _changes(settings), key=lambda change: not _is_named(change, settings, message)
    )
    yield from changes
    if len(changes) > 1:
        yield _joined(*changes)


def is_about_form_field(settings: Settings, message: str) -> bool:
    """Whether the message is about a field that another form leaves out or renames."""
    return any(_is_named(change, settings, message) for change in _changes(settings))


def learn_from_refusal(
    form: RequestForm, settings: Settings, status: int | None, message: str
) -> RequestForm:
    """The form after a refusal during the load, by its message alone. It is unchanged where the
    message is about something else."""
    if status not in REFUSED or not _REFUSES.search(message):
        return form
    for change in _changes(settings):
        if _is_named(change, settings, message):
            form = _joined(form, change)
    return form


def _changes(settings: Settings) -> list[RequestForm]:
    return [
        change
        for change in (_without_options(settings), _other_length(settings))
        if change is not None
    ]


def _joined(first: RequestForm, second: RequestForm) -> RequestForm:
    return RequestForm(
        first.without or second.without, first.max_tokens_field or second.max_tokens_field
    )


def _without_options(settings: Settings) -> RequestForm | None:
    sent = settings.streaming and STREAM_OPTIONS in PROTOCOLS[settings.endpoint_type].stream_fields
    return RequestForm(without=(STREAM_OPTIONS,)) if sent else None


def _other_length(settings: Settings) -> RequestForm | None:
    own = find_length_field(settings)
    others = [name for name in PROTOCOLS[settings.endpoint_type].length_fields if name != own]
    return RequestForm(max_tokens_field=others[0]) if others else None


def _is_named(change: RequestForm, settings: Settings, message: str) -> bool:
    if change.without and _NAMES_OPTIONS.search(message):
        return True
    field = change.max_tokens_field
    return bool(field) and any(
        re.search(rf"\b{name}\b", message) for name in (field, find_length_field(settings))
    )
