"""OpenTelemetry: spans, metrics and logs of the requests of one process, sent beside Locust's own.

Begin with telemetry_sender.py, the end in the load generator. Then read exporting_process.py, which
does the rest in its own process and imports neither Locust nor gevent.
"""
