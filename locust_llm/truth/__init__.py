"""Truth: a server that knows when it sent what; it judges the load generator, so it uses nothing of it.

Read first: server.py (the process), process.py (how it is started, and how it ends). May use: nothing of ours.
"""
