"""Accuracy: a reference server with known send times, against which the load generator's own times
are checked.

reference_server.py uses the standard library only, since it judges the rest. reference_process.py
starts and ends it.
"""
