"""Trends: what changes in a series of values: shifts of its level, its slope with an interval, and
whether it keeps growing. All functions are pure.

Read first: steady_growth.py, then slope_interval.py. change_points.py finds shifts.
"""
