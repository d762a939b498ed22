"""Protocols: how requests are written and answers read, one small file per API of a server.

Read first: protocol.py (the seam), answer.py (what a protocol fills), then any of the others. The table: docs/protocols.md.
May use: core. ``event`` is on the hot path: microseconds a chunk count.
"""
