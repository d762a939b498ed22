"""SLO of a report: what each rule measures, its interval, and its verdict.

Begin with observed_rule_values.py (the value of a rule), then read judge_slo.py (PASS, FAIL or
INCONCLUSIVE) and intervals.py.
"""
