"""Settings: every setting of a run, declared once. Flag, variable, range, form field and docs
derive from it.

Begin with option_declaration.py, then read run_options.py (all of them) and settings_validation.py
(impossible runs).
"""
