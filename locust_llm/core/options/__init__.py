"""Options: every setting of a run, declared once: flag, variable, range, form field and docs derive from it.

Read option.py first; fields.py holds those of the load and the server, prompt_fields.py and rule_fields.py theirs.
"""
