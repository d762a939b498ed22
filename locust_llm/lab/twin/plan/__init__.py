"""Plan: how many replicas hold an SLO with one lost, what they cost, and when to add and to remove
one.

Read first: plan.py (what comes over a day, what one replica holds, what it costs).
"""
