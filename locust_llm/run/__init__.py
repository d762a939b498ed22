"""Run: a load test from its flags to its end: options, checks before the load, and what master and workers share.

Read first: options.py (flags to settings), then control/control.py (the master) and worker/sender.py (a process that sends).
May use: client, core, load, slo. control may use worker; worker never control.
"""
