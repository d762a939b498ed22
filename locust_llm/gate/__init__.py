"""Gate: the limit on concurrent prefills, in one process and over all of them.

Read first: gate.py (the queue of one process), then shares.py (how several processes share the
limit), ramp.py.
"""
