"""SLO: the grammar of rules, the catalogue of metrics, confidence intervals, the client verdict.

Read first: grammar.py (one rule, from text to a frozen object), rules.py (all of a run), metrics.py (every metric).
May use: nothing of ours. Pure functions of numbers and text; no numpy, as the load generator asks here too.
"""
