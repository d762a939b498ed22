"""Canary: one slow stream on a shared server, and what other people's requests do to it.

Read first: model.py (the arithmetic), then watch.py (a session, round by round) and cli.py (the
command).
"""
