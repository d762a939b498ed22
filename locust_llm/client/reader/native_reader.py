"""Native reader: the native part, _reader.c. Its names are None where it was not compiled from the
present source, or where LOCUST_LLM_READER=python asks for the other reader."""

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from locust_llm.client.sse import Event, SameFormChunks

if TYPE_CHECKING:
    from ._reader import Reader as NativeThread

INTERFACE: Final = 2
"""The version of the C interface, as _reader.c has it. A module that was compiled from an older
source is not used."""

Reader: "type[NativeThread] | None" = None
plain_events: (
    Callable[[list[bytes], int, bytes, bytes], tuple[list[Event | SameFormChunks], int, int]] | None
) = None

if os.environ.get("LOCUST_LLM_READER") != "python":
    with suppress(ImportError):  # no compiler where this was installed
        _compiled = import_module(
            "._reader", __package__
        )  # not by a statement, as import-linter knows Python files alone
        if getattr(_compiled, "INTERFACE", None) == INTERFACE:
            Reader, plain_events = _compiled.Reader, _compiled.plain_events
