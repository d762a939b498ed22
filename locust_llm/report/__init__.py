"""Report: records to percentiles, tables, charts, exports and verdicts, after the run, in a process
of its own.

Begin with write_report_files.py (a run's folder to all its files), then read summarise_metrics.py
(records to numbers) and report_document.py (the sections in their order). It needs neither Locust
nor gevent, so that any run can be read anywhere.
"""
