"""Gate: the limit on concurrent prefills, in one process and over all of them.

Begin with gate.py, the queue of one process. Then read shares.py (how several processes share the
limit) and ramp.py.
"""
