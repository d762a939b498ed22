"""Settings: every setting of a run, declared once. Flag, variable, range, form field and docs
derive from it.

Begin with declare.py (an option), then read settings.py (all of them) and validate.py (impossible
runs).
"""
