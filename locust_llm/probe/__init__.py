"""Probe: the scheduler of a server, found from outside: requests, schedule, symptoms, diagnosis, advice.

Read first: schedule.py (the experiments), then symptoms.py and diagnosis.py (what follows from their stamps).
May use: core, slo. Pure: the user that carries it out is probe_user.py at the top.
"""
