"""Spans: what a server reports of its own times by OpenTelemetry. It is read from exports and
joined to requests by trace id.

Begin with trace_ids.py (the trace id of a request), then read join_spans.py.
"""
