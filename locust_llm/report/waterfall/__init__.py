"""Waterfall: a request's time, part by part, each with its owner and its source; and who owns the time of the slow ones.

``parts.py`` splits the time to the first token, ``decode.py`` the time after it, so that the parts add up to the stamps.
``price.py`` has the price of a prompt, ``blame.py`` compares slow with typical requests, ``slowest.py`` shows single ones.
"""
