"""Probe: small experiments find a server's scheduler from outside.

Read first: experiments.py (what is sent), then measurements.py and diagnosis.py (what follows from
the stamps). user.py sends the requests, and all other files are pure.
"""
