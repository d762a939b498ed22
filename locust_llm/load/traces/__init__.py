"""Traces: recordings of agents' sessions, a file for each format.

Read kinds.py first: which formats there are, and which rows are one session. trees.py of load says who waits for whom.
"""
