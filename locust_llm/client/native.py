"""The native part, _reader.c: None each where it was not compiled, or LOCUST_LLM_READER=python asks for the Python reader."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from .sse import Event

if TYPE_CHECKING:
    from ._reader import Reader as NativeThread

Reader: "type[NativeThread] | None" = None
plain_events: Callable[[list[bytes], int], tuple[list[Event], int, int]] | None = None

if os.environ.get("LOCUST_LLM_READER") != "python":
    try:
        from ._reader import Reader, plain_events
    except ImportError:  # no compiler where this was installed
        pass
