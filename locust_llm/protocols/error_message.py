"""Error message: the text of a server's error, from an event, a body or a page, as one line."""

import re
from contextlib import suppress
from typing import Any, Final

from locust_llm.text.sanitise import sanitise_text

from .error_forms import (
    find_error_message,
    read_error_message,
)
from .lenient_json import decode_lenient_json

NO_MESSAGE: Final = "an error without a message"
MAX_MESSAGE_BYTES: Final = 1 << 16
"""A longer error body is a page or no message. Its JSON is not read, as the objects made of it may
be large."""
DATA: Final = re.compile(rb"^data: ?(.+)$", re.MULTILINE)
FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:")
"""The begin of an error's body that is an event stream."""


def choose_error_message(error: Any, data: bytes) -> str:
    """``error`` is a field of ``data``, which may have more of the message beside it."""
    if isinstance(error, dict | list) and error and (message := error_text(error)):
        return message
    with suppress(ValueError, RecursionError):
        text = (
            read_error_message(decode_lenient_json(data))
            if len(data) <= MAX_MESSAGE_BYTES
            else None
        )
        if text and (message := sanitise_text(text)):
            return message
    message = error_text(error) if error else ""
    # what has control characters alone is no message
    return message or status_message(data) or NO_MESSAGE


def error_text(error: Any) -> str:
    """The message in an error, which servers write as an object, a list, a string or anything
    else."""
    try:
        return sanitise_text(find_error_message(error) or str(error))
    except RecursionError:
        return "an error nested too deeply"


def error_line(body: bytes) -> str:
    """``body`` as one line of at most 4 kB, without control characters."""
    return sanitise_text(body)


def status_message(body: bytes) -> str:
    """The message of an error response: from its JSON, whatever its shape, else its text."""
    if len(body) > MAX_MESSAGE_BYTES:
        return error_line(body)
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    # the error of a stream that did not begin
    if FIELD.match(text) and (event := DATA.search(text)):
        text = event[1]
    try:
        return error_text(decode_lenient_json(text))
    except (ValueError, RecursionError):
        return error_line(text)
