"""Locust adapter: everything that depends on Locust's internals: its parser, options, tables,
messages, signals and ends.

Begin with parsed_options.py (our options on Locust's parser, and the parsed options as settings).
"""
