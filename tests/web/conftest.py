"""Fixtures of the web pages: Locust's web UI with ours in it, in a folder of its own."""

from support.web_pages import _nothing_set, pages  # noqa: F401  fixtures
