"""Probe: small experiments find a server's scheduler from outside.

Read first: probe_experiments.py (what is sent), then probe_measurements.py and
scheduler_diagnosis.py (what follows from the stamps). user.py sends the requests, and all other
files are pure.
"""
