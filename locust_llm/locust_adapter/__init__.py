"""Locust adapter: all that knows Locust's insides: its parser, options, tables, messages, signals
and ends.

Read first: parser.py (our options on Locust's parser), parsed_options.py (options to settings),
before_load.py.
"""
