"""Client: one request, from the connection to its record: send, stream, stamps, record.

Read first: exchange.py (the way of a request), reader/_reader.c (how a chunk is stamped),
answer.py (what chat() returns). This is the hot path: stamp first, decode later.
"""
