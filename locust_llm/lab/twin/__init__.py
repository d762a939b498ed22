"""Twin: a performance model of a server, fitted from outside by a probe and a sweep, answers
what-if questions.

Read first: model.py (the parts of a twin), then observations.py (the measurements), fit.py (the
fit) and predict.py (predictions). All of it runs in virtual time, on the simulator's schedulers.
"""
