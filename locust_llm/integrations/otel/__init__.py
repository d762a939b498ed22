"""OpenTelemetry: spans, metrics and logs of the requests of one process, sent beside Locust's own.

Read first: telemetry.py (the end in the load generator), then process.py, which does the rest in a
process of its own and imports neither Locust nor gevent.
"""
