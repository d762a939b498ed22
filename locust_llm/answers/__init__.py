"""Answers: whether the answers are right while the server is under load.

Begin with session_markers.py (whether an answer holds what belongs to another session), then read
answer_integrity.py (what is wrong in one answer, by name) and reference_answer.py (answers to the
same prompt, idle and under load). There is no clock and no network: an answer goes in, and what is
wrong with it comes out.
"""
