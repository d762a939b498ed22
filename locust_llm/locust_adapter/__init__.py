"""Locust adapter: all that knows Locust's insides: its parser, options, tables, messages, signals
and ends.

Read first: parsed_options.py (our options on Locust's parser, and what was parsed as settings).
"""
