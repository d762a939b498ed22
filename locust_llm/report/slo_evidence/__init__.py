"""SLO evidence: what each rule measures in a run, and between which values the truth lies.

Begin with observed_rule_values.py (the value of a rule), then read confidence_intervals.py.
report/judge_slo.py decides from both: PASS, FAIL or INCONCLUSIVE. The rules themselves are in slo/.
"""
