"""Waterfall: a request's time, part by part, each with its source; and where the slow requests spend theirs.

``parts.py`` splits the time to the first token, ``breakdown.py`` compares slow with typical requests, ``slowest.py`` shows
single ones, ``histograms.py`` has what the server's own metrics say of all together.
"""
