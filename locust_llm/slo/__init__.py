"""SLO: the grammar of rules, the metrics that they name, confidence intervals, the verdict on the
load generator.

Read first: rules.py (one rule, from text to a frozen object, and all rules of a run),
metric_definitions.py (every metric). Pure functions of numbers and text, without numpy, as the load
generator uses them too.
"""
