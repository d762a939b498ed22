"""Locust adapter: everything that depends on Locust's internals: its parser, options, tables,
messages, signals and ends.

Begin with command_line_parser.py (our options on Locust's parser, and the parsed options as
settings).
"""
