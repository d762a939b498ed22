"""Twin: a performance model of a server, fitted from outside by a probe and a sweep, then asked
what if.

Read first: model.py (what a twin is made of), then observations.py (what was measured), fit.py (how
a twin is made of it) and predict.py (how it is asked). All of it runs in virtual time, on the
simulator's schedulers.
"""
