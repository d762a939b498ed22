"""Drift: whether a server is still the one that a twin was fitted to.

Read first: load_features.py (what of a load is compared), then changes.py (what may have moved) and
check.py (the decision).
"""
