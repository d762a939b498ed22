"""Interop: results of other load testers, read, imported, audited, compared, and written in their
formats.

load_metrics.py is the one shape of a result, imported.py that of its requests; each tool has a file
or a folder of its own.
"""
