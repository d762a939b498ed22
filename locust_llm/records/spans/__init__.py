"""Spans: what a server reports of its own times by OpenTelemetry, read from exports and joined to
requests by trace id.

Read first: trace_ids.py (the trace id of a request), then join.py.
"""
