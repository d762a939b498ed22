"""Plan: how many replicas hold an SLO with one lost, what they cost, and when to add and to remove
one.

Read first: arrivals.py (what comes over a day), then replicas.py (what one replica holds) and
cost.py.
"""
