"""Server: the server under test: discovery, identity, what it refuses, its metrics, its spans.

Begin with server_survey.py (queries before a run), then read discovery.py and refusals.py (why a
run is impossible).
"""
