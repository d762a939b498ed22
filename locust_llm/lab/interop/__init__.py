"""Interop: results of other load testers, read, imported, audited, compared, and written in their
formats.

Each tool has a file of its own. Read first: tool_format.py (what such a file says), then
registry.py (the table of the tools). load_metrics.py is the one shape of a result, imported.py the
one shape of its requests.
"""
