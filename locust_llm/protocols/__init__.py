"""Protocols: how requests are written and responses read, one small file for each API of a server.

Read first: protocol.py (what each protocol provides), completion.py (what a response becomes), then
any of the others.
"""
