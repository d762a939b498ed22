"""Latency parts: the time of a request part by part, and where slow requests spend theirs.

parts.py splits the time to the first token, slow_vs_typical.py compares slow requests with typical
ones, slowest.py shows single ones.
"""
