"""Canary: one slow stream on a shared server measures the load of other clients.

Read first: model.py (the arithmetic), then watch.py (a session, round by round) and cli.py (the
command).
"""
