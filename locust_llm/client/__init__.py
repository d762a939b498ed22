"""Client: one request, all the way: connection, prefill gate, send, streamed response, record.

Read first: exchange.py (the way of a request), gate.py (the prefill gate), reader.py (how a chunk is stamped),
answer.py (what chat() returns).
May use: protocols, core. This is the hot path: stamp first, decode later; microseconds a chunk count.
"""
