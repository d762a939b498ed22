"""Sections of a report: a file or a folder for each idea, with its data, numbers, text and chart.

In a folder model.py is the data, analysis.py makes it from records, text.py words it, chart.py
draws it.
"""
