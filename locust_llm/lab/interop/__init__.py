"""Interop: results of other load testers are read, imported, audited, compared, and written in
their formats.

Each tool has a file of its own. Read first: tool_format.py (what such a file contains), then
tool_registry.py (the table of the tools). load_metrics.py describes a result, imported_records.py
its requests, in one form for all tools.
"""
