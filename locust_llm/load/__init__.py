"""Load: what is sent and when: arrival schedules, lengths, prompts, datasets and traces, conversations.

Read first: arrivals.py (when requests are due), then dataset.py (sessions of a file) and prompts.py (synthetic ones).
May use: nothing of ours. No clock and no network: a schedule is a function of settings and a seed.
"""
