"""Plan: how many replicas hold an SLO with one lost, what they cost, and when to add and to remove one.

Read arrivals.py first: what comes over a day. replicas.py asks the twin what one replica holds, cost.py counts money.
"""
