"""Fixtures of whole runs: a simulator, and a web UI with a browser that looks at it."""

from support.runs import server  # noqa: F401  a fixture
from support.web_ui import busy_server, web  # noqa: F401  fixtures
