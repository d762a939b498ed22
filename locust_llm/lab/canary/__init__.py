"""Canary: one slow stream on a shared server measures the load of other clients.

Read first: canary_arithmetic.py (the arithmetic), then canary_session.py (a session, round by
round) and canary_command.py (the command).
"""
