"""Telemetry: spans, metrics and logs of the requests of one process, sent by OpenTelemetry beside Locust's own.

Read first: telemetry.py (the end in the load generator), then process.py, which does all the rest in a process of its own.
May use: core, opentelemetry-sdk where it is installed; never Locust or gevent in process.py and what it imports.
"""
