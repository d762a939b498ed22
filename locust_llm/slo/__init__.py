"""SLO: the words a rule is made of: its grammar, the catalogue of metrics, confidence intervals, the client verdict.

Read first: grammar.py (one rule, from text to a frozen object), then metrics.py (every metric and its definition).
May use: nothing of ours. Pure functions of numbers and text; no numpy, as the load generator asks here too.
"""
