"""Workload: what is sent and when: arrivals, lengths, prompts, datasets, traces, conversations.

Read first: arrivals.py (when requests are due), then dataset.py (sessions of a file) and prompts.py
(synthetic ones). No clock and no network: a schedule is a function of settings and a seed.
"""
