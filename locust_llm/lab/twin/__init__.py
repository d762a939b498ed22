"""Twin: a performance model of a server, fitted from outside by a probe and a sweep, answers
what-if questions.

Read first: twin_model.py (the parts of a twin), then server_observations.py (the measurements),
twin_fit.py (the fit) and twin_prediction.py (predictions). All of it runs in virtual time, on the
simulator's schedulers.
"""
