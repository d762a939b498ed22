"""Analysis: records to numbers: columns, percentiles, goodput, knees, SLO results, comparison, interference.

Read first: columns.py (records as arrays), then summarise.py (all figures of a run) and judge.py (rules to PASS or FAIL).
May use: probe, core, slo. Every figure is a function of the records; nothing is drawn or worded for a page here.
"""
