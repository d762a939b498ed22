"""Page registry: pages of the web UI that other parts of the package make: a table from the name to
the function.

A function is imported when somebody opens its page, so a load test imports none of them.
"""

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

MakePage = Callable[[Path], str]
"""Returns the HTML for the folder of the runs."""

WEB_PAGES: Final = {"history": "locust_llm.lab.history.history_web_page:make_page"}
"""The function by name. The page is at ``/llm/<name>``, and ``locust-llm <name>`` shows the
same."""


def load_page(name: str) -> MakePage:
    """Import the function that makes this page."""
    make: MakePage = pkgutil.resolve_name(WEB_PAGES[name])
    return make
