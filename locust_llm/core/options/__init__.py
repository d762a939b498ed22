"""Options: every setting of a run, declared once: flag, variable, range, form field and docs derive from it.

Read option.py first; the settings themselves are in core/settings.py.
"""
