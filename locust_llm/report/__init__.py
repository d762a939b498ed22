"""Report: records to percentiles, tables, plots, exports and verdicts, after the run, in a process of its own.

Read first: build.py (a run's folder to all its files), then analysis/summarise.py (records to numbers).
May use: probe, core, slo; pandas and numpy. Needs neither Locust nor gevent: yesterday's run is read anywhere.
"""
