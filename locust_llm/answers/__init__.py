"""Answers: whether the answers are right while the server is under load.

Begin with session_markers.py (whether an answer holds what belongs to another session). There is no
clock and no network: an answer goes in, and what is wrong with it comes out.
"""
