"""Traces: recordings of agents' sessions, a file for each format.

Begin with trace_formats.py: the formats, and which rows are one session.
"""
