"""Audit: which values of a result cannot be true together; the rules are in shape.py and
flow.py."""
