"""History: an index of past runs shows which changes between them are real.

Read first: history_entry.py (what the index keeps of a run), then workload_key.py (which runs are
comparable). The search for changes is in trends/change_points.py.
"""
