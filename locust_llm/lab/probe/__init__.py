"""Probe: the scheduler of a server, found from outside by small experiments.

Read first: experiments.py (what is sent), then measurements.py and diagnosis.py (what follows from
the stamps). user.py carries it out; all else is pure.
"""
