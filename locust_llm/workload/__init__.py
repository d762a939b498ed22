"""Workload: what is sent and when: arrivals, lengths, prompts, datasets, traces, conversations.

Begin with arrivals.py (when requests are due), then read dataset.py (sessions of a file) and
synthetic_prompts.py (synthetic ones). There is no clock and no network: a schedule is a function of
settings and a seed.
"""
