"""History: the folders of past runs as a memory: their index, the changes that are real, and how
both are shown.

Read first: entry.py (what is kept of a run), then workload_key.py (which runs are comparable) and
change_points.py.
"""
