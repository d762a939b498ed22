"""Spans of the server as they come: a receiver of OTLP/HTTP in a process of its own, and its other
end in the run.

Read first: receiver.py (in the run), then receiver_process.py.
"""
