"""Spans: what a server says of its own times by OpenTelemetry, read from its exports and joined to requests by trace id.

Read first: ids.py (the trace id of a request), then join.py.
May use: msgspec, and opentelemetry-proto where it is installed.
"""
