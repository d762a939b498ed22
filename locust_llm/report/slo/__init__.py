"""SLO of a report: what each rule measures, its interval, and its verdict.

Read first: observed.py (the value that a rule is about), then judge.py (PASS, FAIL or INCONCLUSIVE)
and intervals.py.
"""
