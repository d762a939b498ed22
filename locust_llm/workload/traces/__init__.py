"""Traces: recordings of agents' sessions, a file for each format.

Read first: registry.py (which formats there are, and which rows are one session).
"""
