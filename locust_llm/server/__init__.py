"""Server: the server under test: discovery, identity, what it refuses, its metrics, its spans.

Read first: survey.py (what is asked before a run), discovery.py, then refusals.py (why a run cannot
be).
"""
