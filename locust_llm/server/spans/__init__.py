"""Spans of the server: a receiver of OTLP/HTTP in a process of its own, and its other end in the
run.

Begin with span_receiver.py (in the run), then read span_receiver_process.py.
"""
