"""Disconnect: the work of a server for clients who left.

Read first: ghost_tokens.py (the arithmetic), then disconnect_rounds.py (what is sent) and
disconnect_command.py (the command).
"""
