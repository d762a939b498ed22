"""Settings: every setting of a run, declared once: flag, variable, range, form field and docs
derive from it.

Read first: declare.py (what an option is), settings.py (all of them), validate.py (which cannot
make a run).
"""
