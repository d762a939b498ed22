"""Plots: figures as data, drawn by one script on pages and as SVG: over time, distributions, sweeps, the timeline.

Read first: model.py (what a plot is), then timeline.py (requests line by line) and svg.py (the timeline as a picture).
May use: report/analysis, probe, core, slo.
"""
