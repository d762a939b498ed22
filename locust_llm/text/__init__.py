"""Text: text from outside made safe to show, numbers read and written, the console, the log of a CI
job.

Read first: sanitise.py (what may be shown of foreign text), then format.py (how values are
written).
"""
