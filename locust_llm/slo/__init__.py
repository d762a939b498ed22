"""SLO: the grammar of rules, the metrics that they name, confidence intervals, the verdict on the
load generator.

Read first: grammar.py (one rule, from text to a frozen object), rules.py (all of a run), metrics.py
(every metric). Pure functions of numbers and text, without numpy, as the load generator uses them
too.
"""
