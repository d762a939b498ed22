"""The native part, _reader.c: each None where it was not compiled from the source that is here, or
LOCUST_LLM_READER=python asks for the other reader."""

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from locust_llm.client.sse import Alike, Event

if TYPE_CHECKING:
    from ._reader import Reader as NativeThread

INTERFACE: Final = 2
"""Of the part in C, the same as there: what was compiled from an older source, and left in a
checkout, is not used."""

Reader: "type[NativeThread] | None" = None
plain_events: (
    Callable[[list[bytes], int, bytes, bytes], tuple[list[Event | Alike], int, int]] | None
) = None

if os.environ.get("LOCUST_LLM_READER") != "python":
    with suppress(ImportError):  # no compiler where this was installed
        _compiled = import_module(
            "._reader", __package__
        )  # not by a statement, as import-linter knows Python files alone
        if getattr(_compiled, "INTERFACE", None) == INTERFACE:
            Reader, plain_events = _compiled.Reader, _compiled.plain_events
