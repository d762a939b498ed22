"""Sections of a report: a file or a folder for each idea, with its data, numbers, text and chart.

Begin with section.py (what a section declares) and section_registry.py (all that stand alone).
"""
