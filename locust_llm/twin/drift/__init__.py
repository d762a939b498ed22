"""Drift: is a server still the one that a twin was fitted to. Traits of some loads, held against the twin's own in virtual
time; changes.py has what may have moved, check.py decides."""
