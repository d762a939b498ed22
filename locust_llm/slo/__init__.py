"""SLO: the grammar of rules, the metrics that they name, percentiles, binomial intervals, the
health of the load generator.

Read first: rules.py (one rule, from text to a frozen object, and all rules of a run),
metric_definitions.py (every metric). The rules of a run are judged in report/judge_slo.py. Pure
functions of numbers and text, without numpy, as the load generator uses them too.
"""
