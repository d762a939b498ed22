"""Traces: recordings of agents' sessions, a file for each format.

Begin with registry.py: the formats, and which rows are one session.
"""
