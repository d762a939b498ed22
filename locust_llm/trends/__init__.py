"""Trends: what changes in a series of values: shifts of its level, its slope with an interval, and
whether it keeps growing.

Read first: steady_growth.py, then slope_interval.py. change_points.py finds shifts. soak_judgement.py
applies them to the readings of a server under load, which soak_readings.py describes.
"""
