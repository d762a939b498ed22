"""The twin of a server: fitted from outside by a probe and a sweep, then asked what if.

Read model.py first: what a twin is made of. seen.py is what was measured, fit.py makes a twin of it, trust.py says how far
its predictions are from what was kept out of the fit, predict.py asks it. All of it runs in virtual time, on the
simulator's schedulers.
"""
